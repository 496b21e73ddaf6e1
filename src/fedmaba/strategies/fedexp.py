"""FedExP: Jhunjhunwala, Wang, Joshi, "FedExP: Speeding up Federated Averaging via Extrapolation",
ICLR 2023. The more the changes disagree, the further the server goes along their mean.

The step is max(1, mean |Delta_i|^2 / (2 (|mean Delta|^2 + epsilon))) times the mean change.
Differs: which models are handed out is the run's choice; the paper takes the mean of the last two.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmaba.strategies.averaging import average_weights
from fedmaba.strategies.base import (
    SMALLEST_NORMAL,
    Decision,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    require_finite,
)


@dataclass(frozen=True)
class FedExP(Strategy):
    """FedAvg that goes further along the mean where the clients' changes disagree"""

    name: ClassVar[str] = "fedexp"
    title: ClassVar[str] = "FedExP"
    epsilon: float = param(1e-3, low=0)
    weights: Literal["size", "uniform"] = "uniform"

    def needs(self) -> Needs:
        return Needs(changes="gram")

    def total(self) -> float | None:
        return None  # it is the length of the step

    def shown(self) -> tuple[Shown, ...]:
        return (Shown("length", "How far the server goes along the mean change", short="length"),)

    def weigh(self, state: State, replies: Replies) -> Decision:
        gram = require_finite(replies.gram, "gram matrix")
        share = average_weights(self.weights, replies)
        squares, square = float(share @ gram.diagonal()), float(share @ gram @ share)
        below = max(max(square, 0.0) + self.epsilon, SMALLEST_NORMAL)
        length = min(max(1.0, squares / below / 2), 1e30)
        return Decision(length * share, state, {"length": length})
