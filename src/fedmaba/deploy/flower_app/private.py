"""Files, folders and children that are this process's alone. Needs no torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

UMASK = 0o077  # of every program started here, so that only this account can read what it writes


def new_folder(path: Path) -> None:
    """Make a folder of mode 0700; a folder that exists keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """An opener for `open`, with which new files have mode 0600."""
    return os.open(path, flags, 0o600)


def write_new(path: Path, text: str) -> None:
    """Write a new file of mode 0600; never through a link, never over an existing file."""
    with open(path, "x", encoding="utf-8", opener=opener) as file:
        file.write(text)


def end_with_us() -> None:
    """In a new child: let the kernel end it when its parent is killed, where it can (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
