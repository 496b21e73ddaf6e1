"""Fairness numbers of one score per client. Accuracies come in as shares and go out in percent.

Your own metric may give scores that are not shares; they come out unchanged (see Unit). The last
axis has one entry per client. Every client counts the same, unless a name says "by sample".
Variances are population variances (ddof 0), as papers on fairness report them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError

FloatArray = NDArray[np.float64]


class Unit(NamedTuple):
    """How scores are shown: shares of 1 in percent, others as they are."""

    scale: float  #  a score is multiplied by it
    mark: str  #     written behind a score
    square: str  #   written behind a variance
    name: str = "accuracy"
    lower: bool = False  # This says whether the lower score is the better one.

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return -1 if self.lower else 1


PERCENT, PLAIN_UNIT = Unit(100.0, " %", " %²"), Unit(1.0, "", "")


class Metric(NamedTuple):
    """What a score of a client is. Fields and files call it accuracy, whatever it is."""

    name: str = "accuracy"
    lower: bool = False  # This says whether the lower score is the better one.
    # Shares of 1 are shown in percent; with None, scores are shares if all lie in 0 to 1.
    shares: bool | None = None

    def unit(self, shares: bool) -> Unit:
        """How its scores are shown; `shares`: all of them lie in 0 to 1."""
        unit = PERCENT if (shares if self.shares is None else self.shares) else PLAIN_UNIT
        usual = (self.name, self.lower) == (unit.name, unit.lower)
        return unit if usual else unit._replace(name=self.name, lower=self.lower)


ACCURACY = Metric()
OF_TASK = {
    "classify": ACCURACY,
    "regress": Metric("mean squared error", lower=True, shares=False),
    "multilabel": Metric("labels right", shares=True),
    "sequence": Metric("positions right", shares=True),
}


def finite(value: float) -> float | None:
    """A number, or None where it is not defined."""
    return float(value) if math.isfinite(value) else None


def are_shares(scores: FloatArray) -> bool:
    """Whether all scores lie between 0 and 1, apart from rounding; nan does not count."""
    return not ((scores < -1e-6) | (scores > 1 + 1e-6)).any()


def undefined(accuracy: FloatArray, loss: FloatArray) -> NDArray[np.bool_]:
    """Which clients the model served, but the metric says nothing about."""
    return np.isnan(accuracy) & np.isfinite(loss)


def variance(accuracy: FloatArray, unit: Unit = PERCENT) -> Any:
    """Population variance of the clients' accuracy, in percent squared."""
    return np.var(unit.scale * accuracy, axis=-1)


