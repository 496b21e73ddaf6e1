"""AdaFed: Hamidi and Yang, "AdaFed: Fair Federated Learning via Adaptive Common Descent Direction",
TMLR 2024.

The paper scales client i's gradient by 1 / F_i^gamma, orthogonalises and takes the shortest convex
combination of the result. Orthogonalisation stays in the affine hull of the scaled gradients, so
that combination is the point of this hull nearest to 0, in whatever order the clients come: weights
mu = H^-1 1 / (1' H^-1 1) with the Gram matrix H of the scaled gradients. Along it every client's
loss falls, in proportion to F_i^gamma. Here the solution comes from H.
Differs: changes after local training take the place of gradients. The paper needs independent
gradients; a ridge of 1e-10 of H's mean diagonal gives an answer for any.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    SMALLEST_NORMAL,
    Decision,
    FloatArray,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    require_finite,
)

RIDGE = 1e-10
LEAST_LOSS = 1e-10


@dataclass(frozen=True)
class AdaFed(Strategy):
    """a direction along which every client's loss falls, the larger ones faster"""

    name: ClassVar[str] = "adafed"
    title: ClassVar[str] = "AdaFed"
    gamma: float = param(1.0, low=0, high=20)
    eta: float = param(1.0, above=0)

    def needs(self) -> Needs:
        return Needs(loss="start", changes="gram")

    def total(self) -> float | None:
        return None  # of weights on changes that are scaled by powers of the losses

    def shown(self) -> tuple[Shown, ...]:
        return ()

    def weigh(self, state: State, replies: Replies) -> Decision:
        gram = require_finite(replies.gram, "gram matrix")
        loss = np.maximum(require_finite(replies.loss, "loss"), LEAST_LOSS)
        least = float(loss.min())
        scale = np.exp(self.gamma * (np.log(least) - np.log(loss)))  # (least / F)^gamma, at most 1
        mu = nearest_to_zero(gram * np.outer(scale, scale))
        coef = self.eta * mu * scale * min(least ** (-self.gamma), 1e30)
        square = float(coef @ gram @ coef)
        return Decision(coef, state, {"step_norm": float(np.sqrt(max(square, 0.0)))})


def nearest_to_zero(gram: FloatArray) -> FloatArray:
    """Weights, of sum 1, of the point nearest to 0 in the affine hull of vectors, by their Gram."""
    m, size = len(gram), float(np.trace(gram)) / len(gram)
    if size < SMALLEST_NORMAL:
        return np.full(m, 1.0 / m)
    solved = np.linalg.solve(gram / size + RIDGE * np.eye(m), np.ones(m))
    out: FloatArray = solved / solved.sum()
    return out
