"""MaxFL: Cho, Jhunjhunwala, Li, Smith, Joshi, "Maximizing Global Model Appeal in Federated
Learning", TMLR 2024. As many clients as possible are to find the server's model good enough.

The objective is the mean of sigmoid(F_i - rho_i), where rho_i is the loss that client i asks for.
Its gradient weighs client i by q_i = sigmoid (1 - sigmoid) of that gap: most where a client is
nearly content, little where it is content already or out of reach. The step is eta / (sum q + eps).
Differs: rho_i is the least loss so far of a model that the client trains alone beside the
federation; in the paper the loss of one that it trained alone for some steps before.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    FloatArray,
    Local,
    Needs,
    Personal,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    require_finite,
)
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class MaxFL(Strategy):
    """most weight for clients that are nearly content with the server's model"""

    name: ClassVar[str] = "maxfl"
    title: ClassVar[str] = "MaxFL"
    eta: float = param(1.0, above=0)
    epsilon: float = param(1e-8, above=0)

    def needs(self) -> Needs:
        return Needs(loss="start", alone=True)

    def local(self) -> Local:
        return Local(personal=Personal())

    def total(self) -> float | None:
        return None  # nearly eta, and less where no client is nearly content

    def init(self, n_clients: int) -> State:
        # the loss that each client asks for, and whether it has told one
        return {"asked": np.zeros(n_clients), "told": np.zeros(n_clients)}

    def join(self, state: State, n_clients: int) -> State:
        new = np.zeros(n_clients - len(state["asked"]))
        return {name: np.append(values, new) for name, values in state.items()}

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss = require_finite(replies.loss, "loss")
        alone = require_finite(replies.alone, "loss alone")
        who, asked, told = replies.client, state["asked"].copy(), state["told"].copy()
        asked[who] = np.where(told[who] > 0, np.minimum(asked[who], alone), alone)
        told[who] = 1.0
        gap = loss - asked[who]
        q = appeal_slope(gap)
        info = {"effective": effective_count(q), "content": float((gap <= 0).mean())}
        coef = self.eta * q / (q.sum() + self.epsilon)
        return Decision(coef, {"asked": asked, "told": told}, info)

    def shown(self) -> tuple[Shown, ...]:
        return (
            Shown("content", "Share of participants that do no worse than alone", "", "content"),
        )


def appeal_slope(gap: FloatArray) -> FloatArray:
    """sigmoid(x) (1 - sigmoid(x)), without overflow."""
    e = np.exp(-np.abs(gap))
    out: FloatArray = e / (1.0 + e) ** 2
    return out
