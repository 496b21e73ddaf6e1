"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmaba.strategies.averaging import average_weights, largest_average_weight
from fedmaba.strategies.base import Decision, Replies, State, Strategy


@dataclass(frozen=True)
class FedAvg(Strategy):
    """the average of the clients' models, by training examples or uniform"""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    weights: Literal["size", "uniform"] = "size"

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return largest_average_weight(self.weights, n, share)

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(average_weights(self.weights, replies), state)
