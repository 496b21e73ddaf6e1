"""Code of one's own: found by its name, and known again by what it does. No torch here."""

from __future__ import annotations

import hashlib
import importlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from fedmaba.errors import InputError

KNOWN = ("torch", "fedmaba")  # their versions are recorded
PLAIN = (type(None), bool, int, float, complex, str, bytes)


def find(what: str, where: str, attribute: str, form: str) -> Any:
    """What a module holds under a name; `what` and `form` are words for an error."""
    if not all(where.split(".")):
        raise InputError(f"{what} names no module: write {form}")
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and f"{where}.".startswith(f"{error.name}."):
            raise InputError(f"{what}: {error}: write {form}") from error
        raise InputError(
            f"{what}: module {where!r} wants {error.name!r}, which is not here: install it"
        ) from error
    except SyntaxError as error:
        place = f"{error.filename}, line {error.lineno}"
        raise InputError(f"{what}: {place}: {error.msg}: mend it") from error
    except Exception as error:  # whatever a module does when it is read
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(
            f"{what}: {last.filename}, line {last.lineno}: {reason}: mend it"
        ) from error
    if not hasattr(module, attribute):
        raise InputError(f"{what}: module {where!r} has no {attribute!r}: write {form}")
    return getattr(module, attribute)


def marks(things: Mapping[str, object]) -> dict[str, str]:
    """The marks of those that are not fedmaba's own."""
    return {what: mark(thing) for what, thing in things.items() if _root(thing) != "fedmaba"}


def mark(thing: object) -> str:
    """Name and digest of a function, class or object: another where its own code is another.

    Functions that it calls by name are not looked at, nor what torch and fedmaba define.
    """
    digest = hashlib.sha256()
    for part in _parts(thing, {}):
        digest.update(part.encode(errors="replace") + b"\0")
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(named, '__qualname__', '')} {digest.hexdigest()[:12]}"


def _parts(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    """What makes a function what it is, as words that are the same in every process."""
    if isinstance(thing, PLAIN):
        yield repr(thing)
        return
    yield type(thing).__name__
    if id(thing) in seen:
        return
    if not isinstance(thing, CodeType | tuple | frozenset):  # a method knows its class
        seen[id(thing)] = thing
    for value in _inside(thing):
        yield from _parts(value, seen)


def _inside(thing: Any) -> Iterable[Any]:
    """What a function, class or constant is made of; of other objects, such as a list, nothing."""
    if isinstance(thing, type | FunctionType) and _root(thing) in KNOWN:
        return (thing.__qualname__,)
    match thing:
        case CodeType():
            return thing.co_code, thing.co_names, thing.co_consts
        case FunctionType():
            held = (cell.cell_contents for cell in thing.__closure__ or () if cell != CellType())
            named = sorted((thing.__kwdefaults__ or {}).items())
            return thing.__code__, thing.__defaults__, *named, *held
        case staticmethod() | classmethod():
            return (thing.__func__,)
        case property():
            return thing.fget, thing.fset
        case MethodType():
            return thing.__func__, thing.__self__
        case partial():
            return thing.func, thing.args, *sorted(thing.keywords.items())
        case tuple():
            return thing
        case frozenset():
            return sorted(thing, key=repr)
        case type():
            return *thing.__bases__, *(v for k, v in sorted(vars(thing).items()) if _own(k, v))
        case _ if callable(thing):
            settings = sorted(getattr(thing, "__dict__", {}).items())
            return type(thing), *(pair for pair in settings if isinstance(pair[1], PLAIN))
    return ()


def _root(thing: object) -> str:
    return str(getattr(thing, "__module__", "")).split(".")[0]


def _own(name: str, value: object) -> bool:
    """Whether an entry of a class is code or a constant, not what Python keeps there."""
    constant = isinstance(value, (*PLAIN, tuple)) and not name.startswith("__")
    return constant or isinstance(value, (FunctionType, staticmethod, classmethod, property))
