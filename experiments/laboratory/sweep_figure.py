"""The figure of a sweep: fairness numbers against a hyper-parameter. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmaba.report import figures
from fedmaba.report.escape import for_figure
from fedmaba.report.plot_data import SOFT, WIDE, axis_name, styles
from fedmaba.results.history import History
from fedmaba.results.run_history import Model
from laboratory.selection import REFERENCE


def draw(
    history: History,
    parameter: str,
    values: dict[str, float],
    names: tuple[str, str],
    model: Model,
) -> Any:
    """Figures at the last round against a hyper-parameter; the reference as a line with its band.

    `names` are those of the strategy and of the reference.
    """
    with figures.style():
        figure = figures.canvas((WIDE, 2.4))
        _draw(figure, history, parameter, values, names, model)
    return figure


def _draw(
    figure: Any,
    history: History,
    parameter: str,
    values: dict[str, float],
    names: tuple[str, str],
    model: Model,
) -> None:
    rows = {row.label: row for row in history.summary(model)}
    shown = [label for label in values if label in rows]
    looks = styles([REFERENCE, *values])
    x = [values[label] for label in shown]
    for axes, name in zip(figure.subplots(1, 3), ("variance", "accuracy", "worst"), strict=True):
        y = [getattr(rows[label].mean, name) for label in shown]
        sd = np.nan_to_num([getattr(rows[label].sd, name) for label in shown])
        look = looks[next(iter(values))].marked(4.5)
        axes.errorbar(x, y, sd, **look, capsize=2, elinewidth=1, label=f"{names[0]}, ± sd")
        if (base := rows.get(REFERENCE)) is not None:
            mean, spread = getattr(base.mean, name), getattr(base.sd, name)
            axes.axhline(mean, color=looks[REFERENCE].color, lw=1, label=f"{names[1]}, ± sd")
            if not np.isnan(spread):
                axes.axhspan(mean - spread, mean + spread, color=SOFT, alpha=0.12, lw=0)
        axes.set(title=axis_name(name, history.unit, history.share), xticks=x)
        known = {"alpha": "α", "eta_b": r"$\eta_b$"}
        axes.set_xlabel(known.get(parameter) or for_figure(parameter))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
