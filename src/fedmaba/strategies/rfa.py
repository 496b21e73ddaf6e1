"""RFA: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions
on Signal Processing 2022: the geometric median of the clients' models by smoothed Weiszfeld steps.

Differs: the paper weighs clients by their examples (weights=fedavg); here all count alike unless
`weights` says otherwise, because a client could lie about its examples. The paper leaves open where
the steps begin: here at the model that was sent, as a mean may lie far away at the first one.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import Decision, Replies, State, param, require_finite
from fedmaba.strategies.behind import Robust, distances


@dataclass(frozen=True)
class RFA(Robust):
    """the point with the least sum of distances to the clients' models"""

    name: ClassVar[str] = "rfa"
    title: ClassVar[str] = "RFA"
    steps: int = param(3, low=1)  # type: ignore[assignment]  # of Weiszfeld in a round
    nu: float = param(1e-6, above=0)  # a smaller distance counts as this one

    def weigh(self, state: State, replies: Replies) -> Decision:
        votes, state, info = super().weigh(state, replies)
        coef = np.zeros(len(votes))
        for _ in range(self.steps):
            near = votes / np.maximum(
                distances(require_finite(replies.gram, "gram"), coef), self.nu
            )
            coef = near / near.sum()
        return Decision(coef, state, info)
