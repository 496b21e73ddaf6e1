"""FedFV: Wang et al., "Federated Learning with Fair Averaging", IJCAI 2021, Algorithms 1 to 3.

All vectors live in the span of the changes, so projections are done on their coefficients with the
Gram matrix. Past rounds are t - tau ... t - 1, oldest first; a client counts at the round it was
last seen. Differs: a zero vector is never projected on (nor one so short that its square has lost
digits); where everything cancels, nothing is added.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategy import (
    TINY,
    Decision,
    FloatArray,
    Needs,
    Replies,
    State,
    Strategy,
    param,
    reported,
)


@dataclass(frozen=True)
class FedFV(Strategy):
    """changes are projected off those they conflict with, now and from past rounds"""

    name: ClassVar[str] = "fedfv"
    alpha: float = param(0.1, low=0, high=1)
    tau: int = param(1, low=0)  # type: ignore[assignment]

    def needs(self) -> Needs:
        return Needs(loss="start", changes="gram", keep_rounds=self.tau)

    def total(self) -> float | None:
        return None  # rescaled to the length of the plain mean

    def weigh(self, state: State, replies: Replies) -> Decision:
        gram, loss = reported(replies.gram, "gram matrix"), reported(replies.loss, "loss")
        m = len(loss)
        mean = np.zeros(len(gram))
        mean[:m] = 1.0 / m
        coef = self._inside(gram, loss).mean(axis=0)
        for t in range(replies.round - self.tau, replies.round):
            coef = self._outside(coef, gram, replies, t)
        length, goal = _square(coef, gram), _square(mean, gram)
        shrunk = math.sqrt(length / goal) if goal > 0 else 0.0
        coef = coef / shrunk if shrunk > 0 else np.zeros_like(coef)
        return Decision(coef, state, {"shrunk": shrunk})

    def _inside(self, gram: FloatArray, loss: FloatArray) -> FloatArray:
        """Each participant's change as coefficients (m, m+h), free of conflicts in the round."""
        m = len(loss)
        order = np.argsort(loss, kind="stable")
        free = np.ones(m, dtype=bool)
        if self.alpha > 0:
            free[order[math.ceil((m - 1) * (1 - self.alpha)) :]] = False  # the worst served
        length = gram.diagonal()[:m, None]
        factor = np.divide(free, length, where=length >= TINY, out=np.zeros((m, m)))
        np.fill_diagonal(factor, 0.0)  # nothing is projected off itself
        rows = np.eye(len(gram), m)  # a column each
        for j in order:
            dots = np.einsum("k,ki->i", gram[j, :m], rows[:m])  # with change j
            rows[j] -= factor[j] * np.minimum(dots, 0.0)
        return rows.T

    def _outside(self, coef: FloatArray, gram: FloatArray, replies: Replies, t: int) -> FloatArray:
        """Project off the sum of round t's kept changes that conflict with the mean."""
        if replies.past_round is None or replies.past_client is None:
            return coef
        m = len(replies.client)
        seen = (replies.past_round == t) & ~np.isin(replies.past_client, replies.client)
        rows = m + np.flatnonzero(seen)
        rows = rows[(gram @ coef)[rows] < 0]
        past = np.zeros(len(gram))
        past[rows] = 1.0
        length, dot = _square(past, gram), float(past @ gram @ coef)
        return coef - dot / length * past if length > 0 and dot < 0 else coef


def _square(coef: FloatArray, gram: FloatArray) -> float:
    """Squared length of a combination; 0 where it is rounding of vectors that cancel."""
    scale = float(np.abs(coef) @ np.sqrt(np.maximum(gram.diagonal(), 0.0)))
    square = float(coef @ gram @ coef)
    return square if square >= max(1e-6 * scale * scale, TINY) else 0.0
