"""Runs by groups of people: a row per strategy, and a long table for pandas. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmaba.errors import InputError, installed
from fedmaba.results import groups
from fedmaba.results.groups import FloatArray, GroupFigures
from fedmaba.results.run_history import At, Model, RunHistory

MODELS: tuple[Model, ...] = ("deployed", "last")
CELL = ("examples", "accuracy", "selected", "true_positive", "false_positive")  # `groups.Rates`
NONE = (
    "these runs have no groups of people: name the column that says them, as with --group sex, and "
    "run them again"
)


class GroupRow(NamedTuple):
    """One strategy by groups of people: mean and standard deviation over seeds, in percent."""

    label: str
    seeds: int
    mean: GroupFigures
    sd: GroupFigures
    size: FloatArray  # It has (G,) test examples, as a mean over seeds.
    rates: FloatArray  # It has (4, G) accuracy, selected, true and false positive rate.
    rates_sd: FloatArray  # (4, G)


def summary(runs: Sequence[RunHistory], model: Model, at: At) -> list[GroupRow]:
    """One row per strategy, over its seeds that did not diverge."""
    rows: list[GroupRow] = []
    labels: dict[str, list[RunHistory]] = {}
    for run in runs:
        if not run.diverged and f"{run.recorded(model)}.groups" in run.tables:
            labels.setdefault(run.label, []).append(run)
    if not labels:
        raise InputError(NONE)
    for label, own in labels.items():
        if len({run.groups for run in own}) > 1:
            raise InputError(f"{label}: its seeds have different groups: show them apart")
        chosen = [run.group_counts(model)[run.chosen(at, model)] for run in own]
        each = np.array([np.mean([groups.figures(c) for c in one], axis=0) for one in chosen])
        told = np.array([np.mean([groups.rates(c.sum(0)) for c in one], axis=0) for one in chosen])
        told[:, 1:] *= 100
        sd = [
            v.std(0, ddof=1) if len(own) > 1 else np.full(v.shape[1:], np.nan) for v in (each, told)
        ]
        mean = told.mean(0)
        figures = GroupFigures(*each.mean(0)), GroupFigures(*sd[0])
        rows.append(GroupRow(label, len(own), *figures, mean[0], mean[1:], sd[1][1:]))
    return rows


class CellRates(NamedTuple):
    """The cells of one run and model: (n,) each; those without a test example are left out."""

    run: RunHistory
    model: Model
    round: Any
    client: Any
    group: Any
    rates: groups.Rates


def cells(runs: Sequence[RunHistory]) -> Iterator[CellRates]:
    """Client x group figures of each run and model, at every evaluation."""
    for run in runs:
        for model in MODELS:
            if f"{run.recorded(model)}.groups" in run.tables:
                counts = run.group_counts(model)
                at, client, group = np.nonzero(counts.sum(-1))
                told = groups.rates(counts[at, client, group])
                yield CellRates(run, model, run.evaluated[at], client, group, told)


def to_pandas(runs: Sequence[RunHistory]) -> Any:
    """A long table, one row per run, evaluation, model, client and group."""
    with installed("groups_to_pandas() needs pandas: pip install pandas"):
        import pandas
    frames = [
        pandas.DataFrame(
            {
                "strategy": cell.run.label,
                "seed": cell.run.seed,
                "round": cell.round,
                "model": cell.model,
                "client": cell.client,
                "group": np.array(cell.run.groups.names)[cell.group],
                **dict(zip(CELL, cell.rates, strict=True)),
            }
        )
        for cell in cells(runs)
    ]
    if not frames:
        raise InputError(NONE)
    return pandas.concat(frames, ignore_index=True)
