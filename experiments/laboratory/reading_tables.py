"""Readings of the set-up: what each does to FedAvg's and FedMABA's rows, how near the paper it is.

The distance to the paper's table is a mean of absolute differences in points. Accuracy, worst and
best 5 % are in points; the variance counts as its square root, which is in points too. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from fedmaba.report.document import Cell, Document, Grid, between, number
from fedmaba.report.paired import Interval, difference, moments
from fedmaba.report.table import FIGURES
from fedmaba.results.metrics import Fairness, FloatArray
from laboratory import paper, targets
from laboratory.archive import ArchiveFile, deployed_history
from laboratory.paper import name_of
from laboratory.selection import CHOICES, REFERENCE, Found, by_seed, fairness_by_seed
from laboratory.targets import Target, Variant

OUR_ROW = "fedmaba"
TableDistances = dict[
    int, FloatArray
]  # By seed, it has (rows, figures) absolute differences to the paper in points.


def readings(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """FedAvg beside FedMABA under other readings of the paper, and each reading's distance."""
    for name in ("last", "last5"):
        out.grids.append(_two_rows(target, batches, name))
    if target.view.paper and not any(map(targets.changes, target.jobs)):
        _score(out, target, batches)


def _two_rows(target: Target, batches: Sequence[ArchiveFile], name: str) -> Grid:
    """FedAvg's and FedMABA's rows of each reading that has them, once each."""
    head = ["reading", "seeds"]
    for title in ("variance %²", "accuracy %", "worst 5 %"):
        head += [f"FedAvg, {title}", f"FedMABA, {title}"]
    head.append("variance, FedMABA − FedAvg")
    body, shown = [], set()
    for job in target.jobs:
        row = next((label for label in job.strategies if label.partition(":")[0] == OUR_ROW), "")
        if REFERENCE not in job.strategies or (job.digest, row) in shown:
            continue
        shown.add((job.digest, row))
        found = fairness_by_seed(deployed_history(batches, job), "last", CHOICES[name])
        cells = [
            number(*moments([*by_seed(found, label, figure).values()]))
            for figure in ("variance", "accuracy", "worst")
            for label in (REFERENCE, row)
        ]
        span = difference(*(by_seed(found, label, "variance") for label in (row, REFERENCE)))
        seeds = str(len(found.get(REFERENCE, {})))
        body.append([Cell(job.title), Cell(seeds), *cells, between(span)])
    title = f"Last server model, {CHOICES[name].words}; mean ± sd over seeds, 95 % t-interval"
    return Grid(name, title, head, body)


# --- the distance to the paper's table -----------------------------------------------------------


def whole_rows(target: Target) -> list[str]:
    """The rows of a target that the paper's table has."""
    return [
        row for row in target.jobs[0].strategies if row in paper.load_paper()[target.view.paper]
    ]


def found_rows(target: Target, i: int, batches: Sequence[ArchiveFile], at: str) -> Found:
    """The rows of a reading under the paper's names, with those that it leaves as they are."""
    variant = target.view.variant[i]
    history = deployed_history(batches, target.jobs[i])
    own = fairness_by_seed(history, "last", CHOICES[at])
    named = {without(label, variant.apart): by for label, by in own.items()}
    if not variant.rest:
        return named
    other = next(k for k, v in enumerate(target.view.variant) if v.name == variant.rest)
    return found_rows(target, other, batches, at) | named


def without(label: str, names: Sequence[str]) -> str:
    """A label without some hyper-parameters."""
    name, _, told = label.partition(":")
    kept = [part for part in told.split(",") if part and part.partition("=")[0] not in names]
    return f"{name}:{','.join(kept)}" if kept else name


def distances_to_paper(found: Found, rows: Sequence[str], table: str) -> TableDistances:
    """Absolute differences to the paper in points, under each seed that has all of the rows."""
    if not all(row in found for row in rows):
        return {}
    seeds = set.intersection(*(set(found[row]) for row in rows))
    known = paper.load_paper()[table]
    theirs = np.array([_points([known[row][f][0] for f in FIGURES]) for row in rows])
    return {seed: np.abs(_table(found, rows, seed) - theirs) for seed in sorted(seeds)}


def score(apart: TableDistances) -> dict[int, float]:
    """The distance of each seed's table."""
    return {seed: float(one.mean()) for seed, one in apart.items()}


def _table(found: Found, rows: Sequence[str], seed: int) -> FloatArray:
    """(rows, figures) of one seed, in points."""
    own: list[Fairness] = [found[row][seed] for row in rows]
    return np.array([_points([getattr(f, figure) for figure in FIGURES]) for f in own])


def _points(figures: Sequence[float]) -> list[float]:
    """Variance, accuracy, worst and best: the variance as the standard deviation that it is of."""
    return [float(np.sqrt(figures[0])), *figures[1:]]


