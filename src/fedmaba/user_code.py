"""Import models and strategies that users wrote, and fingerprint them for resume. No torch here.

Modules in the working folder are not imported by default, since somebody else may have put them
there. They are once the user names a module: see `allow_working_folder`.
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
# Code in these places is not the user's: Python, installed packages and fedmaba itself.
LIBRARY = (
    "<frozen",
    os.path.dirname(__file__) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes)


def allow_working_folder() -> None:
    """From now on, import modules from the working folder too, after all other places."""
    with suppress(OSError):  # the working folder was removed
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)


@contextmanager
def child_processes_skip_working_folder() -> Iterator[None]:
    """Python processes started meanwhile do not import modules from the working folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def say_sources(named: Mapping[str, str]) -> str:
    """Say which file each name would be imported from, without importing it."""
    found = {what: _file(where) for what, where in named.items()}
    return ", ".join(f"{what} from {file or 'nowhere'}" for what, file in found.items())


def _file(where: str) -> str:
    """The file or folders that a module would be read from; empty where there is none."""
    top, *inner = where.split(".")
    spec: ModuleSpec | None = None
    with suppress(ValueError, OSError):  # not a module name, or no working folder
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
    """An attribute of a module; errors begin with `what` and advise to write `form`."""
    if not all(where.split(".")):
        raise InputError(f"{what} names no module: write {form}")
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and f"{where}.".startswith(f"{error.name}."):
            raise InputError(f"{what}: {error}: write {form}") from error
        raise InputError(
            f"{what}: module {where!r} needs {error.name!r}, which is not installed: install it"
        ) from error
    except SyntaxError as error:
        place = f"{error.filename}, line {error.lineno}"
        raise InputError(f"{what}: {place}: {error.msg}: fix it") from error
    except Ended:  # a signal, not an error of the module
        raise
    except (Exception, SystemExit) as error:  # an import can raise anything
        raise error_in_user_code(what, error) from error
    if not hasattr(module, attribute):
        raise InputError(f"{what}: module {where!r} has no {attribute!r}: write {form}")
    return getattr(module, attribute)


def error_in_user_code(what: str, error: BaseException) -> InputError:
    """An exception in a user's code as a one-line error that names the file and line."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(LIBRARY)]
    place = [f"{frame.filename}, line {frame.lineno}" for frame in theirs[-1:]]
    words = [" ".join(str(error).split())] if str(error).strip() else []
    return InputError(": ".join([what, *place, type(error).__name__, *words, "fix it"]))


def fingerprints(things: Mapping[str, object]) -> dict[str, str]:
    """The fingerprints of those things that are not part of fedmaba."""
    return {
        what: fingerprint(thing)
        for what, thing in things.items()
        if _top_package(thing) != "fedmaba"
    }


def fingerprint(thing: object) -> str:
    """Name and digest of a function, class or object; the digest changes with its code.

    Functions that it calls by name do not count, nor does what torch and fedmaba define.
    """
    digest = hashlib.sha256()
    for part in _parts(thing, {}):
        digest.update(part.encode(errors="replace") + b"\0")
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(named, '__qualname__', '')} {digest.hexdigest()[:12]}"


def _parts(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Text that describes a thing's code, the same in every process."""
    if isinstance(thing, PLAIN_TYPES):
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
    """The parts of a function, class or constant; other objects, such as a list, have none."""
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
            return type(thing), *(pair for pair in settings if isinstance(pair[1], PLAIN_TYPES))
    return ()


def _top_package(thing: object) -> str:
    return str(getattr(thing, "__module__", "")).split(".")[0]


def _is_code_or_constant(name: str, value: object) -> bool:
    """Whether an entry of a class is code or a constant that its author wrote."""
    constant = isinstance(value, (*PLAIN_TYPES, tuple)) and not name.startswith("__")
    return constant or isinstance(value, (FunctionType, staticmethod, classmethod, property))
