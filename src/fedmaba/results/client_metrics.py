"""Metrics of all predictions of one client: outputs of the model and targets in, one number out.

Pure NumPy. A metric that a client's test examples leave undefined is nan, such as the area under
the curve where only one class occurs; figures over clients then leave this client out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError, unknown
from fedmaba.results.metrics import OF_TASK, Metric

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# It turns outputs (n, C) and targets (n, ...) into a number.
MetricOfClient = Callable[[FloatArray, Any], float]
MOST_PERPLEXITY = 1e100
CALIBRATION_BINS = 15  # The bins are of equal width, as Guo et al. 2017 count them.


@dataclass(frozen=True)
class ClientMetric:
    """A metric with the words and the direction that tables and pages need."""

    name: str  #      on the command line
    title: str  #     heads its column
    share: bool  # Its scores lie between 0 and 1, and so are shown in percent.
    lower_is_better: bool
    tasks: tuple[str, ...]  # kinds of target that it is made for
    score: MetricOfClient
    partial: bool = False  # It is nan for a client whose targets are all the same.

    def __call__(self, outputs: FloatArray, targets: Any) -> float:
        """The score of a client."""
        return self.score(outputs, targets)

    def described(self) -> Metric:
        """What its scores are, for tables and pages."""
        return Metric(self.title, self.lower_is_better, self.share)

    def undefined(self, targets: Any) -> bool:
        """Whether a client with these targets has no score, whatever the model predicts."""
        return self.partial and bool(np.all(targets == targets[:1], axis=0).any())


def metric_named(name: str, task: str) -> ClientMetric:
    """The metric of this name, if it fits the task."""
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    if task not in METRICS[name].tasks:
        fitting = ", ".join(m.name for m in METRICS.values() if task in m.tasks)
        remedy = f"choose {fitting}, or leave it out" if fitting else "leave it out"
        raise InputError(
            f"metric={name!r} does not fit the task {task}: {remedy} ({OF_TASK[task].name})"
        )
    return METRICS[name]


def probabilities(outputs: FloatArray) -> FloatArray:
    """(n, C) The softmax of a model's outputs."""
    e = np.exp(outputs - outputs.max(1, keepdims=True))
    shares: FloatArray = e / e.sum(1, keepdims=True)
    return shares


def _predicted(outputs: FloatArray) -> IntArray:
    best: IntArray = outputs.argmax(1)
    return best


def share_right(outputs: FloatArray, y: IntArray) -> float:
    """The share of examples whose largest output is the right class."""
    return float((_predicted(outputs) == y).mean())


def balanced_accuracy(outputs: FloatArray, y: IntArray) -> float:
    """The mean over the classes that occur of the share of their examples that are right."""
    right = _predicted(outputs) == y
    return float(np.mean([right[y == c].mean() for c in np.unique(y)]))


def f1(outputs: FloatArray, y: IntArray) -> float:
    """The mean of F1 over all classes that occur in the targets or the predictions."""
    told = _predicted(outputs)
    scores = []
    for c in np.union1d(y, told):
        both = ((y == c) & (told == c)).sum()
        scores.append(2 * both / ((y == c).sum() + (told == c).sum()))
    return float(np.mean(scores))


def _over_classes(
    one: Callable[[FloatArray, NDArray[np.bool_]], float], outputs: FloatArray, y: IntArray
) -> float:
    """A score of two classes, for many: of each class against the rest, then the mean.

    Two classes are scored once, with the second as the positive one. Classes that no example of
    this client has are left out; nan where fewer than two occur.
    """
    found = np.unique(y)
    if len(found) < 2:
        return np.nan
    p = probabilities(outputs)
    if outputs.shape[1] == 2:
        return one(p[:, 1], y == 1)
    return float(np.mean([one(p[:, c], y == c) for c in found]))


