"""What a table and a page are (Cell, Grid, Document), and how they are written.

Whatever shows a table makes a Grid first: the terminal, the page, notebooks and every file write
the same one. Here are plain text, Markdown, LaTeX, CSV and images. No torch.
"""

from __future__ import annotations

import csv as csv_files
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedmaba.errors import unknown
from fedmaba.report import escape
from fedmaba.report.paired import Interval


class Cell(NamedTuple):
    """One entry: its text, its numbers, and its rank in the column (0 best, 1 second, else 2)."""

    text: str
    value: float | None = None
    sd: float | None = None
    rank: int = 2
    span: tuple[float, float] | None = None  # of the interval around the value
    p: float | None = None  # of a test that the value is 0


@dataclass(frozen=True)
class Grid:
    """One table; the first column names the rows."""

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass
class Document:
    """A page: words, tables, and functions that draw its figures."""

    title: str
    text: list[str] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    figures: dict[str, Callable[[], Any]] = field(default_factory=dict)
    foot: list[str] = field(default_factory=list)  # words below the tables


def number(
    value: float, sd: float = float("nan"), rank: int = 2, sign: bool = False, digits: int = 2
) -> Cell:
    """A cell of a number with its spread; a dash for nan."""
    if math.isnan(value):
        return Cell("–")
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    if math.isnan(sd):
        return Cell(text, value, None, rank)
    return Cell(f"{text} ± {sd:.{digits}f}", value, sd, rank)


def minus_sign(text: str) -> str:
    """The same with a true minus before negative numbers, for people to read."""
    return re.sub(r"(?<![\w.)=-])-(?=\d)", "−", text)


def between(span: Interval, digits: int = 2) -> Cell:
    """A cell of a mean with its interval."""
    bounds = (span.low, span.high) if span.bounded else None
    return Cell(span.text(digits=digits), None if math.isnan(span.mean) else span.mean, span=bounds)


def p_in_words(p: float) -> str:
    """A p-value as tables and sentences show it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def for_page(grid: Grid) -> dict[str, Any]:
    """A table for the page; each line says whose it is."""
    rows = [
        {"label": name.text, "cells": [name.text, *(minus_sign(cell.text) for cell in rest)]}
        for name, *rest in grid.rows
    ]
    return {"title": grid.title, "head": [*grid.head], "rows": rows}


MARKED: dict[str, tuple[Callable[[str], str], tuple[str, str, str]]] = {  # best, second, others
    "latex": (escape.for_latex, (r"\textbf{{{}}}", r"\underline{{{}}}", "{}")),
    "markdown": (escape.for_markdown, ("**{}**", "*{}*", "{}")),
}


def line(cells: Iterable[Cell], to: str) -> str:
    """A line of a table in LaTeX or Markdown."""
    safe, forms = MARKED[to]
    parts = [forms[cell.rank].format(safe(cell.text)) for cell in cells]
    return " & ".join(parts) + r" \\" if to == "latex" else f"| {' | '.join(parts)} |"


def _head(grid: Grid, to: str) -> str:
    return line(map(Cell, grid.head), to)


def plain_text(grid: Grid) -> str:
    """A table as lines of plain text."""
    lines = [[*grid.head], *([cell.text for cell in row] for row in grid.rows)]
    lines = [[escape.one_line(text) for text in one] for one in lines]
    width = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(map(str.ljust, one, width)).rstrip() for one in lines]
    return "\n".join([escape.one_line(grid.title), *rows])


def markdown(document: Document, level: int = 1) -> str:
    """The page as Markdown."""
    title = [f"{'#' * level} {escape.for_markdown(document.title)}"] if document.title else []
    parts = [*title, *map(escape.for_markdown, document.text)]
    below = map(escape.for_markdown, document.foot)
    return "\n\n".join([*parts, *map(markdown_table, document.grids), *below]) + "\n"


def markdown_table(grid: Grid) -> str:
    """A table as Markdown: the best bold, the second in italics."""
    lines = [f"**{escape.for_markdown(grid.title)}**", "", _head(grid, "markdown")]
    lines.append(f"| {' | '.join(['---'] * len(grid.head))} |")
    return "\n".join([*lines, *(line(row, "markdown") for row in grid.rows)])


def latex(document: Document) -> str:
    r"""The tables for a paper, with the rules of the package booktabs."""
    parts = [r"% These tables need \usepackage{booktabs} before \begin{document}."]
    told = [document.title, *document.text, *document.foot]
    parts += [f"% {escape.one_line(line)}" for text in told for line in text.splitlines()]
    for grid in document.grids:
        columns = "l" + "r" * (len(grid.head) - 1)
        body = [_head(grid, "latex"), r"\midrule", *(line(row, "latex") for row in grid.rows)]
        parts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    r"\centering",
                    rf"\caption{{{escape.for_latex(grid.title)}}}",
                    rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', grid.name.lower())}}}",
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
    """Every cell as a line: table, row, column, number, spread, ends of its interval, p, text."""
    head = ["table", "row", "column", "value", "sd", "low", "high", "p", "text"]
    rows: list[list[object]] = [[*head]]
    for grid in document.grids:
        for row in grid.rows:
            for column, cell in zip(grid.head[1:], row[1:], strict=True):
                numbers = (cell.value, cell.sd, *(cell.span or (None, None)), cell.p)
                shown = ["" if number is None else number for number in numbers]
                rows.append([grid.name, row[0].text, column, *shown, cell.text])
    return csv_text(rows)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV that no spreadsheet takes for formulas."""
    out = io.StringIO()
    writer = csv_files.writer(out, lineterminator="\n")
    writer.writerows(map(escape.for_csv, row) for row in rows)
    return out.getvalue()


FORMS = {"markdown": markdown, "latex": latex, "csv": csv}


def written(document: Document, to: str) -> str:
    """The page as "markdown", "latex" or "csv"."""
    if to not in FORMS:
        raise unknown("form", to, FORMS)
    return FORMS[to](document)
