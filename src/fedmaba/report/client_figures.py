"""Figures of clients: how a row serves them, what it weighs them with, who gains. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmaba.errors import InputError
from fedmaba.report import figure_text, standing
from fedmaba.report.escape import for_figure
from fedmaba.report.plot_data import (
    COLORS,
    FEW_ROWS,
    HALF_PAGE,
    SOFT,
    WIDE,
    PlotData,
    axis_name,
    panels,
    small_panels,
)
from fedmaba.results.costs import turn_counts
from fedmaba.results.incentive import ALONE
from fedmaba.results.run_history import FloatArray

GAIN, LOSS = COLORS[1], COLORS[2]
EVEN = 0.005  # A weight this near to an equal share counts as one.
MAX_NAMES_BELOW = 8  # A column of a page has room for the names of this many points.


def distribution(figure: Any, plot: PlotData) -> None:
    """client accuracy: histogram and cumulative, algorithms overlaid"""
    left, right = panels(figure, 2)
    thick = plot.thick()
    found = {label: np.sort(plot.final(label)) for label in plot.labels if plot.of(label)}
    low, high = _band(plot, np.concatenate([*found.values()]))
    for label, values in found.items():
        look = plot.styles[label]
        line = {"color": look.color, "ls": look.dash, "lw": 1.4 if label in thick else 0.8}
        counts, edges = np.histogram(values, bins=np.linspace(low, high, 21))
        if label in thick:
            left.stairs(100 * counts / len(values), edges, **line)
        share = 100 * np.arange(1, len(values) + 1) / len(values)
        line |= plot.styles[label].marked(3) | {"markevery": plot.every(label, len(values))}
        right.step(values, share, where="post", label=label, **line)
    few = "" if len(thick) == len(plot.labels) else ", thick lines only"
    below = f"{plot.unit.name}, %" if plot.unit.mark else plot.unit.name
    left.set(title=f"Histogram{few}", xlabel=below, ylabel="share of clients, %")
    right.set(title="Cumulative", xlabel=below, ylabel="share of clients, %")
    figure_text.legend(figure, plot, thick)


def _band(plot: PlotData, values: FloatArray) -> tuple[float, float]:
    """From where to where scores are counted: all percent, or what other scores span."""
    if plot.unit.mark:
        return 0.0, 100.0
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    return (low, high) if low < high else (low - 0.5, low + 0.5)


def tradeoff(figure: Any, plot: PlotData) -> None:
    """mean accuracy against variance, ± sd over seeds, and the Pareto front"""
    from matplotlib.patches import Rectangle

    points = plot.points()
    mean, unit = {label: float(at[0, 1]) for label, at in points.items()}, plot.unit
    rivals = [label for label in points if label not in plot.without_a_model()]
    best_mean = unit.sign * max(unit.sign * mean[label] for label in rivals)
    close = [  # Clients that train alone may be far better, too.
        label
        for label, y in mean.items()
        if standing.is_near(y, best_mean, unit) and standing.is_near(best_mean, y, unit)
    ]
    narrow = figure.get_figwidth() < HALF_PAGE * 1.2
    if narrow or len(points) <= FEW_ROWS or not len(points) / 2 <= len(close) < len(points):
        both = [(figure.subplots(), [*points])]
    else:  # The far clients would squash the others.
        figure.set_size_inches(WIDE, figure.get_figheight())
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.7))
        both = [(left, [x for x in points if x not in close]), (right, close)]
    for axes, named in both:
        shown = points if axes is both[0][0] else {label: points[label] for label in named}
        for label, ((x, y), (dx, dy)) in shown.items():
            look = plot.styles[label]
            axes.errorbar(x, y, dy, dx, fmt="none", ecolor=look.color, elinewidth=0.7, alpha=0.45)
            above = 4 if label == plot.labels[plot.reference] else 3
            axes.plot(x, y, ls="", zorder=above, **look.marked(5.5))
        best = [points[label][0] for label in plot.front() if label in shown]
        axes.plot(*np.array(best).T, color=SOFT, lw=0.8, ls=(0, (3, 3)), zorder=0)
        axes.margins(0.1)
    both[0][0].set_ylabel(axis_name("accuracy", plot.unit))
    some = " of rows of several seeds" if plot.alone() else ""
    what = f"mean ± sd over seeds; dashed: the Pareto front{some}"
    named_below = len(points) > (MAX_NAMES_BELOW if narrow else 2 * MAX_NAMES_BELOW)
    gap = "\n" if narrow or (named_below and len(both) > 1) else " "
    below = f"{axis_name('variance', plot.unit)}{gap}({what})"
    if named_below:
        both[-1][0].set_xlabel(below)  # above the legend
    else:
        figure_text.sides(figure, below)
    if len(both) > 1:
        left.set_title("All rows")
        right.set_title(f"Frame: within {standing.margin_below_best(plot.unit)} of the best mean")
        (x, right_x), (y, top_y) = right.get_xlim(), right.get_ylim()
        away = [mean[x] for x in both[0][1] if unit.sign * mean[x] < unit.sign * best_mean]
        kept = [mean[label] for label in close]
        # The text would lie in the frame and not be shown.
        if unit.lower and away and min(away) < top_y:
            top_y = (min(away) + max(kept)) / 2
        elif not unit.lower and away and max(away) > y:
            y = (max(away) + min(kept)) / 2
        right.set_ylim(y, top_y)
        left.add_patch(Rectangle((x, y), right_x - x, top_y - y, fill=False, ec=SOFT, lw=0.6))
    if named_below:
        figure_text.legend(figure, plot, set(plot.labels), points=True)
        return
    figure.draw_without_rendering()  # to know where things are
    for axes, named in both:
        figure_text.name_points(axes, {label: points[label][0] for label in named}, plot)


def weights(figure: Any, plot: PlotData) -> None:
    """weights, client by round, of the first seed of each strategy that weighs clients unequally"""
    shown = [plot.of(label, "round")[0] for label in plot.with_rounds()]
    tables = [relative_weights(run.weights()) for run in shown]
    uneven = [bool(np.any(np.abs(t[np.isfinite(t)] - 1) > EVEN)) for t in tables]
    left_out = []
    if any(uneven):  # A line of text says more than an empty panel.
        left_out = [run.label for run, drawn in zip(shown, uneven, strict=True) if not drawn]
        shown = [run for run, drawn in zip(shown, uneven, strict=True) if drawn]
        tables = [table for table, drawn in zip(tables, uneven, strict=True) if drawn]
    with np.errstate(divide="ignore"):  # A client that counted nothing is at the end of the scale.
        tables = [np.log2(np.maximum(t, 0)) for t in tables]
    seen = np.abs(np.concatenate([t[np.isfinite(t)] for t in tables]))
    reach = float(np.clip(np.percentile(seen, 99) if len(seen) else 1.0, 0.5, 5.0))
    grid = small_panels(figure, len(shown), sharex=True, sharey=True)
    seeds = {run.seed for run in shown}
    for axes, run, table in zip(grid, shown, tables, strict=True):
        extent = (0.5, len(table) + 0.5, run.n_clients - 0.5, -0.5)
        image = axes.imshow(
            np.clip(table.T, -reach, reach),
            aspect="auto",
            cmap=_around_one(),
            vmin=-reach,
            vmax=reach,
            extent=extent,
            rasterized=True,
        )
        axes.grid(False)
        own = "" if len(seeds) == 1 else f", seed {run.seed}"
        figure_text.small_title(axes, run.label, own)
        axes.locator_params(nbins=3, integer=True)
    below = f"round (seed {min(seeds)})" if len(seeds) == 1 else "round"
    if left_out:
        names = ", ".join(map(figure_text.drawn_name, left_out))
        lines = figure_text.wrapped(figure, f"equal weights throughout, not shown: {names}")
        below += "\n" + "\n".join(lines)
        figure.set_figheight(figure.get_figheight() + 0.15 * len(lines))
    figure_text.sides(figure, below, "client")
    narrow = figure.get_figwidth() < 0.7 * WIDE
    bar = figure.colorbar(
        image,
        ax=grid,
        label="weight / equal share",
        location="top" if narrow else "right",
        aspect=30 if narrow else 40,
        pad=0.02,
    )
    ticks = np.linspace(-reach, reach, 5)
    bar.set_ticks(ticks, labels=[f"{2**t:.2g} ×" for t in ticks])


def relative_weights(table: FloatArray) -> FloatArray:
    """Weights of a round by client as multiples of an equal share of their sum.

    Coefficients that do not add up to 1, as q-FFL's, make the whole step shorter or longer; how
    clients count beside each other is their share of the sum.
    """
    total = np.nansum(table, axis=1, keepdims=True)
    count = np.sum(~np.isnan(table), axis=1, keepdims=True)
    relative: FloatArray = table * count / np.where(total > 0, total, 1.0)
    return relative


def _around_one() -> Any:
    """Orange below an equal share, blue above, as the page has it."""
    from matplotlib.colors import LinearSegmentedColormap

    stops = ("#8c3e00", "#d67828", "#f6cda0", "#fafaf8", "#acccd6", "#3a82be", "#08306b")
    return LinearSegmentedColormap.from_list("around one", stops)


def gains(figure: Any, plot: PlotData) -> None:
    """who gains and who loses against the reference (else the first), client by client"""
    base = plot.labels[plot.reference]
    if len(plot.labels) < 2 or not plot.of(base):
        raise InputError("gains compares strategies: run at least two")
    below = f"clients of all seeds, those {figure_text.drawn_name(base)} serves worst first, %"
    points = ", points" if plot.unit.mark else ""
    _gains_over(figure, plot, base, "gain", (below, f"change of {plot.unit.name}{points}"))


def incentive(figure: Any, plot: PlotData) -> None:
    """who is better off than alone, client by client; needs a row local"""
    if ALONE not in plot.labels or len(plot.labels) < 2 or not plot.of(ALONE):
        raise InputError(
            "incentive compares with training alone: run the strategy local beside at least one "
            "other, with the same seeds"
        )
    below = "clients of all seeds, those worst off alone first, %"
    points = ", points" if plot.unit.mark else ""
    left = f"{plot.unit.name} less that alone{points}"
    _gains_over(figure, plot, ALONE, "better off", (below, left))


def _gains_over(figure: Any, plot: PlotData, base: str, gain: str, sides: tuple[str, str]) -> None:
    """How each client's score changes from one strategy to each other one.

    `gain` says what those do whose score gets better, `sides` what the two axes are.
    """
    others = [label for label in plot.labels if label != base and plot.of(label)]
    if not others:
        raise InputError("gains compares strategies: run at least two")
    grid = small_panels(figure, len(others), sharex=True, sharey="row")
    better, first = plot.unit.sign, list[Any]()
    for axes, label in zip(grid, others, strict=True):
        then, now = _pairs(plot, base, label)
        change = (now - then)[np.argsort(better * then, kind="stable")]
        edges = np.linspace(0, 100, len(change) + 1)
        for sign, color in ((better, GAIN), (-better, LOSS)):
            part = np.where(sign * change > 0, change, 0)
            axes.stairs(part, edges, fill=True, color=color, lw=0.3, rasterized=len(part) > 500)
        axes.axhline(0, color=SOFT, lw=0.6)
        won = 100 * float(np.mean(better * change > 0))
        figure_text.small_title(axes, label)
        inside = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": 6.5}
        axes.text(1, 1, f"{won:.0f} % {gain}", color=SOFT, **inside)
        axes.set_xlim(0, 100)
        axes.set_xticks((0, 50, 100))
        ends = zip(axes.xaxis.get_major_ticks(3), ("left", "center", "right"), strict=True)
        for tick, side in ends:  # no number touches a neighbour's
            tick.label1.set_ha(side)
        axes.locator_params(axis="y", nbins=4)
        if axes.get_subplotspec().is_first_col():
            first.append(axes)
    for axes in first:  # each of them stands for its row
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.25 * (high - low))  # room for the words above the bars
    figure_text.sides(figure, *sides)


def _pairs(plot: PlotData, base: str, label: str) -> tuple[FloatArray, FloatArray]:
    """Client accuracies of two strategies under the same seeds."""
    theirs = {run.seed: run for run in plot.of(base)}
    both = [(theirs[run.seed], run) for run in plot.of(label) if run.seed in theirs]
    both = [(a, b) for a, b in both if a.n_clients == b.n_clients]
    if not both:
        raise InputError(f"{label} and {base} share no seed: run both with the same seeds")
    then, now = (
        np.concatenate([plot.unit.scale * pair[i].accuracy(plot.model)[-1] for pair in both])
        for i in (0, 1)
    )
    both_known = np.isfinite(then - now)
    return then[both_known], now[both_known]


def turns(figure: Any, plot: PlotData) -> None:
    """each client's accuracy by how often the server heard it; needs runs with --available"""
    points: dict[str, list[tuple[FloatArray, FloatArray]]] = {}
    for run in plot.runs:
        if (found := turn_counts(run)) is not None and "evaluated" in run.tables:
            share = 100 * found[1] / len(run.tables["round"])
            score = plot.unit.scale * run.accuracy(plot.model)[-1]
            points.setdefault(run.label, []).append((share, score))
    if not points:
        raise InputError(
            "turns shows who was heard, but these runs record nobody: run with --available always"
        )
    grid = small_panels(figure, len(points), sharex=True, sharey=True)
    for axes, (label, each) in zip(grid, points.items(), strict=True):
        share, score = (np.concatenate(part) for part in zip(*each, strict=True))
        look = plot.styles[label].marked(2.5)
        axes.plot(share, score, ls="", alpha=0.7, rasterized=len(share) > 500, **look)
        figure_text.small_title(axes, label)
        axes.locator_params(nbins=4)
    mark = f",{plot.unit.mark}" if plot.unit.mark else ""
    below = "rounds in which the server heard the client, %"
    figure_text.sides(figure, below, f"{plot.unit.name}{mark}")


def heterogeneity(figure: Any, plot: PlotData) -> None:
    """label by client: training examples of each class"""
    source = next((s for s in plot.sources if s.labels), None)
    if source is None:
        if not any(s.experiment for s in plot.sources):
            how = "compare(..., out=FOLDER), then `fedmaba figure heterogeneity FOLDER -o FILE`"
            raise InputError(f"a history in memory holds no label counts: {how}")
        tasks = {str(s.data["task"]) for s in plot.sources if "task" in s.data} - {"classify"}
        if tasks:
            raise InputError(
                f"heterogeneity shows classes, but these runs have none (task {min(tasks)}): "
                "choose another figure"
            )
        raise InputError("no label counts in these folders: run again with this version")
    seed, counts = next(iter(source.labels.items()))
    names = [for_figure(str(name)) for name in source.data.get("classes") or ()]
    figure.set_figheight(0.8 + 0.16 * min(30, counts.shape[1]))
    axes = figure.subplots()
    image = axes.imshow(counts.T, aspect="auto", cmap="Blues", vmin=0, rasterized=True)
    axes.grid(False)
    if names and len(names) <= 30:
        axes.set_yticks(range(len(names)), names)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="client", title=f"training examples, seed {seed}")
    figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01)
