"""Import models and strategies that users wrote. No torch here.

Modules in the working folder are not imported by default, since somebody else may have put them
there. They are once the user names a module: see `allow_working_folder`.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any

from fedmaba.errors import InputError
from fedmaba.stop import Ended

INSTALLED = ("site-packages", "dist-packages")
# Code in these places is not the user's: Python, installed packages and fedmaba itself.
LIBRARY = (
    "<frozen",
    os.path.dirname(__file__) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def is_library(file: str) -> bool:
    """Whether a file of code is Python's, an installed package's or fedmaba's own."""
    return file.startswith(LIBRARY) or any(name in file for name in INSTALLED)


def allow_working_folder() -> None:
    """From now on, import modules from the working folder too, after all other places."""
    with suppress(OSError):  # the working folder was removed
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)


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
    theirs = [frame for frame in frames if not is_library(frame.filename)]
    place = [f"{frame.filename}, line {frame.lineno}" for frame in theirs[-1:]]
    words = [" ".join(str(error).split())] if str(error).strip() else []
    return InputError(": ".join([what, *place, type(error).__name__, *words, "fix it"]))
