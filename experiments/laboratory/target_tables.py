"""The tables and figures of a target, one function for each kind of target. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedmaba.report import figures
from fedmaba.report.document import Cell, Document, Grid, between, number
from fedmaba.report.paired import Interval, difference, interval, moments
from fedmaba.report.plot_data import WIDE
from fedmaba.report.table import (
    FIGURES,
    columns,
    figures_in_words,
    grid_of_differences,
    grid_of_rows,
    short_titles,
    subtract_figures,
)
from fedmaba.report.table import differences as strategy_differences
from fedmaba.results.history import History, Row
from fedmaba.results.run_history import Model
from laboratory import archive, paper, sweep_figure, targets
from laboratory.archive import ArchiveFile, deployed_history
from laboratory.paper import name_of
from laboratory.selection import (
    CHOICES,
    REFERENCE,
    RoundChoice,
    at_choice,
    by_seed,
    fairness_by_seed,
    of_deploy,
    tail,
    validated,
    variances,
)
from laboratory.targets import Target

LAST_ROUND = CHOICES["last"]
INSIDE = "the paper's value lies inside our interval"
CAUSE = "likely cause, where one was tested"


# --- tables of algorithms ------------------------------------------------------------------------


def table(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Rows by figures beside the paper's, differences to FedAvg, what the average does."""
    history = archive.collect(batches, target.jobs[0])[0]
    first = of_deploy(history, None)
    like = target.view.paper and not targets.changes(target.jobs[0])
    known = paper.load_paper().get(target.view.paper, {}) if like else {}
    grids = []
    if like:
        out.text.append(
            f"The paper: {paper.load_paper()['source']}. {paper.load_paper()['missing']}"
        )
    for name in ("best", "last", "valid", "last5"):
        grids.append(levels(first, "last", CHOICES[name], known))
        if known and name != "last5" and (apart := from_paper(first, CHOICES[name], known)):
            grids.append(beside(first, CHOICES[name], apart, target.name))
            out.text += _in_short(apart) if name == "best" else []
    grids += [differences(first, "last", CHOICES[name]) for name in ("last", "best", "last5")]
    handed: list[str | None] = [*target.view.deploy] or [None]
    for deploy in handed:
        own = of_deploy(history, deploy)
        grids.append(levels(own, "deployed", LAST_ROUND, deploy=deploy))
        grids.append(differences(own, "deployed", LAST_ROUND, deploy))
        grids.append(gain(own, deploy))
    out.grids += filter(None, grids)
    _note_diverged(out, history)
    _draw(out, first, target.view.figures or ["variance", "tradeoff"])


def levels(
    history: History,
    model: Model,
    choice: RoundChoice,
    known: dict[str, Any] | None = None,
    deploy: str | None = None,
) -> Grid | None:
    """A table of rows by figures, each with the paper's behind it where it has one."""
    seen = at_choice(history, choice)
    if seen is None or not seen.runs:
        return None
    rows = seen.summary(model, choice.at)
    short, words = _of(model, deploy)
    title = f"{words}, {choice.words}; mean ± sd over seeds"
    ours = grid_of_rows(f"{choice.name}{short}", title, rows, history.share, name_of, history.unit)
    return _with_paper(ours, rows, known, history.share) if known else ours


def _with_paper(ours: Grid, rows: Sequence[Row], known: dict[str, Any], share: float) -> Grid:
    """The paper's number behind each figure."""
    head, body = [*ours.head], [[*line] for line in ours.rows]
    titles = dict(zip(FIGURES, short_titles(share), strict=True))
    for field in reversed(FIGURES):
        at = 3 + FIGURES.index(field)
        head[at:at] = [f"paper's {titles[field]}"]
        for row, line in zip(rows, body, strict=True):
            told = known.get(row.label)
            line[at:at] = [number(*told[field]) if told else Cell("")]
    return Grid(ours.name, ours.title, head, body)


def beside(
    history: History, choice: RoundChoice, apart: dict[str, list[Interval]], target: str
) -> Grid:
    """Ours minus the paper's, row by row: bold where the paper's value is inside our interval."""
    causes, body = paper.load_paper()["cause"].get(target, {}), []
    for row, own in apart.items():
        within, seeds = [_inside(span) for span in own], own[0].seeds
        cells = [between(s)._replace(rank=0 if i else 2) for s, i in zip(own, within, strict=True)]
        said = inside_in_words(own, history.share)
        why = causes.get(row, "" if all(within) else "none tested")
        body.append([Cell(name_of(row)), Cell(str(seeds)), *cells, Cell(said), Cell(why)])
    title = f"Ours minus the paper's: last server model, {choice.words}; 95 % t-interval over seeds"
    head = ["row", "seeds", *(c.title for c in columns(history.share, history.unit)), INSIDE, CAUSE]
    return Grid(f"paper-{choice.name}", title, head, body)


