"""What the rounds of a run cost, and how often each client was asked and heard. No torch.

Both come from the tables that a run records of who took part; runs without them have no row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedmaba.errors import InputError
from fedmaba.results.history import History
from fedmaba.results.metrics import FloatArray, Unit
from fedmaba.results.run_history import At, IntArray, Model, RunHistory
from fedmaba.results.selection import good
from fedmaba.results.table_checks import HEARD

GIGABYTE, HOUR = 1e9, 3600.0
GOALS = ("accuracy", "worst", "variance")  # the figures that --until knows


class Goal(NamedTuple):
    """A figure that a run is to reach, as it is written: accuracies as shares of 1."""

    figure: str
    value: float

    def sign(self, unit: Unit) -> int:
        """1 where more is better, else -1."""
        return -1 if self.figure == "variance" else unit.sign

    def shown(self, unit: Unit) -> float:
        """The value in the unit of the tables."""
        return self.value if self.figure == "variance" else unit.scale * self.value


class Reached(NamedTuple):
    """What had been spent when a goal was first reached: means over the seeds that reached it."""

    seeds: int
    gigabytes: float  # down and up together
    hours: float


class Cost(NamedTuple):
    """One strategy: means over its seeds. Counts of clients are numbers of rounds."""

    label: str
    seeds: int
    gigabytes_down: float
    gigabytes_up: float
    hours: float  # of the simulated clock; nan where nothing takes time
    asked_least: float
    asked_mean: float
    asked_most: float
    asked_never: float  # how many clients
    heard_least: float
    heard_mean: float
    heard_most: float
    heard_never: float
    score_per_heard: float  # Over clients, the score divided by the share of rounds heard.
    score_per_heard_variance: float
    until: tuple[Reached, ...] = ()


def goals(texts: Iterable[str]) -> list[Goal]:
    """What --until says: accuracy=0.8 or accuracy=80%, worst=50%, variance=300."""
    out = []
    for text in texts:
        figure, _, told = (part.strip() for part in text.partition("="))
        percent = told.endswith("%") and figure != "variance"
        try:
            value = float(told.removesuffix("%")) / 100 if percent else float(told)
        except ValueError:
            value = math.nan
        if figure not in GOALS or not math.isfinite(value):
            raise InputError(
                f"until={text!r}: write a figure and a value, as accuracy=0.8, worst=50% or "
                "variance=300"
            )
        out.append(Goal(figure, value))
    return out


def turn_counts(run: RunHistory) -> tuple[IntArray, IntArray] | None:
    """(N,) in how many rounds each client was asked, and heard; None where that is not recorded."""
    if "turnout.answer" not in run.tables:
        return None
    client, answer = run.column("client"), run.column("turnout.answer")
    asked, heard = (
        np.bincount(client[some], minlength=run.n_clients).astype(np.int64)
        for some in (answer >= 0, answer == HEARD)
    )
    return asked, heard


def costs(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    share: float | None = None,
    until: Sequence[Goal] = (),
) -> list[Cost]:
    """One row per strategy whose runs recorded who took part; empty where none did."""
    unit, share = history.unit, history.share if share is None else share
    recorded = [run for run in history.runs if "turnout.answer" in run.tables]
    if until and not recorded:
        raise InputError(
            "until counts the bytes and the time of runs that record them: run with --available "
            "always, or leave it out"
        )
    for goal in until:
        if unit.mark and goal.figure != "variance" and not 0 <= goal.value <= 1:
            raise InputError(
                f"until={goal.figure}={goal.value:g}: these scores are shares: write it as 0.8 or "
                "80%"
            )
    done = {id(run) for run in good(history)}
    found: dict[str, list[RunHistory]] = {}
    for run in recorded:
        if id(run) in done:
            found.setdefault(run.label, []).append(run)
    out = []
    for label, runs in found.items():
        total = np.mean([_spent(run)[-1] for run in runs], axis=0)
        turns = np.mean([_turns(run, model, at, unit) for run in runs], axis=0)
        reached = tuple(
            _reached(
                [
                    _first(run, spent_until_evaluations(run), model, share, unit, goal)
                    for run in runs
                ]
            )
            for goal in until
        )
        figures = map(float, (*total, *turns))
        out.append(Cost(label, len(runs), *figures)._replace(until=reached))  # type: ignore[arg-type]
    return out


def _spent(run: RunHistory) -> FloatArray:
    """(T, 3) gigabytes down and up and hours from the start to the end of each round."""
    down, up = (run.column(f"turnout.{way}").sum(1).cumsum() / GIGABYTE for way in ("down", "up"))
    timed = "turnout.clock" in run.tables
    hours = run.column("turnout.clock") / HOUR if timed else np.full(len(down), np.nan)
    return np.stack([down, up, hours], axis=1)


def spent_until_evaluations(run: RunHistory) -> FloatArray:
    """(E, 3) the same from the start to each evaluation."""
    rounds = run.column("round")
    return _spent(run)[np.searchsorted(rounds, run.evaluated, side="right") - 1]


def _turns(run: RunHistory, model: Model, at: At, unit: Unit) -> FloatArray:
    """How often clients were asked and heard, and their scores beside that."""
    found = turn_counts(run)
    assert found is not None
    found = found[0][run.takes_part], found[1][run.takes_part]
    told = [x for n in found for x in (n.min(), n.mean(), n.max(), (n == 0).sum())]
    each = score_per_heard(run, model, at, unit)
    each = each[np.isfinite(each)]
    return np.array([*told, *((each.mean(), each.var()) if len(each) else (np.nan, np.nan))])


def silent_rounds(run: RunHistory) -> list[tuple[int, int]]:
    """The stretches of rounds, first and last, in which the server heard nobody."""
    if "turnout.answer" not in run.tables:
        return []
    silent = (run.column("turnout.answer") != HEARD).all(axis=1)
    edges = np.flatnonzero(np.diff(silent, prepend=False, append=False))
    rounds = run.column("round")
    return [(int(rounds[a]), int(rounds[b - 1])) for a, b in edges.reshape(-1, 2)]


def score_per_heard(run: RunHistory, model: Model, at: At, unit: Unit) -> FloatArray:
    """(N,) each client's score divided by the share of rounds in which it was heard.

    A client that was never heard has none (nan).
    """
    found = turn_counts(run)
    assert found is not None
    heard = found[1] / len(run.tables["round"])
    score = unit.scale * run.accuracy(model)[run.chosen(at, model)].mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        each: FloatArray = np.where(heard > 0, score / heard, np.nan)
    return each


def _first(
    run: RunHistory, spent: FloatArray, model: Model, share: float, unit: Unit, goal: Goal
) -> FloatArray | None:
    """What a run had spent (E, 3) at the first evaluation that reached a goal; None if none did."""
    figures = run.fairness(model, share, unit=unit)
    sign = goal.sign(unit)
    for i, each in enumerate(figures):
        if sign * getattr(each, goal.figure) >= sign * goal.shown(unit):
            return np.asarray(spent[i])
    return None


def _reached(each: Sequence[FloatArray | None]) -> Reached:
    there = [one for one in each if one is not None]
    if not there:
        return Reached(0, math.nan, math.nan)
    down, up, hours = np.mean(there, axis=0)
    return Reached(len(there), float(down + up), float(hours))
