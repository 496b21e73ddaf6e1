"""What reading commands are given: run folders, state folders, and targets of the laboratory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmaba.experiment import laboratory
from fedmaba.report import data
from fedmaba.report.data import Source


def load_one(path: Path) -> list[Source]:
    """A source for each combination of settings of a run folder; one for results of a target."""
    if laboratory.has_results(path):
        found: list[Source] = laboratory.enter("target_sources").load_one(path)
        return found
    return data.load_parts(path)


def load_each(paths: Sequence[Path]) -> list[Source]:
    """The sources of several paths; none may be named twice."""
    data.require_each_once(paths)
    out: list[Source] = []
    for path in paths:
        if laboratory.has_results(path):
            out += laboratory.enter("target_sources").load_each_experiment(path)
        else:
            out += data.load_parts(path)  # which says what is wrong with it
    return out
