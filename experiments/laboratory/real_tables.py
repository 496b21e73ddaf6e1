"""Every strategy over several real federations: who serves the worst tenth best. No torch.

Each row is judged by the model that it is for, which for Ditto and training alone is the clients'
own. Scores are errors, so lower is better; federations have other units, so differences to FedAvg
are in per cent of its error. A block of ranks is a federation under one seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedmaba import strategies
from fedmaba.report import ranks as rank_tests
from fedmaba.report.document import Cell, Grid, number
from fedmaba.results.history import History
from laboratory import picks
from laboratory.archive import ArchiveFile
from laboratory.baseline_tables import title_of
from laboratory.selection import REFERENCE
from laboratory.targets import Target

TUNED = "FedAvg, then 10 own steps"
SEEDS = 1000  # A block is numbered by its federation times this, plus its seed.


class Level(NamedTuple):
    """Errors of one row under one seed."""

    worst: float
    mean: float


def judged(target: Target, batches: Sequence[ArchiveFile]) -> History:
    """The fresh runs of what was picked, each with the model that its row is for as `deployed`."""
    out = []
    for run in picks.picked_history(target, batches).runs:
        if run.diverged:
            continue
        model = picks.judged_model(strategies.REGISTRY[run.label]())
        out.append(picks.judged_alone(run, title_of(run.label), model))
        if run.label == REFERENCE and run.has_personal:
            out.append(picks.judged_alone(run, TUNED, "personal"))
    return History(out, target.jobs[0].experiment.eval.share)


def _levels(
    shown: Mapping[str, Target], batches: Sequence[ArchiveFile]
) -> dict[str, dict[int, Level]]:
    """The errors of each row by block."""
    out: dict[str, dict[int, Level]] = {}
    for place, target in enumerate(shown.values()):
        history = judged(target, batches)
        for run in history.runs:
            (last,) = run.fairness("deployed", history.share, [-1])
            levels = out.setdefault(run.label, {})
            levels[SEEDS * place + run.seed] = Level(last.worst, last.accuracy)
    return out


def over_federations(shown: Mapping[str, Target], batches: Sequence[ArchiveFile]) -> Grid:
    """Each row's error beside FedAvg's, of the worst tenth and of all, and its mean rank."""
    levels, base = _levels(shown, batches), title_of(REFERENCE)
    blocks = sorted(levels.get(base, ()))
    whole = [row for row, own in levels.items() if set(blocks) <= set(own)]
    values = np.array([[levels[row][b].worst for row in whole] for b in blocks])
    ranks = dict.fromkeys(levels, np.nan)
    told = ""
    if len(whole) > 1 and len(blocks) > 1:
        found = rank_tests.ranking(values, lower=True)
        ranks |= dict(zip(whole, found.ranks.tolist(), strict=True))
        told = (
            f"; mean rank by the worst tenth over {found.blocks} blocks, a federation under one "
            f"seed; two rows differ if their ranks lie more than {found.critical:.2f} apart "
            f"(Nemenyi, 95 %; Friedman's p {found.p:.1g})"
        )
    body = []
    for row in sorted(levels, key=lambda row: (np.isnan(ranks[row]), ranks[row])):
        line = [Cell(row)]
        for place in range(len(shown)):
            here = [b for b in blocks if b // SEEDS == place and b in levels[row]]
            line += _changes([levels[row][b] for b in here], [levels[base][b] for b in here])
        body.append([*line, number(ranks[row]) if np.isfinite(ranks[row]) else Cell("–")])
    head = [f"{title}: {what}" for title in shown for what in ("worst tenth", "mean")]
    title = (
        "Error beside FedAvg's under the same seeds, in per cent, mean over seeds; less is better"
        f"; an asterisk: the same sign in every seed{told}; a row that lacks a federation has no "
        "rank"
    )
    return Grid("real", title, ["row", *head, "mean rank"], body)


def _changes(mine: Sequence[Level], theirs: Sequence[Level]) -> list[Cell]:
    """By how many per cent two figures of a row differ from the reference."""
    out = []
    for one, other in zip(zip(*mine, strict=True), zip(*theirs, strict=True), strict=True):
        share = 100 * (np.array(one) / np.array(other) - 1)
        sure = len(share) > 1 and (np.all(share > 0) or np.all(share < 0))
        out.append(Cell(f"{share.mean():+.1f}{'*' * bool(sure)}"))
    return out or [Cell("–")] * len(Level._fields)