def _area_under_curve(score: FloatArray, positive: NDArray[np.bool_]) -> float:
    """The chance that a positive example scores above a negative one; ties count half."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    rank = (last - (count - 1) / 2)[place]  # The mean rank of equal scores counts, from 1.
    many = positive.sum()
    above = rank[positive].sum() - many * (many + 1) / 2
    return float(above / (many * (len(score) - many)))


def _average_precision(score: FloatArray, positive: NDArray[np.bool_]) -> float:
    """The mean of precision over the steps in recall, from the highest score down."""
    order = np.argsort(-score, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(score[order]), 1.0))  # the last of equal scores
    hits = np.cumsum(positive[order])[ends]
    recall = hits / positive.sum()
    return float(np.sum(np.diff(recall, prepend=0.0) * hits / (ends + 1)))


def auc(outputs: FloatArray, y: IntArray) -> float:
    """The area under the ROC curve."""
    return _over_classes(_area_under_curve, outputs, y)


def average_precision(outputs: FloatArray, y: IntArray) -> float:
    """The area under the curve of precision over recall, by steps."""
    return _over_classes(_average_precision, outputs, y)


def brier(outputs: FloatArray, y: IntArray) -> float:
    """Mean squared error of the probabilities: of class 1 where there are two, else summed."""
    p = probabilities(outputs)
    right = np.eye(p.shape[1])[y]
    square = np.square(p - right)
    return float((square[:, 1] if p.shape[1] == 2 else square.sum(1)).mean())


def ece(outputs: FloatArray, y: IntArray) -> float:
    """Expected calibration error: how far confidence and accuracy lie apart, by bins."""
    p = probabilities(outputs)
    sure, right = p.max(1), p.argmax(1) == y
    edges = np.linspace(0.0, 1.0, CALIBRATION_BINS + 1)
    place = np.searchsorted(edges[1:-1], sure, side="left")  # a bin holds its upper edge
    apart = np.abs(np.bincount(place, sure - right, CALIBRATION_BINS))
    return float(apart.sum() / len(y))


def _errors(outputs: FloatArray, y: FloatArray) -> FloatArray:
    return outputs.reshape(len(outputs), -1) - y.reshape(len(y), -1)


def rmse(outputs: FloatArray, y: FloatArray) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.square(_errors(outputs, y)).mean()))


def mae(outputs: FloatArray, y: FloatArray) -> float:
    """Mean absolute error."""
    return float(np.abs(_errors(outputs, y)).mean())


def r2(outputs: FloatArray, y: FloatArray) -> float:
    """The share of the targets' variance that is explained, as a mean over target numbers.

    nan where a client has fewer than two examples, or targets that are all equal.
    """
    wide = y.reshape(len(y), -1).astype(np.float64)
    if (wide == wide[:1]).all(0).any():
        return np.nan
    spread = np.square(wide - wide.mean(0)).sum(0)
    return float(np.mean(1.0 - np.square(_errors(outputs, y)).sum(0) / spread))


def perplexity(outputs: FloatArray, y: IntArray) -> float:
    """exp of the mean loss of the targets, over the positions that have one.

    At most MOST_PERPLEXITY, since files hold finite numbers only.
    """
    flat, targets = outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1)
    flat, targets = flat[targets >= 0], targets[targets >= 0]
    if not len(targets):
        return np.nan
    top = flat.max(1)
    log_sum = top + np.log(np.exp(flat - top[:, None]).sum(1))
    loss = float((log_sum - flat[np.arange(len(flat)), targets]).mean())
    return math.exp(loss) if loss < math.log(MOST_PERPLEXITY) else MOST_PERPLEXITY


_CLASSES = ("classify",)
_WORDS = ("classify", "sequence")
METRICS = {
    m.name: m
    for m in (
        ClientMetric("accuracy", "accuracy", True, False, _CLASSES, share_right),
        ClientMetric(
            "balanced-accuracy", "balanced accuracy", True, False, _CLASSES, balanced_accuracy
        ),
        ClientMetric("f1", "F1 (macro)", True, False, _CLASSES, f1),
        ClientMetric("auc", "AUC", True, False, _CLASSES, auc, partial=True),
        ClientMetric(
            "average-precision",
            "average precision",
            True,
            False,
            _CLASSES,
            average_precision,
            partial=True,
        ),
        ClientMetric("rmse", "RMSE", False, True, ("regress",), rmse),
        ClientMetric("mae", "MAE", False, True, ("regress",), mae),
        ClientMetric("r2", "R²", False, False, ("regress",), r2, partial=True),
        ClientMetric("perplexity", "perplexity", False, True, _WORDS, perplexity),
        ClientMetric("brier", "Brier score", False, True, _CLASSES, brier),
        ClientMetric("ece", "calibration error", True, True, _CLASSES, ece),
    )
}
