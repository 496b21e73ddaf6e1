"""Hyper-parameters: what a field of a strategy may be, read from text and written back.

The type that the field is declared with decides: bool, int, float, str, a Literal, a tuple of
these, or some of them joined by |. Other types are for Python alone.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedmaba.errors import InputError

MAX_ABS = 1e300  # largest hyper-parameter or report: products with it stay finite
UNTYPED = (Any, object)  # text that looks like a number becomes one, other text stays
PLAIN = (type(None), bool, int, float, str)  # in the order in which they are tried

_field_types: dict[type, dict[str, Any]] = {}


def field_types(kind: type) -> dict[str, Any]:
    """The types of a class's fields, remembered because finding them is slow."""
    if kind not in _field_types:
        _field_types[kind] = get_type_hints(kind)
    return _field_types[kind]


def require_dataclass(kind: type, base: type, called: str) -> None:
    """Refuse a class derived from `base` with settings that are no fields of a dataclass."""
    for one in kind.__mro__:
        if one is base or not issubclass(one, base):
            continue
        if "__dataclass_fields__" in vars(one):
            for f in vars(one)["__dataclass_fields__"].values():
                if "InitVar" in str(f.type):
                    raise InputError(
                        f"strategy {called!r} has the InitVar {f.name}, which no label or record "
                        "shows: make it a field"
                    )
            continue
        if "__init__" in vars(one):
            raise InputError(
                f"strategy {called!r} has an __init__ of its own, whose settings no label or "
                "record shows: write them as fields, with @dataclass(frozen=True) above the class"
            )
        for name, declared in inspect.get_annotations(one).items():
            if "ClassVar" not in str(declared):
                raise InputError(
                    f"strategy {called!r} has the field {name}, but is no dataclass: write "
                    "@dataclass(frozen=True) above the class"
                )


def require_fields_only(strategy: object) -> None:
    """Refuse an object that keeps more than its fields: nothing would tell it from another."""
    kind = type(strategy)
    fields = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in vars(strategy).keys() - fields:
        if not isinstance(inspect.getattr_static(kind, name, None), cached_property):
            raise InputError(
                f"strategy {kind.__qualname__!r} keeps {name!r}, which is no field, so that no "
                "label, record or checkpoint shows it: make it a field, or compute it where it is "
                "used"
            )


def listed_choices(kind: Any) -> tuple[Any, ...]:
    """The values that a Literal type lists; empty for other types."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def default_value(f: dataclasses.Field[Any]) -> Any:
    """The default value of a field."""
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def format_value(value: object) -> str:
    """A hyper-parameter as a user would type it."""
    if isinstance(value, tuple):
        return f"({', '.join(map(format_value, value))}{',' * (len(value) == 1)})"
    if not isinstance(value, float):
        return str(value)
    brief = format(value, "g")
    return brief if float(brief) == value else repr(value)


def split_at_commas(text: str) -> list[str]:
    """Split at commas outside brackets; ValueError where brackets do not match."""
    parts, opened, start = [], "", 0
    for i, c in enumerate(text):
        if c in "[(":
            if c == "[" and opened:  # a list makes a grid, so it cannot stand inside brackets
                raise ValueError(text)
            opened += c
        elif c in "])":
            if opened[-1:] + c not in ("[]", "()"):
                raise ValueError(text)
            opened = opened[:-1]
        elif c == "," and not opened:
            parts.append(text[start:i])
            start = i + 1
    if opened:
        raise ValueError(text)
    return [*parts, text[start:]] if text else []


def parse_value(kind: Any, text: str) -> object:
    """Read a text as a value of this type; a text that does not fit is returned as it is."""
    members = _members(kind)
    if not any(_can_be_written(member) for member in members):
        raise ValueError("a hyper-parameter of this type is given in Python, not as text")
    for member in members:
        try:
            return _parse_as(member, text)
        except ValueError:
            continue
    return text


def check_value(f: dataclasses.Field[Any], kind: Any, value: object) -> object:
    """The value as the field stores it; ValueError that says the rule where it does not fit."""
    members = _members(kind)
    for member in members:
        try:
            kept = _fit(f, member, value)
        except ValueError:
            continue
        _require_constant(f, kept)
        if value is not default_value(f) and not _readable(kind, kept):
            raise ValueError(
                "its label would not be read as this value: choose another word, without commas, "
                "brackets and blanks at its ends"
            )
        return kept
    raise ValueError(", or ".join(_rule(f, member) for member in members))


def _require_constant(f: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a value that can change while runs share it, or that no other process would know."""
    try:
        hash(value)
        changes = hasattr(value, "__setitem__")  # a tensor
    except TypeError:
        changes = True
    if changes:
        raise ValueError("it can change while all runs share it: declare and give a tuple")
    hashed: object = type(value).__hash__
    by_address = hashed is object.__hash__
    if by_address and value is not None and value is not default_value(f):
        raise ValueError(
            "its label would be another in every process: give a number, a word or a tuple"
        )


