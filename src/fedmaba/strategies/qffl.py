"""q-FFL: Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithms 1, 2.

With L = 1/lr and d_k = L (w - w_k): w <- w - sum F_k^q d_k / sum (q F_k^(q-1) |d_k|^2 + L F_k^q).
Both sums are divided by L max_k F_k^q here, so that no power over- or underflows.
Differs: L follows the decayed local step size, not the first round's; clients are drawn uniformly
and weighed equally, not drawn in proportion to their examples.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.strategies.base import (
    SMALLEST_NORMAL,
    Decision,
    Local,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    bounded_product,
    param,
    require_finite,
)


@dataclass(frozen=True)
class QFFL(Strategy):
    """loss to the power q as weight, with the step its Lipschitz estimate allows"""

    name: ClassVar[str] = "qffl"
    title: ClassVar[str] = "q-FFL"
    q: float = param(0.005, low=0)
    mode: Literal["avg", "sgd"] = "avg"

    def needs(self) -> Needs:
        return Needs(loss="start", changes="norms")

    def local(self) -> Local:
        return Local(full_batch=self.mode == "sgd")

    def total(self) -> float | None:
        return None  # at most 1: the step shrinks as the changes grow

    def shown(self) -> tuple[Shown, ...]:
        return ()

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss = np.maximum(require_finite(replies.loss, "loss"), 1e-10)
        norms = require_finite(replies.norms, "norms")
        power = self.q * np.log(loss)
        u = np.exp(power - power.max())  # F_k^q, scaled
        with np.errstate(over="ignore"):  # beyond 1e300 the step is none
            curve = np.minimum(
                self.q * norms / np.maximum(bounded_product(replies.lr, loss), SMALLEST_NORMAL),
                1e300,
            )
            coef = u / (u * (1.0 + curve)).sum()
        return Decision(coef, state, {"step": float(coef.sum())})
