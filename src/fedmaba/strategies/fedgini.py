"""FedGini: Li et al., "Heterogeneity-Aware Fair Federated Learning", Information Sciences 2023.

A share epsilon of the weight is the same for all m participants. The rest grows with the square of
the rank: the client with the j-th smallest loss gets a part in proportion to j (j - 1).
Differs: the paper was not at hand. The rule is what its two public copies have in common (see
docs/algorithms/fedgini.md), but the largest loss has the largest weight: the copies order the
losses the other way round, which serves the clients that are best served already. Clients with
equal losses share the parts of their ranks.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import Decision, Needs, Replies, State, Strategy, param, require_finite
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class FedGini(Strategy):
    """a client's weight grows with the square of its loss's rank"""

    name: ClassVar[str] = "fedgini"
    title: ClassVar[str] = "FedGini"
    epsilon: float = param(0.5, low=0, high=1)

    def needs(self) -> Needs:
        return Needs(loss="start")

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return self.epsilon / n + (1.0 - self.epsilon) * min(1.0, 3.0 / (n + 1))

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss = require_finite(replies.loss, "loss")
        m = len(loss)
        below = np.arange(m)  # clients with a smaller loss: 0 for the best served one
        part = np.cumsum(2.0 * below)  # j (j - 1), exactly
        part = part / part.sum() if m > 1 else np.ones(1)
        _, place, many = np.unique(loss, return_inverse=True, return_counts=True)
        tied = np.bincount(np.repeat(np.arange(len(many)), many), part) / many
        coef = self.epsilon / m + (1.0 - self.epsilon) * tied[place]
        return Decision(coef, state, {"effective": effective_count(coef)})
