"""FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.

Each client keeps h_i, in the paper the gradient of its loss at its last model. The server keeps
their mean h, which is the sum over rounds that the paper writes.

Differs: clients take as many SGD steps as with every other strategy; the paper's clients minimise
their objective exactly.
"""

from dataclasses import dataclass
from typing import ClassVar

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


@dataclass(frozen=True)
class FedDyn(Strategy):
    """each client's loss is tilted until all clients agree on one model"""

    name: ClassVar[str] = "feddyn"
    title: ClassVar[str] = "FedDyn"
    alpha: float = param(0.1, above=0)

    def local(self) -> Local:
        return Local(
            prox=self.alpha,
            keep={"h": Keep(start=self.alpha, end=-self.alpha)},
            add={"h": -1.0},
            server_adds={"h": -1 / self.alpha},
        )

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(uniform_weights(replies), state)
