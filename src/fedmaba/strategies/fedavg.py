"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017. Its averaging rule serves FedSGD, FedProx and PropFair too."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmaba.strategies.base import (
    Decision,
    Replies,
    State,
    Strategy,
    size_weights,
    uniform_weights,
)


@dataclass(frozen=True)
class FedAvg(Strategy):
    """the average of the clients' models, by training examples or uniform"""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    weights: Literal["size", "uniform"] = "size"

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return share if self.weights == "size" else 1.0 / n

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(
            size_weights(replies) if self.weights == "size" else uniform_weights(replies), state
        )
