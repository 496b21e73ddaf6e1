"""The tables of one's own runs: rows by figures, and differences to one row. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedmaba.errors import InputError, unknown
from fedmaba.report.data import FIGURES
from fedmaba.report.document import Cell, Document, Grid, between, csv, latex, markdown, number
from fedmaba.report.paired import Interval, difference
from fedmaba.report.table import caption, columns, ranks
from fedmaba.results.history import At, History, Model, Row
from fedmaba.results.metrics import PERCENT, Unit
from fedmaba.results.selection import Choice, Found, by_seed, values


def of(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    share: float | None = None,
    against: str | None = None,
    title: str = "",
) -> Document:
    """Every row, and each one's differences to the row `against`."""
    history = history if share is None else replace(history, share=share)
    told = dict.fromkeys(run.diverged for run in history.runs if run.diverged)
    text = [f"Left out of every mean: {'; '.join(told)}."] if told else []
    grids = [_levels(history, model, at)]
    if against is not None:
        grids.append(_differences(history, model, at, against))
    return Document(title, text, grids)


def written(sheet: Document, to: str) -> str:
    """It as Markdown, LaTeX or CSV."""
    forms = {"markdown": markdown, "latex": latex, "csv": csv}
    if to not in forms:
        raise unknown("form", to, forms)
    return forms[to](sheet)


def _levels(history: History, model: Model, at: At) -> Grid:
    words = caption(history, model, at)
    rows = history.summary(model, at)
    return levels("levels", words[0].upper() + words[1:], rows, history.share, unit=history.unit)


def levels(
    name: str,
    title: str,
    rows: list[Row],
    share: float,
    named: Callable[[str], str] = str,
    unit: Unit = PERCENT,
) -> Grid:
    """Rows by figures, mean ± sd over seeds, the best marked."""
    head, body = ["row", "seeds"], [[Cell(named(r.label)), Cell(str(r.seeds))] for r in rows]
    for column in columns(share, unit):
        head.append(column.title)
        for row, line, rank in zip(rows, body, ranks(rows, column), strict=True):
            value, sd = (getattr(f, column.field) for f in (row.mean, row.sd))
            line.append(number(value, sd, rank))
    if any(row.note for row in rows):
        head.append("note")
        for row, line in zip(rows, body, strict=True):
            line.append(Cell(row.note))
    return Grid(name, title, head, body)


def _differences(history: History, model: Model, at: At, against: str) -> Grid:
    labels = dict.fromkeys(run.label for run in history.runs)
    if against not in labels:
        raise unknown("row", against, labels)
    if len(labels) == 1:
        raise InputError(f"against {against!r}: there is no other row: leave it out")
    found = values(history, model, Choice(at, "", at, ""))
    spans = {row: minus(found, row, found, against) for row in labels if row != against}
    words = caption(history, model, at).partition(";")[0]
    title = f"{words[0].upper()}{words[1:]}: difference to {against} under the same seeds"
    title, unit = f"{title}, 95 % t-interval", history.unit
    return paired("differences", title, history.share, spans, against, unit=unit)


def minus(ours: Found, row: str, theirs: Found, base: str) -> list[Interval]:
    """Each figure of a row minus that of another."""
    return [difference(by_seed(ours, row, f), by_seed(theirs, base, f)) for f in FIGURES]


def paired(
    name: str,
    title: str,
    share: float,
    spans: Mapping[str, Sequence[Interval]],
    base: str,
    named: Callable[[str], str] = str,
    unit: Unit = PERCENT,
) -> Grid:
    """Rows of differences to `base` with their intervals."""
    titles = [column.title for column in columns(share, unit)]
    what = {"variance": "variance", "accuracy": "accuracy"}
    words = [what.get(f, t) for f, t in zip(FIGURES, titles, strict=True)]
    body = []
    for label, row in spans.items():
        same = [w for w, span in zip(words, row, strict=True) if not span.distinguishable]
        listed = ", ".join(same) if len(same) < len(words) else "any"
        listed = listed if row[0].seeds > 1 else [f"no seed of {base}'s", "one seed"][row[0].seeds]
        cells = [between(span) for span in row]
        body.append([Cell(named(label)), Cell(str(row[0].seeds)), *cells, Cell(listed)])
    return Grid(name, title, ["row", "seeds", *titles, "not distinguishable in"], body)
