"""The trials of `fedmaba tune` as a table, the picked ones marked. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from fedmaba.experiment import sweep
from fedmaba.experiment.trials import Trial
from fedmaba.report.document import Cell, Grid, number
from fedmaba.report.table import digits_of
from fedmaba.results.metrics import Unit

RULES_IN_WORDS = {
    "best:accuracy": "the best mean",
    "best:fair": "the lowest variance within one point of the best mean",
}


def trials_grid(trials: Sequence[Trial], unit: Unit, rule: str = "") -> Grid:
    """Every trial with its scores on validation data."""
    title = "Trials, on validation data; picked for each strategy"
    title += f": {RULES_IN_WORDS[rule]}" if rule else ""
    head = ["row", "seeds", f"variance{unit.square}", f"{unit.name}{unit.mark}", "picked"]
    places = [digits_of((getattr(t, f) for t in trials), unit) for f in ("variance", "score")]
    body = [
        [
            Cell(trial.row + sweep.suffix(trial.values)),
            Cell(str(trial.seeds)),
            number(trial.variance, float("nan"), digits=places[0]),
            number(trial.score, trial.score_sd, digits=places[1]),
            Cell("yes" if trial.picked else trial.note, rank=0 if trial.picked else 2),
        ]
        for trial in trials
    ]
    return Grid("trials", title, head, body)
