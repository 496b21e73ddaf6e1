"""Many rows compared at once: ranks, Friedman's test, Nemenyi's critical difference, Holm's rule.

As Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006. A block is
what his data sets are: here a seed, under which all rows have the same clients and examples. Seeds
of one data set say how a row does on that data set, and nothing of others. Pure, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmaba.errors import InputError
from fedmaba.results.metrics import FloatArray

SIGNIFICANT = 0.05
SEED_STEPS = (*range(2, 11), 12, 15, 20, 25, 30, 40, 50, 75, 100)  # more would be false precision
MOST_SEEDS = SEED_STEPS[-1]
CHANCE = 0.84  # In four of five runs a mean falls short by fewer standard errors than this.
# Nemenyi's critical values at 0.05 for 2, 3, ... rows: quantiles of the studentised range with
# infinite degrees of freedom over the root of 2. Up to 10 rows in Demšar's Table 5(a).
Q05 = (
    *(1.960, 2.344, 2.569, 2.728, 2.850, 2.948, 3.031, 3.102, 3.164, 3.219),
    *(3.268, 3.313, 3.354, 3.391, 3.426, 3.458, 3.489, 3.517, 3.544, 3.569),
    *(3.593, 3.616, 3.637, 3.658, 3.678, 3.696, 3.714, 3.732, 3.749, 3.765),
    *(3.780, 3.795, 3.810, 3.824, 3.837, 3.850, 3.863, 3.876, 3.888, 3.899),
    *(3.911, 3.922, 3.933, 3.943, 3.954, 3.964, 3.973, 3.983, 3.992),
)


class Ranking(NamedTuple):
    """Mean ranks of rows over blocks, 1 the best, and which of them are told apart."""

    ranks: FloatArray  # (k,)
    blocks: int
    p: float  #                                  of Friedman's test: that all rows are alike
    critical: float  #                           ranks further apart than this differ

    @property
    def differs(self) -> bool:
        """Whether any rows are told apart at all."""
        return self.p < SIGNIFICANT

    def alike(self) -> list[tuple[int, ...]]:
        """The largest sets of rows that are not told apart, by their places, best first."""
        order = np.argsort(self.ranks, kind="stable")
        sets: list[tuple[int, ...]] = []
        for i, first in enumerate(order):
            near = self.ranks[order] - self.ranks[first] <= self.critical
            last = len(order) if not self.differs else i + int(near[i:].sum())
            found = tuple(int(place) for place in order[i:last])
            if len(found) > 1 and not (sets and set(found) <= set(sets[-1])):
                sets.append(found)
        return sets


def ranking(values: FloatArray, lower: bool) -> Ranking:
    """Of values (blocks, rows); `lower`: whether less is better. Ties share their mean rank."""
    blocks, rows = values.shape
    if blocks < 2 or rows < 2:
        raise InputError(
            f"ranks of {rows} rows over {blocks} seeds: compare at least two rows under at least "
            "two seeds that all of them have"
        )
    if rows > len(Q05) + 1:
        raise InputError(f"ranks of {rows} rows: at most {len(Q05) + 1} can be compared at once")
    ranked = np.array([_ranks(block if lower else -block) for block in values])
    ranks = ranked.mean(0)
    # With ties, the ranks in a block vary less than k (k + 1) / 12.
    spread = ranked.var(1, ddof=1).sum() / blocks
    chi2 = blocks * float(np.square(ranks - (rows + 1) / 2).sum()) / spread if spread > 0 else 0.0
    critical = Q05[rows - 2] * math.sqrt(rows * (rows + 1) / (6 * blocks))
    return Ranking(ranks, blocks, chi2_tail(chi2, rows - 1), critical)


def _ranks(values: FloatArray) -> FloatArray:
    """1 for the least; equal values share the mean of their ranks."""
    below = (values[:, None] > values).sum(1)
    equal = (values[:, None] == values).sum(1)
    out: FloatArray = below + (equal + 1) / 2
    return out


def chi2_tail(x: float, free: int) -> float:
    """The probability that a chi-squared number of so many degrees of freedom exceeds x."""
    if x <= 0:
        return 1.0
    half = x / 2
    even = free % 2 == 0
    total = 0.0 if even else math.erfc(math.sqrt(half))
    power = 0.0 if even else 0.5
    term = math.exp(-half) / (1.0 if even else math.sqrt(math.pi * half))
    # Each term half^power exp(-half) / Gamma(power + 1) follows from the one before.
    while power < free / 2:
        term *= 1.0 if power == 0 else half / power
        total += term
        power += 1
    return min(1.0, total)


def t_tail(t: float, free: int) -> float:
    """The probability that Student's t of so many degrees of freedom lies further from 0."""
    angle = math.atan(abs(t) / math.sqrt(free))
    cosine, total, term = math.cos(angle), 0.0, 1.0
    if free % 2:
        term = cosine
        for k in range(1, (free + 1) // 2):
            total += term
            term *= cosine**2 * 2 * k / (2 * k + 1)
        inside = 2 / math.pi * (angle + math.sin(angle) * total)
    else:
        for k in range(1, free // 2 + 1):
            total += term
            term *= cosine**2 * (2 * k - 1) / (2 * k)
        inside = math.sin(angle) * total
    return max(0.0, 1.0 - inside)


def p_value(sample: Sequence[float] | FloatArray) -> float:
    """Of the paired t-test that the mean over seeds is 0; 1 where there is no spread to tell it."""
    from fedmaba.report.paired import interval  # which says where there is none

    x = np.asarray(sample, np.float64)
    if not interval(x).bounded:
        return 1.0
    return t_tail(float(x.mean() / (x.std(ddof=1) / np.sqrt(len(x)))), len(x) - 1)


def holm(p: Sequence[float] | FloatArray) -> FloatArray:
    """p-values corrected for how many there are (Holm 1979): each may be held against 0.05."""
    p = np.asarray(p, np.float64)
    order = np.argsort(p, kind="stable")
    scaled = np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0)
    out = np.empty_like(p)
    out[order] = np.maximum.accumulate(scaled)
    return out


def seeds_needed(samples: Sequence[FloatArray]) -> list[int]:
    """About how many seeds would decide each difference, if mean and spread stay; 0: too many.

    All samples, of two seeds or more, get as many; four times in five that is enough, after
    Holm's correction.
    """
    size = []
    for x in samples:
        mean, sd = abs(float(x.mean())), float(x.std(ddof=1))
        size.append(mean / sd if 0 < sd < math.inf else math.inf if sd == 0 < mean else 0.0)
    out = [0] * len(samples)
    for many in SEED_STEPS:
        p = [t_tail(max(0.0, s * math.sqrt(many) - CHANCE), many - 1) for s in size]
        for i, q in enumerate(holm(p)):
            if not out[i] and q < SIGNIFICANT and many > len(samples[i]):
                out[i] = many
    return out
