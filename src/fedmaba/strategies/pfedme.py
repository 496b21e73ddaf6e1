"""pFedMe: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS
2020.

In each step a client looks for the model theta that minimises its loss on a minibatch plus
lambda/2 |theta - w|^2, by some gradient steps from w. Its copy w of the server's model moves by
lambda (w - theta), the gradient of the Moreau envelope. The last theta is its own model.
Differs: a client takes as many steps as with every other strategy, and starts each search at w; the
authors' code starts all but the first of a round at the last theta.
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
class PFedMe(Strategy):
    """each client's own model is near its copy of the server's, which moves towards it"""

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"
    lam: float = param(15.0, above=0)
    lr: float = param(0.01, above=0)  # of the search
    steps: int = param(5, low=1)  # type: ignore[assignment]  # of the search
    beta: float = param(1.0, above=0)  # how far the server goes to the mean

    def local(self) -> Local:
        return Local(second=Second("towards", self.steps, self.lr, self.lam))

    def total(self) -> float:
        return self.beta

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return self.beta / n

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(self.beta * uniform_weights(replies), state)
