"""The records that strategies make: a wrong value, and a field that there is not, are one line."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from fedmaba.errors import InputError, unknown

Record = TypeVar("Record")
SIMULATED = "simulated only"


def known_fields_only(kind: type[Record]) -> type[Record]:
    """Let a record say which of its fields was meant by a name that it does not have."""
    how = "__new__" if issubclass(kind, tuple) else "__init__"
    made, known = getattr(kind, how), _fields(kind)

    @functools.wraps(made)
    def make(self: Any, *args: Any, **values: Any) -> Any:
        for name in values:
            if name not in known:
                raise unknown(f"field of {kind.__name__}", name, known)
        return made(self, *args, **values)

    setattr(kind, how, make)
    return kind


def _fields(kind: type[Any]) -> tuple[str, ...]:
    if issubclass(kind, tuple):
        return tuple(kind._fields)  # type: ignore[attr-defined]
    return tuple(f.name for f in dataclasses.fields(kind))


def at_sites(why: Callable[[Any], str]) -> dict[str, Any]:
    """The metadata of a field of which some values are for simulations only: `why`, else empty."""
    return {SIMULATED: why}


def simulated_only(record: Any) -> str:
    """Why no site of a real federation can do what a record asks for; empty where one can."""
    told = ((f.metadata.get(SIMULATED), f.name) for f in dataclasses.fields(record))
    whys = (why(getattr(record, name)) for why, name in told if why is not None)
    return next(filter(None, whys), "")


def as_number(where: str, value: Any, low: float = -np.inf) -> float:
    """The value of a field that must be a finite number of at least `low`."""
    real = isinstance(value, int | float | np.integer | np.floating)
    try:
        found = float(value) if real and not isinstance(value, bool) else np.nan
    except OverflowError:  # a whole number that no float can hold
        found = np.inf
    if not low <= found < np.inf or found == -np.inf:
        raise wrong_value(where, value, "give a finite number" + f" from {low:g}" * (low > -np.inf))
    return found


def as_truth(where: str, value: Any) -> bool:
    """The value of a field that must be True or False."""
    if not isinstance(value, bool | np.bool_):
        raise wrong_value(where, value, "say True or False")
    return bool(value)


def as_words(where: str, value: Any, example: str) -> tuple[str, ...]:
    """The value of a field that must be some words."""
    if not isinstance(value, list | tuple) or not all(isinstance(w, str) and w for w in value):
        raise wrong_value(where, value, f"give a tuple of words, as ({example!r},)")
    return tuple(value)


def as_dict(where: str, value: Any) -> Mapping[str, Any]:
    """The value of a field that must have its parts by name."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong_value(where, value, "give a dict by names")
    return value


def wrong_value(where: str, value: Any, rule: str) -> InputError:
    """The line for a field, as `Local(prox`, whose value is against a rule."""
    return InputError(f"{where}={' '.join(repr(value).split())}): {rule}")
