"""FedFV: Wang et al., "Federated Learning with Fair Averaging", IJCAI 2021, Algorithms 1 to 3.

All vectors live in the span of the changes, so projections are done on their coefficients with the
Gram matrix. Past rounds are t - tau ... t - 1, oldest first; a client counts at the round it was
last seen. Differs: past rounds count as soon as there are any, in the code of FLGo from round tau
on; a zero vector is never projected on (nor one so short that its square has lost digits); where
everything cancels, nothing is added.
"""

import math
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


@dataclass(frozen=True)
class FedFV(Strategy):
    """changes are projected off those they conflict with, now and from past rounds"""

    name: ClassVar[str] = "fedfv"
    title: ClassVar[str] = "FedFV"
    alpha: float = param(0.1, low=0, high=1)
    tau: int = param(1, low=0)  # type: ignore[assignment]

    def needs(self) -> Needs:
        return Needs(loss="start", changes="gram", keep_rounds=self.tau)

    def total(self) -> float | None:
        return None  # rescaled to the length of the plain mean

    def shown(self) -> tuple[Shown, ...]:
        return ()

    def weigh(self, state: State, replies: Replies) -> Decision:
        gram = require_finite(replies.gram, "gram matrix")
        loss = require_finite(replies.loss, "loss")
        m = len(loss)
        mean, coef = np.zeros((2, len(gram)))
        mean[:m] = 1.0 / m
        coef[:m] = self._inside(gram[:m, :m], loss)
        past = np.zeros(0, np.int64) if replies.past_round is None else replies.past_round
        for t in np.unique(past[past >= replies.round - self.tau]):
            coef = self._outside(coef, gram, replies, t)
        length, goal = _square(coef, gram), _square(mean, gram)
        shrunk = math.sqrt(length / goal) if goal > 0 else 0.0
        coef = coef / shrunk if shrunk > 0 else np.zeros_like(coef)
        return Decision(coef, state, {"shrunk": shrunk})

    def _inside(self, gram: FloatArray, loss: FloatArray) -> FloatArray:
        """(m,) The mean of the changes, each free of conflicts with the others of the round.

        Clients in the order of their losses: `cut[j, i]` is how far change i, projected off all
        before j, points against change j; 0 where it does not, and for j itself.
        """
        m = len(loss)
        order = np.argsort(loss, kind="stable")
        free = math.ceil((m - 1) * (1 - self.alpha)) if self.alpha > 0 else m  # not worst served
        length = gram.diagonal()[order]
        inverse = np.divide(1.0, length, where=length >= SMALLEST_NORMAL, out=np.zeros(m))
        dots = gram[order].take(order, axis=1)
        share = dots * inverse  # of a projection on j in a product with k
        np.fill_diagonal(dots, np.inf)  # nothing is projected off itself
        cut, zero = np.zeros((m, free)), np.zeros(free)
        for j, (dot, own, out) in enumerate(zip(dots[:, :free], share, cut, strict=True)):
            np.minimum(dot - np.dot(own[:j], cut[:j]), zero, out=out)
        coef = np.empty(m)
        coef[order] = (1.0 - cut.sum(axis=1) * inverse) / m
        return coef

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
    return square if square >= max(1e-6 * scale * scale, SMALLEST_NORMAL) else 0.0
