"""Code of the user's own: found by its name, and known again by what it does. No torch here.

The folder that the user works in is no place to look for modules, since somebody else may have
filled it, until the user names a module: see `allow_working_folder`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from fedmaba.errors import InputError
from fedmaba.stop import Ended

VERSIONED_PACKAGES = ("torch", "fedmaba")  # their versions are recorded
# where code lies that is not the user's: Python's own, installed packages and this one
LIBRARY = (
    "<frozen",
    os.path.dirname(__file__) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
PLAIN = (type(None), bool, int, float, complex, str, bytes)


def allow_working_folder() -> None:
    """Let modules of the working folder be imported from now on, where no other place has them."""
    with suppress(OSError):  # a folder that was removed holds none
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)


@contextmanager
def child_processes_skip_working_folder() -> Iterator[None]:
    """Python processes that are started meanwhile do not look for modules in the working folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def say_sources(named: Mapping[str, str]) -> str:
    """What would be imported for each name, and from which file; nothing is imported for it."""
    found = {what: _file(where) for what, where in named.items()}
    return ", ".join(f"{what} from {file or 'nowhere'}" for what, file in found.items())


def _file(where: str) -> str:
    """The file, or the folders, that a module would be read from; empty where there is none."""
    top, *inner = where.split(".")
    spec: ModuleSpec | None = None
    with suppress(ValueError, OSError):  # no name of a module; no working folder
        spec = find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])
    name = top
    for part in inner:
        name = f"{name}.{part}"
        folders = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(name, folders) if folders else None
    if spec is None:
        return ""
    return spec.origin or " and ".join(spec.submodule_search_locations or ())


def import_attribute(what: str, where: str, attribute: str, form: str) -> Any:
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
        raise InputError(f"{what}: {place}: {error.msg}: fix it") from error
    except Ended:  # by a signal
        raise
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise error_in_user_code(what, error) from error
    if not hasattr(module, attribute):
        raise InputError(f"{what}: module {where!r} has no {attribute!r}: write {form}")
    return getattr(module, attribute)


def error_in_user_code(what: str, error: BaseException) -> InputError:
    """An exception in code of the user's own as one line with the place where to look."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(LIBRARY)]
    place = [f"{frame.filename}, line {frame.lineno}" for frame in theirs[-1:]]
    words = [" ".join(str(error).split())] if str(error).strip() else []
    return InputError(": ".join([what, *place, type(error).__name__, *words, "fix it"]))


def fingerprints(things: Mapping[str, object]) -> dict[str, str]:
    """The fingerprints of those things that are not fedmaba's own."""
    return {
        what: fingerprint(thing)
        for what, thing in things.items()
        if _top_package(thing) != "fedmaba"
    }


def fingerprint(thing: object) -> str:
    """Name and digest of a function, class or object; the digest changes with its code.

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
    if isinstance(thing, type | FunctionType) and _top_package(thing) in VERSIONED_PACKAGES:
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
            return *thing.__bases__, *(
                v for k, v in sorted(vars(thing).items()) if _is_code_or_constant(k, v)
            )
        case _ if callable(thing):
            settings = sorted(getattr(thing, "__dict__", {}).items())
            return type(thing), *(pair for pair in settings if isinstance(pair[1], PLAIN))
    return ()


def _top_package(thing: object) -> str:
    return str(getattr(thing, "__module__", "")).split(".")[0]


def _is_code_or_constant(name: str, value: object) -> bool:
    """Whether an entry of a class is code or a constant, not what Python keeps there."""
    constant = isinstance(value, (*PLAIN, tuple)) and not name.startswith("__")
    return constant or isinstance(value, (FunctionType, staticmethod, classmethod, property))
