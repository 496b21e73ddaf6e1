"""The critical-difference picture: mean ranks of many rows, and which are not told apart. No torch.

Demšar 2006, figure 1: the best on the left, one line of text for each row, a thick bar over rows
whose ranks lie no further apart than Nemenyi's critical difference. In a column of a page all names
stand on the left, where there is no room on both sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmaba.report import figure_text
from fedmaba.report import ranks as rank_tests
from fedmaba.report.plot_data import HALF_PAGE, INK, SOFT, PlotData, axis_name
from fedmaba.results.run_history import FloatArray

RANKED_FIGURES = ("variance", "worst")
LINE_HEIGHT = 0.17  # inches of a row's line of text
BAR = 0.09  # inches between two bars


def ranks_of(plot: PlotData, figure: str) -> tuple[list[str], FloatArray]:
    """The rows, and a figure of each at the last round by seed that all of them have: (S, k)."""
    found: dict[str, dict[int, float]] = {}
    for label in plot.labels:
        runs = plot.of(label)
        last = [run.fairness(plot.model, plot.share, [-1], plot.unit)[0] for run in runs]
        found[label] = {run.seed: getattr(f, figure) for run, f in zip(runs, last, strict=True)}
    both = sorted(set.intersection(*(set(values) for values in found.values())))
    values = np.array([[values[seed] for values in found.values()] for seed in both])
    return [*found], values.reshape(len(both), len(found))


def mean_ranks(figure: Any, plot: PlotData) -> None:
    """mean ranks over seeds, and which rows are not told apart (critical difference)"""
    panels = []
    for name in RANKED_FIGURES:
        labels, values = ranks_of(plot, name)
        lower = name == "variance" or plot.unit.lower
        panels.append((name, labels, rank_tests.ranking(values, lower)))
    rows, bars = len(plot.labels), max(len(found.alike()) for _, _, found in panels)
    narrow = figure.get_figwidth() < HALF_PAGE * 1.2
    lines = rows if narrow else -(-rows // 2)
    height = 0.9 + 0.15 * narrow + BAR * bars + LINE_HEIGHT * lines
    figure.set_figheight(0.2 + height * len(RANKED_FIGURES))
    for axes, (name, labels, found) in zip(
        figure.subplots(len(RANKED_FIGURES), 1), panels, strict=True
    ):
        _panel(axes, labels, found, bars, lines)
        apart = "" if found.differs else ": no rows are told apart"
        p = "< 0.001" if found.p < 0.001 else f"{found.p:.3f}"
        what = axis_name(name, plot.unit, plot.share)
        told = f"Friedman p {p}{apart}", f"critical difference {found.critical:.2f}"
        end = "\n" if narrow else "; "
        where = {"loc": "right" if narrow else "left", "pad": 14}
        axes.set_title(f"Mean rank by {what}\n{end.join(told)}", **where)
    seeds = panels[0][2].blocks
    below = f"1: best of {rows} rows, over {seeds} seeds;", "bar: not told apart (Nemenyi, 95 %)"
    figure_text.sides(figure, ("\n" if narrow else " ").join(below))


def _panel(axes: Any, labels: list[str], found: rank_tests.Ranking, bars: int, half: int) -> None:
    """One axis of ranks with the names of the rows below it, so many of them on the left."""
    count = len(labels)
    order = np.argsort(found.ranks, kind="stable")
    unit = LINE_HEIGHT / BAR  # lines of text are as many bars high
    bottom = -(bars + 1) - unit * half
    axes.set(xlim=(1 - 0.02 * count, count * 1.02), ylim=(bottom, 0.7), yticks=[])
    axes.grid(False)
    axes.xaxis.tick_top()
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.spines["top"].set_visible(True)
    axes.locator_params(axis="x", integer=True)
    for place, row in enumerate(order):
        left = place < half
        line = place if left else count - 1 - place
        y, x = -(bars + 1) - unit * (line + 0.5), found.ranks[row]
        edge = 1.0 if left else float(count)
        axes.plot([x, x, edge], [0.7, y, y], color=SOFT, lw=0.6, solid_joinstyle="miter")
        name = figure_text.drawn_name(labels[row])
        text = f"{name}  {x:.2f}" if left else f"{x:.2f}  {name}"
        side = {"ha": "right" if left else "left", "va": "center", "fontsize": 7}
        away = -3 if left else 3
        axes.annotate(
            text, (edge, y), (away, 0), textcoords="offset points",
            annotation_clip=False, **side,
        )  # fmt: skip
    for level, rows in enumerate(found.alike()):
        ends = found.ranks[list(rows)]
        axes.plot([ends.min() - 0.03, ends.max() + 0.03], [-level - 0.5] * 2, color=INK, lw=2.2)
