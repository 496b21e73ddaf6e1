"""Fair to the end: do the losses still say who is served badly, and what helps? No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmaba.report.document import Cell, Document, Grid, between, number
from fedmaba.report.paired import Interval, difference, moments
from fedmaba.results.history import History
from fedmaba.results.metrics import FloatArray
from fedmaba.results.run_history import Model, RunHistory
from laboratory.archive import TRAINING, ArchiveFile, deployed_history
from laboratory.paper import name_of
from laboratory.reading_tables import without
from laboratory.selection import (
    CHOICES,
    REFERENCE,
    Found,
    by_seed,
    fairness_by_seed,
    good,
    variances,
)
from laboratory.targets import Target

# Each has what --deploy says: words, model and round.
MODEL_RULES: dict[str, tuple[str, Model, str]] = {
    "last": ("the model of the last round", "last", "last"),
    "best:accuracy": ("the round of best accuracy, on validation data", "last", "valid"),
    "best:fair": (
        "the round of least variance within a point of the best accuracy, on validation data",
        "last",
        "fair",
    ),
    "poly:8": ("an average over rounds, the default (AFL: the mean of all)", "deployed", "last"),
}
FIGURES_SHOWN = ("variance", "accuracy", "worst")
TITLES = ("variance %²", "accuracy %", "worst 5 %")
LOSSES = ("loss_mean", "loss_spread", "loss_link")


def fair(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """The losses over rounds, the variance over rounds, and what each change does to each row."""
    out.text.append(
        "A round is picked on validation data, all figures are of test data. Rules of --deploy: "
        + "; ".join(f"{rule}: {words}" for rule, (words, _, _) in MODEL_RULES.items())
        + "."
    )
    histories = [deployed_history(batches, job) for job in target.jobs]
    titles = [job.title for job in target.jobs]
    grids = [_losses(titles, histories), _rounds(titles, histories)]
    found = {
        rule: [fairness_by_seed(history, model, CHOICES[at]) for history in histories]
        for rule, (_, model, at) in MODEL_RULES.items()
    }
    grids += [_levels(rule, titles, found[rule]) for rule in MODEL_RULES]
    grids.append(_changes(target, titles, found))
    out.grids += [grid for grid in grids if grid.rows]


# --- what clients reported -----------------------------------------------------------------------


def losses(run: RunHistory) -> dict[str, FloatArray]:
    """(E,) of the losses that clients reported: mean, sd over clients, link to test accuracy.

    The link is the correlation over clients of loss and test accuracy: near -1, weighing by loss
    helps those who are served badly; near 0, it helps anybody.
    """
    told, right = run.tables[TRAINING].array(), run.accuracy("last")
    link = np.array([_correlation(a, b) for a, b in zip(told, right, strict=True)])
    return dict(zip(LOSSES, (np.nanmean(told, axis=1), np.nanstd(told, axis=1), link), strict=True))


def _correlation(a: FloatArray, b: FloatArray) -> float:
    there = np.isfinite(a) & np.isfinite(b)
    a, b = a[there], b[there]
    if len(a) < 2 or not a.std() or not b.std():
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _places(runs: Sequence[RunHistory]) -> list[int]:
    """The evaluations that are shown, of those that every run has."""
    count = min(len(run.evaluated) for run in runs)
    return list(dict.fromkeys(round(q * (count - 1)) for q in (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)))


def _losses(titles: Sequence[str], histories: Sequence[History]) -> Grid:
    """Of every row whose losses were kept: mean, sd over clients and link, over rounds."""
    kept = [[run for run in good(history) if TRAINING in run.tables] for history in histories]
    every = [run for runs in kept for run in runs]
    places = _places(every) if every else []
    body = []
    for title, runs in zip(titles, kept, strict=True):
        for row in dict.fromkeys(run.label for run in runs):
            own = [losses(run) for run in runs if run.label == row]
            cells = []
            for i in places:
                mean, spread, link = (
                    float(np.mean([one[name][i] for one in own])) for name in LOSSES
                )
                cells.append(Cell(f"{mean:.2f} ± {spread:.2f}, {link:+.2f}", mean, spread))
            body.append([Cell(title), Cell(name_of(row)), Cell(str(len(own))), *cells])
    head = ["weight decay", "row", "seeds"]
    head += [f"round {every[0].evaluated[i]:,}" for i in places]
    title = (
        "Losses that clients reported: mean ± sd over clients, then the correlation with their "
        "test accuracy; means over seeds"
    )
    return Grid("losses", title, head, body)


def _rounds(titles: Sequence[str], histories: Sequence[History]) -> Grid:
    """Variance minus FedAvg's after fewer rounds."""
    every = [run for history in histories for run in good(history)]
    places, body = _places(every), []
    for title, history in zip(titles, histories, strict=True):
        curves = variances(history, "last")
        plain = curves.get(REFERENCE, {})
        for row, own in curves.items():
            cells = [
                number(*moments([float(c[i]) for c in own.values()]))
                if row == REFERENCE
                else _bold(
                    difference(
                        {seed: float(c[i]) for seed, c in own.items()},
                        {seed: float(c[i]) for seed, c in plain.items()},
                    )
                )
                for i in places
            ]
            body.append([Cell(title), Cell(name_of(row)), Cell(str(len(own))), *cells])
    head = ["weight decay", "row", "seeds", *(f"round {every[0].evaluated[i]:,}" for i in places)]
    title = (
        "Variance %² of the last server model: FedAvg's, and the others' minus FedAvg's under the "
        "same seeds, 95 % t-interval"
    )
    return Grid("rounds", title, head, body)


