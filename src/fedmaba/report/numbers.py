"""Which of the numbers that a strategy reports of itself people see, and their words. No torch.

A strategy says so by `shown()`. To show a run, code of the user is never imported: of a strategy
that this process does not know, every number that was recorded is shown by its name.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedmaba.errors import InputError
from fedmaba.results.history import FloatArray, IntArray, RunHistory
from fedmaba.strategies import REGISTRY, parse
from fedmaba.strategies.base import Shown, Strategy
from fedmaba.strategies.simplex import effective_count

COMPUTED = "effective"  # of any strategy, from its weights
MOST = 6  # numbers that a figure or a page has room for


def of_run(run: RunHistory) -> tuple[Shown, ...]:
    """What its strategy declares, else all that was recorded."""
    strategy = _strategy(run.label)
    declared = strategy.shown() if strategy else None
    if declared is not None:
        return declared
    names = [name.removeprefix("info.") for name in run.tables if name.startswith("info.")]
    return tuple(Shown(name, short=name) for name in names if name != COMPUTED)


def of_runs(runs: Iterable[RunHistory]) -> list[Shown]:
    """What is shown of any of the runs, each name once."""
    found: dict[str, Shown] = {}
    for run in runs:
        for number in of_run(run):
            found.setdefault(number.name, number)
    return list(found.values())[:MOST]


def values(run: RunHistory, name: str) -> FloatArray | None:
    """A number of a run in each round, if it is shown of this run and was recorded."""
    shown = any(number.name == name for number in of_run(run))
    if not shown or f"info.{name}" not in run.tables:
        return None
    return run.column(f"info.{name}").astype(np.float64)


def effective_clients(run: RunHistory, at: IntArray) -> FloatArray:
    """exp of the entropy of the weights used in some rounds, of any strategy."""
    weights = np.abs(np.nan_to_num(run.column("weight")[at].astype(np.float64)))
    total = weights.sum(axis=1)
    return np.array(
        [effective_count(w / s) if s > 0 else np.nan for w, s in zip(weights, total, strict=True)]
    )


def _strategy(label: str) -> Strategy | None:
    """The strategy of a row `name:key=value (folder)`, if this process knows it."""
    spec = label.split(" (")[0]
    if spec.partition(":")[0] not in REGISTRY:
        return None
    try:
        return parse(spec)[0]
    except InputError:  # of another version
        return None
