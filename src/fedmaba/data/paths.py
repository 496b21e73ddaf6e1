"""Paths that a user names: whether a file is there, and opening it, with an error in one line."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Any

from fedmaba.errors import InputError


def is_file(path: Traversable) -> bool:
    """Whether there is a file; a path that cannot even be looked at is an error."""
    try:
        return path.is_file()
    except OSError as err:
        raise InputError(f"{str(path)[:200]}: {err.strerror}: correct the path or rights") from None


def open_file(path: Path, **how: Any) -> IO[Any]:
    """Open a user's file; the error of an unreadable file differs from that of a damaged one."""
    try:
        handle: IO[Any] = path.open(**how)
    except OSError as err:
        raise InputError(f"{path}: {err.strerror}: make it readable, or name another") from None
    return handle
