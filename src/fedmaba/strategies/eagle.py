"""EAGLE: Erraji, Perrot, Bellet, "Loss Gap Parity for Fairness in Heterogeneous Federated
Learning", arXiv:2603.29818, 2026. Clients are to lose equally much to what they reach alone.

The objective adds lambda/2 times the variance of the gaps r_i = F_i - F_i*, where F_i* is the best
loss that client i reaches alone; its gradient weighs client i by p_i (1 + lambda (r_i - mean r)).
Differs: F_i* is found beside the federation, not before it. Each client also trains a model alone,
and the server remembers the lowest training loss of it so far. The factor is on the client's change
and not on each local step. A weight below 0 counts as 0, and the others are scaled to the same sum.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    Local,
    Needs,
    Personal,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    require_finite,
    size_weights,
)
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class Eagle(Strategy):
    """a client's weight grows with what it loses to training alone"""

    name: ClassVar[str] = "eagle"
    title: ClassVar[str] = "EAGLE"
    lam: float = param(1.0, low=0)

    def needs(self) -> Needs:
        return Needs(loss="start", alone=True)

    def local(self) -> Local:
        return Local(personal=Personal())

    def init(self, n_clients: int) -> State:
        # the least loss alone of each client, and in how many rounds it told one
        return {"best": np.zeros(n_clients), "rounds": np.zeros(n_clients)}

    def join(self, state: State, n_clients: int) -> State:
        new = self.init(n_clients - len(state["best"]))
        return {name: np.concatenate([values, new[name]]) for name, values in state.items()}

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss = require_finite(replies.loss, "loss")
        alone = require_finite(replies.alone, "loss alone")
        who, best, rounds = replies.client, state["best"].copy(), state["rounds"].copy()
        best[who] = np.where(rounds[who] > 0, np.minimum(best[who], alone), alone)
        rounds[who] += 1
        share, gap = size_weights(replies), loss - best[who]
        mean = float(share @ gap)
        coef = share * np.maximum(1 + self.lam * (gap - mean), 0.0)
        coef /= coef.sum()
        variance = float(share @ (gap - mean) ** 2)
        info = {"effective": effective_count(coef), "gap": mean, "gap_variance": variance}
        return Decision(coef, {"best": best, "rounds": rounds}, info)

    def shown(self) -> tuple[Shown, ...]:
        return (
            Shown("gap", "What clients lose to training alone", "Mean over participants.", "gap"),
            Shown("gap_variance", "How unequal these losses are", "Variance over participants."),
        )
