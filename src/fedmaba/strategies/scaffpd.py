"""Scaff-PD: Yu, Karimireddy, Ma, Jordan, "Scaff-PD: Communication Efficient Fair and Robust
Federated Learning", arXiv:2307.13381. min over x, max over lambda, with steps corrected for drift.

The objective is sum lambda_i F_i - rho/2 N |lambda - 1/N|^2 over the simplex. lambda takes a
proximal step of size sigma along the losses, extrapolated by theta of how they changed. Local steps
are corrected by the gradients at the server's model: minus the client's own, plus the mean by
lambda. Changes are weighed by lambda.
Differs: step sizes are constant. Local gradients at the server's model are of all examples. The
paper has no partial participation: here absent clients count with the last loss that they told,
those who never told one with the participants' mean, and a round has its participants' lambda.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    Guide,
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
class ScaffPD(Strategy):
    """weights climb the losses, near equal ones, and local steps are corrected for drift"""

    name: ClassVar[str] = "scaffpd"
    title: ClassVar[str] = "Scaff-PD"
    rho: float = param(0.1, low=0)
    sigma: float = param(0.05, low=0)
    theta: float = param(1.0, low=0, high=1)

    def needs(self) -> Needs:
        return Needs(loss="start", guided=True)

    def init(self, n_clients: int) -> State:
        # weights, the last loss of each client, and whether it has told one
        nothing = np.zeros(n_clients)
        return {"lambda": np.full(n_clients, 1.0 / n_clients), "loss": nothing, "told": nothing}

    def join(self, state: State, n_clients: int) -> State:
        new = np.zeros(n_clients - len(state["loss"]))
        grown = {name: np.append(state[name], new) for name in ("loss", "told")}
        return grown | {"lambda": widen(state["lambda"], n_clients)}

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss, who = require_finite(replies.loss, "loss"), replies.client
        before, told = state["loss"], state["told"].copy()
        last = np.where(told > 0, before, loss.mean())
        climb = last.copy()
        changed = np.where(told[who] > 0, loss - before[who], 0.0)
        climb[who] = bounded_product(1.0, loss) + bounded_product(self.theta, changed)
        pull = self.sigma * self.rho
        moved = state["lambda"] + bounded_product(self.sigma, climb) + pull
        weights = project(moved / (1.0 + pull * len(moved)))
        coef = weights[who]
        coef = coef / coef.sum() if coef.sum() > 0.0 else uniform_weights(replies)
        last[who], told[who] = loss, 1.0
        state = {"lambda": weights, "loss": last * told, "told": told}
        return Decision(coef, state, {"effective": effective_count(coef)})

    def guide(self, replies: Replies, decision: Decision) -> Guide:
        return Guide(own=-1.0, mix=decision.coef)
