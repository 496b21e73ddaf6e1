"""FedDG-GA: Zhang, Xu, Yao, Zhang, Wang, "Federated Domain Generalization with Generalization
Adjustment", CVPR 2023. A client gains weight if averaging costs it more than others.

A client's gap is its loss at the server's model minus that of its own model before the average.
Weights of all clients move by d / N times the centred gaps over the largest of them, then are cut
off at 0 and 1 and scaled to the sum 1. Over `rounds` rounds d falls to 0.
Differs: losses are over training examples. A client without a gap yet moves as the mean of the
others; a client's last own model may be older than one round. `rounds` must be said.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    SMALLEST_NORMAL,
    Decision,
    Needs,
    Replies,
    State,
    Strategy,
    param,
    require_finite,
)
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class FedDGGA(Strategy):
    """a client gains weight if the average is worse for it than its own model was"""

    name: ClassVar[str] = "feddgga"
    title: ClassVar[str] = "FedDG-GA"
    d: float = param(0.2, low=0, high=1)
    rounds: int = param(0, low=0)  # type: ignore[assignment]  # over which d falls to 0; 0: never

    def needs(self) -> Needs:
        return Needs(loss="start", loss_after=True)

    def init(self, n_clients: int) -> State:
        # weights, the loss of each client's last own model, and whether it has told one
        return {
            "a": np.full(n_clients, 1.0 / n_clients),
            "own": np.zeros(n_clients),
            "told": np.zeros(n_clients),
        }

    def join(self, state: State, n_clients: int) -> State:
        new = n_clients - len(state["a"])
        grown = {name: np.append(values, np.zeros(new)) for name, values in state.items()}
        a = np.append(state["a"], np.full(new, state["a"].mean()))
        return grown | {"a": a / a.sum()}

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss = require_finite(replies.loss, "loss")
        after = require_finite(replies.loss_after, "loss after training")
        who, a = replies.client, state["a"].copy()
        own, told = state["own"].copy(), state["told"].copy()
        known = told[who] > 0
        gap = np.where(known, loss - own[who], 0.0)
        if known.any():
            gap = np.where(known, gap - gap[known].mean(), 0.0)
        largest = float(np.abs(gap).max())
        if largest > SMALLEST_NORMAL:
            left = max(1.0 - replies.round / self.rounds, 0.0) if self.rounds else 1.0
            a[who] = np.clip(a[who] + left * self.d / len(a) * gap / largest, 0.0, 1.0)
            a /= a.sum()
        own[who], told[who] = after, 1.0
        mass = float(a[who].sum())
        coef = a[who] / mass if mass > 0.0 else np.full(len(who), 1.0 / len(who))
        state = {"a": a, "own": own, "told": told}
        return Decision(coef, state, {"effective": effective_count(coef)})
