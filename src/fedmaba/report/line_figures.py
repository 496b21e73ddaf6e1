"""Figures of lines over rounds. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError
from fedmaba.report import figure_text, numbers
from fedmaba.report.escape import for_figure
from fedmaba.report.plot_data import AXIS_NAMES, SOFT, WIDE, PlotData, panels
from fedmaba.results.costs import spent_until_evaluations
from fedmaba.results.run_history import FloatArray


def rounds(figure: Any, plot: PlotData) -> None:
    """variance, mean, worst and best share over rounds, with bands over seeds"""
    found = panels(figure, len(AXIS_NAMES))
    if figure.get_figwidth() >= 0.7 * WIDE:
        found[3].sharey(found[2])  # both are accuracies
    for axes, name in zip(found, AXIS_NAMES, strict=True):
        _over_rounds(axes, plot, name)
        axes.set_title(figure_text.axes_title(axes, plot, name))
    for axes in found[2:]:
        axes.set_xlabel("round")
    figure_text.legend(figure, plot, plot.thick())


def variance(figure: Any, plot: PlotData) -> None:
    """variance over clients, over rounds"""
    _single(figure, plot, "variance")


def accuracy(figure: Any, plot: PlotData) -> None:
    """mean accuracy over rounds"""
    _single(figure, plot, "accuracy")


def worst(figure: Any, plot: PlotData) -> None:
    """accuracy of the worst share of clients over rounds"""
    _single(figure, plot, "worst")


def over_bytes(figure: Any, plot: PlotData) -> None:
    """accuracy and variance over gigabytes sent, down and up; needs runs with --available"""
    _over_spent(figure, plot, "gigabytes, down and up", lambda spent: spent[:, 0] + spent[:, 1])


def over_hours(figure: Any, plot: PlotData) -> None:
    """accuracy and variance over hours of the simulated clock; needs runs with --speed"""
    _over_spent(figure, plot, "hours of the simulated clock", lambda spent: spent[:, 2])


def _over_spent(
    figure: Any, plot: PlotData, words: str, of: Callable[[FloatArray], FloatArray]
) -> None:
    """Two panels over what was spent until each evaluation, as the mean over seeds."""
    along = {}
    for label in plot.labels:
        runs = [run for run in plot.of(label) if "turnout.answer" in run.tables]
        found = [of(spent_until_evaluations(run)) for run in runs]
        if found and np.isfinite(found[0]).all():
            count = min(map(len, found))
            along[label] = np.mean([x[:count] for x in found], axis=0)
    if not along:
        raise InputError(
            "these runs record no bytes or no time: run with --available always, and for hours "
            "also --speed or --bandwidth"
        )
    for axes, name in zip(panels(figure, 2), ("accuracy", "variance"), strict=True):
        _over_rounds(axes, plot, name, along)
        axes.set_title(figure_text.axes_title(axes, plot, name))
        axes.set_xlabel(words)
        axes.locator_params(axis="x", nbins=4)
    figure_text.legend(figure, plot, plot.thick() & along.keys())


def _single(figure: Any, plot: PlotData, name: str) -> None:
    axes = figure.subplots()
    _over_rounds(axes, plot, name)
    axes.set(xlabel="round", ylabel=figure_text.axes_title(axes, plot, name))
    figure_text.legend(figure, plot, plot.thick(), axes)


def _over_rounds(
    axes: Any, plot: PlotData, name: str, along: Mapping[str, FloatArray] | None = None
) -> None:
    """A line for each row, over rounds or `along` other numbers of each evaluation."""
    thick = plot.thick()
    for label in plot.labels if along is None else along:
        runs = plot.of(label)
        if not runs:
            continue
        found = [
            np.array(
                [getattr(f, name) for f in run.fairness(plot.model, plot.share, unit=plot.unit)]
            )
            for run in runs
        ]
        k = plot.smooth
        found = [np.convolve(curve, np.full(k, 1 / k), "valid") for curve in found]
        x = runs[0].evaluated if along is None else along[label]
        _band(axes, x[k - 1 :], found, plot, label, thick)
    if along is None:
        _whole(axes)
    if name == "variance":
        _scale(axes)


def _band(
    axes: Any,
    x: NDArray[Any],
    curves: list[FloatArray],
    plot: PlotData,
    label: str,
    thick: set[str],
) -> None:
    """Mean over seeds, and from the lowest to the highest where the line is thick."""
    count = min(map(len, curves))
    table = np.stack([curve[:count] for curve in curves])
    look, strong = plot.styles[label], label in thick
    axes.plot(
        x[:count],
        table.mean(0),
        **look.marked(4 if strong else 3),
        ls=look.dash,
        lw=1.5 if strong else 0.8,
        markevery=plot.every(label, count),
        zorder=3 if strong else 2,
        label=label,
    )
    if len(table) > 1 and strong:
        axes.fill_between(x[:count], table.min(0), table.max(0), color=look.color, alpha=0.1, lw=0)


def _whole(axes: Any) -> None:
    """Rounds are whole numbers, and so are their ticks."""
    from matplotlib.ticker import MaxNLocator

    steps = [1, 2, 2.5, 5, 10]
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=steps, integer=True, min_n_ticks=1))


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


def constraint(figure: Any, plot: PlotData) -> None:
    """what strategies report of themselves, and the effective number of clients"""
    rows = plot.with_rounds()
    runs = [run for label in rows for run in plot.of(label, "round")]
    shown = [n for n in numbers.of_runs(runs) if any(f"info.{n.name}" in r.tables for r in runs)]
    if not shown:
        raise InputError(
            "no strategy of these runs reports a number of its own: run one that does, as "
            "docs/bring-your-own.md says"
        )
    *own_panels, last = panels(figure, len(shown) + 1)
    for label in rows:
        own = plot.of(label, "round")
        rounds = own[0].column("round")
        for axes, number in zip(own_panels, shown, strict=True):
            found = [numbers.values(run, number.name) for run in own]
            if curves := [curve for curve in found if curve is not None]:
                _band(axes, rounds, curves, plot, label, {*rows})
            for limit in (n.limit for n in numbers.of_run(own[0]) if n.name == number.name):
                if limit is not None:
                    axes.axhline(limit, color=SOFT, lw=0.8, ls=":")
        clients = [numbers.effective_clients(run, np.arange(len(rounds))) for run in own]
        _band(last, rounds, clients, plot, label, {*rows})
    titles = [for_figure(number.title or number.name) for number in shown]
    for axes, title in zip(
        [*own_panels, last], [*titles, "effective number of clients"], strict=True
    ):
        axes.set(title=title, xlabel="round")
        axes.set_ylim(bottom=0)
        _whole(axes)
    figure_text.legend(figure, plot, {*rows})
