"""The tables and figures of a target, one function for each kind of target. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedmaba.report import figures
from fedmaba.report.document import Cell, Document, Grid, between, number
from fedmaba.report.paired import difference, moments
from fedmaba.report.plot_data import WIDE
from fedmaba.report.table import FIGURES, columns, grid_of_differences, grid_of_rows, minus
from fedmaba.reproduction import archive, paper, targets
from fedmaba.reproduction.archive import ArchiveFile, deployed_history
from fedmaba.reproduction.paper import name_of
from fedmaba.reproduction.targets import Target
from fedmaba.results.history import History, Model, Row
from fedmaba.results.selection import (
    CHOICES,
    REFERENCE,
    Choice,
    at_choice,
    by_seed,
    fairness_by_seed,
    of_deploy,
    tail,
    validated,
    variances,
)

LAST = CHOICES["last"]


# --- tables of algorithms ------------------------------------------------------------------------


def table(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Rows by figures beside the paper's, differences to FedAvg, what the average does."""
    history = archive.collect(batches, target.jobs[0])[0]
    first = of_deploy(history, None)
    like = target.view.paper and not targets.changes(target.jobs[0])
    known = paper.load().get(target.view.paper, {}) if like else {}
    if like:
        out.text.append(f"The paper: {paper.load()['source']}. {paper.load()['missing']}")
    grids = [
        levels(first, "last", CHOICES[name], known) for name in ("best", "last", "valid", "last5")
    ]
    grids += [differences(first, "last", CHOICES[name]) for name in ("last", "best", "last5")]
    handed: list[str | None] = [*target.view.deploy] or [None]
    for deploy in handed:
        own = of_deploy(history, deploy)
        grids.append(levels(own, "deployed", LAST, deploy=deploy))
        grids.append(differences(own, "deployed", LAST, deploy))
        grids.append(gain(own, deploy))
    out.grids += filter(None, grids)
    _note_diverged(out, history)
    _draw(out, first, target.view.figures or ["variance", "tradeoff"])


def levels(
    history: History,
    model: Model,
    choice: Choice,
    known: dict[str, Any] | None = None,
    deploy: str | None = None,
) -> Grid | None:
    """A table of rows by figures, with the paper's and the difference where it has any."""
    seen = at_choice(history, choice)
    if seen is None or not seen.runs:
        return None
    rows = seen.summary(model, choice.at)
    short, words = _of(model, deploy)
    title = f"{words}, {choice.words}; mean ± sd over seeds"
    ours = grid_of_rows(f"{choice.name}{short}", title, rows, history.share, name_of, history.unit)
    return _beside(ours, rows, known or {})


def _beside(ours: Grid, rows: Sequence[Row], known: dict[str, Any]) -> Grid:
    """The paper's numbers and the difference behind each figure that it has any of."""
    head, body = [*ours.head], [[*line] for line in ours.rows]
    for field in reversed(FIGURES):
        told = {label: row[field] for label, row in known.items() if field in row}
        at = 3 + FIGURES.index(field)
        if told:
            head[at:at] = ["paper", "difference"]
            for row, line in zip(rows, body, strict=True):
                line[at:at] = _theirs(told.get(row.label), getattr(row.mean, field))
    return Grid(ours.name, ours.title, head, body)


def _theirs(told: Sequence[float] | None, ours: float) -> list[Cell]:
    if told is None:
        return [Cell(""), Cell("")]
    text = f"{told[0]:g}" + (f" ± {told[1]:g}" if len(told) > 1 else "")
    return [
        Cell(text, told[0], told[1] if len(told) > 1 else None),
        number(ours - told[0], sign=True),
    ]


def differences(
    history: History, model: Model, choice: Choice, deploy: str | None = None
) -> Grid | None:
    """Each row's differences to FedAvg."""
    found = fairness_by_seed(history, model, choice)
    if REFERENCE not in found or len(found) < 2:
        return None
    spans = {row: minus(found, row, found, REFERENCE) for row in found if row != REFERENCE}
    short, words = _of(model, deploy)
    title = f"{words}, {choice.words}: difference to FedAvg under the same seeds, 95 % t-interval"
    name, base = f"pairs-{choice.name}{short}", name_of(REFERENCE)
    return grid_of_differences(name, title, history.share, spans, base, name_of, history.unit)


