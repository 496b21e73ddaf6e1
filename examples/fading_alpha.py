"""FedMABA whose alpha fades: does it keep the paper's rate and the fairness, too?

docs/theory/measured.md has the answer. The command that it shows, from this folder:

fedmaba compare fedavg fedmaba:alpha=[0.25,0.5] fading_alpha.Fading:alpha=[0.5,1] --data cifar10 \
--model cnn --partition shards:2 --clients 100 --participants 10 --rounds 1000 --seeds 5
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import fedmaba
from fedmaba.strategies import FedMABA


@dataclass(frozen=True)
class Fading(FedMABA):
    """FedMABA with alpha (1 + round)^-decay in each round"""

    name: ClassVar[str] = "fading"
    title: ClassVar[str] = "Fading FedMABA"
    decay: float = fedmaba.param(0.25, low=0)

    def weigh(self, state: dict, replies: fedmaba.Replies) -> fedmaba.Decision:
        now = self.alpha * (1 + replies.round) ** -self.decay
        return FedMABA.weigh(replace(self, alpha=now), state, replies)


if __name__ == "__main__":
    print(fedmaba.compare(["fedavg", "fedmaba", Fading(), Fading(alpha=1.0)], rounds=5, seeds=1))
