"""FedSGD: McMahan et al., AISTATS 2017: one full-batch gradient per client and round."""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.base import Decision, Local, Replies, State, Strategy, size_weights


@dataclass(frozen=True)
class FedSGD(Strategy):
    """one step on the full-batch gradient of all clients together"""

    name: ClassVar[str] = "fedsgd"
    title: ClassVar[str] = "FedSGD"

    def local(self) -> Local:
        return Local(full_batch=True)

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return share

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(size_weights(replies), state)
