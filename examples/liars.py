"""What clients that lie about their loss can do to the others, and what helps.

python examples/liars.py          six rounds, one seed
python examples/liars.py all      every row of docs/algorithms/fedmaba.md, three seeds
python examples/liars.py full     the same at the paper's size: Fashion-MNIST, 100 clients; on a GPU
"""

import sys
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

import fedmaba
from fedmaba.strategies import FedMABA


@dataclass(frozen=True)
class Liars(FedMABA):
    """FedMABA where the first clients train honestly, but report another loss than theirs"""

    name: ClassVar[str] = "liars"
    many: int = 2
    lie: Literal["huge", "triple", "worst"] = "huge"

    def weigh(self, state: dict, replies: fedmaba.Replies) -> fedmaba.Decision:
        loss, liar = replies.loss, replies.client < self.many
        lies = {"huge": 1e6, "triple": 3 * loss, "worst": loss[~liar].max()}
        said = np.where(liar, lies[self.lie], loss)
        return super().weigh(state, replace(replies, loss=said))


def rows(tenth: int) -> list[Liars | str]:
    """A tenth of the clients lies; in the last two rows three tenths."""
    few = [Liars(many=tenth, trust=trust) for trust in ("all", "usual")]
    return [
        *("fedavg", "fedmaba", *few, "fedmaba:rho=0.1", Liars(many=tenth, rho=0.1)),
        "fedmaba:trust=usual",
        *(replace(one, lie=lie) for lie in ("triple", "worst") for one in few),
        *(replace(one, many=3 * tenth) for one in few),
    ]


SMALL = {"clients": 20, "rounds": 6, "seeds": 1}
ALL = {"clients": 20, "rounds": 16, "seeds": 3}
FULL = {"data": "fashion-mnist", "clients": 100, "rounds": 1000, "dtype": "tf32"}

if __name__ == "__main__":
    size = FULL if "full" in sys.argv else ALL if "all" in sys.argv else SMALL
    tenth = size["clients"] // 10
    asked = rows(tenth)[:4] if size is SMALL else rows(tenth)
    history = fedmaba.compare(asked, eval_every=size["rounds"], **size)
    print("honest clients, deployed model: variance of accuracy, worst client; the liars' weight")
    for label in dict.fromkeys(run.label for run in history.runs):
        runs = [run for run in history.runs if run.label == label]
        many = 3 * tenth if f"many={3 * tenth}" in label else tenth
        honest = [100 * run.accuracy()[-1, many:] for run in runs]
        variance, worst, mean = np.mean([(a.var(), a.min(), a.mean()) for a in honest], axis=0)
        weight = np.mean([run.weights()[-1, :many].sum() for run in runs])
        print(f"{label:31} {variance:6.1f} %²  {worst:5.1f} %  {weight:.2f}  mean {mean:.1f} %")
