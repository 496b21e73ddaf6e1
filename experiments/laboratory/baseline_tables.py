"""Every strategy side by side, each with the settings that its own search picked. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from fedmaba import strategies
from fedmaba.report import figures, table
from fedmaba.report import ranks as rank_tests
from fedmaba.report.document import Cell, Document, Grid, between, number
from fedmaba.report.paired import interval
from fedmaba.report.plot_data import WIDE
from fedmaba.results.history import History
from fedmaba.results.metrics import Unit
from laboratory import picks
from laboratory.archive import ArchiveFile
from laboratory.picks import SearchTrial
from laboratory.selection import CHOICES, REFERENCE, by_seed, fairness_by_seed
from laboratory.targets import Target

RANKED = ("variance", "worst", "accuracy")  # figures by which rows are ranked


def title_of(row: str) -> str:
    """What a strategy is called."""
    return strategies.REGISTRY[row].title or row


def for_own_models(row: str) -> bool:
    """Whether a row is there for models of the clients' own."""
    return picks.for_own_models(strategies.REGISTRY[row]())


def titled(found: History) -> History:
    """The same runs, each row by the name that a paper prints."""
    return replace(found, runs=[replace(r, label=title_of(r.label)) for r in found.runs])


def servers(found: History) -> History:
    """The runs of the rows that are there for a server's model."""
    return replace(found, runs=[run for run in found.runs if not for_own_models(run.label)])


def own_models(found: History) -> History:
    """All runs with the clients' own models as the deployed one.

    A row that is there for a server's model has the fine-tuned one.
    """
    runs = []
    for run in found.runs:
        strategy = strategies.REGISTRY[run.label]()
        own = picks.for_own_models(strategy)
        model = picks.judged_model(strategy) if own else "personal"
        if run.tables and (own or run.has_personal):
            runs.append(picks.judged_alone(run, run.label, model))
    return replace(found, runs=runs)


