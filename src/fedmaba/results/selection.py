"""The fairness numbers of runs by row and seed, at the evaluations chosen. No torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmaba.results.history import History
from fedmaba.results.metrics import Fairness
from fedmaba.results.run_history import At, IntArray, Model, RunHistory

REFERENCE = "fedavg"
Found = dict[str, dict[int, Fairness]]  # by row and seed


def good(history: History) -> list[RunHistory]:
    """The runs that have been evaluated and did not diverge."""
    return [run for run in history.runs if not run.diverged and "evaluated" in run.tables]


def fairness_by_seed(history: History, model: Model, at: At) -> Found:
    """The fairness numbers by row and seed."""
    return mean_by_seed(history, model, lambda run: run.chosen(at, model))


def mean_by_seed(history: History, model: Model, chosen: Callable[[RunHistory], IntArray]) -> Found:
    """The same at the evaluations of each run that are `chosen`, as their mean."""
    runs, out = good(history), Found()
    unit = history.unit if runs else None  # once: it looks at every run
    for run in runs:
        found = run.fairness(model, history.share, chosen(run), unit)
        out.setdefault(run.label, {})[run.seed] = Fairness(*np.mean(found, axis=0))
    return out


def by_seed(found: Found, row: str, figure: str) -> dict[int, float]:
    """One of the fairness numbers of a row, by seed."""
    return {seed: getattr(f, figure) for seed, f in found.get(row, {}).items()}
