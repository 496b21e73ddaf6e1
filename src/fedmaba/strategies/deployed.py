"""Which model is deployed (handed out to users): an average of the server's models, or one of them.

Averages: `last`, `average`, `poly:K` (polynomial decay, Shamir and Zhang 2013) or `ema:B`.
One round's model, picked on validation examples among the rounds that were evaluated:
`best:accuracy` has the highest mean accuracy over clients, `best:fair` the lowest variance over
clients among those at most one point of accuracy below it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
PICKS = ("accuracy", "fair")
POINT = 0.01  # of accuracy, which lies between 0 and 1
ACCURACY_ROUNDING = 1e-9  # two accuracies this close are one


def parse_rule(text: str) -> tuple[str, float]:
    """Kind and number of a rule; `best:accuracy` and `best:fair` are kinds without a number."""
    kind, _, number = text.partition(":")
    if kind == "best" and number in PICKS:
        return text, math.nan
    try:
        value = float(number) if number else math.nan
    except ValueError:
        value = math.nan
    if (
        (kind in ("last", "average") and not number)
        or (kind == "poly" and 0 <= value < math.inf)
        or (kind == "ema" and 0 < value < 1)
    ):
        return kind, value
    raise InputError(
        f"deploy={text!r}: say last, average, poly:K with K of at least 0, ema:B with 0 < B < 1, "
        "best:accuracy or best:fair"
    )


def needs_validation(text: str) -> bool:
    """Whether a rule picks a round on validation examples."""
    return parse_rule(text)[0].startswith("best:")


def no_validation(text: str) -> str:
    """The error for a rule that has nothing to pick on."""
    return (
        f"deploy={text!r} picks a round on validation data, but none are held back: add "
        "--validation 10%, or choose another rule"
    )


def new_model_share(text: str, t: int) -> float:
    """The weight of the server's new model in the deployed average after round t = 0, 1, ...

    It is 0 for a rule that picks a round: that is done after an evaluation.
    """
    kind, value = parse_rule(text)
    if kind.startswith("best:"):
        return 0.0
    if kind == "poly":
        return (value + 1) / (t + 1 + value)
    if kind == "average":
        return 1 / (t + 1)
    return 1.0 if kind == "last" or t == 0 else 1 - value


def pick_round(text: str, accuracy: FloatArray, variance: FloatArray) -> int:
    """Which evaluation a rule picks, by the validation accuracy and variance of each, (E,).

    Among equals the one with the higher accuracy, then the earlier one.
    """
    near = _near(text, accuracy)
    by = variance if parse_rule(text)[0] == "best:fair" else -accuracy
    order = np.lexsort((near, -accuracy[near], by[near]))
    return int(near[order[0]])


def can_still_win(text: str, accuracy: FloatArray, variance: FloatArray) -> IntArray:
    """Which evaluations may yet be picked, whatever later ones bring; in order.

    Left out is what is too far below the best accuracy, and what another is at least as good as in
    both accuracy and variance.
    """
    if parse_rule(text)[0] == "best:accuracy":
        return np.array([pick_round(text, accuracy, variance)])
    left = []
    for i in _near(text, accuracy):
        as_good = (accuracy >= accuracy[i]) & (variance <= variance[i])
        better = as_good & ((accuracy > accuracy[i]) | (variance < variance[i]))
        if not better.any() and not as_good[:i].any():
            left.append(int(i))
    return np.array(left)


def _near(text: str, accuracy: FloatArray) -> IntArray:
    """The evaluations whose accuracy is high enough for a rule."""
    margin = POINT if parse_rule(text)[0] == "best:fair" else 0.0
    return np.flatnonzero(accuracy >= accuracy.max() - margin - ACCURACY_ROUNDING)
