"""The trials of `fedmaba tune`, as its folder keeps them. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmaba.results import files, run_folder, schema


@dataclass
class Trial:
    """One setting of one strategy, and its scores on validation data."""

    strategy: str  # as it was asked for
    row: str  # This is the strategy with its own hyper-parameters.
    values: dict[str, Any]  # of the keys that are tried
    seeds: int = 0  # that did not diverge
    score: float = math.nan
    score_sd: float = math.nan
    variance: float = math.nan
    note: str = ""
    picked: bool = False


def load_search(out: Path) -> dict[str, Any] | None:
    """What the folder of a search says of it; None where it is of no search."""
    file = out / run_folder.SEARCH_FILE
    if not files.exists(file):
        return None
    with run_folder.reading(file):
        return schema.check(schema.SavedSearch, files.read_json(file))


def load_trials(out: Path) -> list[Trial]:
    """All trials of a search, the picked ones marked; none where it is of no search."""
    there = load_search(out)
    found = [] if there is None else [Trial(**one) for one in there["trials"]]
    for trial in found:
        for name in ("score", "score_sd", "variance"):
            if getattr(trial, name) is None:
                setattr(trial, name, math.nan)
    return found
