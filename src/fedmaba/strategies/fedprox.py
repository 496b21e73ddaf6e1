"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

Differs: every client does the whole local work; the paper's stragglers with partial work are not
simulated.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.base import Decision, Local, Replies, State, Strategy, param, size_weights


@dataclass(frozen=True)
class FedProx(Strategy):
    """FedAvg with a proximal term mu/2 |w - w_server|^2 in each local step"""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    mu: float = param(0.1, low=0)

    def local(self) -> Local:
        return Local(prox=self.mu)

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return share

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(size_weights(replies), state)
