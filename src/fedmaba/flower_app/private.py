"""Files and folders that only this account may read. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

UMASK = 0o077  # of every program that is started here: what it writes is its account's alone


def make_folder(path: Path) -> None:
    """A new folder of mode 0700; one that is there stays as its owner made it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_new(path: Path, text: str) -> None:
    """A new file of mode 0600; never through a link, never over a file that is there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
