"""FedEBA+: Wang et al., "FedEBA+: Towards Fair and Effective Federated Learning via Entropy-Based
Model" (arXiv:2301.12407), and its half that aligns models.

The weights of largest entropy under a bound on the losses are softmax(F / tau). Where losses lie
further than an angle theta from equal ones, FedEBA+ aligns gradients: local steps take (1 - a) of
their gradient and a of all participants' gradients at the server's model, weighted alike. In other
rounds it aligns models: the server adds (1 - a) times the weighted changes and a times the mean of
one-step changes, which no local drift bends. FedEBA aligns models in all rounds.
Differs: the gradients that are exchanged, and the one step, are of all of a client's examples.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    FloatArray,
    Guide,
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
        a = self.a if self.aligns_models(loss) else 0.0
        coef = np.concatenate([(1.0 - a) * p, a * uniform_weights(replies)])
        return Decision(coef, state, {"effective": effective_count(p)})

    def aligns_models(self, loss: FloatArray) -> bool:
        """Whether one-step changes join the server's step in a round with these losses."""
        return True


@dataclass(frozen=True)
class FedEBAPlus(FedEBA):
    """as fedeba; where losses are far from equal, local steps lean towards the weighted gradient"""

    name: ClassVar[str] = "fedebaplus"
    title: ClassVar[str] = "FedEBA+"
    theta: float = param(15.0, low=0, high=90)

    def needs(self) -> Needs:
        return Needs(loss="start", first_steps=True, guided=True)

    def weigh(self, state: State, replies: Replies) -> Decision:
        decision = super().weigh(state, replies)
        angle = angle_to_equal(require_finite(replies.loss, "loss"))
        return decision._replace(info={**decision.info, "angle": angle})

    def guide(self, replies: Replies, decision: Decision) -> Guide:
        if self.aligns_models(require_finite(replies.loss, "loss")):
            return Guide()
        return Guide(scale=1.0 - self.a, mix=self.a * decision.coef[: len(replies.client)])

    def aligns_models(self, loss: FloatArray) -> bool:
        return angle_to_equal(loss) <= self.theta


def angle_to_equal(loss: FloatArray) -> float:
    """The angle in degrees between the losses and as many equal ones."""
    largest = float(np.abs(loss).max())
    if largest == 0.0:
        return 0.0
    part = loss / largest
    away = float(np.linalg.norm(part - part.mean()))
    return math.degrees(math.atan2(away, math.sqrt(len(part)) * float(part.mean())))
