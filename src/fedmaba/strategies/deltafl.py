"""Delta-FL: Pillutla et al., "Federated Learning with Superquantile Aggregation for Heterogeneous
Data", Machine Learning 2024 (first as Simplicial-FL, Laguel et al. 2020).

theta is the conformity level of the paper: max over weights pi_i <= a_i / theta of sum pi_i F_i, so
the share theta of the clients with the largest losses counts. theta = 1 is FedAvg, theta -> 0 the
worst client alone. It is the superquantile (CVaR) of the losses at level 1 - theta.
Differs: the maximum is taken over the participants of a round, exactly. Clients with equal losses
at the edge of the tail share what is left in proportion to a_i.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.strategies.averaging import average_weights, largest_average_weight
from fedmaba.strategies.base import Decision, Needs, Replies, State, Strategy, param, require_finite
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class DeltaFL(Strategy):
    """only the share theta of the clients with the largest losses counts (superquantile, CVaR)"""

    name: ClassVar[str] = "deltafl"
    title: ClassVar[str] = "Δ-FL"
    theta: float = param(0.5, above=0, high=1)
    weights: Literal["size", "uniform"] = "size"

    def needs(self) -> Needs:
        return Needs(loss="start")

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return min(1.0, largest_average_weight(self.weights, n, share) / self.theta)

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss = require_finite(replies.loss, "loss")
        share = average_weights(self.weights, replies)
        order = np.argsort(-loss, kind="stable")
        mass = np.cumsum(share[order])
        last = min(int(np.searchsorted(mass, self.theta)), len(loss) - 1)
        edge = float(loss[order[last]])  # the quantile: clients above it have their full weight
        coef = np.where(loss > edge, share / self.theta, 0.0)
        tied = loss == edge
        coef[tied] = share[tied] / share[tied].sum() * (1.0 - coef.sum())
        return Decision(coef, state, {"quantile": edge, "effective": effective_count(coef)})