def _members(kind: Any) -> list[Any]:
    """The members of a union, in the order in which to try them: str last, as it takes any text."""
    joined = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return sorted(joined, key=lambda one: PLAIN.index(one) if one in PLAIN else 0)


def _elements(kind: Any, count: int) -> Iterator[Any]:
    """The types of a tuple's elements."""
    args = get_args(kind)
    if len(args) == 2 and args[1] is ...:
        args = (args[0],) * count
    args = args or (Any,) * (count if kind is tuple else 0)
    if len(args) != count:
        raise ValueError(f"{len(args)} elements")
    yield from args


def _can_be_written(kind: Any) -> bool:
    """Whether a value of this type can be written as text."""
    return kind in PLAIN or kind in UNTYPED or bool(listed_choices(kind)) or _is_tuple(kind)


def _is_tuple(kind: Any) -> bool:
    return kind is tuple or get_origin(kind) is tuple


def _parse_as(kind: Any, text: str) -> object:
    """Read a text as one type; ValueError where it does not fit."""
    if kind is str:
        return text
    if kind is float:
        return float(text)
    if kind is int or kind in UNTYPED:
        return _number(kind, text)
    if _is_tuple(kind):
        if not (text.startswith("(") and text.endswith(")")):
            raise ValueError(text)
        inner = [part.strip() for part in split_at_commas(text[1:-1].strip().removesuffix(","))]
        return tuple(map(parse_value, _elements(kind, len(inner)), inner))
    for value in listed_choices(kind) or {bool: (True, False), type(None): (None,)}.get(kind, ()):
        if format_value(value) == text or (
            value in (True, False, None) and str(value) == text.title()
        ):
            return value
    raise ValueError(text)


def _number(kind: Any, text: str) -> object:
    """A text as a whole number, else as a number, else (where any type will do) as it is."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        if kind in UNTYPED:
            return text
        raise
    return int(value) if kind is int and value.is_integer() else value


def _fit(f: dataclasses.Field[Any], kind: Any, value: Any) -> object:
    """The value as this type stores it; ValueError where it does not fit."""
    true = isinstance(value, bool | np.bool_)
    if choices := listed_choices(kind):
        for choice in choices:
            if true == isinstance(choice, bool) and choice == value:
                return choice
    elif kind in (int, float):
        if isinstance(value, int | float) and not true:
            low, high, strict = _range(f)
            inside = (low < value if strict else low <= value) and value <= high
            if inside and abs(value) < MAX_ABS and kind(value) == value:
                return kind(value)
    elif _is_tuple(kind):
        if isinstance(value, tuple | list):
            pairs = zip(_elements(kind, len(value)), value, strict=True)
            return tuple(check_value(f, inner, one) for inner, one in pairs)
    elif kind is bool:
        if true:
            return bool(value)
    elif kind not in PLAIN or isinstance(value, kind):
        return value
    raise ValueError(value)


def _readable(kind: Any, value: object) -> bool:
    """Whether a label with this value can be read back as the same value."""
    if isinstance(value, str) and (
        not value.isprintable() or value != value.strip() or set(value) & set(",[]()")
    ):
        return False
    if isinstance(value, tuple) or not all(
        _can_be_written(m) and m not in UNTYPED for m in _members(kind)
    ):
        return True  # its elements were checked already; other types are never read from text
    return bool(value != "" and parse_value(kind, format_value(value)) == value)


def _range(f: dataclasses.Field[Any]) -> tuple[float, float, bool]:
    """Bounds of a hyper-parameter, and whether the lower one is excluded."""
    meta = f.metadata
    return meta.get("low", -np.inf), meta.get("high", np.inf), meta.get("open", False)


def _rule(f: dataclasses.Field[Any], kind: Any) -> str:
    """The rule for a hyper-parameter of one type, as part of an error message."""
    if choices := listed_choices(kind):
        return f"choose one of {', '.join(map(format_value, choices))}"
    if _is_tuple(kind):
        return f"give several in parentheses, as (a,b): {kind}"
    if kind not in (int, float):
        return {bool: "say true or false", str: "give a word"}.get(kind, "say none")
    low, high, strict = _range(f)
    parts = ["give a whole number" if kind is int else "give a finite number"]
    if low > -np.inf:
        parts.append(f"{'above' if strict else 'of at least'} {low:g}")
    if high < np.inf:
        parts.append(f"{'and ' if len(parts) > 1 else 'of '}at most {high:g}")
    elif kind is float:
        parts.append(f"{'and ' if len(parts) > 1 else ''}below {MAX_ABS:g}")
    return " ".join(parts)
