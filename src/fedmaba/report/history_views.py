"""How a History shows itself: `print(history)`, `history.table()`, `.plot()`, and in notebooks.

`results.history` loads this module by its name when a history is first shown. No torch.
"""

from __future__ import annotations

from typing import Any

from fedmaba.report import document
from fedmaba.report import table as tables
from fedmaba.results.history import At, History, Model


def table(
    history: History, to: str, model: Model, at: At, share: float | None, against: str | None
) -> str:
    """The table as "markdown", "latex" or "csv", also of differences to the row `against`."""
    return document.written(tables.document(history, model, at, share, against), to)


def group_table(history: History, to: str, model: Model, at: At) -> str:
    """The tables by groups of people as "markdown", "latex" or "csv"."""
    from fedmaba.report import group_tables

    return document.written(group_tables.document(history, model, at), to)


def plot(history: History, kind: str, model: Model) -> Any:
    """One figure as a matplotlib Figure."""
    from fedmaba.report import figures

    return figures.of(history, kind, model)


def as_html(history: History) -> str:
    """The table that a notebook shows."""
    from fedmaba.report import html

    return html.snippet(history)


def as_text(history: History) -> str:
    """The table that `print` shows."""
    return document.plain_text(tables.for_screen(tables.summary(history)))
