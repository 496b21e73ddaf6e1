"""Paths that a user names: whether a file is there, and opening it, with an error in one line."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Any

from fedmaba.errors import usable


def is_file(path: Traversable) -> bool:
    """Whether there is a file; a path that cannot even be looked at is an error."""
    with usable(str(path)[:200], "correct the path or rights"):
        return path.is_file()


def open_file(path: Path, **how: Any) -> IO[Any]:
    """Open a user's file; the error of an unreadable file differs from that of a damaged one."""
    with usable(path, "make it readable, or name another"):
        handle: IO[Any] = path.open(**how)
    return handle
