"""The table of an experiment: strategies by figures, mean ± sd over seeds, the best marked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmaba.history import At, History, Model, Row


class Column(NamedTuple):
    """A figure of the table and which way is better."""

    field: str
    title: str
    sign: int  # 1: more is better


def columns(share: float) -> list[Column]:
    """The four figures of the paper's tables."""
    return [
        Column("variance", "variance %²", -1),
        Column("accuracy", "accuracy %", 1),
        Column("worst", f"worst {100 * share:g} %", 1),
        Column("best", f"best {100 * share:g} %", 1),
    ]


class Cell(NamedTuple):
    """One entry: its text and its rank in the column (0 best, 1 second, else 2)."""

    text: str
    rank: int


def cells(rows: list[Row], share: float) -> list[list[Cell]]:
    """The body of the table."""
    body: list[list[Cell]] = [[] for _ in rows]
    for column in columns(share):
        value = np.array([getattr(row.mean, column.field) for row in rows])
        score = np.where(np.isnan(value), -np.inf, column.sign * value)
        order = np.argsort(-score, kind="stable")
        rank = np.full(len(rows), 2)
        rank[order[:2]] = [0, 1][: len(rows)]
        for i, row in enumerate(rows):
            sd = getattr(row.sd, column.field)
            text = "–" if np.isnan(value[i]) else f"{value[i]:.2f}"
            text += "" if np.isnan(sd) else f" ± {sd:.2f}"
            body[i].append(Cell(text, int(rank[i]) if len(rows) > 2 and text != "–" else 2))
    return body


def caption(history: History, model: Model, at: At) -> str:
    """Which model and which round the table shows."""
    average = sorted({run.deploy for run in history.runs})
    what = "last server model" if model == "last" else f"deployed model ({', '.join(average)})"
    when = {
        "last": "at the last round",
        "best": f"at its best round, picked on {history.picked_on()}",
        "last5": "mean of the last five evaluations",
    }[at]
    return f"{what}, {when}; mean ± sd over seeds"


def plain(
    history: History, model: Model = "deployed", at: At = "last", share: float | None = None
) -> str:
    """The table as plain text."""
    share = history.share if share is None else share
    rows = history.summary(model, at, share)
    head = ["strategy", *(c.title for c in columns(share)), ""]
    body = [
        [row.label, *(cell.text for cell in line), row.note]
        for row, line in zip(rows, cells(rows, share), strict=True)
    ]
    width = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [caption(history, model, at)]
    for line in [head, *body]:
        first, *rest = (text.ljust(w) for text, w in zip(line, width, strict=True))
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)
