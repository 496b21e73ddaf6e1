"""Krum and Multi-Krum: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with
Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.

Differs: the paper chooses among gradients; here clients take as many local steps as the run says,
and the server chooses among their model changes. The number f of attackers is a share of the
round's m participants. Where 2f + 2 < m does not hold, f is the largest number for which it does,
or 0.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    Combine,
    Decision,
    FloatArray,
    IntArray,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    require_finite,
)
from fedmaba.strategies.behind import Robust, square_distances
from fedmaba.strategies.combine import count_of_share

ASSUMED = Shown("assumed", "attackers assumed", "of a round's participants")


@dataclass(frozen=True)
class Krum(Strategy):
    """the one change that is nearest to its neighbours"""

    name: ClassVar[str] = "krum"
    title: ClassVar[str] = "Krum"
    share: float = param(0.2, low=0, high=0.49)  # of a round's participants that may be attackers

    def needs(self) -> Needs:
        return Needs(changes="gram")

    def combine(self) -> Combine:
        return Combine("sum")  # which leaves out changes that are not finite

    def weigh(self, state: State, replies: Replies) -> Decision:
        near, f = least_apart(replies, self.share)
        coef = np.zeros(len(near))
        coef[near[0]] = 1.0
        return Decision(coef, state, {"assumed": float(f)})

    def shown(self) -> tuple[Shown, ...]:
        return (ASSUMED,)


@dataclass(frozen=True)
class MultiKrum(Robust):
    """the mean of the changes that are nearest to their neighbours"""

    name: ClassVar[str] = "multikrum"
    title: ClassVar[str] = "Multi-Krum"
    share: float = param(0.2, low=0, high=0.49)  # of a round's participants that may be attackers

    def weigh(self, state: State, replies: Replies) -> Decision:
        near, f = least_apart(replies, self.share)
        weights, state, info = super().weigh(state, replies)
        coef = np.zeros(len(near))
        chosen = near[: len(near) - f]
        coef[chosen] = weights[chosen] / weights[chosen].sum()
        return Decision(coef, state, {**info, "assumed": float(f)})

    def shown(self) -> tuple[Shown, ...]:
        return (*(super().shown() or ()), ASSUMED)


def least_apart(replies: Replies, share: float) -> tuple[IntArray, int]:
    """The places of the changes, those nearest to their neighbours first, and f of this round."""
    gram = require_finite(replies.gram, "gram")
    f = max(0, min(count_of_share(share, len(gram)), (len(gram) - 3) // 2))
    return np.argsort(krum_scores(gram, f), kind="stable"), f


def krum_scores(gram: FloatArray, f: int) -> FloatArray:  # (m,)
    """The sum of each change's squared distances to the m - f - 2 others that are nearest to it."""
    apart = square_distances(gram)
    np.fill_diagonal(apart, np.inf)
    nearest = np.sort(apart, 1)[:, : max(len(gram) - f - 2, 0)]
    return np.asarray(nearest.sum(1))
