"""FedAdam and FedYogi: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.

The averaged change is the gradient of Adam, or of Yogi, on the server. There is no correction of
the first rounds; the second moment starts at tau^2.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmaba.strategies.averaging import average_weights, largest_average_weight
from fedmaba.strategies.base import Decision, Replies, State, Strategy, param
from fedmaba.strategies.server_optimisers import OptimiserKind, ServerOptimiser


@dataclass(frozen=True)
class FedAdam(Strategy):
    """FedAvg whose server takes the averaged change as a gradient for Adam"""

    name: ClassVar[str] = "fedadam"
    title: ClassVar[str] = "FedAdam"
    optimiser: ClassVar[OptimiserKind] = "adam"
    lr: float = param(0.01, above=0)
    beta1: float = param(0.9, low=0, high=0.9999)
    beta2: float = param(0.99, low=0, high=0.999999)
    tau: float = param(1e-3, low=1e-12)
    weights: Literal["size", "uniform"] = "size"

    def server_optimiser(self) -> ServerOptimiser:
        return ServerOptimiser(self.optimiser, self.lr, self.beta1, self.beta2, self.tau)

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return largest_average_weight(self.weights, n, share)

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(average_weights(self.weights, replies), state)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAvg whose server takes the averaged change as a gradient for Yogi"""

    name: ClassVar[str] = "fedyogi"
    title: ClassVar[str] = "FedYogi"
    optimiser: ClassVar[OptimiserKind] = "yogi"
