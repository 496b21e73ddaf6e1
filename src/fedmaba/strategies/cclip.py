"""Centred clipping: Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust
Optimization", ICML 2021. around=last,beta=0.9,unit=one is the paper's form.

Differs: the paper clips gradients of single steps; here the changes of models after local training.
The default clips around the model that was sent, without memory, at the median of a round's
distances, as a fixed radius fits no two models. A client's momentum starts at 0, so its first
changes are short; the paper has none in the first round. It knows no absent clients: here these
keep their momentum as it was.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    Keep,
    Local,
    Needs,
    Replies,
    State,
    param,
    require_finite,
)
from fedmaba.strategies.behind import Robust, distances

SMALLEST = 1e-150  # a distance of 0 divides nothing


@dataclass(frozen=True)
class CClip(Robust):
    """the mean of the clients' changes, each cut to a length from a centre"""

    name: ClassVar[str] = "cclip"
    title: ClassVar[str] = "Centred clipping"
    around: Literal["sent", "last"] = "sent"  # the model sent, or where the last step would lead
    tau: float = param(1.0, above=0)  # the longest distance, in `unit`
    unit: Literal["median", "one"] = "median"  # of the round's distances, or 1
    steps: int = param(1, low=1)  # type: ignore[assignment]  # of the centre in a round
    beta: float = param(0.0, low=0, high=0.999)  # of the clients' momentum

    def needs(self) -> Needs:
        return replace(super().needs(), last_step=self.around == "last")

    def local(self) -> Local:
        local = super().local()
        if not self.beta:
            return local
        new = 1 - self.beta
        keep = {**local.keep, "momentum": Keep(start=-new, end=new, before=self.beta)}
        return replace(local, keep=keep, send="momentum")

    def total(self) -> None:
        return None

    def weigh(self, state: State, replies: Replies) -> Decision:
        votes, state, info = super().weigh(state, replies)
        m, gram = len(votes), require_finite(replies.gram, "gram")
        coef = np.zeros(len(gram))
        coef[m:] = 1.0  # the last step, if it is a centre and there was one
        for _ in range(self.steps):
            away = distances(gram, coef)[:m]
            radius = self.tau * (float(np.median(away)) if self.unit == "median" else 1.0)
            share = votes * np.minimum(radius / np.maximum(away, SMALLEST), 1.0)
            coef *= 1.0 - share.sum()
            coef[:m] += share
        return Decision(coef, state, info)