def gain(history: History, deploy: str | None) -> Grid | None:
    """What handing out the average does to each row, the reference included."""
    last, handed = (fairness_by_seed(history, model, LAST) for model in ("last", "deployed"))
    if not last:
        return None
    spans = {row: minus(handed, row, last, row) for row in last}
    short, words = _of("deployed", deploy)
    title = f"{words} minus last server model of the same runs, at the last round, 95 % t-interval"
    base, unit = name_of(REFERENCE), history.unit
    return grid_of_differences(f"gain{short}", title, history.share, spans, base, name_of, unit)


def _of(model: Model, deploy: str | None) -> tuple[str, str]:
    """A short name and the words for a model."""
    if model == "last":
        return "", "Last server model"
    short = f"-{(deploy or 'deployed').replace(':', '')}"
    return short, f"Deployed model ({deploy or 'poly:8; AFL: the mean of all rounds'})"


def _draw(out: Document, history: History, kinds: Sequence[str], smooth: int = 1) -> None:
    """Wide figures of the last server model whose rows have their names."""
    named = replace(history, runs=[replace(r, label=name_of(r.label)) for r in history.runs])
    size = (WIDE, 4.0)
    out.figures |= {kind: partial(figures.of, named, kind, "last", size, smooth) for kind in kinds}


def _note_diverged(out: Document, history: History) -> None:
    told = dict.fromkeys(run.diverged for run in history.runs if run.diverged)
    if told:
        out.text.append(f"Left out of every mean: {'; '.join(told)}.")


# --- the hyper-parameter search ------------------------------------------------------------------


