"""AFL: Mohri et al., "Agnostic Federated Learning", ICML 2019: min over w, max over lambda.

Differs: clients train locally from w instead of sending one gradient. Mohri has no partial
participation: here lambda has one entry per client; a round adds lam * loss to the entries of its
participants, projects the whole vector onto the simplex and weighs the round by its participants'
share, or uniformly where they hold no mass. Public code weighs a round by lambda as it was before
that round's losses (weights=old) or after (weights=new).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    Needs,
    Replies,
    State,
    Strategy,
    bounded_product,
    param,
    require_finite,
    uniform_weights,
)
from fedmaba.strategies.simplex import effective_count, project, widen


@dataclass(frozen=True)
class AFL(Strategy):
    """weights climb the losses by projected gradient ascent with step lam"""

    name: ClassVar[str] = "afl"
    title: ClassVar[str] = "AFL"
    deploy: ClassVar[str] = "average"  # the paper's guarantee is for the mean of all server models
    lam: float = param(0.05, low=0)
    weights: Literal["old", "new"] = "old"

    def needs(self) -> Needs:
        return Needs(loss="start")

    def init(self, n_clients: int) -> State:
        return {"lambda": np.full(n_clients, 1.0 / n_clients)}

    def join(self, state: State, n_clients: int) -> State:
        return {"lambda": widen(state["lambda"], n_clients)}

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return 1.0  # the weights may all go to one client

    def weigh(self, state: State, replies: Replies) -> Decision:
        weight = state["lambda"]
        moved = weight.copy()
        moved[replies.client] += bounded_product(self.lam, require_finite(replies.loss, "loss"))
        moved = project(moved)
        coef = (moved if self.weights == "new" else weight)[replies.client]
        coef = coef / coef.sum() if coef.sum() > 0.0 else uniform_weights(replies)
        return Decision(coef, {"lambda": moved}, {"effective": effective_count(coef)})
