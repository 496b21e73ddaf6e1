"""What privacy would cost, before anything runs: tables and a figure of the noise. No torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedmaba.errors import InputError
from fedmaba.privacy import mechanism
from fedmaba.privacy.mechanism import Mechanism, Privacy
from fedmaba.report.document import Cell, Document, Grid
from fedmaba.results import run_folder
from fedmaba.strategies.base import Strategy

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class PrivacyPlan:
    """A run that is thought of: clients of equal size."""

    asked: Privacy
    strategy: Strategy
    clients: int
    participants: int
    rounds: int
    seed: int = 0

    def mechanism(self, epsilon: float | None = None, knob: float | None = None) -> Mechanism:
        """Its mechanism, with another epsilon or another value of the strategy's privacy knob."""
        asked = self.asked if epsilon is None else replace(self.asked, epsilon=epsilon)
        strategy, told = self.strategy, self.strategy.privacy_knob()
        if knob is not None and told is not None:
            changed: dict[str, Any] = {told.name: knob}
            strategy = dataclasses.replace(strategy, **changed)
        size = np.ones(self.clients, np.int64)
        return mechanism.mechanism(asked, strategy, self.seed, self.rounds, self.participants, size)

    @property
    def own_knob(self) -> float | None:
        """The value of the strategy's privacy knob; None where it has none."""
        knob = self.strategy.privacy_knob()
        return None if knob is None else float(getattr(self.strategy, knob.name))

    @property
    def knob_values(self) -> list[float]:
        """The values of the privacy knob to compare; none where the strategy has none."""
        knob, own = self.strategy.privacy_knob(), self.own_knob
        return [] if knob is None or own is None else sorted({*knob.values, own})


def document(plan: PrivacyPlan) -> Document:
    """The noise by epsilon, and by the strategy's privacy knob."""
    own, asked = plan.mechanism(), plan.asked
    some = "all" if plan.participants == plan.clients else f"{plan.participants:,}"
    text = [
        f"{plan.strategy.label()}, {some} of {plan.clients:,} clients of equal size in each of "
        f"{plan.rounds:,} rounds; the busiest client takes part in {own.taken[-1]:,} of them "
        f"(seed {plan.seed}). Changes are clipped to norm {asked.clip:g}"
        + (f", losses to {asked.loss:g}." if own.losses else "; no losses are sent."),
        f"Epsilon at delta {asked.delta:g}, by {own.facts()['accountant']}, for the data of one "
        "client replaced; no amplification by sampling is claimed.",
    ]
    title = "Noise: standard deviation on each entry of the weighted sum, and on each loss"
    epsilons = sorted({*EPSILONS, asked.epsilon})
    rows = [[Cell(f"{e:g}"), *_cells(plan.mechanism(epsilon=e))] for e in epsilons]
    grids = [Grid("noise", title, ["epsilon", *NOISE_COLUMNS], rows)]
    if knob := plan.strategy.privacy_knob():
        body = [[Cell(f"{v:g}"), *_cells(plan.mechanism(knob=v))] for v in plan.knob_values]
        title = f"The {knob.words} also changes the noise: at epsilon {asked.epsilon:g}"
        grids.append(Grid(knob.name, title, [knob.name, *NOISE_COLUMNS], body))
    foot = [
        f"The noise on the whole sum of P weights has a norm of about {own.sum_noise:.3g} times "
        f"the root of P; beside it, one client moves the sum by {own.sensitivity / 2:.3g} at most."
    ]
    return Document("Privacy before a run", text, grids, {"noise": partial(draw_plan, plan)}, foot)


NOISE_COLUMNS = ("noise multiplier", "largest weight", "noise on the sum", "noise on a loss")


def _cells(found: Mechanism) -> list[Cell]:
    noise = found.loss_noise if found.losses else math.nan
    values = (found.noise, found.weight, found.sum_noise, noise)
    return [Cell("–") if math.isnan(v) else Cell(f"{v:.4g}", v) for v in values]


def draw_plan(plan: PrivacyPlan) -> Any:
    """The noise on the weighted sum against epsilon, for several values of the privacy knob."""
    from fedmaba.report import figures
    from fedmaba.report.plot_data import SOFT, WIDE

    with figures.style():
        figure = figures.canvas((WIDE / 2, 2.6))
        axes = figure.subplots()
        epsilons = np.array(sorted({0.5, *EPSILONS, plan.asked.epsilon}))
        knob = plan.strategy.privacy_knob()
        values: list[float | None] = [*plan.knob_values] or [None]
        for value in values:
            own = value == plan.own_knob
            noise = [plan.mechanism(epsilon=float(e), knob=value).sum_noise for e in epsilons]
            name = plan.strategy.label() if knob is None else f"{knob.sign} = {value:g}"
            axes.loglog(epsilons, noise, label=name, linewidth=2.0 if own else 1.0)
        axes.axvline(plan.asked.epsilon, color=SOFT, linewidth=0.8, linestyle=":")
        axes.set(xlabel="epsilon", ylabel="noise on each entry of the sum")
        axes.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
        axes.minorticks_off()
        axes.legend()
    return figure


def write_plan_figure(plan: PrivacyPlan, out: Path) -> None:
    """The figure as a file; the name says the form."""
    from fedmaba.report import figures

    if out.suffix.lower() not in figures.FILE_ENDINGS:
        raise InputError(
            f"{out}: the name says the form: end it in {', '.join(figures.FILE_ENDINGS)}"
        )
    content = figures.encode(draw_plan(plan), out.suffix.lower(), outlines=True)
    run_folder.write_file(out, content, remedy="fix it, or choose another -o")
