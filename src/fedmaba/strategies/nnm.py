"""Nearest-neighbour mixing: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by
Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", AISTATS 2023. A step before another
rule: each change becomes the mean of those nearest to it, itself among them.

Differs: the paper mixes gradients; here the changes of models after local training. The number f of
attackers is a share of the round's m participants, rounded down.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedmaba.errors import InputError
from fedmaba.strategies.base import (
    Combine,
    Decision,
    FloatArray,
    Needs,
    Replies,
    State,
    Strategy,
    param,
    require_finite,
)
from fedmaba.strategies.behind import FLOOR, Behind, named, square_distances
from fedmaba.strategies.combine import count_of_share


@dataclass(frozen=True)
class NNM(Behind):
    """another rule, on changes that are each mixed with those nearest to it"""

    name: ClassVar[str] = "nnm"
    title: ClassVar[str] = "NNM"
    share: float = param(0.2, low=0, high=0.49)  # of a round's participants that may be attackers
    rule: str = "trimmed:share=0.2"  # a strategy as it is written elsewhere, with ; for its commas

    def __post_init__(self) -> None:
        super().__post_init__()
        needs = self.inner.needs()
        more = needs.keep_rounds or needs.last_step or needs.first_steps or needs.trials
        if more or needs.changes == "layers" or isinstance(self.inner, NNM):
            raise InputError(
                f"nnm: rule={self.rule!r} uses more than this round's changes as wholes: choose a "
                "rule such as trimmed, median, rfa or fedmaba"
            )

    @property
    def inner(self) -> Strategy:
        return named(self.rule, "nnm: rule")

    def needs(self) -> Needs:
        return replace(super().needs(), changes="gram")

    def total(self) -> None:
        return None

    def combine(self) -> Combine:
        return super().combine() or Combine("sum")

    def weigh(self, state: State, replies: Replies) -> Decision:
        mix = nearest(gram := require_finite(replies.gram, "gram"), self.share)
        gram = mix @ gram @ mix.T
        seen = replace(replies, gram=gram, norms=gram.diagonal())
        decision = super().weigh(state, seen)
        votes = np.maximum(decision.coef, FLOOR / len(mix))
        rows = len(mix) * votes[:, None] * mix
        summed = self.combine() == Combine("sum")
        return decision._replace(coef=rows.mean(0) if summed else rows)


def nearest(gram: FloatArray, share: float) -> FloatArray:  # (m, m)
    """The mix of each change: the mean of the m - f that are nearest to it."""
    apart = square_distances(gram)
    np.fill_diagonal(apart, -1.0)
    count = len(gram) - count_of_share(share, len(gram))
    mix = np.zeros_like(apart)
    np.put_along_axis(mix, np.argsort(apart, 1, kind="stable")[:, :count], 1.0 / count, 1)
    return mix
