"""FedAvgM: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", arXiv 2019: FedAvg whose server keeps a velocity."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmaba.strategies.averaging import average_weights, largest_average_weight
from fedmaba.strategies.base import Decision, Replies, State, Strategy, param
from fedmaba.strategies.server_optimisers import ServerOptimiser


@dataclass(frozen=True)
class FedAvgM(Strategy):
    """FedAvg, and beta times the server's last step on top"""

    name: ClassVar[str] = "fedavgm"
    title: ClassVar[str] = "FedAvgM"
    beta: float = param(0.9, low=0, high=0.9999)
    lr: float = param(1.0, above=0)
    weights: Literal["size", "uniform"] = "size"

    def server_optimiser(self) -> ServerOptimiser:
        return ServerOptimiser("momentum", lr=self.lr, beta1=self.beta)

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return largest_average_weight(self.weights, n, share)

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(average_weights(self.weights, replies), state)