def every_strategy(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Levels, differences to FedAvg, ranks, the clients' own models, and the whole search."""
    tried = picks.trials(target, batches)
    lost = [row for row in dict.fromkeys(t.row for t in tried) if _all_diverged(row, tried)]
    if lost:
        out.text.append(f"Every trial diverged: {', '.join(map(title_of, lost))}.")
    if rest := picks.waiting(tried):
        out.text.append(f"Not picked yet, because a trial is missing: {', '.join(rest)}.")
    found = picks.picked_history(target, batches, tried)
    told = dict.fromkeys(run.diverged for run in found.runs if run.diverged)
    if told:
        out.text.append(f"Left out of every mean: {'; '.join(told)}.")
    settings = _settings(tried)
    chosen = {title_of(t.row): settings[t.job.digest, t.label] for t in tried if t.picked}
    out.grids += _tables(servers(found), chosen)
    own = own_models(found)
    if any(for_own_models(run.label) for run in own.runs):
        out.grids += [replace(grid, name=f"personal-{grid.name}") for grid in _tables(own, chosen)]
    out.grids.append(_search(tried, found.unit))
    history = titled(servers(found))
    if len({run.label for run in history.runs}) > 1:
        size = (WIDE, 4.6)
        out.figures["tradeoff"] = partial(figures.figure_of, history, "tradeoff", "deployed", size)


def _tables(found: History, chosen: dict[str, str]) -> list[Grid]:
    """Levels, differences to FedAvg, mean ranks, and how many clients gain by each row."""
    history, reference = titled(found), title_of(REFERENCE)
    rows = {run.label for run in history.runs}
    if not rows:
        return []
    grids = [_with_settings(table.summary(history, "deployed"), chosen)]
    if reference in rows and len(rows) > 1:
        grids.append(table.differences(history, "deployed", "last", reference))
    grids += _ranks(history)
    # Local training has its name in this table.
    return grids + [_titled(grid) for grid in table.incentive_grids(found, "deployed")]


def _titled(grid: Grid) -> Grid:
    """A table with the names of its rows as a paper prints them."""
    return replace(grid, rows=[[Cell(title_of(row[0].text)), *row[1:]] for row in grid.rows])


def _all_diverged(row: str, tried: Sequence[SearchTrial]) -> bool:
    own = [t for t in tried if t.row == row]
    return all(t.found == t.asked for t in own) and not any(t.picked for t in own)


def _settings(tried: Sequence[SearchTrial]) -> dict[tuple[str, str], str]:
    """By experiment and label: in what trials of a row differ, and the experiment's title."""
    out = {}
    for trial in tried:
        mine, *others = (
            asdict(t.job.strategies[t.label]) for t in (trial, *tried) if t.row == trial.row
        )
        differ = [name for name in mine if any(o[name] != mine[name] for o in others)]
        told = [f"{name}={_plain(mine[name])}" for name in differ]
        out[trial.job.digest, trial.label] = ", ".join([*told, trial.job.title])
    return out


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _with_settings(grid: Grid, chosen: dict[str, str]) -> Grid:
    """A table of rows with what was picked for each."""
    body = [[line[0], Cell(chosen[line[0].text]), *line[1:]] for line in grid.rows]
    return replace(grid, head=[grid.head[0], "picked", *grid.head[1:]], rows=body)


def _shared_seeds(history: History) -> list[int]:
    """The seeds under which every row has a run that did not diverge."""
    seeds: dict[str, set[int]] = {}
    for run in history.runs:
        seeds.setdefault(run.label, set())
        if not run.diverged and "evaluated" in run.tables:
            seeds[run.label].add(run.seed)
    return sorted(set.intersection(*seeds.values())) if seeds else []


def _rankings(history: History) -> tuple[list[str], list[rank_tests.Ranking]]:
    """The rows that share two seeds or more, ranked by each figure; none where there are none."""
    both, found = _shared_seeds(history), fairness_by_seed(history, "deployed", CHOICES["last"])
    if len(both) < 2 or len(found) < 2:
        return [], []
    ranked = []
    for figure in RANKED:
        values = np.array([[by_seed(found, row, figure)[s] for row in found] for s in both])
        lower = figure == "variance" or history.unit.lower
        ranked.append(rank_tests.ranking(values, lower))
    return list(found), ranked


def _ranks(history: History) -> list[Grid]:
    """Mean ranks over the seeds that all rows have, and how far apart two must be."""
    rows, ranked = _rankings(history)
    if not rows:
        return []
    order = np.argsort(ranked[0].ranks, kind="stable")
    titles = dict(zip(table.FIGURES, table.short_titles(history.share, history.unit), strict=True))
    body = [
        [Cell(rows[i]), *(number(float(one.ranks[i])) for one in ranked)] for i in order.tolist()
    ]
    p = ", ".join(
        f"{titles[name]} {'< 0.001' if one.p < 0.001 else f'{one.p:.3f}'}"
        for name, one in zip(RANKED, ranked, strict=True)
    )
    title = (
        f"Mean rank over {ranked[0].blocks} seeds, 1 the best; two rows differ if their ranks lie "
        f"more than {ranked[0].critical:.2f} apart (Nemenyi, 95 %); Friedman's p: {p}"
    )
    return [Grid("ranks", title, ["row", *(titles[name] for name in RANKED)], body)]


def _search(tried: Sequence[SearchTrial], unit: Unit) -> Grid:
    """Every trial with its scores on validation data."""
    settings = _settings(tried)
    head = ["row", "setting", "seeds", "picked"]
    head += [f"validation variance{unit.square}", f"validation {unit.name}{unit.mark}"]
    body = [
        [
            Cell(title_of(t.row)),
            Cell(settings[t.job.digest, t.label]),
            Cell(str(t.seeds)),
            Cell("yes" if t.picked else t.note, rank=0 if t.picked else 2),
            number(t.variance),
            number(t.score),
        ]
        for t in tried
    ]
    title = "Every trial, on validation data at the last round; means over seeds"
    return Grid("search", title, head, body)


def over_settings(shown: dict[str, Target], batches: Sequence[ArchiveFile]) -> Grid:
    """Every row of several targets, by title: differences to FedAvg, and the mean of mean ranks.

    A target with fewer than two fresh seeds is left out. Bold: significant after Holm's correction
    for the rows of that target. A row that lacks a setting in which others are ranked has no mean
    rank: its rivals were others.
    """
    spans: dict[str, dict[str, list[Cell]]] = {}
    ranks: dict[str, list[float]] = {}
    base = title_of(REFERENCE)
    for title, target in shown.items():
        history = titled(servers(picks.picked_history(target, batches)))
        if len({run.seed for run in history.runs if run.label == base}) < 2:
            continue  # one seed shows no difference
        samples = table.differences_by_seed(history, "deployed", "last", base)
        spans[title] = {base: [Cell("")] * 2} | {
            row: [
                between(interval(x))._replace(rank=0 if p < rank_tests.SIGNIFICANT else 2)
                for figure, x, p in zip(table.FIGURES, samples[row], p_values, strict=True)
                if figure in ("variance", "worst")
            ]
            for row, p_values in table.corrected_p_values(samples).items()
        }
        rows, ranked = _rankings(history)
        for i, row in enumerate(rows):
            ranks.setdefault(row, []).append(float(ranked[0].ranks[i]))
    settings = max((len(own) for own in ranks.values()), default=0)
    mean_rank = {row: float(np.mean(r)) for row, r in ranks.items() if len(r) == settings}
    head = ["row", *(f"{title}: {what}" for title in spans for what in ("variance", "worst 5 %"))]
    listed = [title_of(name) for name in strategies.REGISTRY]
    rows = [row for row in listed if any(row in own for own in spans.values())]
    rows.sort(key=lambda row: mean_rank.get(row, np.inf))
    body = [
        [
            Cell(row),
            *(cell for own in spans.values() for cell in own.get(row, [Cell("–")] * 2)),
            number(mean_rank[row]) if row in mean_rank else Cell("–"),
        ]
        for row in rows
    ]
    title = (
        "Deployed model at the last round minus FedAvg's under the same seeds, 95 % t-interval; "
        "mean rank by variance, over the settings in which all rows share their seeds; a row that "
        "lacks one of these has none"
    )
    return Grid("overview", title, [*head, "mean rank"], body)
