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
    Decision,
    FloatArray,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    require_finite,
)
from fedmaba.strategies.combine import count_of_share


@dataclass(frozen=True)
class Krum(Strategy):
    """the one change that is nearest to its neighbours"""

    name: ClassVar[str] = "krum"
    title: ClassVar[str] = "Krum"
    share: float = param(0.2, low=0, high=0.49)  # of a round's participants that may be attackers

    def needs(self) -> Needs:
        return Needs(changes="gram")

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return 1.0

    def chosen(self, m: int, f: int) -> int:
        """How many of m changes are averaged."""
        return 1

    def weigh(self, state: State, replies: Replies) -> Decision:
        gram = require_finite(replies.gram, "gram")
        m = len(replies.client)
        f = max(0, min(count_of_share(self.share, m), (m - 3) // 2))
        near = np.argsort(krum_scores(gram, f), kind="stable")[: self.chosen(m, f)]
        coef = np.zeros(m)
        coef[near] = 1.0 / len(near)
        return Decision(coef, state, {"assumed": float(f)})

    def shown(self) -> tuple[Shown, ...]:
        return (Shown("assumed", "attackers assumed", "of a round's participants"),)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """the mean of the changes that are nearest to their neighbours"""

    name: ClassVar[str] = "multikrum"
    title: ClassVar[str] = "Multi-Krum"

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return 1.0 / self.chosen(n, count_of_share(self.share, n))

    def chosen(self, m: int, f: int) -> int:
        return m - f


def krum_scores(gram: FloatArray, f: int) -> FloatArray:  # (m,)
    """The sum of each change's squared distances to the m - f - 2 others that are nearest to it."""
    norms = gram.diagonal()
    apart = np.maximum(norms[:, None] + norms - 2 * gram, 0.0)
    np.fill_diagonal(apart, np.inf)
    nearest = np.sort(apart, 1)[:, : max(len(gram) - f - 2, 0)]
    return np.asarray(nearest.sum(1))
