"""Groups of people: how each is served, and the gaps between them, over clients and within each.

Pure functions of counts (..., G, K) of test examples. Of two classes the second is the positive one
and K is 4: label * 2 + prediction. Of more classes K is 2: wrong, right; then there is an accuracy
of each group, and no rate of positive predictions. No torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Groups(NamedTuple):
    """The groups that a run is judged by."""

    names: tuple[str, ...] = ()
    positive: str = ""  # It is the second of two classes, or empty if there are more.


NO_GROUPS = Groups()


class Rates(NamedTuple):
    """How each group is served, (..., G) shares; nan where a group has no such examples."""

    size: FloatArray  #           test examples
    accuracy: FloatArray
    selected: FloatArray  #       predicted positive
    true_positive: FloatArray  # This is the share of the positive ones that is predicted positive.
    false_positive: FloatArray  # This is the share of the negative ones that is predicted positive.


class Gaps(NamedTuple):
    """How far groups lie apart, (...) shares; nan where fewer than two groups have the rate."""

    worst: FloatArray  # This is the accuracy of the group that is served worst.
    accuracy: FloatArray  # highest minus lowest accuracy
    # The demographic parity difference is the highest minus the lowest share selected.
    parity: FloatArray
    # The equalised odds difference is the larger gap of true and of false positives.
    odds: FloatArray


class GroupFigures(NamedTuple):
    """The figures of one evaluation in percent: over all test examples, and within clients."""

    worst: float  # This is the accuracy of the worst served group.
    accuracy: float  # Gaps between groups count each group over all clients.
    parity: float
    odds: float
    within_accuracy: float  # Gaps within a client are means over the clients that have such a gap.
    within_parity: float
    within_odds: float


def rates(counts: NDArray[Any]) -> Rates:
    """The rates of each group."""
    size = counts.sum(-1)
    if counts.shape[-1] == 2:
        nothing = np.full(size.shape, np.nan)
        return Rates(size, _share(counts[..., 1], size), nothing, nothing, nothing)
    negative, positive = counts[..., :2].sum(-1), counts[..., 2:].sum(-1)
    told = counts[..., 1] + counts[..., 3]
    return Rates(
        size,
        _share(counts[..., 0] + counts[..., 3], size),
        _share(told, size),
        _share(counts[..., 3], positive),
        _share(counts[..., 1], negative),
    )


def gaps(counts: NDArray[Any]) -> Gaps:
    """The gaps between groups, of the groups that have examples."""
    found = rates(counts)
    known = np.isfinite(found.accuracy)
    worst = np.where(known, found.accuracy, np.inf).min(-1)
    apart = [_range(rate) for rate in (found.true_positive, found.false_positive)]
    return Gaps(
        np.where(known.any(-1), worst, np.nan),
        _range(found.accuracy),
        _range(found.selected),
        np.fmax(*apart),
    )


def figures(counts: NDArray[Any]) -> GroupFigures:
    """The figures of one evaluation from counts (N, G, K) of each client."""
    over, within = gaps(counts.sum(0)), gaps(counts)
    means = [_mean(v) for v in (within.accuracy, within.parity, within.odds)]
    return GroupFigures(*(100 * v for v in (*map(float, over), *means)))


def _share(part: NDArray[Any], whole: NDArray[Any]) -> FloatArray:
    out = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=out, where=whole > 0)
    return out


def _range(values: FloatArray) -> FloatArray:
    """Highest minus lowest over groups, of those that have a value."""
    known = np.isfinite(values)
    high = np.where(known, values, -np.inf).max(-1)
    low = np.where(known, values, np.inf).min(-1)
    out = np.full(high.shape, np.nan)
    np.subtract(high, low, out=out, where=known.sum(-1) > 1)
    return out


def _mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan
