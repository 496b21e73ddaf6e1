"""Fairness figures of a per-client vector. Pure; accuracies come in as shares, go out in percent.

One client is one entry; nothing is weighed by size unless a name says so. Variances are population
variances (ddof 0), as the field reports them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def variance(accuracy: FloatArray) -> float:
    """Population variance of the clients' accuracy, in percent squared."""
    return float(np.var(100.0 * accuracy))


def tail(values: FloatArray, share: float, *, best: bool = False) -> float:
    """Mean of the worst (or best) max(1, ceil(share N)) clients."""
    count = max(1, math.ceil(share * len(values) - 1e-9))
    ordered = np.sort(values)
    return float(ordered[-count:].mean() if best else ordered[:count].mean())


def gini(values: FloatArray) -> float:
    """Gini coefficient: 0 where all are equal, towards 1 where one has everything."""
    ordered = np.sort(values)
    n, total = len(ordered), ordered.sum()
    if total <= 0.0:
        return 0.0
    return float((2.0 * np.arange(1, n + 1) - n - 1) @ ordered / (n * total))


def jain(values: FloatArray) -> float:
    """Jain's index: 1 where all are equal, 1/N where one has everything."""
    square = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * square)) if square != 0.0 else 1.0


def entropy(values: FloatArray) -> float:
    """Entropy of the clients' shares of the total over log N: 1 where all are equal."""
    if len(values) < 2 or values.sum() <= 0.0:
        return 1.0
    p = values / values.sum()
    p = p[~(p <= 0)]  # nan stays
    return float(-(p @ np.log(p)) / np.log(len(values)))


def gap(values: FloatArray) -> float:
    """Best client minus worst client."""
    return float(values.max() - values.min())


class Fairness(NamedTuple):
    """All figures of one model over the clients of a federation."""

    variance: float  #       of accuracy, in percent squared
    accuracy: float  #       mean over clients, percent
    by_sample: float  #      mean over test examples, percent
    worst: float  #          mean of the worst share of clients, percent
    best: float  #           mean of the best share of clients, percent
    loss_variance: float  #  of the clients' test loss (the paper's Definition 1)
    gini: float
    jain: float
    entropy: float
    gap: float  #            percent


def fairness(
    accuracy: FloatArray,  # (N,) shares
    loss: FloatArray,  # (N,)
    size: NDArray[np.int64],  # (N,) test examples
    share: float = 0.05,
) -> Fairness:
    """Every figure of one evaluation, over the clients that have test examples."""
    if size.any() and not size.all():
        accuracy, loss, size = accuracy[size > 0], loss[size > 0], size[size > 0]
    with np.errstate(over="ignore", invalid="ignore"):  # huge shortly before a run diverges
        return Fairness(
            variance=variance(accuracy),
            accuracy=100.0 * float(accuracy.mean()),
            by_sample=100.0 * float(accuracy @ size / size.sum()),  # nan: no test example
            worst=100.0 * tail(accuracy, share),
            best=100.0 * tail(accuracy, share, best=True),
            loss_variance=float(np.var(loss)),
            gini=gini(accuracy),
            jain=jain(accuracy),
            entropy=entropy(accuracy),
            gap=100.0 * gap(accuracy),
        )
