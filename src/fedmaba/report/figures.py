"""Figures in print quality with matplotlib (extra `plot`): the page's, and those papers show.

Drawn without pyplot, so that nothing global changes; the same colours as the page.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba import record
from fedmaba.errors import InputError, unknown
from fedmaba.history import FloatArray, History, Model, RunHistory
from fedmaba.report import data

WIDE, HALF = 6.75, 3.3  # inches: two columns of a page, and one
INK, SOFT, LINE = "#191b1f", "#5c626c", "#dcdcd6"
COLORS = (  # by hue; apart for the colour-blind too, 3:1 on white, and each has its marker
    *(INK, "#0072b2", "#d55e00", "#009e73", "#cc79a7"),
    *("#3c9bd6", "#882255", "#332288", "#6b4a00", "#6e737b"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
FILLS = ("full", "none", "left", "top", "right")  # by variant, as the next
DASHES: tuple[tuple[float, ...], ...] = (
    *((), (4, 1.6), (1.2, 1.4), (6, 1.4, 1.2, 1.4), (3, 1, 1, 1, 1, 1)),
)
GAIN, LOSS = COLORS[1], COLORS[2]
FEW = 6  # rows; of more, only some are drawn thick
NO_ROUNDS = "no weights in these histories: name the run folders"
FORMS = (".pdf", ".svg", ".png")
STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # text stays text, as journals ask
    "svg.fonttype": "none",
    "svg.hashsalt": "fedmaba",
    "figure.constrained_layout.use": True,
}
NAMES = {
    "variance": "variance over clients, %²",
    "accuracy": "mean accuracy, %",
    "worst": "worst {share:g} % of clients, %",
    "best": "best {share:g} % of clients, %",
}


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
    for label, (hue, n) in zip(labels, data.looks(labels), strict=True):
        n %= len(FILLS)
        out[label] = Style(COLORS[hue], MARKERS[hue], FILLS[n], (0, DASHES[n] or None))
    return out


class Scene:
    """What a drawing function may use: the runs, grouped, and their looks."""

    def __init__(
        self, sources: Sequence[data.Source], model: Model, share: float, smooth: int = 1
    ) -> None:
        self.sources, self.model, self.share = sources, model, share
        self.history = data.combine(sources)
        self.runs = [run for run in self.history.runs if not run.diverged] or self.history.runs
        self.labels = list(dict.fromkeys(run.label for run in self.runs))
        self.reference = data.reference(self.labels)
        self.styles = styles(self.labels)
        tables = [run.tables["evaluated"] for run in self.runs if "evaluated" in run.tables]
        self.smooth = min([smooth, *map(len, tables)])  # evaluations a line's point is the mean of

    def of(self, label: str, table: str = "evaluated") -> list[RunHistory]:
        return [run for run in self.runs if run.label == label and table in run.tables]

    def points(self) -> dict[str, FloatArray]:
        """Variance and mean accuracy at the last round by row: means, then sds over seeds."""
        out = {}
        for label in self.labels:
            found = [run.fairness(self.model, self.share, [-1])[0] for run in self.of(label)]
            if found:
                table = np.array([(f.variance, f.accuracy) for f in found])
                sd = table.std(0, ddof=1) if len(found) > 1 else np.zeros(2)
                out[label] = np.stack([table.mean(0), sd])
        return out

    def thick(self) -> set[str]:
        """The rows to look at: all of a few; of many the reference and the Pareto front."""
        if len(self.labels) <= FEW:
            return {*self.labels}
        return {self.labels[self.reference], *_front(self.points())}

    def every(self, label: str, count: int) -> tuple[int, int]:
        """Which of a line's points have a marker: six, not the same as the next line's."""
        step = max(1, count // 6)
        return self.labels.index(label) * step // len(self.labels), step

    def final(self, label: str) -> FloatArray:
        """Accuracy of every client of every seed, percent."""
        return np.concatenate([100 * run.accuracy(self.model)[-1] for run in self.of(label)])


def describe() -> list[tuple[str, str]]:
    """Every kind of figure and one line on it."""
    return [(name, (draw.__doc__ or "").strip()) for name, (draw, _) in KINDS.items()]


def write(
    kind: str, folders: Sequence[Path], out: Path, model: Model = "deployed", share: float = 0.05
) -> None:
    """One figure of one or more run folders as a file."""
    if out.suffix.lower() not in FORMS:
        raise InputError(f"{out}: the name says the form: end it in {', '.join(FORMS)}")
    _check(kind)
    figure = draw([data.load(folder) for folder in folders], kind, model, share)
    content = encode(figure, out.suffix.lower())
    record.write_file(out, content, remedy="mend it, or choose another -o")


def encode(figure: Any, form: str) -> bytes:
    """A figure as the bytes of a .pdf, .svg or .png file, the same each time."""
    metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {"Software": None}}
    stream = io.BytesIO()
    with _style():
        figure.savefig(stream, format=form[1:], metadata=metadata[form])
    return stream.getvalue()


def draw(
    sources: Sequence[data.Source],
    kind: str,
    model: Model = "deployed",
    share: float = 0.05,
    size: tuple[float, float] | None = None,
    smooth: int = 1,
) -> Any:
    """One figure as a matplotlib Figure that notebooks show by themselves."""
    _check(kind)
    drawing, usual = KINDS[kind]
    with _style():
        figure = _canvas(size or usual)
        scene = Scene(sources, model, share, smooth)
        if not any("evaluated" in run.tables for run in scene.runs):
            raise InputError("no run has been evaluated yet: wait for the first evaluation")
        drawing(figure, scene)
    return figure


def _canvas(size: tuple[float, float]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):  # type: ignore[misc,unused-ignore]
        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png", dpi=150)
            return stream.getvalue()

    figure = Picture(figsize=size)
    FigureCanvasAgg(figure)
    return figure


def sweep(history: History, parameter: str, values: dict[str, float], model: Model) -> Any:
    """Figures at the last round against a hyper-parameter; FedAvg as a line with its band."""
    rows = {row.label: row for row in history.summary(model)}
    shown = [label for label in values if label in rows]
    looks = styles(["fedavg", "fedmaba"])
    with _style():
        figure = _canvas((WIDE, 2.4))
        for axes, name in zip(
            figure.subplots(1, 3), ("variance", "accuracy", "worst"), strict=True
        ):
            x = [values[label] for label in shown]
            y = [getattr(rows[label].mean, name) for label in shown]
            sd = np.nan_to_num([getattr(rows[label].sd, name) for label in shown])
            look = looks["fedmaba"].marked(4.5)
            axes.errorbar(x, y, sd, **look, capsize=2, elinewidth=1, label="FedMABA, ± sd")
            if "fedavg" in rows:
                mean, spread = (getattr(f, name) for f in (rows["fedavg"].mean, rows["fedavg"].sd))
                axes.axhline(mean, color=looks["fedavg"].color, lw=1, label="FedAvg, ± sd")
                if not np.isnan(spread):
                    axes.axhspan(mean - spread, mean + spread, color=SOFT, alpha=0.12, lw=0)
            axes.set(title=NAMES[name].format(share=100 * history.share), xticks=x)
            axes.set_xlabel({"alpha": "α", "eta_b": r"$\eta_b$"}.get(parameter, parameter))
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def of(
    history: History,
    kind: str = "rounds",
    model: Model = "deployed",
    size: tuple[float, float] | None = None,
    smooth: int = 1,
) -> Any:
    """A figure of a history in memory; lines over rounds are means of the last `smooth` points."""
    return draw([data.of(history)], kind, model, size=size, smooth=smooth)


def distribution(figure: Any, scene: Scene) -> None:
    """client accuracy: histogram and cumulative, algorithms overlaid"""
    left, right = figure.subplots(1, 2)
    thick = scene.thick()
    for label in scene.labels:
        if not scene.of(label):
            continue
        values, look = np.sort(scene.final(label)), scene.styles[label]
        line = {"color": look.color, "ls": look.dash, "lw": 1.4 if label in thick else 0.8}
        low, high = min(0.0, values[0]), max(100.0, values[-1])
        counts, edges = np.histogram(values, bins=np.linspace(low, high, 21))
        if label in thick:
            left.stairs(100 * counts / len(values), edges, **line)
        share = 100 * np.arange(1, len(values) + 1) / len(values)
        line |= scene.styles[label].marked(3) | {"markevery": scene.every(label, len(values))}
        right.step(values, share, where="post", label=label, **line)
    few = "" if len(thick) == len(scene.labels) else " of the thick rows"
    left.set(title=f"Histogram{few}", xlabel="accuracy, %", ylabel="share of clients, %")
    right.set(title="Cumulative", xlabel="accuracy, %", ylabel="share of clients, %")
    _legend(figure, scene, thick)


def tradeoff(figure: Any, scene: Scene) -> None:
    """mean accuracy against variance, ± sd over seeds, and the Pareto front"""
    points = scene.points()
    top = max(at[0, 1] for at in points.values())
    close = [label for label, at in points.items() if at[0, 1] >= top - data.NEAR]
    if len(points) <= FEW or not len(points) / 2 <= len(close) < len(points):
        panels = [(figure.subplots(), [*points])]
    else:  # the far ones would squash the others
        figure.set_size_inches(WIDE, figure.get_figheight())
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.7))
        panels = [(left, [x for x in points if x not in close]), (right, close)]
    for axes, named in panels:
        shown = points if axes is panels[0][0] else {label: points[label] for label in named}
        for label, ((x, y), (dx, dy)) in shown.items():
            look = scene.styles[label]
            axes.errorbar(x, y, dy, dx, fmt="none", ecolor=look.color, elinewidth=0.7, alpha=0.45)
            above = 4 if label == scene.labels[scene.reference] else 3
            axes.plot(x, y, ls="", zorder=above, **look.marked(5.5))
        front = [points[label][0] for label in _front(points) if label in shown]
        axes.plot(*np.array(front).T, color=SOFT, lw=0.8, ls=(0, (3, 3)), zorder=0)
        axes.margins(0.1)
    panels[0][0].set_ylabel(NAMES["accuracy"])
    what = "mean ± sd over seeds; dashed: the Pareto front"
    figure.supxlabel(f"{NAMES['variance']} ({what})", fontsize=8, color=SOFT)
    if len(panels) > 1:
        left.set_title("All rows")
        right.set_title(f"Frame: within {data.NEAR:g} points of the best mean")
        (x, right_x), (y, top_y) = right.get_xlim(), right.get_ylim()
        frame = {"fill": False, "ec": SOFT, "lw": 0.6}
        left.add_patch(_rectangle((x, y), right_x - x, top_y - y, **frame))
    figure.draw_without_rendering()  # to know where things are
    for axes, named in panels:
        _name(axes, {label: points[label][0] for label in named}, scene)


def rounds(figure: Any, scene: Scene) -> None:
    """variance, mean, worst and best share over rounds, with bands over seeds"""
    for axes, name in zip(figure.subplots(2, 2).flat, NAMES, strict=True):
        _over_rounds(axes, scene, name)
        axes.set_title(_title(axes, scene, name))
    for axes in figure.axes[2:]:
        axes.set_xlabel("round")
    _legend(figure, scene, scene.thick())


def variance(figure: Any, scene: Scene) -> None:
    """variance over clients, over rounds"""
    _single(figure, scene, "variance")


def accuracy(figure: Any, scene: Scene) -> None:
    """mean accuracy over rounds"""
    _single(figure, scene, "accuracy")


def worst(figure: Any, scene: Scene) -> None:
    """accuracy of the worst share of clients over rounds"""
    _single(figure, scene, "worst")


def weights(figure: Any, scene: Scene) -> None:
    """weights, client by round, of the first seed of each strategy"""
    shown = [scene.of(label, "round")[0] for label in scene.labels if scene.of(label, "round")]
    if not shown:
        raise InputError(NO_ROUNDS)
    tables = [run.weights() for run in shown]
    tables = [t * np.sum(~np.isnan(t), axis=1, keepdims=True) for t in tables]
    top = max(2.0, float(np.nanpercentile(np.concatenate([t.ravel() for t in tables]), 99.5)))
    grid = _grid(figure, len(shown), 1.7, sharey=True)
    for axes, run, table in zip(grid, shown, tables, strict=True):
        extent = (0.5, len(table) + 0.5, run.n_clients - 0.5, -0.5)
        image = axes.imshow(
            table.T, aspect="auto", cmap="Blues", vmin=0, vmax=top, extent=extent, rasterized=True
        )
        axes.grid(False)
        axes.set_title(f"{run.label}, seed {run.seed}", fontsize=7)
        axes.locator_params(integer=True)
    figure.supxlabel("round", fontsize=8, color=SOFT)
    figure.supylabel("client", fontsize=8, color=SOFT)
    figure.colorbar(image, ax=grid, label="weight / equal share", aspect=40, pad=0.01)


def constraint(figure: Any, scene: Scene) -> None:
    """the multiplier, KL against rho, and the effective number of clients"""
    shown = [label for label in scene.labels if scene.of(label, "round")]
    if not shown:
        raise InputError(NO_ROUNDS)
    panels = figure.subplots(1, 3)
    titles = ("multiplier λ*", "KL from uniform", "effective clients")
    for label in shown:
        runs = scene.of(label, "round")
        for axes, name in zip(panels, ("lambda", "kl", "effective"), strict=True):
            curves = [_curve(run, name) for run in runs]
            found = [c for c in curves if c is not None]
            if found:
                _band(axes, runs[0].column("round"), found, scene, label, {*shown})
        rho = data.radius(label)
        if rho is not None:
            panels[1].axhline(rho, color=SOFT, lw=0.8, ls=":")
    for axes, title in zip(panels, titles, strict=True):
        axes.set(title=title, xlabel="round")
        axes.set_ylim(bottom=0)
        _whole(axes)
    _legend(figure, scene, {*shown})


def gains(figure: Any, scene: Scene) -> None:
    """who gains and who loses against FedAvg, client by client"""
    base = scene.labels[scene.reference]
    others = [label for label in scene.labels if label != base and scene.of(label)]
    if not others or not scene.of(base):
        raise InputError("gains compares strategies: run at least two, FedAvg among them")
    for axes, label in zip(_grid(figure, len(others), 1.35, sharex=True), others, strict=True):
        then, now = _pairs(scene, base, label)
        change = (now - then)[np.argsort(then, kind="stable")]
        edges = np.linspace(0, 100, len(change) + 1)
        for sign, color in ((1, GAIN), (-1, LOSS)):
            part = np.where(sign * change > 0, change, 0)
            axes.stairs(part, edges, fill=True, color=color, lw=0.3, rasterized=len(part) > 500)
        axes.axhline(0, color=SOFT, lw=0.6)
        won = 100 * float(np.mean(change > 0))
        axes.set_title(f"{label}\n{won:.0f} % gain", fontsize=7)
        axes.set_xlim(0, 100)
    figure.supxlabel(
        f"clients of all seeds, those {base} serves worst first, %", fontsize=8, color=SOFT
    )
    figure.supylabel(f"change of accuracy against {base}, points", fontsize=8, color=SOFT)


def heterogeneity(figure: Any, scene: Scene) -> None:
    """label by client: training examples of each class"""
    source = next((s for s in scene.sources if s.labels), None)
    if source is None:
        raise InputError("no label counts in these folders: run again with this version")
    seed, counts = next(iter(source.labels.items()))
    names = [str(name) for name in source.data.get("classes") or ()] or None
    figure.set_size_inches(WIDE, 0.8 + 0.16 * min(30, counts.shape[1]))
    axes = figure.subplots()
    image = axes.imshow(counts.T, aspect="auto", cmap="Blues", vmin=0, rasterized=True)
    axes.grid(False)
    if names and len(names) <= 30:
        axes.set_yticks(range(len(names)), names)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="client", title=f"training examples, seed {seed}")
    figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01)


KINDS: dict[str, tuple[Callable[[Any, Scene], None], tuple[float, float]]] = {
    "distribution": (distribution, (WIDE, 2.9)),
    "tradeoff": (tradeoff, (HALF * 1.4, HALF * 1.1)),
    "rounds": (rounds, (WIDE, 4.6)),
    "variance": (variance, (HALF, 2.6)),
    "accuracy": (accuracy, (HALF, 2.6)),
    "worst": (worst, (HALF, 2.6)),
    "weights": (weights, (WIDE, 2.4)),
    "constraint": (constraint, (WIDE, 2.4)),
    "gains": (gains, (WIDE, 2.4)),
    "heterogeneity": (heterogeneity, (WIDE, 2.4)),
}


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise unknown("figure", kind, KINDS)


def _style() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("figures want matplotlib: pip install 'fedmaba[plot]'") from error
    return matplotlib.rc_context(STYLE)


def _front(points: dict[str, FloatArray]) -> list[str]:
    """The rows that none beats in both variance and accuracy, by variance."""
    means = {label: at[0] for label, at in points.items()}
    free = [
        label
        for label, a in means.items()
        if not any(b[0] <= a[0] and b[1] >= a[1] and (b != a).any() for b in means.values())
    ]
    return sorted(free, key=lambda label: float(means[label][0]))


def _rectangle(*place: Any, **look: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(*place, **look)


def _grid(figure: Any, count: int, height: float, **shared: bool) -> list[Any]:
    """As many panels, three in a line."""
    columns = min(3, count)
    lines = -(-count // columns)
    figure.set_size_inches(WIDE, 0.6 + height * lines)
    panels = figure.subplots(lines, columns, squeeze=False, **shared)
    for axes in panels.flat[count:]:
        axes.remove()
    for axes in panels.flat[max(0, count - columns) : count]:  # none below
        axes.tick_params(labelbottom=True)
    return list(panels.flat[:count])


def _name(axes: Any, points: dict[str, FloatArray], scene: Scene) -> None:
    """Names beside points, each with a line to its own, in the cheapest of many places around.

    Far costs little, to cover a marker or another's line more, another name most.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    dot, frame, place = axes.figure.dpi / 72, axes.get_window_extent(), axes.transData.transform
    marks = [place(line.get_xydata()) for line in axes.lines if line.get_marker() != "None"]
    paths = [path for bars in axes.collections for path in bars.get_paths()]
    paths += [line.get_path() for line in axes.lines if line.get_marker() == "None"]
    rules = np.concatenate([place(path.interpolated(20).vertices) for path in paths])
    names: list[Any] = []
    for label in sorted(points, key=lambda label: tuple(-points[label])):
        text = axes.annotate(
            label,
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
        for far, turn in product((6, 9, 13, 19, 26, 34, 43, 53, 64), np.linspace(-1, 1, 16, False)):
            way = np.array([np.cos(np.pi * turn), np.sin(np.pi * turn)])
            line = mark + np.linspace(0, far * dot, 20)[:, None] * way
            box = Bbox([line[-1] + half * (way - 1), line[-1] + half * (way + 1)])
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
        look = {"color": scene.styles[label].color, "lw": 0.7, "shrinkA": 0, "shrinkB": 0}
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


def _single(figure: Any, scene: Scene, name: str) -> None:
    axes = figure.subplots()
    _over_rounds(axes, scene, name)
    axes.set(xlabel="round", ylabel=_title(axes, scene, name))
    _legend(figure, scene, scene.thick(), axes)


def _title(axes: Any, scene: Scene, name: str) -> str:
    log = " (log)" if axes.get_yscale() == "log" else ""
    mean = f", mean of {scene.smooth} evaluations" if scene.smooth > 1 else ""
    return NAMES[name].format(share=100 * scene.share) + mean + log


def _over_rounds(axes: Any, scene: Scene, name: str) -> None:
    thick = scene.thick()
    for label in scene.labels:
        runs = scene.of(label)
        if not runs:
            continue
        found = [
            np.array([getattr(f, name) for f in run.fairness(scene.model, scene.share)])
            for run in runs
        ]
        k = scene.smooth
        found = [np.convolve(curve, np.full(k, 1 / k), "valid") for curve in found]
        _band(axes, runs[0].evaluated[k - 1 :], found, scene, label, thick)
    _whole(axes)
    if name == "variance":
        _scale(axes)


def _whole(axes: Any) -> None:
    """Rounds are whole numbers, and so are their ticks."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def _scale(axes: Any) -> None:
    """From 0, or logarithmic and said so where the lines would lie on one another."""
    from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

    y = np.concatenate([line.get_ydata() for line in axes.lines])
    if not y.min() > 0 or y.max() < 5 * np.median(y):
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())


def _band(
    axes: Any,
    x: NDArray[Any],
    curves: list[FloatArray],
    scene: Scene,
    label: str,
    thick: set[str],
) -> None:
    """Mean over seeds, and from the lowest to the highest where the line is thick."""
    count = min(map(len, curves))
    table = np.stack([curve[:count] for curve in curves])
    look, strong = scene.styles[label], label in thick
    axes.plot(
        x[:count],
        table.mean(0),
        **look.marked(4 if strong else 3),
        ls=look.dash,
        lw=1.5 if strong else 0.8,
        markevery=scene.every(label, count),
        zorder=3 if strong else 2,
        label=label,
    )
    if len(table) > 1 and strong:
        axes.fill_between(x[:count], table.min(0), table.max(0), color=look.color, alpha=0.1, lw=0)


def _curve(run: RunHistory, name: str) -> FloatArray | None:
    if name == "effective":
        return data.effective_clients(run, np.arange(len(run.tables["round"])))
    found = f"info.{name}" in run.tables
    return run.column(f"info.{name}").astype(np.float64) if found else None


def _pairs(scene: Scene, base: str, label: str) -> tuple[FloatArray, FloatArray]:
    """Client accuracies of two strategies under the same seeds."""
    theirs = {run.seed: run for run in scene.of(base)}
    both = [(theirs[run.seed], run) for run in scene.of(label) if run.seed in theirs]
    both = [(a, b) for a, b in both if a.n_clients == b.n_clients]
    if not both:
        raise InputError(f"{label} and {base} share no seed: run both with the same seeds")
    then, now = (
        np.concatenate([100 * pair[i].accuracy(scene.model)[-1] for pair in both]) for i in (0, 1)
    )
    return then, now


def _legend(figure: Any, scene: Scene, thick: set[str], axes: Any = None) -> None:
    """The rows below the panels; beside a single wide one, in the order the lines end."""
    from matplotlib.lines import Line2D

    labels = scene.labels
    beside = axes is not None and figure.get_figwidth() >= WIDE and len(labels) > FEW
    if beside:
        ends = {line.get_label(): line.get_ydata()[-1] for line in axes.lines}
        labels = sorted(labels, key=lambda label: -ends.get(label, -np.inf))
    handles = [
        Line2D(
            [], [], **look.marked(4), ls=look.dash, lw=1.5 if label in thick else 0.8, label=label
        )
        for label, look in ((label, scene.styles[label]) for label in labels)
    ]
    size = 7
    columns = int(72 * figure.get_figwidth() / (size * (0.55 * max(map(len, labels)) + 5)))
    columns = 1 if beside else max(1, min(columns, len(labels)))
    notes = []
    if len(thick) < len(scene.labels):
        notes.append(f"thick: {scene.labels[scene.reference]} and the Pareto front")
    if any(panel.collections for panel in figure.axes):
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
        handlelength=3,
    )
