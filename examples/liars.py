"""What clients that lie about their loss can do to the others, and what a smaller rho costs.

python examples/liars.py      one seed; docs/algorithms/fedmaba.md has three
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

import fedmaba
from fedmaba.strategies import FedMABA

LIARS = 2  # of 20 clients: these train honestly, but say that their loss is enormous


@dataclass(frozen=True)
class Liars(FedMABA):
    """FedMABA among liars"""

    name: ClassVar[str] = "liars"

    def weigh(self, state: dict, replies: fedmaba.Replies) -> fedmaba.Decision:
        said = np.where(replies.client < LIARS, 1e6, replies.loss)
        return super().weigh(state, replies=replace(replies, loss=said))


if __name__ == "__main__":
    rows = ["fedavg", "fedmaba", Liars(), "fedmaba:rho=0.1", Liars(rho=0.1)]
    history = fedmaba.compare(rows, clients=20, rounds=16, eval_every=16, seeds=1)
    print("honest clients, deployed model: variance of accuracy, worst client, liars' weight")
    for label in dict.fromkeys(run.label for run in history.runs):
        runs = [run for run in history.runs if run.label == label]
        honest = [100 * run.accuracy()[-1, LIARS:] for run in runs]
        variance, worst = np.mean([(a.var(), a.min()) for a in honest], axis=0)
        weight = np.mean([run.weights()[-1, :LIARS].sum() for run in runs])
        print(f"{label:16} {variance:6.1f} %²  {worst:5.1f} %  {weight:.2f}")
