"""GIFAIR-FL: Yue et al., "GIFAIR-FL: A Framework for Group and Individual Fairness in Federated
Learning", INFORMS Journal on Data Science 2023.

The objective adds lambda times the sum of |F_i - F_j| over pairs of clients; its gradient weighs
client i by p_i + lambda r_i, where r_i counts the clients with a smaller loss minus those with a
larger one. The weights stay positive below lambda_max = min p_i / (m - 1); lam is a share of it.
on="loss" multiplies a client's local loss by 1 + lambda r_i / p_i, as in the paper, and weighs
changes by p_i; on="change" multiplies the change instead: the same for one local step.
Differs: on="change" is the default. Each client is a group of its own. p, m and lambda_max are
those of the round's participants.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    FloatArray,
    Guide,
    Needs,
    Replies,
    State,
    Strategy,
    param,
    require_finite,
    size_weights,
)
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class GIFAIR(Strategy):
    """a client's weight grows with the number of clients that have a smaller loss"""

    name: ClassVar[str] = "gifair"
    title: ClassVar[str] = "GIFAIR-FL"
    lam: float = param(0.9, low=0, high=1)
    on: Literal["change", "loss"] = "change"

    def needs(self) -> Needs:
        return Needs(loss="start", guided=self.on == "loss")

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return min(1.0, share + self.lam / n)  # the smallest share is at most 1 / n

    def weigh(self, state: State, replies: Replies) -> Decision:
        fair = self._fair_weights(replies)
        coef = fair if self.on == "change" else size_weights(replies)
        return Decision(coef, state, {"effective": effective_count(fair)})

    def guide(self, replies: Replies, decision: Decision) -> Guide:
        return Guide(scale=self._fair_weights(replies) / decision.coef)

    def _fair_weights(self, replies: Replies) -> FloatArray:
        loss, share = require_finite(replies.loss, "loss"), size_weights(replies)
        ordered = np.sort(loss)
        below = np.searchsorted(ordered, loss, "left")
        above = len(loss) - np.searchsorted(ordered, loss, "right")
        step = self.lam * float(share.min()) / max(len(loss) - 1, 1)
        return np.asarray(share + step * (below - above))
