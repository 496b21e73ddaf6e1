"""Statistics over seeds: means, and differences under the same seeds with Student's 95 % interval.

An interval is only as good as the spread it is made from. One seed has none, and neither have
differences that are equal in every seed (figures move in steps of one test image): both are shown
without an interval and never called distinguishable. Pure, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedmaba.results.metrics import FloatArray

T95 = (  # These are 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
EQUAL_WITHIN = 1e-9  # Rounding makes equal values differ by this share at most.


class Interval(NamedTuple):
    """A mean over seeds with its 95 % t-interval, without ends where there is none."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.high - self.low))

    @property
    def distinguishable(self) -> bool:
        return self.low > 0 or self.high < 0

    def text(self, sign: str = "+", unit: str = "", digits: int = 2) -> str:
        """The mean, and its interval or why there is none."""
        if np.isnan(self.mean):
            return "–"
        mean, low, high = (f"{x:{sign}.{digits}f}" for x in self[:3])
        if self.bounded:
            return f"{mean}{unit} [{low}, {high}]"
        return f"{mean}{unit}" + (" in every seed" if self.seeds > 1 else "")


def interval(sample: Sequence[float] | FloatArray) -> Interval:
    """Of one value per seed."""
    x = np.asarray(sample, np.float64)
    n = len(x)
    if not n or not np.isfinite(x).all():  # a share of nothing
        return Interval(np.nan, -np.inf, np.inf, n)
    with np.errstate(over="ignore", invalid="ignore"):  # huge shortly before a run diverges
        mean = float(x.mean())
        if np.ptp(x) <= EQUAL_WITHIN * max(1.0, float(np.abs(x).max())):
            return Interval(mean, -np.inf, np.inf, n)
        half = _t95(n - 1) * float(x.std(ddof=1)) / np.sqrt(n)
        return Interval(mean, mean - half, mean + half, n)


def _t95(free: int) -> float:
    """The 97.5 % quantile of Student's t; beyond the table Fisher's series, right to 1e-4."""
    if free <= len(T95):
        return T95[free - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)


def moments(sample: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Mean and standard deviation over seeds; nan where there are too few."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(sample)) if len(sample) else np.nan
        return mean, float(np.std(sample, ddof=1)) if len(sample) > 1 else np.nan


def pairs(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[FloatArray, FloatArray]:
    """Two sets of values by seed, under the seeds both have."""
    both = sorted(ours.keys() & theirs.keys())
    return np.array([ours[seed] for seed in both]), np.array([theirs[seed] for seed in both])


def subtract(ours: Mapping[int, float], theirs: Mapping[int, float]) -> FloatArray:
    """Ours minus theirs, one for each seed that both have."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.subtract(*pairs(ours, theirs)))


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """Ours minus theirs under the same seeds."""
    return interval(subtract(ours, theirs))
