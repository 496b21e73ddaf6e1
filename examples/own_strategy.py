"""Your own algorithm is one class: numbers in, coefficients out.

python examples/own_strategy.py
fedmaba compare fedavg own_strategy.PowerOfLoss:power=2 --rounds 10   (from this folder)
"""

from dataclasses import dataclass
from typing import ClassVar

import fedmaba


@dataclass(frozen=True)
class PowerOfLoss(fedmaba.Strategy):
    """weights proportional to a power of the loss at the server's model"""

    name: ClassVar[str] = "power"
    power: float = fedmaba.param(1.0, low=0)

    def needs(self) -> fedmaba.Needs:
        return fedmaba.Needs(loss="start")

    def weigh(self, state: dict, replies: fedmaba.Replies) -> fedmaba.Decision:
        weight = replies.loss**self.power
        return fedmaba.Decision(weight / weight.sum(), state)


if __name__ == "__main__":
    print(fedmaba.compare(["fedavg", PowerOfLoss(2.0)], rounds=10, eval_every=5, seeds=1))
