"""How a History shows itself: `print(history)`, `history.table()`, `.plot()`, and in notebooks.

`results.history` loads this module by its name when a history is first shown. No torch.
"""

from __future__ import annotations

import math
from typing import Any

from fedmaba.errors import InputError
from fedmaba.report import cost_tables, document, json_forms
from fedmaba.report import table as tables
from fedmaba.report.escape import one_line
from fedmaba.results.history import History
from fedmaba.results.joining import some_of
from fedmaba.results.run_history import At, Model, RunHistory

MOST_NAMED = 6  # strategies or seeds in one line


def table(
    history: History, to: str, model: Model, at: At, share: float | None, against: str | None
) -> str:
    """The table as "markdown", "latex", "csv" or "json", also of differences to a row."""
    if to == "json":
        return json_forms.json_table(history, model, at, share, against)
    page = tables.document(history, model, at, share, against)
    page.grids += cost_tables.grids(history, model, at, share)
    return document.written(page, to)


def group_table(history: History, to: str, model: Model, at: At) -> str:
    """The tables by groups of people as "markdown", "latex" or "csv"."""
    from fedmaba.report import group_tables

    return document.written(group_tables.document(history, model, at), to)


def plot(history: History, kind: str, model: Model) -> Any:
    """One figure as a matplotlib Figure."""
    from fedmaba.report import figures

    return figures.figure_of(history, kind, model)


def as_html(history: History) -> str:
    """The table that a notebook shows."""
    from fedmaba.report import html

    return html.snippet(history)


def as_text(history: History) -> str:
    """The table that `print` shows."""
    return document.plain_text(tables.for_screen(tables.summary(history)))


def history_in_words(history: History) -> str:
    """Strategies, seeds, rounds, clients and the best numbers, in one line."""
    runs = history.runs
    labels = list(dict.fromkeys(run.label for run in runs))
    seeds = list(dict.fromkeys(str(run.seed) for run in runs))
    parts = [some_of(labels, MOST_NAMED) or "no runs"]
    if runs:
        parts.append(f"seed{'s' * (len(seeds) > 1)} {some_of(seeds, MOST_NAMED)}")
        parts.append(_size(runs))
    return one_line("; ".join([*parts, *_best(history)]))


def run_in_words(run: RunHistory) -> str:
    """Which run it is and how far it went, in one line."""
    parts = [f"{run.label}, seed {run.seed}", _size([run])]
    return one_line("; ".join([*parts, *([run.diverged] if run.diverged else [])]))


def _size(runs: list[RunHistory]) -> str:
    """Rounds and clients."""
    ends = [int(run.tables["evaluated"][-1]) for run in runs if run.tables.get("evaluated")]
    done, clients = max(ends, default=0), max(run.n_clients for run in runs)
    rounds = f"{done:,} round{'s' * (done != 1)}" if done else "not evaluated yet"
    return f"{rounds}, {clients:,} client{'s' * (clients != 1)}"


def _best(history: History) -> list[str]:
    """The least variance, and the best mean and worst score, each with its strategy."""
    try:
        rows, unit = history.summary(), history.unit
    except InputError:  # Runs that no table compares still have a name.
        return []
    rows = [row for row in rows if row.seeds]
    out = []
    for column in tables.columns(history.share, unit)[:3]:
        known = [row for row in rows if math.isfinite(getattr(row.mean, column.field))]
        if not known:
            continue
        best = max(known, key=lambda row: column.sign * getattr(row.mean, column.field))
        value = getattr(best.mean, column.field)
        mark = unit.square if column.field == "variance" else unit.mark
        words = {"variance": "least variance", "accuracy": f"best mean {unit.name}"}
        name = words.get(column.field, f"best {column.title}")
        shown = f"{value:.{tables.digits_of([value], unit)}f}{mark}"
        out.append(f"{name} {shown}" + (f" ({best.label})" if len(rows) > 1 else ""))
    return [", ".join(out)] if out else []
