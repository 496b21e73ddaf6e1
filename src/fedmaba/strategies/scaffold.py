"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020. Each client keeps a control variate c_i, and the server their mean c.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmaba.strategies.base import (
    Decision,
    Keep,
    Local,
    Replies,
    State,
    Strategy,
    param,
    uniform_weights,
)

CONTROL_OPTIONS = {
    # c_i <- the gradient of all of the client's examples at the server's model
    "I": Keep(before=0.0, full_gradient=1.0),
    # c_i <- c_i - c + (x - y_i) / (K eta_l)
    "II": Keep(mean=-1.0, step_gradient=1.0),
}


@dataclass(frozen=True)
class Scaffold(Strategy):
    """local gradients corrected by c - c_i, which takes out how clients differ"""

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    option: Literal["II", "I"] = "II"
    eta_g: float = param(1.0, above=0)

    def local(self) -> Local:
        return Local(keep={"c": CONTROL_OPTIONS[self.option]}, add={"c": -1.0}, add_mean={"c": 1.0})

    def total(self) -> float:
        return self.eta_g

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(self.eta_g * uniform_weights(replies), state)
