"""APFL: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", arXiv:2003.13461, 2020.

A client trains the server's model w as in FedAvg, and keeps a model v. Its own model is the mixture
alpha v + (1 - alpha) w; in each step v moves along the gradient of the mixture's loss by v, which
has the factor alpha.
Differs: alpha is one number for all clients and rounds; the paper can also learn it.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.base import (
    Decision,
    Local,
    Replies,
    Second,
    State,
    Strategy,
    param,
    uniform_weights,
)


@dataclass(frozen=True)
class APFL(Strategy):
    """each client's own model is a mixture of one that it keeps and the server's"""

    name: ClassVar[str] = "apfl"
    title: ClassVar[str] = "APFL"
    alpha: float = param(0.5, low=0, high=1)

    def local(self) -> Local:
        return Local(second=Second("mixed", mix=self.alpha))

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return 1.0 / n

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(uniform_weights(replies), state)
