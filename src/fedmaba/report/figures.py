"""Figures in print quality with matplotlib (extra `plot`): the page's, and those papers show.

Drawn without pyplot, so that nothing global changes; the same colours as the page.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba import record
from fedmaba.errors import InputError, unknown
from fedmaba.history import FloatArray, History, Model, RunHistory
from fedmaba.report import data

WIDE, HALF = 6.75, 3.3  # inches: two columns of a page, and one
INK, SOFT, LINE = "#191b1f", "#5c626c", "#dcdcd6"
REFERENCE = "#70757d"
COLORS = ("#0072b2", "#cc4b00", "#008a64", "#b0558a", "#b07800", "#3c9bd6", "#6f4fb8")
MARKERS = ("s", "^", "D", "P", "v", "X", "p")
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


class Scene:
    """What a drawing function may use: the runs, grouped, and their looks."""

    def __init__(self, sources: Sequence[data.Source], model: Model, share: float) -> None:
        self.sources, self.model, self.share = sources, model, share
        self.history = data.combine(sources)
        self.runs = [run for run in self.history.runs if not run.diverged] or self.history.runs
        self.labels = list(dict.fromkeys(run.label for run in self.runs))
        self.reference = data.reference(self.labels)

    def of(self, label: str, table: str = "evaluated") -> list[RunHistory]:
        return [run for run in self.runs if run.label == label and table in run.tables]

    def look(self, label: str) -> tuple[str, str, str]:
        """Colour, marker and line style of a strategy."""
        k = self.labels.index(label)
        if k == self.reference:
            return REFERENCE, "o", "-"
        k -= k > self.reference
        return COLORS[k % 7], MARKERS[k % 7], ("-", "--", ":")[min(k // 7, 2)]

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
) -> Any:
    """One figure as a matplotlib Figure that notebooks show by themselves."""
    _check(kind)
    drawing, usual = KINDS[kind]
    with _style():
        figure = _canvas(size or usual)
        scene = Scene(sources, model, share)
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
    with _style():
        figure = _canvas((WIDE, 2.4))
        rows = {row.label: row for row in history.summary(model)}
        for axes, name in zip(
            figure.subplots(1, 3), ("variance", "accuracy", "worst"), strict=True
        ):
            shown = [label for label in values if label in rows]
            x = [values[label] for label in shown]
            y = [getattr(rows[label].mean, name) for label in shown]
            sd = np.nan_to_num([getattr(rows[label].sd, name) for label in shown])
            axes.errorbar(x, y, sd, color=COLORS[0], marker="o", ms=4, capsize=2, label="fedmaba")
            if "fedavg" in rows:
                mean, spread = (getattr(f, name) for f in (rows["fedavg"].mean, rows["fedavg"].sd))
                axes.axhline(mean, color=REFERENCE, lw=1, label="fedavg")
                if not np.isnan(spread):
                    axes.axhspan(mean - spread, mean + spread, color=REFERENCE, alpha=0.12, lw=0)
            axes.set(title=NAMES[name].format(share=100 * history.share), xlabel=parameter)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def of(
    history: History,
    kind: str = "rounds",
    model: Model = "deployed",
    size: tuple[float, float] | None = None,
) -> Any:
    """A figure of a history in memory."""
    return draw([data.of(history)], kind, model, size=size)


def distribution(figure: Any, scene: Scene) -> None:
    """client accuracy: histogram and cumulative, algorithms overlaid"""
    left, right = figure.subplots(1, 2)
    for label in scene.labels:
        if not scene.of(label):
            continue
        values, (color, _, style) = np.sort(scene.final(label)), scene.look(label)
        low, high = min(0.0, values[0]), max(100.0, values[-1])
        counts, edges = np.histogram(values, bins=np.linspace(low, high, 21))
        left.stairs(100 * counts / len(values), edges, color=color, ls=style, lw=1.2)
        share = 100 * np.arange(1, len(values) + 1) / len(values)
        right.step(values, share, where="post", color=color, ls=style, label=label)
    left.set(title="Histogram", xlabel="accuracy, %", ylabel="share of clients, %")
    right.set(title="Cumulative", xlabel="accuracy, %", ylabel="share of clients, %")
    _legend(figure, scene)


def tradeoff(figure: Any, scene: Scene) -> None:
    """mean accuracy against variance: a dot per run, the Pareto front of the means"""
    from matplotlib.patheffects import withStroke

    axes, means = figure.subplots(), []
    halo = withStroke(linewidth=2.5, foreground="white")
    for label in scene.labels:
        found = [run.fairness(scene.model, scene.share, [-1])[0] for run in scene.of(label)]
        if not found:
            continue
        color, marker, _ = scene.look(label)
        x, y = [f.variance for f in found], [f.accuracy for f in found]
        axes.plot(x, y, marker, color=color, ms=4, alpha=0.75, mew=0)
        center = (float(np.mean(x)), float(np.mean(y)))
        means.append(center)
        axes.plot(*center, marker, color=color, ms=8, mfc="white", mew=1.4)
        axes.annotate(
            label,
            center,
            xytext=(7, 2),
            textcoords="offset points",
            color=color,
            path_effects=[halo],
        )
    front = sorted(
        a for a in means if not any(b != a and b[0] <= a[0] and b[1] >= a[1] for b in means)
    )
    axes.plot(*zip(*front, strict=True), color=SOFT, lw=0.8, ls=(0, (3, 3)), zorder=0)
    axes.margins(0.12)
    axes.set(xlabel=NAMES["variance"], ylabel=NAMES["accuracy"])


def rounds(figure: Any, scene: Scene) -> None:
    """variance, mean, worst and best share over rounds, with bands over seeds"""
    for axes, name in zip(figure.subplots(2, 2).flat, NAMES, strict=True):
        _over_rounds(axes, scene, name)
        axes.set_title(NAMES[name].format(share=100 * scene.share))
    _legend(figure, scene)


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
    tables = [run.weights() for run in shown]
    tables = [t * np.sum(~np.isnan(t), axis=1, keepdims=True) for t in tables]
    top = max(2.0, float(np.nanpercentile(np.concatenate([t.ravel() for t in tables]), 99.5)))
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure.set_size_inches(WIDE, 0.5 + 1.9 * lines)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    image = None
    for axes, run, table in zip(grid.flat, shown, tables, strict=False):
        extent = (0.5, len(table) + 0.5, run.n_clients - 0.5, -0.5)
        image = axes.imshow(
            table.T, aspect="auto", cmap="Blues", vmin=0, vmax=top, extent=extent, rasterized=True
        )
        axes.grid(False)
        axes.set(title=f"{run.label}, seed {run.seed}", xlabel="round")
        axes.locator_params(integer=True)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("client")
    figure.colorbar(image, ax=grid, label="weight / equal share", shrink=0.8, pad=0.01)


def constraint(figure: Any, scene: Scene) -> None:
    """the multiplier, KL against rho, and the effective number of clients"""
    panels = figure.subplots(1, 3)
    titles = ("multiplier λ*", "KL from uniform", "effective clients")
    for label in scene.labels:
        runs = scene.of(label, "round")
        for axes, name in zip(panels, ("lambda", "kl", "effective"), strict=True):
            curves = [_curve(run, name) for run in runs]
            found = [c for c in curves if c is not None]
            if found:
                _band(axes, runs[0].column("round"), found, scene.look(label), label)
        rho = data.radius(label)
        if rho is not None:
            panels[1].axhline(rho, color=SOFT, lw=0.8, ls=":")
    for axes, title in zip(panels, titles, strict=True):
        axes.set(title=title, xlabel="round")
        axes.set_ylim(bottom=0)
    _legend(figure, scene)


def gains(figure: Any, scene: Scene) -> None:
    """who gains and who loses against FedAvg, client by client"""
    base = scene.labels[scene.reference]
    others = [label for label in scene.labels if label != base and scene.of(label)]
    if not others or not scene.of(base):
        raise InputError("gains compares strategies: run at least two, FedAvg among them")
    figure.set_size_inches(WIDE, 0.5 + 1.35 * len(others))
    for axes, label in zip(
        figure.subplots(len(others), sharex=True, squeeze=False).flat, others, strict=True
    ):
        then, now = _pairs(scene, base, label)
        order = np.argsort(then, kind="stable")
        change = (now - then)[order]
        color = np.where(change >= 0, COLORS[0], COLORS[1])
        axes.bar(np.arange(len(change)), change, color=color, width=0.9)
        axes.axhline(0, color=SOFT, lw=0.6)
        won = int((change > 0).sum())
        axes.set(title=f"{label}: {won} of {len(change)} clients gain", ylabel="points", xticks=[])
    axes.set_xlabel(f"clients, those {base} serves worst first")


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


def _single(figure: Any, scene: Scene, name: str) -> None:
    axes = figure.subplots()
    _over_rounds(axes, scene, name)
    axes.set(xlabel="round", ylabel=NAMES[name].format(share=100 * scene.share))
    _legend(figure, scene, 2 if figure.get_figwidth() < WIDE else 3)


def _over_rounds(axes: Any, scene: Scene, name: str) -> None:
    for label in scene.labels:
        runs = scene.of(label)
        if not runs:
            continue
        found = [
            np.array([getattr(f, name) for f in run.fairness(scene.model, scene.share)])
            for run in runs
        ]
        _band(axes, runs[0].evaluated, found, scene.look(label), label)
    if name == "variance":
        axes.set_ylim(bottom=0)


def _band(
    axes: Any, x: NDArray[Any], curves: list[FloatArray], look: tuple[str, str, str], label: str
) -> None:
    """Mean over seeds, and from the lowest to the highest."""
    count = min(map(len, curves))
    table = np.stack([curve[:count] for curve in curves])
    color, _, style = look
    axes.plot(x[:count], table.mean(0), color=color, ls=style, label=label)
    if len(table) > 1:
        axes.fill_between(x[:count], table.min(0), table.max(0), color=color, alpha=0.12, lw=0)


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


def _legend(figure: Any, scene: Scene, columns: int = 5) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for label in scene.labels:
        color, _, style = scene.look(label)
        handles.append(Line2D([], [], color=color, ls=style, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)))