def sampling_noise(accuracy: FloatArray, size: NDArray[np.int64]) -> Any:
    """The variance (%²) that finite test sets alone make over N clients, without bias.

    That is (N - 1) / N of the mean of p (1 - p) / (n - 1), for shares p of n examples that are
    right; chance can make it more than the variance itself. nan where scores are no such shares,
    or where a client has a single test example, which shows no spread.
    """
    some = size > 0
    p, n = accuracy[..., some], size[some].astype(np.float64)
    right = p * n
    counted = np.abs(right - np.rint(right)) <= 1e-6 * n
    known = (n > 1).all() & (counted | np.isnan(p)).all(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        noise = PERCENT.scale**2 * np.mean(p * (1 - p) / (n - 1), axis=-1)
        return np.where(known, noise * (len(n) - 1) / len(n), np.nan)[()]


def mean_of_tail(values: FloatArray, share: float, *, best: bool = False) -> Any:
    """Mean of the lowest (or, `best`, the highest) max(1, ceil(share N)) clients."""
    count = max(1, math.ceil(share * values.shape[-1] - 1e-9))
    ordered = np.sort(values)
    return _sum(ordered[..., -count:] if best else ordered[..., :count]) / count


def gini(values: FloatArray) -> Any:
    """Gini coefficient: 0 if all are equal, near 1 if one has everything."""
    n, total = values.shape[-1], _sum(values)
    ranked = _sum(np.sort(values) * np.arange(1.0 - n, n, 2.0))
    return _over(ranked, n * total, ~(total <= 0.0), 0.0)


def jain(values: FloatArray) -> Any:
    """Jain's index: 1 if all are equal, 1/N if one has everything."""
    square = _sum(values * values)
    return _over(_sum(values) ** 2, values.shape[-1] * square, square != 0.0, 1.0)


def entropy(values: FloatArray) -> Any:
    """Entropy of the clients' shares of the total, divided by log N: 1 if all are equal."""
    n, total = values.shape[-1], _sum(values)[..., None]
    if n < 2:
        return np.ones(values.shape[:-1])[()]
    some = ~(total <= 0.0)
    p = _over(values, total, some, 1.0)
    spread = -_sum(p * np.log(np.where(p <= 0.0, 1.0, p)))  # nan stays nan
    return _over(spread, np.log(n), some[..., 0], 1.0)


def gap(values: FloatArray) -> Any:
    """Best client minus worst client."""
    return values.max(axis=-1) - values.min(axis=-1)


def _sum(values: FloatArray) -> Any:
    return np.add.reduce(values, axis=-1)


def _over(above: FloatArray, below: FloatArray, some: NDArray[np.bool_], none: float) -> Any:
    """above / below if there is `some`thing to share, else `none`."""
    return np.divide(above, below, out=np.full(np.shape(above), none), where=some)[()]


class Fairness(NamedTuple):
    """The fairness numbers of one model over the clients of a federation.

    If the metric is not a share of 1, scores are as they are and not in percent.
    """

    variance: float  # This is the variance of accuracy, in percent squared.
    accuracy: float  #       mean over clients, percent
    by_sample: float  # This is the mean over test examples, in percent.
    worst: float  # This is the mean of the worst share of clients, in percent.
    best: float  # This is the mean of the best share of clients, in percent.
    # This is the variance of the clients' test loss (Definition 1 of FedMABA's paper).
    loss_variance: float
    gini: float
    jain: float
    entropy: float
    gap: float  #            percent


def fairness(
    accuracy: FloatArray,  # (N,) shares, from 0 to 1
    loss: FloatArray,  # (N,)
    size: NDArray[np.int64],  # (N,) test examples
    share: float = 0.05,
) -> Fairness:
    """The fairness numbers of one evaluation, over the clients that have test examples."""
    accuracy, loss, size = np.asarray(accuracy), np.asarray(loss), np.asarray(size)
    if accuracy.ndim != 1 or not len(accuracy) or not accuracy.shape == loss.shape == size.shape:
        shapes = ", ".join(str(v.shape) for v in (accuracy, loss, size))
        raise InputError(f"accuracy, loss and size of shapes {shapes}: give one of each per client")
    if (outside := accuracy[(accuracy < 0) | (accuracy > 1)]).size:
        raise InputError(
            f"accuracy={outside[0]:g} of a client: give shares from 0 to 1, as 0.5 for 50 %"
        )
    if not 0 < share <= 1:
        raise InputError(f"share={share!r}: give a share of the clients, above 0 and at most 1")
    return every(accuracy[None], loss[None], size, share)[0]


def every(
    accuracy: FloatArray,  # (E, N)
    loss: FloatArray,  # (E, N)
    size: NDArray[np.int64],  # (N,)
    share: float,
    unit: Unit = PERCENT,
) -> list[Fairness]:
    """The fairness numbers of many evaluations, some evaluations at a time."""
    some = max(1, 1_000_000 // max(1, len(size)))
    out = []
    for a in range(0, len(accuracy), some):
        found = _figures(accuracy[a : a + some], loss[a : a + some], size, share, unit)
        out += [Fairness(*map(float, one)) for one in zip(*found, strict=True)]
    return out


def _figures(
    accuracy: FloatArray, loss: FloatArray, size: NDArray[np.int64], share: float, unit: Unit
) -> tuple[Any, ...]:
    """The fields of Fairness for each evaluation."""
    if size.any() and not size.all():
        accuracy, loss, size = accuracy[:, size > 0], loss[:, size > 0], size[size > 0]
    none = undefined(accuracy, loss)
    if none.any() and len(accuracy) > 1:  # the clients that are left differ
        each = [
            _figures(a[None], b[None], size, share, unit)
            for a, b in zip(accuracy, loss, strict=True)
        ]
        return tuple(np.concatenate(column) for column in zip(*each, strict=True))
    if none.any() and not none.all():
        accuracy, loss, size = accuracy[:, ~none[0]], loss[:, ~none[0]], size[~none[0]]
    with np.errstate(over="ignore", invalid="ignore"):  # huge shortly before a run diverges
        return (
            variance(accuracy, unit),
            unit.scale * accuracy.mean(axis=-1),
            unit.scale
            * (accuracy * size).sum(axis=-1)
            / size.sum(),  # nan if nobody has a test example
            unit.scale * mean_of_tail(accuracy, share, best=unit.lower),
            unit.scale * mean_of_tail(accuracy, share, best=not unit.lower),
            np.var(loss, axis=-1),
            gini(accuracy),
            jain(accuracy),
            entropy(accuracy),
            unit.scale * gap(accuracy),
        )