def search(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Every setting of a grid, and which one is picked for each algorithm."""
    history = deployed_history(batches, target.jobs[0])
    tested = {row.label: row for row in history.summary("last")}
    groups: dict[str, list[Row]] = {}
    for row in validated(history).summary("last"):
        groups.setdefault(row.label.partition(":")[0], []).append(row)
    head = ["setting", "seeds", "picked", "validation variance %²", "validation accuracy %"]
    head += [f"test {c.title}" for c in columns(history.share)]
    body = []
    for rows in groups.values():
        best = pick(rows)
        for row in rows:
            test = tested[row.label]
            body.append(
                [
                    Cell(row.label),
                    Cell(str(row.seeds)),
                    Cell("yes" if row is best else row.note, rank=0 if row is best else 2),
                    number(row.mean.variance, row.sd.variance),
                    number(row.mean.accuracy, row.sd.accuracy),
                    *(number(getattr(test.mean, f), getattr(test.sd, f)) for f in FIGURES),
                ]
            )
    title = "Every setting of the grid; last server model, at the last round; mean ± sd over seeds"
    out.grids.append(Grid("grid", title, head, body))


def pick(rows: Sequence[Row]) -> Row | None:
    """The smallest variance among rows at most one point of accuracy below the best."""
    good = [row for row in rows if row.seeds]
    top = max((row.mean.accuracy for row in good), default=0.0)
    near = [row for row in good if row.mean.accuracy >= top - 1.0]
    return min(near, key=lambda row: row.mean.variance, default=None)


# --- figures, and the numbers in them ------------------------------------------------------------


def curve(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Variance over rounds."""
    history = deployed_history(batches, target.jobs[0])
    _draw(out, history, target.view.figures, target.view.smooth)
    runs = [r for r in history.runs if "evaluated" in r.tables]
    marks = sorted({int(t) for r in runs for t in r.evaluated})
    places = list(
        dict.fromkeys(round(q * (len(marks) - 1)) for q in (0.1, 0.25, 0.5, 0.75, 1.0))
    )  # which a run that did not diverge has all
    curves = variances(history, "last")
    means, sds = (
        {row: {s: float(statistic(tail(c))) for s, c in own.items()} for row, own in curves.items()}
        for statistic in (np.mean, np.std)
    )
    body: list[list[Cell]] = []
    for row in dict.fromkeys(r.label for r in runs):
        own = curves.get(row, {})
        mean, sd = means.get(row, {}), sds.get(row, {})
        cells = [number(*moments([float(c[i]) for c in own.values()])) for i in places]
        cells += [number(moments([*tails.values()])[0]) for tails in (mean, sd)]
        span = difference(mean, means.get(REFERENCE, {}))
        cells.append(Cell("") if row == REFERENCE else between(span))
        body.append([Cell(name_of(row)), Cell(str(len(own))), *cells])
    head = ["row", "seeds", *(f"round {marks[i]:,}" for i in places)]
    head += ["mean of the last fifth", "sd within it", "mean minus FedAvg's"]
    title = "Variance over clients (%²) of the last server model; mean ± sd over seeds"
    out.grids.append(Grid("curve", title, head, body))
    _note_diverged(out, history)


def sweep(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Figures against a hyper-parameter."""
    job, parameter = target.jobs[0], target.view.sweep
    history = deployed_history(batches, job)
    along = {
        label: float(getattr(s, parameter))
        for label, s in job.strategies.items()
        if hasattr(s, parameter)
    }
    draw = partial(figures.sweep, history, parameter, along, ("FedMABA", "FedAvg"))
    out.figures |= {"sweep": partial(draw, "last"), "sweep-deployed": partial(draw, "deployed")}
    title = {label: f"{parameter} = {value:g}" for label, value in along.items()}
    runs = [replace(r, label=title.get(r.label, r.label)) for r in history.runs]
    titled = replace(history, runs=runs)
    grids = [levels(titled, "last", CHOICES[name]) for name in ("last", "best", "last5")]
    grids.append(levels(titled, "deployed", LAST))
    grids.append(differences(titled, "last", LAST))
    out.grids += filter(None, grids)


# --- other readings ------------------------------------------------------------------------------


def readings(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """FedAvg beside FedMABA under other readings of the paper."""
    for name in ("last", "last5"):
        head = ["reading", "seeds"]
        for title in ("variance %²", "accuracy %", "worst 5 %"):
            head += [f"FedAvg, {title}", f"FedMABA, {title}"]
        head.append("variance, FedMABA − FedAvg")
        body = []
        for job in target.jobs:
            found = fairness_by_seed(deployed_history(batches, job), "last", CHOICES[name])
            row = next((label for label in job.strategies if label != REFERENCE), "")
            cells = [
                number(*moments([*by_seed(found, label, figure).values()]))
                for figure in ("variance", "accuracy", "worst")
                for label in (REFERENCE, row)
            ]
            span = difference(*(by_seed(found, label, "variance") for label in (row, REFERENCE)))
            seeds = str(len(found.get(REFERENCE, {})))
            body.append([Cell(job.title), Cell(seeds), *cells, between(span)])
        title = f"Last server model, {CHOICES[name].words}; mean ± sd over seeds, 95 % t-interval"
        out.grids.append(Grid(name, title, head, body))


# --- hostile clients -----------------------------------------------------------------------------


def attacks(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Every strategy under every attack that was tried."""
    rows = list(dict.fromkeys(label for job in target.jobs for label in job.strategies))
    for figure, title in (
        ("variance", "variance %²"),
        ("accuracy", "accuracy %"),
        ("worst", "worst 5 %"),
    ):
        body = []
        for job in target.jobs:
            found = fairness_by_seed(deployed_history(batches, job), "deployed", CHOICES["last"])
            cells = [number(*moments([*by_seed(found, row, figure).values()])) for row in rows]
            seeds = max((len(by_seed(found, row, figure)) for row in rows), default=0)
            body += [[Cell(job.title), Cell(str(seeds)), *cells]] if seeds else []
        title = f"Deployed model, at the last round: {title} of the honest; mean ± sd over seeds"
        out.grids.append(Grid(figure, title, ["hostile", "seeds", *map(name_of, rows)], body))
