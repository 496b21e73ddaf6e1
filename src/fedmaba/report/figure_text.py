"""What is written in a figure: names beside points, the legend, titles. No torch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from fedmaba.report.escape import for_figure
from fedmaba.report.plot_data import FEW_ROWS, SOFT, WIDE, PlotData, axis_name
from fedmaba.report.row_styles import printed_name
from fedmaba.results.run_history import FloatArray


def axes_title(axes: Any, plot: PlotData, name: str) -> str:
    """What a panel over rounds shows, and how."""
    log = " (log)" if axes.get_yscale() == "log" else ""
    mean = f", mean of {plot.smooth} evaluations" if plot.smooth > 1 else ""
    return axis_name(name, plot.unit, plot.share) + mean + log


def sides(figure: Any, below: str, left: str = "") -> None:
    """What the axes of all panels show."""
    figure.supxlabel(below, fontsize=8, color=SOFT)
    if left:
        figure.supylabel(left, fontsize=8, color=SOFT)


def wrapped(figure: Any, text: str, size: float = 8) -> list[str]:
    """A text in lines that are no wider than the figure."""
    return textwrap.wrap(text, int(72 * figure.get_figwidth() / (0.55 * size)))


def drawn_name(label: str) -> str:
    """A row's name as a paper prints it, with its symbols set as formulas."""
    return for_figure(printed_name(label)).replace("η_b", r"$\eta_b$")


def small_title(axes: Any, label: str, more: str = "") -> None:
    """A row's name above its small panel, on as many lines as it needs."""
    size = 7
    room = 72 * axes.get_position().width * axes.figure.get_figwidth()  # points
    signs = max(8, int(room / (0.6 * size)))  # bold letters are wide
    text = (printed_name(label) + more).replace(" = ", "\u00a0=\u00a0")  # no break at these
    lines = textwrap.wrap(text, signs, break_on_hyphens=False)
    drawn = "\n".join(map(for_figure, lines)).replace("η_b", r"$\eta_b$")
    axes.set_title(drawn, fontsize=size, linespacing=1.05)


def name_points(axes: Any, points: dict[str, FloatArray], plot: PlotData) -> None:
    """Names beside points, each with a line to its own, in the cheapest of many places around.

    Far costs little, to cover a marker or another's line more, another name most.
    """
    from matplotlib.patheffects import withStroke

    dot, frame, place = axes.figure.dpi / 72, axes.get_window_extent(), axes.transData.transform
    marks = [place(line.get_xydata()) for line in axes.lines if line.get_marker() != "None"]
    paths = [path for bars in axes.collections for path in bars.get_paths()]
    paths += [line.get_path() for line in axes.lines if line.get_marker() == "None"]
    rules = np.concatenate([place(path.interpolated(20).vertices) for path in paths])
    names: list[Any] = []
    for label in sorted(points, key=lambda label: tuple(-points[label])):
        text = axes.annotate(
            drawn_name(label),
            points[label],
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
        text.set_in_layout(False)
        mark, half = place(points[label]), text.get_window_extent().size / 2 + dot
        found = []
        for far, way, line, box in _around(mark, half, dot):
            price = (
                1.5 * far
                + 1000 * (frame.count_contains(box.corners()) < 4)
                + 300 * box.count_overlaps(names)
                + 60 * box.padded(3 * dot).count_contains(np.concatenate(marks))
                + 30 * sum(name.count_contains(line) for name in names)
                + 3 * box.count_contains(rules)
            )
            found.append((price, way, box, line))
        _, way, box, line = min(found, key=lambda one: one[0])
        text.xyann = (line[-1] + half * way - mark) / dot
        look = {"color": plot.styles[label].color, "lw": 0.7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate(
            "",
            points[label],
            xytext=(line[-1] - mark) / dot,
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", **look},
            zorder=2,
        ).set_in_layout(False)
        names.append(box)
        marks.append(line)


def _around(
    mark: FloatArray, half: FloatArray, dot: float
) -> Iterator[tuple[int, FloatArray, FloatArray, Any]]:
    """Places for a box of that half size: how far, which way, the line to it, the box."""
    from matplotlib.transforms import Bbox

    for far, turn in product((6, 9, 13, 19, 26, 34, 43, 53, 64), np.linspace(-1, 1, 16, False)):
        way = np.array([np.cos(np.pi * turn), np.sin(np.pi * turn)])
        line = mark + np.linspace(0, far * dot, 20)[:, None] * way
        yield far, way, line, Bbox([line[-1] + half * (way - 1), line[-1] + half * (way + 1)])


def legend(
    figure: Any, plot: PlotData, thick: set[str], axes: Any = None, points: bool = False
) -> None:
    """The rows below the panels; beside a single wide one, in the order the lines end.

    Of `points` there are markers and no lines.
    """
    from matplotlib.lines import Line2D

    labels = plot.labels
    beside = axes is not None and figure.get_figwidth() >= WIDE and len(labels) > FEW_ROWS
    if beside:
        ends = {line.get_label(): line.get_ydata()[-1] for line in axes.lines}
        labels = sorted(labels, key=lambda label: -ends.get(label, -np.inf))
    handles = [
        Line2D(
            [],
            [],
            **look.marked(4),
            ls="" if points else look.dash,
            lw=1.5 if label in thick else 0.8,
            label=drawn_name(label),
        )
        for label, look in ((label, plot.styles[label]) for label in labels)
    ]
    size = 7
    columns = int(
        72
        * figure.get_figwidth()
        / (size * (0.55 * max(len(printed_name(label)) for label in labels) + 5))
    )
    columns = 1 if beside else max(1, min(columns, len(labels)))
    notes = []
    if len(thick) < len(plot.labels) and not points:
        reference = drawn_name(plot.labels[plot.reference])
        notes.append(f"thick: {reference} and the Pareto front")
    if any(panel.collections for panel in figure.axes) and not points:
        notes.append("bands: lowest to highest seed")
    if not beside:  # the panels keep their height
        lines = -(-len(labels) // columns) + bool(notes)
        figure.set_figheight(figure.get_figheight() + max(0, lines - 2) * 1.5 * size / 72)
    figure.legend(
        handles=handles,
        loc="outside right center" if beside else "outside lower center",
        ncols=columns,
        fontsize=size,
        title=("\n" if beside else "; ").join(notes) or None,
        title_fontsize=size,
        alignment="left" if beside else "center",
        handlelength=1 if points else 3,
    )