def from_paper(
    history: History, choice: RoundChoice, known: dict[str, Any]
) -> dict[str, list[Interval]]:
    """The four figures, ours minus the paper's, of each row that the paper has; {}: no round."""
    if at_choice(history, choice) is None:
        return {}
    found, out = fairness_by_seed(history, "last", choice), {}
    for row in dict.fromkeys(run.label for run in history.runs):
        if row in known:
            ours = [[*by_seed(found, row, figure).values()] for figure in FIGURES]
            theirs = [known[row][figure][0] for figure in FIGURES]
            out[row] = [interval(np.subtract(x, y)) for x, y in zip(ours, theirs, strict=True)]
    return out


def inside_in_words(own: Sequence[Interval], share: float) -> str:
    """In which of its four figures a row has the paper's value inside our interval."""
    if own[0].seeds < 2:
        return ["no run", "one seed: no interval"][own[0].seeds]
    return figures_in_words(share, [_inside(span) for span in own])


def _inside(span: Interval) -> bool:
    """Whether 0 is: the paper's value lies inside the interval of ours."""
    return span.bounded and span.low <= 0 <= span.high


def _in_short(apart: dict[str, list[Interval]]) -> list[str]:
    """How many of the paper's values lie inside our intervals, and in which rows."""
    count = {row: sum(map(_inside, own)) for row, own in apart.items() if own[0].bounded}
    if not count:
        return []
    rows = {many: "; ".join(name_of(r) for r, n in count.items() if n == many) for many in (4, 0)}
    return [
        f"Beside the paper, at the best round: {sum(count.values())} of {4 * len(count)} entries "
        f"have the paper's value inside our 95 % interval. All four: {rows[4] or 'no row'}. None: "
        f"{rows[0] or 'no row'}. With three seeds an interval is wide, 2.5 standard deviations to "
        "either side, so inside says less there than with ten (0.7)."
    ]


def differences(
    history: History, model: Model, choice: RoundChoice, deploy: str | None = None
) -> Grid | None:
    """Each row's differences to FedAvg."""
    found = fairness_by_seed(history, model, choice)
    if REFERENCE not in found or len(found) < 2:
        return None
    samples = {
        row: subtract_figures(found, row, found, REFERENCE) for row in found if row != REFERENCE
    }
    short, words = _of(model, deploy)
    title = f"{words}, {choice.words}: difference to FedAvg under the same seeds"
    name = f"pairs-{choice.name}{short}"
    return grid_of_differences(name, title, history.share, samples, name_of, history.unit)


def gain(history: History, deploy: str | None) -> Grid | None:
    """What handing out the average does to each row, the reference included."""
    last, handed = (fairness_by_seed(history, model, LAST_ROUND) for model in ("last", "deployed"))
    if not last:
        return None
    samples = {row: subtract_figures(handed, row, last, row) for row in last}
    short, words = _of("deployed", deploy)
    title = f"{words} minus last server model of the same runs, at the last round"
    unit = history.unit
    return grid_of_differences(f"gain{short}", title, history.share, samples, name_of, unit)


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
    out.figures |= {
        kind: partial(figures.figure_of, named, kind, "last", size, smooth) for kind in kinds
    }


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
    )  # A run that did not diverge has all of them.
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
    draw = partial(sweep_figure.draw, history, parameter, along, ("FedMABA", "FedAvg"))
    out.figures |= {"sweep": partial(draw, "last"), "sweep-deployed": partial(draw, "deployed")}
    title = {label: f"{parameter} = {value:g}" for label, value in along.items()}
    runs = [replace(r, label=title.get(r.label, r.label)) for r in history.runs]
    titled = replace(history, runs=runs)
    grids = [levels(titled, "last", CHOICES[name]) for name in ("last", "best", "last5")]
    grids.append(levels(titled, "deployed", LAST_ROUND))
    grids.append(differences(titled, "last", LAST_ROUND))
    out.grids += filter(None, grids)


# --- hostile clients, privacy, and who takes part -------------------------------------------------


def attacks(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Every strategy under every attack that was tried."""
    _by_variant(out, target, batches, "hostile", " of the honest")


def privacy(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Every strategy under every promise of privacy."""
    _by_variant(out, target, batches, "epsilon", "")


def turnout(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Every strategy under every way to take part, and how each differs from the first."""
    _by_variant(out, target, batches, "who takes part", "")
    for i, job in enumerate(target.jobs, 1):
        history = deployed_history(batches, job)
        runs = [replace(run, label=name_of(run.label)) for run in history.runs]
        named, first = replace(history, runs=runs), name_of(next(iter(job.strategies)))
        if len({run.label for run in runs}) > 1:
            grid = strategy_differences(named, "deployed", "last", first)
            out.grids.append(replace(grid, name=f"pairs-{i}", title=f"{job.title}: {grid.title}"))


def _by_variant(
    out: Document, target: Target, batches: Sequence[ArchiveFile], head: str, whose: str
) -> None:
    """A table for each figure: a line for each variant, a column for each strategy."""
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
        title = f"Deployed model, at the last round: {title}{whose}; mean ± sd over seeds"
        out.grids.append(Grid(figure, title, [head, "seeds", *map(name_of, rows)], body))
