"""FedMGDA+: Hu et al., "Federated Learning Meets Multi-Objective Optimization", IEEE TNSE 2022.

Normalised changes g_i; mu = argmin |sum mu_i g_i| over the simplex within epsilon of the prior
weights; w <- w + eta decay^round sum mu_i g_i.
Differs: the prior is in proportion to the clients' examples; a change of zero length counts as a
zero vector instead of a division by zero. `decay` below 1 anneals the step, whose length otherwise
never falls, whatever the clients do.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    require_finite,
    size_weights,
)
from fedmaba.strategies.simplex import effective_count, min_norm


@dataclass(frozen=True)
class FedMGDA(Strategy):
    """the common descent direction of the normalised changes nearest to their average"""

    name: ClassVar[str] = "fedmgda"
    title: ClassVar[str] = "FedMGDA+"
    epsilon: float = param(0.1, low=0, high=1)
    eta: float = param(1.0, above=0)
    decay: float = param(1.0, above=0, high=1)

    def needs(self) -> Needs:
        return Needs(changes="gram")

    def total(self) -> float | None:
        return None  # the length of the step is set, not the sum

    def shown(self) -> tuple[Shown, ...]:
        return ()

    def weigh(self, state: State, replies: Replies) -> Decision:
        gram = require_finite(replies.gram, "gram matrix")
        length = np.sqrt(gram.diagonal())
        inverse = np.where(length > 1e-150, 1.0 / np.maximum(length, 1e-150), 0.0)
        mu = min_norm(gram * np.outer(inverse, inverse), size_weights(replies), self.epsilon)
        coef = self.eta * self.decay**replies.round * mu * inverse
        norm = float(np.sqrt(max(float(coef @ gram @ coef), 0.0)))
        return Decision(coef, state, {"effective": effective_count(mu), "step_norm": norm})
