"""Choose a model and a round, and give the fairness numbers of runs by row and seed. No torch.

The model is the last one of the server or the deployed one. The round is the last one, or the best
one on test or on validation data, or the fairest of those nearly as good on validation data, or the
mean of the last five evaluations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from fedmaba.results.history import History
from fedmaba.results.run_history import At, FloatArray, IntArray, Model, RunHistory
from fedmaba.results.selection import REFERENCE as REFERENCE
from fedmaba.results.selection import Found as Found
from fedmaba.results.selection import by_seed as by_seed
from fedmaba.results.selection import good as good
from fedmaba.results.selection import mean_by_seed
from fedmaba.strategies.deployed import pick_round


class RoundChoice(NamedTuple):
    """Which round a table shows."""

    name: str
    words: str
    at: At
    on: str  # The round is picked on these data; it is empty if the round is not picked.
    rule: str = ""  # This is what --deploy says to pick it by; empty means by accuracy.


CHOICES = {
    c.name: c
    for c in (
        RoundChoice("last", "at the last round", "last", ""),
        RoundChoice("best", "at its best round, picked on test data", "best", "test"),
        RoundChoice("valid", "at its best round, picked on validation data", "best", "validation"),
        RoundChoice(
            "fair",
            "at its round of least variance within a point of its best accuracy, picked on "
            "validation data",
            "best",
            "validation",
            "best:fair",
        ),
        RoundChoice("last5", "mean of the last five evaluations", "last5", ""),
    )
}


def of_deploy(history: History, deploy: str | None) -> History:
    """The runs with this deployed model; None stands for the first that each row has."""
    first: dict[str, str] = {}
    for run in history.runs:
        first.setdefault(run.label, run.deploy)
    return replace(
        history, runs=[r for r in history.runs if r.deploy == (deploy or first[r.label])]
    )


def at_choice(history: History, choice: RoundChoice) -> History | None:
    """The history in which `choice.at` is that round; None if there are no data to pick on."""
    held = any("last_validation.accuracy" in run.tables for run in history.runs)
    if choice.on == "validation":
        return history if held else None
    if choice.on == "test" and held:
        runs = [
            replace(r, tables={k: v for k, v in r.tables.items() if "_validation" not in k})
            for r in history.runs
        ]
        return replace(history, runs=runs)
    return history


def validated(history: History) -> History:
    """The same runs, judged on validation images."""
    runs = [
        replace(
            r,
            tables={
                name.replace("_validation", ""): table
                for name, table in r.tables.items()
                if "_validation" in name or name == "evaluated"
            },
        )
        for r in history.runs
    ]
    return replace(history, runs=runs)


def fairness_by_seed(history: History, model: Model, choice: RoundChoice) -> Found:
    """The fairness numbers by row and seed."""
    seen = at_choice(history, choice)
    return (
        {}
        if seen is None
        else mean_by_seed(seen, model, partial(_chosen, model=model, choice=choice))
    )


def _chosen(run: RunHistory, model: Model, choice: RoundChoice) -> IntArray:
    """Which evaluations of a run a choice shows."""
    if not choice.rule:
        return run.chosen(choice.at, model)
    judged = run.column(f"{model}_validation.accuracy")
    picked = pick_round(choice.rule, np.nanmean(judged, axis=1), np.nanvar(judged, axis=1))
    return np.array([picked])


def variances(history: History, model: Model) -> dict[str, dict[int, FloatArray]]:
    """(E,) the variance over clients at each evaluation, in %², by row and seed."""
    out: dict[str, dict[int, FloatArray]] = {}
    for run in good(history):
        out.setdefault(run.label, {})[run.seed] = 1e4 * np.nanvar(run.accuracy(model), axis=1)
    return out


def tail(curve: FloatArray) -> FloatArray:
    """The last fifth of the evaluations, at least two."""
    return curve[-max(2, len(curve) // 5) :]
