"""Which of the numbers that a strategy reports of itself people see, and their words. No torch.

A strategy says so by `shown()`. To show a run, code of the user is never imported: of a strategy
that this process does not know, every number that was recorded is shown by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedmaba.errors import InputError
from fedmaba.results.run_history import FloatArray, IntArray, RunHistory
from fedmaba.strategies import REGISTRY, parse
from fedmaba.strategies.base import PRIVACY_INFO, Shown, Strategy
from fedmaba.strategies.simplex import effective_count

COMPUTED = "effective"  # of any strategy, from its weights
EPSILON = PRIVACY_INFO[0]
SPENT = Shown(
    EPSILON,
    title="privacy spent, ε",
    about="What the rounds so far tell about the client that they tell most about, by "
    "dp-accounting; see docs/privacy.md.",
    short="ε",
)
MAX_NUMBERS_SHOWN = 6  # A figure or a page has room for this many numbers.


def of_run(run: RunHistory) -> tuple[Shown, ...]:
    """What is spent of its privacy; what its strategy declares, else all that was recorded."""
    strategy = _strategy(run.label)
    declared = strategy.shown() if strategy else None
    if declared is None:
        names = [name.removeprefix("info.") for name in run.tables if name.startswith("info.")]
        own = (name for name in names if name not in (COMPUTED, *PRIVACY_INFO))
        declared = tuple(Shown(name, short=name) for name in own)
    return (SPENT, *declared) if f"info.{EPSILON}" in run.tables else declared


class Spent(NamedTuple):
    """What the rounds of a run have cost its clients' privacy."""

    label: str
    epsilon: float
    delta: float


def spent_by_row(
    runs: Iterable[RunHistory], lines: Iterable[Mapping[str, Any]] = ()
) -> list[Spent]:
    """The most that a seed of each private row has spent; lines of rounds.jsonl are newer."""
    told = [
        Spent(run.label, *(float(run.column(f"info.{name}")[-1]) for name in PRIVACY_INFO))
        for run in runs
        if len(run.tables.get(f"info.{EPSILON}", ()))
    ]
    for line in lines:
        values = [line.get(name) for name in PRIVACY_INFO]
        if all(isinstance(value, int | float) for value in values):
            told.append(Spent(str(line["strategy"]), *map(float, values)))  # type: ignore[arg-type]
    found: dict[str, Spent] = {}
    for one in told:
        before = found.get(one.label, one)
        most = max(before.epsilon, one.epsilon), max(before.delta, one.delta)
        found[one.label] = Spent(one.label, *most)
    return list(found.values())


def of_runs(runs: Iterable[RunHistory]) -> list[Shown]:
    """What is shown of any of the runs, each name once."""
    found: dict[str, Shown] = {}
    for run in runs:
        for number in of_run(run):
            found.setdefault(number.name, number)
    return list(found.values())[:MAX_NUMBERS_SHOWN]


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