def _score(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Every reading by its distance, the nearest first, and in words which fits best."""
    rows, table = whole_rows(target), target.view.paper
    two = [REFERENCE, OUR_ROW]
    taken = {at: found_rows(target, 0, batches, at) for at in ("best", "last")}
    base = score(distances_to_paper(taken["best"], rows, table))
    lines: list[tuple[float, list[Cell]]] = []
    spans: dict[str, Interval] = {}
    scores: dict[str, Mapping[int, float]] = {}
    by_row: dict[str, FloatArray] = {}
    for i, variant in enumerate(target.view.variant):
        best, last = (found_rows(target, i, batches, at) for at in ("best", "last"))
        apart = distances_to_paper(best, rows, table)
        some = score(distances_to_paper(best, two, table))
        if not some or (not apart and _is_part(target, i, two)):
            continue
        own = score(apart)
        if apart:
            by_row[variant.name or variant.title] = np.mean([*apart.values()], axis=(0, 2))
        scores[variant.title], spans[variant.title] = own, difference(own, base)
        mean = moments([*own.values()])[0]
        each = np.mean([*apart.values()], axis=(0, 1)) if apart else np.full(len(FIGURES), np.nan)
        cells = [Cell(variant.title), Cell(str(len(own or some)))]
        cells += [number(*moments([*own.values()]))]
        cells += [between(spans[variant.title]) if i and own else Cell("")]
        cells += [number(float(x)) for x in each]
        cells += [number(*moments([*some.values()]))]
        cells += [number(*moments([*score(distances_to_paper(last, rows, table)).values()]))]
        lines.append((mean, cells))
    if not base:
        return
    lines.sort(key=lambda line: line[0] if np.isfinite(line[0]) else np.inf)
    head = ["reading", "seeds", f"all {len(rows)} rows", "minus as taken"]
    head += ["spread", "accuracy", "worst 5 %", "best 5 %", "FedAvg's and FedMABA's rows"]
    head += [f"all {len(rows)} rows, last round"]
    title = (
        "Distance to the paper's table, points, the nearest first; last server model at its best "
        "round, picked on test data; mean ± sd over seeds, 95 % t-interval under the same seeds"
    )
    out.grids.append(Grid("scores", title, head, [cells for _, cells in lines]))
    body = [
        [Cell(name_of(row)), *(number(float(each[k])) for each in by_row.values())]
        for k, row in enumerate(rows)
    ]
    title = "The same distance row by row, mean over the four columns and over seeds"
    out.grids.append(Grid("score-rows", title, ["row", *by_row], body))
    out.text += _in_words(target, rows, taken["best"], base, scores, spans)


def _is_part(target: Target, i: int, two: Sequence[str]) -> bool:
    """Whether another reading of the same runs has these rows and more."""
    job = target.jobs[i]
    mine = {without(label, target.view.variant[i].apart) for label in job.strategies}
    plain = not target.view.variant[i].apart and mine <= set(two)
    return plain and any(
        other.digest == job.digest and len(other.strategies) > len(job.strategies)
        for other in target.jobs
    )


def own_spread(found: Found, rows: Sequence[str]) -> float:
    """How far the tables of two seeds are from each other, in points: the mean over pairs."""
    seeds = sorted(set.intersection(*(set(found[row]) for row in rows)))
    apart = [
        np.abs(_table(found, rows, a) - _table(found, rows, b)).mean()
        for a, b in combinations(seeds, 2)
    ]
    return float(np.mean(apart)) if apart else float("nan")


def _in_words(
    target: Target,
    rows: Sequence[str],
    taken: Found,
    base: Mapping[int, float],
    scores: Mapping[str, Mapping[int, float]],
    spans: Mapping[str, Interval],
) -> list[str]:
    """What the distance is, and which reading fits best by it."""
    first: Variant = target.view.variant[0]
    means = {title: float(np.mean([*own.values()])) for title, own in scores.items() if own}
    nearest = min(means, key=lambda title: means[title])
    clear = [t for t, span in spans.items() if span.bounded and span.high < 0]
    farther = [t for t, span in spans.items() if span.bounded and span.low > 0]
    many = len(scores[nearest])
    return [
        f"Distance: the mean, over {len(rows)} rows and four columns, of how far ours is from the "
        "paper's, in points; the variance counts as its square root, the standard deviation over "
        "clients (column: spread). Each seed's table is scored by itself, so that readings of one "
        "seed and of three compare. "
        f"Under the reading taken two of our own seeds are {own_spread(taken, rows):.2f} points "
        "from each other: two single runs of one and the same set-up are about so far apart.",
        f"Nearest: {nearest}, {means[nearest]:.2f} points ({many} seed{'s' * (many > 1)}); "
        f"as taken: {np.mean([*base.values()]):.2f} ({first.title}). Nearer than as taken, with an "
        f"interval without 0: {'; '.join(clear) or 'none'}. Farther: {'; '.join(farther) or 'none'}"
        ".",
    ]
