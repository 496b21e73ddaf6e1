"""What clients that lie about their loss can do to the others, and what helps.

python examples/liars.py          six rounds, one seed
python examples/liars.py all      every row of docs/algorithms/fedmaba.md, three seeds
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


ROWS = ["fedavg", "fedmaba", Liars(), Liars(trust="usual")]
MORE = [
    *("fedmaba:rho=0.1", Liars(rho=0.1), "fedmaba:trust=usual"),
    *(Liars(lie=lie, trust=trust) for lie in ("triple", "worst") for trust in ("all", "usual")),
    *(Liars(many=6, trust=trust) for trust in ("all", "usual")),
]

if __name__ == "__main__":
    rows, rounds, seeds = (ROWS + MORE, 16, 3) if "all" in sys.argv else (ROWS, 6, 1)
    history = fedmaba.compare(rows, clients=20, rounds=rounds, eval_every=rounds, seeds=seeds)
    print("honest clients, deployed model: variance of accuracy, worst client; the liars' weight")
    for label in dict.fromkeys(run.label for run in history.runs):
        runs = [run for run in history.runs if run.label == label]
        many = 6 if "many=6" in label else 2
        honest = [100 * run.accuracy()[-1, many:] for run in runs]
        variance, worst = np.mean([(a.var(), a.min()) for a in honest], axis=0)
        weight = np.mean([run.weights()[-1, :many].sum() for run in runs])
        print(f"{label:31} {variance:6.1f} %²  {worst:5.1f} %  {weight:.2f}")
