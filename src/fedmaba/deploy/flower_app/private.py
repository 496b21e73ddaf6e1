"""Files and folders that only this account may read. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

UMASK = 0o077  # of every program that is started here: what it writes is its account's alone


def new_folder(path: Path) -> None:
    """A new folder of mode 0700; one that is there stays as its owner made it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """For `open`: a file that is made has mode 0600."""
    return os.open(path, flags, 0o600)


def write_new(path: Path, text: str) -> None:
    """A new file of mode 0600; never through a link, never over a file that is there."""
    with open(path, "x", encoding="utf-8", opener=opener) as file:
        file.write(text)
