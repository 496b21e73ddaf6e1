"""How a server makes one change of its clients' changes, where weights alone cannot. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from fedmaba import user_code
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.strategies import records
from fedmaba.strategies.records import known_fields_only

OWN = "package.module:function"
PIECE = 1 << 16  # numbers that NumPy combines at once
ROUNDING = 1e-6  # of sums of weights, in float32


@known_fields_only
@dataclass(frozen=True)
class Combine:
    """The rule by which the server combines trained weights, by name, in place of a weighted sum.

    The name is `package.module:function`. The function gets (changes, weights, numbers, xp) and
    returns what joins the model. Changes (k, p) are those of the k participants that count, in a
    piece of p columns: it must treat each column by itself. Weights (k,) are the strategy's
    coefficients, which a record shows. `xp` is torch in a simulation and numpy at a Flower server.
    Running statistics keep the weighted sum. A participant whose change is not finite counts as
    one that did not answer.
    """

    name: str
    numbers: Mapping[str, float] = field(default_factory=dict)  # which the function gets by name

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise records.wrong_value("Combine(name", self.name, "give a name")
        given = records.as_dict("Combine(numbers", self.numbers)
        numbers = {n: records.as_number(f"Combine(numbers[{n!r}]", v) for n, v in given.items()}
        object.__setattr__(self, "numbers", numbers)

    @property
    def own(self) -> bool:
        """Whether its function is the user's."""
        return ":" in self.name

    def of(self, changes: Any, weights: Any, xp: Any) -> Any:  # (p,)
        """What the rule makes of changes (k, p) with weights (k,)."""
        return find(self.name)(changes, weights, self.numbers, xp)

    def check(self, changes: Any, weights: Any, xp: Any) -> None:
        """Refuse a rule that fails on these changes, or does not give a number for each column."""
        what = f"combine {self.name!r}"
        try:
            found = self.of(changes, weights, xp)
        except FedmabaError:
            raise
        except Exception as error:  # user code can raise anything
            raise user_code.error_in_user_code(what, error) from error
        shape = tuple(getattr(found, "shape", ()))
        if shape != tuple(changes.shape[1:]):
            raise InputError(
                f"{what} gave shape {shape} for {changes.shape[0]} changes of {changes.shape[1]} "
                "numbers: return one number for each column"
            )


@cache
def find(name: str) -> Callable[..., Any]:
    """The rule of this name, or the user's own at `package.module:function`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    where, _, attribute = name.partition(":")
    if not attribute:
        raise unknown("rule", name, BUILT_IN, other=f", or write {OWN} for your own")
    found = user_code.import_attribute(f"combine {name!r}", where, attribute, OWN)
    if not callable(found):
        raise InputError(f"combine {name!r} is no function: it must take {TAKES}")
    return found  # type: ignore[no-any-return]


def combined(rule: Combine, changes: Any, weights: Any) -> Any:  # (P,)
    """What a rule makes of changes (k, P), NumPy arrays, in pieces of columns."""
    width = max(1, PIECE // len(changes))
    cuts = range(0, changes.shape[1], width)
    parts = [rule.of(changes[:, a : a + width], weights, np) for a in cuts]
    return np.concatenate(parts).astype(changes.dtype)


def median(changes: Any, weights: Any, numbers: Mapping[str, float], xp: Any) -> Any:
    """The middle of each column; of an even number of changes the mean of the two middle ones."""
    ordered, k = _ordered(changes, xp), len(changes)
    return (ordered[(k - 1) // 2] + ordered[k // 2]) / 2


def trimmed(changes: Any, weights: Any, numbers: Mapping[str, float], xp: Any) -> Any:
    """The mean of each column without the share that is least and the share that is greatest."""
    cut = count_of_share(numbers["share"], len(changes))
    return _ordered(changes, xp)[cut : len(changes) - cut].mean(0)


def weighted_median(changes: Any, weights: Any, numbers: Mapping[str, float], xp: Any) -> Any:
    """Where half of the weight lies on either side; the mean of two where it is just between."""
    values, weights = _ordered_with(changes, weights, xp)
    below = weights.cumsum(0)
    middle = (below >= 0.5 - ROUNDING) & (below - weights <= 0.5 + ROUNDING)
    return (values * middle).sum(0) / middle.sum(0)


def weighted_trimmed(changes: Any, weights: Any, numbers: Mapping[str, float], xp: Any) -> Any:
    """As `trimmed`, which leaves out by number; what is left counts by its weights."""
    values, weights = _ordered_with(changes, weights, xp)
    kept = slice(cut := count_of_share(numbers["share"], len(changes)), len(changes) - cut)
    return (values * weights)[kept].sum(0) / weights[kept].sum(0)


def total(changes: Any, weights: Any, numbers: Mapping[str, float], xp: Any) -> Any:
    """The weighted sum."""
    return weights @ changes


def count_of_share(share: float, k: int) -> int:
    """How many of k changes a share below a half is, rounded down: 0.29 of 100 are 29."""
    return min(int(share * k + 1e-9), (k - 1) // 2)


def _ordered(changes: Any, xp: Any) -> Any:
    """Each column of changes (k, p) in increasing order."""
    if getattr(changes, "is_cuda", False):
        return xp.sort(changes, 0).values
    return xp.asarray(np.sort(np.asarray(changes), 0))  # ten times as fast as torch's on a CPU


def _ordered_with(changes: Any, weights: Any, xp: Any) -> tuple[Any, Any]:
    """Each column of changes (k, p) in increasing order, and the weights (k, p) in that order."""
    if getattr(changes, "is_cuda", False):
        values, order = xp.sort(changes, 0)
        return values, weights[order]
    values, each = np.asarray(changes), np.asarray(weights)
    order = np.argsort(values, 0)
    return xp.asarray(np.take_along_axis(values, order, 0)), xp.asarray(each[order])


TAKES = "(changes, weights, numbers, xp)"
BUILT_IN: dict[str, Callable[..., Any]] = {
    "median": median,
    "trimmed": trimmed,
    "weighted_median": weighted_median,
    "weighted_trimmed": weighted_trimmed,
    "sum": total,
}
