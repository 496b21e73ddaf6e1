"""Runs by groups of people: tables, client x group cells, and who is served worst. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from fedmaba.report.document import Cell, Document, Grid, number
from fedmaba.report.table import caption
from fedmaba.results import groups
from fedmaba.results.group_tables import GroupRow
from fedmaba.results.groups import FloatArray
from fedmaba.results.history import History
from fedmaba.results.run_history import At, Model

MIN_CELL_EXAMPLES = 10  # A cell needs this many test examples to be called the worst.
MAX_CELL_CLIENTS = 60  # The table of cells on a page has at most this many clients.
MIN_CELL_CLIENTS = 10  # clients in it, at least
CELLS_SHOWN = 8000  # All strategies together show about this many cells for one model and round.
SHADES = 5  # A cell is shaded from 0, the best served, to 4, the worst.
GAP_FIGURES = (  # Each has a field of GroupFigures and the title of its column.
    ("worst", "worst group %"),
    ("accuracy", "accuracy gap"),
    ("parity", "parity gap"),
    ("odds", "odds gap"),
    ("within_accuracy", "accuracy gap within"),
    ("within_parity", "parity gap within"),
    ("within_odds", "odds gap within"),
)
GAPS_IN_WORDS = (
    "Gaps are in points. Accuracy gap: best minus worst served group. Parity gap (demographic "
    "parity difference): highest minus lowest share of a group that is predicted {positive}. Odds "
    "gap (equalised odds difference): the larger gap of true and of false positive rates. Gaps "
    "within are between the groups of one client, as a mean over clients."
)


class Names(NamedTuple):
    """How clients are called: by their names where the data have some."""

    clients: Sequence[str] = ()

    def of(self, client: int) -> str:
        return self.clients[client] if client < len(self.clients) else f"client {client}"


def has_groups(history: History) -> bool:
    """Whether any run was judged by groups."""
    return any("deployed.groups" in run.tables for run in history.runs)


NO_NAMES = Names()


def document(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    names: Names = NO_NAMES,
    title: str = "",
) -> Document:
    """Gaps, each group, and in words whether a client or a group is served worst."""
    rows = history.group_summary(model, at)
    text = [served_worst(history, row.label, model, at, names) for row in rows]
    foot = [GAPS_IN_WORDS.format(positive=_positive(history))] if _positive(history) else []
    grids = [gap_grid(history, rows, model, at), group_grid(history, rows)]
    return Document(title, [], grids, foot=text + foot)


def _positive(history: History) -> str:
    return next((run.groups.positive for run in history.runs if run.groups.names), "")


def _names(history: History) -> tuple[str, ...]:
    return next((run.groups.names for run in history.runs if run.groups.names), ())


def gap_grid(history: History, rows: Sequence[GroupRow], model: Model, at: At) -> Grid:
    """Strategies by the gaps between groups."""
    known = [
        (field, title)
        for field, title in GAP_FIGURES
        if any(math.isfinite(getattr(row.mean, field)) for row in rows)
    ]
    body = [
        [
            Cell(row.label),
            Cell(str(row.seeds)),
            *(number(getattr(row.mean, f), getattr(row.sd, f)) for f, _ in known),
        ]
        for row in rows
    ]
    title = f"Groups: {caption(history, model, at).partition(';')[0]}"
    return Grid("gaps", title, ["row", "seeds", *(title for _, title in known)], body)


def group_grid(history: History, rows: Sequence[GroupRow]) -> Grid:
    """Each group of each strategy."""
    positive, names = _positive(history), _names(history)
    titles = ["accuracy %"]
    if positive:
        titles += [f"predicted {positive} %", "true positives %", "false positives %"]
    body = [
        [
            Cell(f"{row.label}: {name}"),
            number(row.size[g], digits=0),
            *(number(row.rates[k, g], row.rates_sd[k, g]) for k in range(len(titles))),
        ]
        for row in rows
        for g, name in enumerate(names)
    ]
    return Grid("groups", "Each group, over all clients", ["group", "test examples", *titles], body)


def _chosen(history: History, label: str, model: Model, at: At) -> list[Any]:
    """(E, N, G, K) counts of each seed at the evaluations that are shown."""
    mine = [run for run in history.runs if run.label == label and not run.diverged]
    own = [run for run in mine if f"{run.recorded(model)}.groups" in run.tables]
    return [run.group_counts(model)[run.chosen(at, model)] for run in own]


def _mean(values: Sequence[FloatArray]) -> FloatArray:
    """The mean over seeds of what each has; nan where none has it."""
    table = np.array(values)
    known = np.isfinite(table)
    total = np.where(known, table, 0.0).sum(0)
    out = np.full(total.shape, np.nan)
    np.divide(total, known.sum(0), out=out, where=known.any(0))
    return out


class Worst(NamedTuple):
    """Who is served worst with one strategy: a client, a group, and a cell of both."""

    client: str  # It is empty where seeds have different clients.
    low: float  # This is the accuracy of that client in percent, as is the next.
    group: str
    least: float  # of that group
    client_gap: float  # These are points between the best and the worst client.
    group_gap: float  # These are points between the best and the worst group.
    cell: str  # An example is "women at B, 50.00 % of 20 test examples"; it may be empty.

    @property
    def more(self) -> str:
        """What it depends on more, the client or the group."""
        return "client" if self.client_gap > self.group_gap else "group"


def find_worst(history: History, label: str, model: Model, at: At, names: Names) -> Worst:
    """Who is served worst with one strategy."""
    seeds, of = _chosen(history, label, model, at), _names(history)
    # A number is then the same client in every seed.
    alike = len(seeds) == 1 or bool(names.clients)
    pooled = [one.mean(0) for one in seeds]  # (N, G, K) of the evaluations shown
    client = [groups.rates(one.sum(1)).accuracy for one in pooled]
    shares = [groups.rates(one.sum(0)).accuracy for one in pooled]
    client_gap, group_gap = (
        100 * float(np.mean([np.nanmax(one) - np.nanmin(one) for one in found]))
        for found in (client, shares)
    )
    group, cell = _mean(shares), ""
    last = of[int(np.nanargmin(group))], 100 * float(np.nanmin(group)), client_gap, group_gap
    if not alike:
        low = 100 * float(np.mean([np.nanmin(one) for one in client]))
        return Worst("", low, *last, cell)
    mean = _mean(client)
    size, share = _cells(pooled)
    share = np.where(size >= MIN_CELL_EXAMPLES, share, np.nan)
    if np.isfinite(share).any():
        c, g = np.unravel_index(np.nanargmin(share), share.shape)
        told = f"{100 * share[c, g]:.2f} % of {size[c, g]:.0f} test examples"
        cell = f"{of[g]} at {names.of(int(c))}, {told}"
    who = names.of(int(np.nanargmin(mean)))
    return Worst(who, 100 * float(np.nanmin(mean)), *last, cell)


def served_worst(history: History, label: str, model: Model, at: At, names: Names) -> str:
    """Who is served worst, a client or a group, and which cell of both."""
    found = find_worst(history, label, model, at, names)
    who = f"is {found.client} with" if found.client else "has"
    text = (
        f"{label}: the worst served client {who} {found.low:.2f} %, the worst served group is "
        f"{found.group} with {found.least:.2f} %. "
        f"Best and worst client lie {found.client_gap:.2f} points apart, best and worst group "
        f"{found.group_gap:.2f}: who is served worst depends more on the {found.more}."
    )
    return text + (f" Of client and group together: {found.cell}." if found.cell else "")


def worst_grid(history: History, labels: Sequence[str], model: Model, at: At, names: Names) -> Grid:
    """The same of every strategy, as a table."""
    head = ["row", "worst client", "accuracy %", "worst group", "accuracy %"]
    head += ["clients apart", "groups apart", "depends more on the", "worst of both"]
    body = []
    for label in labels:
        w = find_worst(history, label, model, at, names)
        told = w.cell.removesuffix(" test examples")
        texts = [label, w.client or "–", f"{w.low:.2f}", w.group, f"{w.least:.2f}"]
        texts += [f"{w.client_gap:.2f}", f"{w.group_gap:.2f}", w.more, told or "–"]
        body.append([Cell(text) for text in texts])
    title = "Who is served worst; best and worst client, and group, apart in points"
    return Grid("worst", title, head, body)


def _cells(pooled: Sequence[Any]) -> tuple[FloatArray, FloatArray]:
    """(N, G) test examples and accuracy of each client and group, as means over seeds."""
    found = [groups.rates(one) for one in pooled]
    return np.mean([f.size for f in found], axis=0), _mean([f.accuracy for f in found])


def page_part(history: History, names: Names) -> dict[str, Any]:
    """What the page shows of groups: tables and cells, by model and round."""
    positive = _positive(history)
    return {
        "words": GAPS_IN_WORDS.format(positive=positive) if positive else "",
        "shown": {
            f"{model}.{at}": _shown(history, names, model, at)
            for model in history.models()
            for at in get_args(At)
        },
    }


def _shown(history: History, names: Names, model: Model, at: At) -> dict[str, Any]:
    """Tables and cells of one model and round; each line says whose it is."""
    rows = history.group_summary(model, at)
    labels = [row.label for row in rows]
    each = [label for label in labels for _ in _names(history)]
    grids = [
        (gap_grid(history, rows, model, at), labels),
        (worst_grid(history, labels, model, at, names), labels),
        (group_grid(history, rows), each),
    ]
    return {
        "tables": [
            {
                "title": grid.title,
                "head": ["strategy" if head == "row" else head for head in grid.head],
                "rows": [
                    {"label": label, "cells": [cell.text for cell in row]}
                    for label, row in zip(of, grid.rows, strict=True)
                ],
            }
            for grid, of in grids
        ],
        "cells": [_shaded(history, row.label, names, model, at, len(rows)) for row in rows],
    }


def _shaded(
    history: History, label: str, names: Names, model: Model, at: At, rows: int
) -> dict[str, Any]:
    """The client x group table of a strategy: text and shade of each cell, worst clients first."""
    seeds = _chosen(history, label, model, at)
    if len(seeds) > 1 and not names.clients:
        seeds = seeds[:1]  # other seeds have other clients
    size, share = _cells([one.mean(0) for one in seeds])
    known = np.isfinite(share)
    low, high = (float(f(share[known])) for f in (np.min, np.max))
    worst = np.where(known, share, np.inf).min(1)
    room = max(MIN_CELL_CLIENTS, CELLS_SHOWN // (rows * share.shape[1]))
    order = np.argsort(worst, kind="stable")[: min(MAX_CELL_CLIENTS, room)]
    lines = []
    for c in order:
        texts, shades = [], []
        for g in range(share.shape[1]):
            has = bool(known[c, g])
            far = (high - share[c, g]) / (high - low) if has and high > low else 0.0
            texts.append(f"{100 * share[c, g]:.1f} of {size[c, g]:.0f}" if has else "–")
            shades.append(min(SHADES - 1, int(SHADES * far)) if has else -1)
        lines.append({"name": names.of(int(c)), "cells": list(zip(texts, shades, strict=True))})
    left = len(share) - len(order)
    of = "" if len(seeds) == 1 else f", mean of {len(seeds)} seeds"
    return {
        "label": label,
        "title": f"{label}: accuracy % of each client and group, and its test examples{of}; "
        "clients with the worst served group first"
        + (f"; {left:,} more are not shown" if left else ""),
        "head": list(_names(history)),
        "rows": lines,
    }
