"""The door to the paper's laboratory: a program of its own, in `experiments/` of a clone.

Its modules are imported by what needs them, and only from the clone that this package runs in or
was installed from. Nothing else here knows of it. No torch.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fedmaba.errors import InputError
from fedmaba.results import files, run_folder

RUN_FILES = (run_folder.EXPERIMENT_FILE, run_folder.RUNS_FILE, run_folder.PARTS_FOLDER)


@cache
def folder() -> Path | None:
    """`experiments/` of the clone with the laboratory; None where the package stands alone."""
    for clone in (Path(__file__).parents[3], _installed_from()):
        if clone is not None and (clone / "experiments" / "laboratory").is_dir():
            return clone / "experiments"
    return None


def _installed_from() -> Path | None:
    """The folder that pip was given, which it notes beside the installed package."""
    from importlib import metadata  # which takes as long as all else here

    with suppress(metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        text = metadata.distribution("fedmaba").read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}")["url"])
        return Path(unquote(url.path)) if url.scheme == "file" else None
    return None


def enter(name: str) -> Any:
    """A module of the laboratory."""
    where = folder()
    if where is None:
        raise InputError(
            "the paper's experiments and their results are no part of the package: install fedmaba "
            "from a clone of its repository, which has them in experiments/"
        )
    if str(where) not in sys.path:
        sys.path.append(str(where))
    return importlib.import_module(f"laboratory.{name}")


def has_results(path: Path) -> bool:
    """Whether a path names results of `fedmaba reproduce`: one file of them, or FOLDER/TARGET."""
    if path.suffix == ".npz" and path.is_file():
        return True
    run = path.is_dir() and any(files.exists(path / name) for name in RUN_FILES)
    where = folder()
    known = where is not None and (where / f"{path.name}.toml").is_file()
    return known and not run and path.parent.is_dir()