# --- what helps ----------------------------------------------------------------------------------


def _levels(rule: str, titles: Sequence[str], found: Sequence[Found]) -> Grid:
    """Every row as a rule hands it out, and its differences to FedAvg."""
    body = []
    for title, one in zip(titles, found, strict=True):
        for row in one:
            cells = [number(*moments([*by_seed(one, row, f).values()])) for f in FIGURES_SHOWN]
            for f in FIGURES_SHOWN:
                span = difference(by_seed(one, row, f), by_seed(one, REFERENCE, f))
                cells.append(Cell("") if row == REFERENCE else _bold(span))
            body.append([Cell(title), Cell(name_of(row)), Cell(str(len(one[row]))), *cells])
    head = ["weight decay", "row", "seeds", *TITLES]
    head += [f"{title} − FedAvg's" for title in ("variance", "accuracy", "worst 5 %")]
    words = MODEL_RULES[rule][0]
    title = f"{rule}: {words}; mean ± sd over seeds, 95 % t-interval under the same seeds"
    return Grid(f"handed-{rule.replace(':', '')}", title, head, body)


def _changes(target: Target, titles: Sequence[str], found: dict[str, list[Found]]) -> Grid:
    """Every row under every change, minus the same row without any, at the last round."""
    plain, body = found["last"][0], []
    for i, title in enumerate(titles):
        for rule, every in found.items():
            for row in every[i]:
                base = without(row, target.view.variant[i].apart)
                if (i, rule, row) == (0, "last", base):
                    continue
                spans = [
                    difference(by_seed(every[i], row, f), by_seed(plain, base, f))
                    for f in FIGURES_SHOWN
                ]
                if not spans[0].seeds:
                    continue
                cells = [Cell(title), Cell(rule), Cell(name_of(row)), Cell(str(spans[0].seeds))]
                body.append([*cells, *map(_bold, spans)])
    head = ["weight decay", "handed out", "row", "seeds", *TITLES]
    title = (
        f"Each row minus the same row with {titles[0]} at the last round, under the same seeds; "
        "95 % t-interval, bold without 0"
    )
    return Grid("changes", title, head, body)


def _bold(span: Interval) -> Cell:
    """A difference, bold where it is one."""
    return between(span)._replace(rank=0 if span.distinguishable else 2)
