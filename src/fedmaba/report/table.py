"""The table of an experiment: strategies by figures, mean ± sd over seeds, the best marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedmaba.report import escape
from fedmaba.results.history import At, History, Model, Row
from fedmaba.results.metrics import PERCENT, Unit


class Column(NamedTuple):
    """A figure of the table and which way is better."""

    field: str
    title: str
    sign: int  # 1: more is better


PLAINLY = "scores as the metric gives them, not in per cent: some lie outside 0 to 1"


def columns(share: float, unit: Unit = PERCENT) -> list[Column]:
    """The four figures of the paper's tables."""
    return [
        Column("variance", f"variance{unit.square}", -1),
        Column("accuracy", f"accuracy{unit.mark}", 1),
        Column("worst", f"worst {100 * share:g} %", 1),
        Column("best", f"best {100 * share:g} %", 1),
    ]


class Cell(NamedTuple):
    """One entry: its text and its rank in the column (0 best, 1 second, else 2)."""

    text: str
    rank: int


def lone(seeds: Sequence[int]) -> list[bool]:
    """Which rows have one seed beside rows of more: no mean to be held against theirs."""
    return [n == 1 < max(seeds) for n in seeds]


def ranks(rows: Sequence[Row], column: Column) -> list[int]:
    """Each row's rank in a column, as shown; 2 for all where there are too few or all are equal."""
    value = np.array([round(getattr(row.mean, column.field), 2) for row in rows])
    value[lone([row.seeds for row in rows])] = np.nan
    better = np.unique(column.sign * value[~np.isnan(value)])[::-1]
    if len(rows) < 3 or len(better) < 2:
        return [2] * len(rows)
    place = {float(v): min(i, 2) for i, v in enumerate(better)}
    return [place.get(float(column.sign * v), 2) for v in value]


def cells(rows: list[Row], share: float) -> list[list[Cell]]:
    """The body of the table."""
    body: list[list[Cell]] = [[] for _ in rows]
    for column in columns(share):
        for row, line, rank in zip(rows, body, ranks(rows, column), strict=True):
            value, sd = (getattr(f, column.field) for f in (row.mean, row.sd))
            text = "–" if np.isnan(value) else f"{value:.2f}"
            line.append(Cell(text + ("" if np.isnan(sd) else f" ± {sd:.2f}"), rank))
    return body


WRITTEN: dict[str, tuple[Callable[[str], str], tuple[str, str, str]]] = {  # best, second, others
    "latex": (escape.for_latex, (r"\textbf{{{}}}", r"\textcolor{{blue}}{{{}}}", "{}")),
    "markdown": (escape.for_markdown, ("**{}**", "*{}*", "{}")),
}


def written(words: Iterable[tuple[str, int]], to: str) -> str:
    """A line of a table in LaTeX or Markdown from its texts and their ranks."""
    safe, forms = WRITTEN[to]
    line = [forms[rank].format(safe(text)) for text, rank in words]
    return " & ".join(line) + r" \\" if to == "latex" else f"| {' | '.join(line)} |"


def caption(history: History, model: Model, at: At, unit: Unit | None = None) -> str:
    """Which model and which round the table shows, and how, if not in per cent."""
    average = ", ".join(sorted({run.deploy for run in history.runs if run.deploy}))
    what = "last server model" if model == "last" else "deployed model"
    what += f" ({average})" if model == "deployed" and average else ""
    when = {
        "last": "at the last round",
        "best": f"at its best round, picked on {history.picked_on()}",
        "last5": "mean of the last five evaluations",
    }[at]
    counts = {(int((run.test_size > 0).sum()), run.n_clients) for run in history.runs}
    some = " or ".join(f"{k:,} of {n:,}" for k, n in sorted(counts) if k < n)
    labels = [run.label for run in history.runs]
    over = "one seed" if len(labels) == len({*labels}) else "mean ± sd over seeds"
    text = f"{what}, {when}; {over}" + (f"; {some} clients" if some else "")
    return text if (unit or history.unit).mark else f"{text}; {PLAINLY}"


def plain(
    history: History, model: Model = "deployed", at: At = "last", share: float | None = None
) -> str:
    """The table as plain text."""
    share = history.share if share is None else share
    rows = history.summary(model, at, share)
    head = ["strategy", *(c.title for c in columns(share, history.unit)), ""]
    body = [
        [escape.one_line(text) for text in (row.label, *(cell.text for cell in line), row.note)]
        for row, line in zip(rows, cells(rows, share), strict=True)
    ]
    width = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [escape.one_line(caption(history, model, at))]
    for line in [head, *body]:
        first, *rest = (text.ljust(w) for text, w in zip(line, width, strict=True))
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)
