"""Tables and figures of a page, and how they are written: Markdown, LaTeX, CSV, images.

No torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedmaba.errors import InputError
from fedmaba.report import escape, export
from fedmaba.report.paired import Interval
from fedmaba.report.table import written
from fedmaba.results import run_folder

REMEDY = "mend it, or choose another --out"


class Cell(NamedTuple):
    """One entry: its text, its numbers, and its rank in the column (0 best, 1 second, else 2)."""

    text: str
    value: float | None = None
    sd: float | None = None
    rank: int = 2
    span: tuple[float, float] | None = None  # of the interval around the value


@dataclass(frozen=True)
class Grid:
    """One table; the first column names the rows."""

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass
class Document:
    """All that is shown of a target."""

    title: str
    text: list[str] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    figures: dict[str, Callable[[], Any]] = field(default_factory=dict)


def number(value: float, sd: float = float("nan"), rank: int = 2, sign: bool = False) -> Cell:
    """A cell of a number with its spread; an empty one for nan."""
    if value != value:
        return Cell("–")
    text = f"{value:+.2f}" if sign else f"{value:.2f}"
    if sd != sd:
        return Cell(text, value, None, rank)
    return Cell(f"{text} ± {sd:.2f}", value, sd, rank)


def between(span: Interval) -> Cell:
    """A cell of a mean with its interval."""
    bounds = (span.low, span.high) if span.bounded else None
    return Cell(span.text(), None if math.isnan(span.mean) else span.mean, span=bounds)


def markdown(document: Document, only: Iterable[str] = (), level: int = 1) -> str:
    """The page as Markdown, or only the tables named."""
    chosen = set(only)
    title = [f"{'#' * level} {escape.for_markdown(document.title)}"] if document.title else []
    parts = [*title, *map(escape.for_markdown, document.text)]
    for grid in document.grids:
        if not chosen or grid.name in chosen:
            parts.append(table(grid))
    return "\n\n".join(parts) + "\n"


def table(grid: Grid) -> str:
    """A table as Markdown: the best bold, the second in italics."""
    lines = [f"**{escape.for_markdown(grid.title)}**", "", _head(grid, "markdown")]
    lines.append(f"| {' | '.join(['---'] * len(grid.head))} |")
    return "\n".join([*lines, *_body(grid, "markdown")])


def _head(grid: Grid, to: str) -> str:
    return written(((word, 2) for word in grid.head), to)


def _body(grid: Grid, to: str) -> list[str]:
    return [written(((cell.text, cell.rank) for cell in row), to) for row in grid.rows]


def latex(document: Document) -> str:
    r"""The tables for a paper: booktabs; \usepackage{booktabs,xcolor}."""
    parts = [r"% \usepackage{booktabs,xcolor}"]
    told = [document.title, *document.text]
    parts += [f"% {escape.one_line(line)}" for text in told for line in text.splitlines()]
    for grid in document.grids:
        columns = "l" + "r" * (len(grid.head) - 1)
        body = [_head(grid, "latex"), r"\midrule", *_body(grid, "latex")]
        parts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    rf"\caption{{{escape.for_latex(grid.title)}}}",
                    rf"\begin{{tabular}}{{{columns}}}",
                    r"\toprule",
                    *body,
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


def csv(document: Document) -> str:
    """Every cell as a line: table, row, column, number, spread, ends of its interval, text."""
    rows: list[list[object]] = [["table", "row", "column", "value", "sd", "low", "high", "text"]]
    for grid in document.grids:
        for row in grid.rows:
            for column, cell in zip(grid.head[1:], row[1:], strict=True):
                numbers = (cell.value, cell.sd, *(cell.span or (None, None)))
                shown = ["" if number is None else number for number in numbers]
                rows.append([grid.name, row[0].text, column, *shown, cell.text])
    return export.text(rows)


def write(document: Document, folder: Path) -> tuple[list[Path], str]:
    """All forms into a folder; the files, and why there are no figures if there are none."""
    run_folder.make_folder(folder)
    texts = {"table.md": markdown, "table.tex": latex, "table.csv": csv}
    written = []
    for name, make in texts.items():
        run_folder.write_file(folder / name, make(document).encode(), remedy=REMEDY)
        written.append(folder / name)
    from fedmaba.report import figures

    for name, draw in document.figures.items():
        try:
            figure = draw()
        except InputError as error:  # no matplotlib, or nothing to draw
            return written, str(error)
        for form in figures.FORMS:
            target = folder / f"{re.sub(r'[^a-z0-9_-]', '_', name)}{form}"
            run_folder.write_file(target, figures.encode(figure, form), remedy=REMEDY)
            written.append(target)
    return written, ""
