"""What every figure is drawn from: runs by row, and the colour and marker of each row. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmaba.errors import InputError
from fedmaba.report import data, row_styles
from fedmaba.report.table import rows_of_one_seed
from fedmaba.results.metrics import Unit
from fedmaba.results.run_history import FloatArray, Model, RunHistory

WIDE, HALF_PAGE = 6.75, 3.3  # Two columns of a page, and one, are this many inches wide.
TALLEST = 7.8  # A grid of panels may take this many inches of a page's height.
INK, SOFT, LINE_COLOUR = "#191b1f", "#5c626c", "#dcdcd6"
COLORS = (  # Colours by hue contrast 3:1 on white, and each has its marker.
    *(INK, "#0072b2", "#d55e00", "#332288", "#3c9bd6"),
    *("#882255", "#009e73", "#cc79a7", "#6b4a00", "#6e737b"),
)
MARKERS = ("o", "s", "^", "p", "P", "X", "D", "v", "<", ">")
FILLS = ("full", "none", "left", "top", "right")  # by variant, as the next
DASHES: tuple[tuple[float, ...], ...] = (
    *((), (4, 1.6), (1.2, 1.4), (6, 1.4, 1.2, 1.4), (3, 1, 1, 1, 1, 1)),
)
FEW_ROWS = 6  # Of more rows than this only some are drawn thick.
AXIS_NAMES = {
    "variance": "variance over clients{square}",
    "accuracy": "mean {name}{mark}",
    "worst": "worst {share:g} % of clients{mark}",
    "best": "best {share:g} % of clients{mark}",
}


def axis_name(name: str, unit: Unit, share: float = 0.0) -> str:
    """What a figure's axis is called, with its unit."""
    mark, square = (f",{text}" if text else "" for text in (unit.mark, unit.square))
    words = {"share": 100 * share, "mark": mark, "square": square, "name": unit.name}
    return AXIS_NAMES[name].format(**words)


class Style(NamedTuple):
    """How a row looks in every figure."""

    color: str
    marker: str
    fill: str
    dash: tuple[float, tuple[float, ...] | None]

    def marked(self, size: float) -> dict[str, Any]:
        """As matplotlib takes a marker: open ones white."""
        face = {"markerfacecolor": "white"} if self.fill == "none" else {"fillstyle": self.fill}
        look = {"color": self.color, "marker": self.marker, "markersize": size}
        return look | {"markerfacecoloralt": "white", "markeredgewidth": 0.8} | face


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """A look for each row: colour and marker say the algorithm, fill and dash the variant."""
    out = {}
    for label, (hue, n) in zip(labels, row_styles.hues(labels), strict=True):
        n %= len(FILLS)
        out[label] = Style(COLORS[hue], MARKERS[hue], FILLS[n], (0, DASHES[n] or None))
    return out


def panels(figure: Any, count: int) -> list[Any]:
    """As many panels: side by side on a page, one below the other in a column."""
    narrow = figure.get_figwidth() < 0.7 * WIDE
    across = 1 if narrow else {2: 2, 4: 2}.get(count, min(3, count))
    if narrow:
        figure.set_figheight(0.5 + 1.75 * -(-count // across))
    return _grid(figure, count, across)


def small_panels(figure: Any, count: int, **shared: Any) -> list[Any]:
    """A panel for each row of a comparison, in a grid that fits on a page however many there are.

    Three across in a column, five on a page; the lines of the grid get lower the more there are.
    """
    most = 3 if figure.get_figwidth() < 0.7 * WIDE else 5
    lines = -(-count // most)
    usual = {1: 1.7, 2: 1.45, 3: 1.45}.get(lines, 1.2)
    figure.set_figheight(0.6 + lines * min(usual, TALLEST / lines))
    return _grid(figure, count, -(-count // lines), **shared)


def _grid(figure: Any, count: int, across: int, **shared: Any) -> list[Any]:
    found = figure.subplots(-(-count // across), across, squeeze=False, **shared)
    for axes in found.flat[count:]:
        axes.remove()
    for axes in found.flat[max(0, count - across) : count]:  # none below
        axes.tick_params(labelbottom=True)
    return list(found.flat[:count])


class PlotData:
    """What a figure is drawn from: the runs by row, and the style of each row."""

    def __init__(
        self, sources: Sequence[data.Source], model: Model, share: float | None, smooth: int = 1
    ) -> None:
        self.sources, self.model = sources, model
        self.history = data.combine(sources)
        self.share = self.history.share if share is None else share
        self.unit = self.history.unit
        self.runs = [run for run in self.history.runs if not run.diverged] or self.history.runs
        self.labels = list(dict.fromkeys(run.label for run in self.runs))
        self.reference = row_styles.reference(self.labels)
        self.styles = styles(self.labels)
        tables = [run.tables["evaluated"] for run in self.runs if "evaluated" in run.tables]
        # A point of a line is the mean of this many evaluations.
        self.smooth = min([smooth, *map(len, tables)])

    def of(self, label: str, table: str = "evaluated") -> list[RunHistory]:
        return [run for run in self.runs if run.label == label and table in run.tables]

    def with_rounds(self) -> list[str]:
        """The rows whose weights are known."""
        found = [label for label in self.labels if self.of(label, "round")]
        if not found:
            raise InputError("no weights in these histories: name the run folders")
        return found

    def points(self) -> dict[str, FloatArray]:
        """Variance and mean accuracy at the last round by row: means, then sds over seeds."""
        out = {}
        for label in self.labels:
            runs = self.of(label)
            found = [run.fairness(self.model, self.share, [-1], self.unit)[0] for run in runs]
            if found:
                table = np.array([(f.variance, f.accuracy) for f in found])
                sd = table.std(0, ddof=1) if len(found) > 1 else np.zeros(2)
                out[label] = np.stack([table.mean(0), sd])
        return out

    def thick(self) -> set[str]:
        """The rows to look at: all of a few; of many the reference and the Pareto front."""
        if len(self.labels) <= FEW_ROWS:
            return {*self.labels}
        return {self.labels[self.reference], *self.front()}

    def alone(self) -> set[str]:
        """The rows of one seed beside rows of more."""
        one = rows_of_one_seed([len(self.of(label)) for label in self.labels])
        return {label for label, yes in zip(self.labels, one, strict=True) if yes}

    def without_a_model(self) -> set[str]:
        """The rows that have no shared model, when the figure shows shared models."""
        own = {*filter(row_styles.shares_no_model, self.labels)}
        return own if self.model != "personal" and len(own) < len(self.labels) else set()

    def front(self) -> list[str]:
        """The rows that none beats in both variance and accuracy, by variance."""
        points, left_out = self.points(), self.alone() | self.without_a_model()
        means = {label: at[0] for label, at in points.items() if label not in left_out}
        sign = self.unit.sign

        def beaten(a: FloatArray, b: FloatArray) -> bool:
            return bool(b[0] <= a[0] and sign * b[1] >= sign * a[1] and (b != a).any())

        free = [
            label for label, a in means.items() if not any(beaten(a, b) for b in means.values())
        ]
        return sorted(free, key=lambda label: float(means[label][0]))

    def every(self, label: str, count: int) -> tuple[int, int]:
        """Which of a line's points have a marker: six, not the same as the next line's."""
        step = max(1, count // 6)
        return self.labels.index(label) * step // len(self.labels), step

    def final(self, label: str) -> FloatArray:
        """Accuracy of every client of every seed that has test examples, as shown."""
        found: FloatArray = np.concatenate(
            [self.unit.scale * run.accuracy(self.model)[-1] for run in self.of(label)]
        )
        return found[np.isfinite(found)]
