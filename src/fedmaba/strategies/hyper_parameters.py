"""Hyper-parameters: what a field of a strategy may be, read from text and written back.

The type that the field is declared with decides: bool, int, float, str, a Literal, a tuple of
these, or some of them joined by |. Other types are for Python alone.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

MOST = 1e300  # of a hyper-parameter or a report, so that products stay finite
FREE = (Any, object)  # a number where it reads as one, else the word
PLAIN = (type(None), bool, int, float, str)  # in the order in which they are tried

_known: dict[type, dict[str, Any]] = {}


def hints(kind: type) -> dict[str, Any]:
    """The types of a class's fields; to find them is slow."""
    if kind not in _known:
        _known[kind] = get_type_hints(kind)
    return _known[kind]


def options(kind: Any) -> tuple[Any, ...]:
    """What a hyper-parameter of this type may be, where the type lists it."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def default(f: dataclasses.Field[Any]) -> Any:
    """What a field is where nothing is said."""
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def short(value: object) -> str:
    """A hyper-parameter as a user would type it."""
    if isinstance(value, tuple):
        return f"({', '.join(map(short, value))}{',' * (len(value) == 1)})"
    if not isinstance(value, float):
        return str(value)
    brief = format(value, "g")
    return brief if float(brief) == value else repr(value)


def split(text: str) -> list[str]:
    """The parts between commas outside brackets; ValueError where brackets do not match."""
    parts, opened, start = [], "", 0
    for i, c in enumerate(text):
        if c in "[(":
            if c == "[" and opened:  # a list is a grid, and that stands outside
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


def read(kind: Any, text: str) -> object:
    """What a text means for a field of this type; the text itself where it means nothing."""
    members = _members(kind)
    if not any(_told(member) for member in members):
        raise ValueError("a hyper-parameter of this type is given in Python, not as text")
    for member in members:
        try:
            return _meaning(member, text)
        except ValueError:
            continue
    return text


def checked(f: dataclasses.Field[Any], kind: Any, value: object) -> object:
    """A value as its field keeps it; ValueError with the rule where it does not fit."""
    members = _members(kind)
    for member in members:
        try:
            kept = _fitting(f, member, value)
        except ValueError:
            continue
        if value is not default(f) and not _readable(kind, kept):
            raise ValueError(
                "its label would not be read as this value: choose another word, without commas, "
                "brackets and blanks at its ends"
            )
        return kept
    raise ValueError(", or ".join(_rule(f, member) for member in members))


def _members(kind: Any) -> list[Any]:
    """The types that a type allows, words last: a text may be any word."""
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


def _told(kind: Any) -> bool:
    """Whether a text can say a value of this type."""
    return kind in PLAIN or kind in FREE or bool(options(kind)) or _is_tuple(kind)


def _is_tuple(kind: Any) -> bool:
    return kind is tuple or get_origin(kind) is tuple


def _meaning(kind: Any, text: str) -> object:
    """What a text means for one type; ValueError where it means nothing."""
    if kind is str:
        return text
    if kind is float:
        return float(text)
    if kind is int or kind in FREE:
        return _number(kind, text)
    if _is_tuple(kind):
        if not (text.startswith("(") and text.endswith(")")):
            raise ValueError(text)
        inner = [part.strip() for part in split(text[1:-1].strip().removesuffix(","))]
        return tuple(map(read, _elements(kind, len(inner)), inner))
    for value in options(kind) or {bool: (True, False), type(None): (None,)}.get(kind, ()):
        if short(value) == text or (value in (True, False, None) and str(value) == text.title()):
            return value
    raise ValueError(text)


def _number(kind: Any, text: str) -> object:
    """A whole number where it is one, else a number, else (of a free type) the word."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        if kind in FREE:
            return text
        raise
    return int(value) if kind is int and value.is_integer() else value


def _fitting(f: dataclasses.Field[Any], kind: Any, value: Any) -> object:
    """The value as one type keeps it; ValueError where it does not fit."""
    true = isinstance(value, bool | np.bool_)
    if choices := options(kind):
        for choice in choices:
            if true == isinstance(choice, bool) and choice == value:
                return choice
    elif kind in (int, float):
        if isinstance(value, int | float) and not true:
            low, high, strict = _range(f)
            inside = (low < value if strict else low <= value) and value <= high
            if inside and abs(value) < MOST and kind(value) == value:
                return kind(value)
    elif _is_tuple(kind):
        if isinstance(value, tuple | list):
            pairs = zip(_elements(kind, len(value)), value, strict=True)
            return tuple(checked(f, inner, one) for inner, one in pairs)
    elif kind is bool:
        if true:
            return bool(value)
    elif kind not in PLAIN or isinstance(value, kind):
        return value
    raise ValueError(value)


def _readable(kind: Any, value: object) -> bool:
    """Whether a label tells this value from all others."""
    if isinstance(value, str) and (
        not value.isprintable() or value != value.strip() or set(value) & set(",[]()")
    ):
        return False
    if isinstance(value, tuple) or not all(_told(m) and m not in FREE for m in _members(kind)):
        return True  # its elements were asked; others are Python's business
    return bool(value != "" and read(kind, short(value)) == value)


def _range(f: dataclasses.Field[Any]) -> tuple[float, float, bool]:
    """Bounds of a hyper-parameter, and whether the lower one is excluded."""
    meta = f.metadata
    return meta.get("low", -np.inf), meta.get("high", np.inf), meta.get("open", False)


def _rule(f: dataclasses.Field[Any], kind: Any) -> str:
    """What a hyper-parameter of one type may be, in words."""
    if choices := options(kind):
        return f"choose one of {', '.join(map(short, choices))}"
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
        parts.append(f"{'and ' if len(parts) > 1 else ''}below {MOST:g}")
    return " ".join(parts)
