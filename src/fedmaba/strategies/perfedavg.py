"""Per-FedAvg: Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020, in its first-order form.

The server's model is to be good after one more gradient step of each client. So in each step a
client takes the gradient at w - alpha grad f(w), on another minibatch, and moves w along it.
Differs: the Hessian is left out (FO). The second minibatch of a step is the first of the next one;
after the last step it is that of the first.
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
class PerFedAvg(Strategy):
    """a server's model from which one step of a client leads to a good one"""

    name: ClassVar[str] = "perfedavg"
    title: ClassVar[str] = "Per-FedAvg (FO)"
    alpha: float = param(0.01, low=0)

    def local(self) -> Local:
        return Local(second=Second("ahead", 1, self.alpha))

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return 1.0 / n

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(uniform_weights(replies), state)
