"""FedEBA with model alignment, a half of FedEBA+: Wang et al., "FedEBA+: Towards Fair and Effective
Federated Learning via Entropy-Based Model" (arXiv:2301.12407).

The weights of largest entropy under a bound on the losses are softmax(F / tau). The server adds
(1 - a) times the weighted changes and a times the mean of one-step changes, which no local drift
bends: the direction that serves all clients on average.
Differs: FedEBA+ also aligns gradients in rounds whose losses lie further than an angle theta from
equal ones, which takes a second exchange, so this is another algorithm: FedEBA+ for theta = 90
degrees, which no round exceeds. The one step is on all of a client's examples.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    Needs,
    Replies,
    State,
    Strategy,
    bounded_product,
    param,
    require_finite,
    uniform_weights,
)
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class FedEBA(Strategy):
    """weights proportional to exp(loss / tau), aligned with the average first step"""

    name: ClassVar[str] = "fedeba"
    title: ClassVar[str] = "FedEBA, models aligned"
    tau: float = param(0.5, above=0)
    a: float = param(0.1, low=0, high=1)

    def needs(self) -> Needs:
        return Needs(loss="start", first_steps=True)

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss = require_finite(replies.loss, "loss")
        tilted = np.exp(bounded_product(1.0 / self.tau, loss - loss.max()))
        p = tilted / tilted.sum()
        coef = np.concatenate([(1.0 - self.a) * p, self.a * uniform_weights(replies)])
        return Decision(coef, state, {"effective": effective_count(p)})
