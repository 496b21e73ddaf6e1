"""What a verdict says of clients: how many gain and lose, and who is served worst. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmaba.report.data import Source
from fedmaba.report.group_tables import Names
from fedmaba.results.metrics import FloatArray, Unit
from fedmaba.results.run_history import At, Model, RunHistory

SAME = 1e-3  # points: a smaller change is rounding


class ClientScores(NamedTuple):
    """Every client's score by row and seed."""

    of: dict[str, dict[int, FloatArray]]  # (clients,) each
    names: Names
    apart: bool  # This says whether each seed has clients of its own.
    unit: Unit

    def beside(self, row: str, other: str) -> tuple[FloatArray, FloatArray, list[str]]:
        """The scores of clients in two rows under the seeds of both, and the clients' names."""
        ours, theirs = self.of.get(row, {}), self.of.get(other, {})
        both = sorted(ours.keys() & theirs.keys())
        if not both:
            return np.zeros(0), np.zeros(0), []
        now, then = (np.stack([own[seed] for seed in both]) for own in (ours, theirs))
        many = range(now.shape[1])
        if not self.apart:
            return now.mean(0), then.mean(0), [self.names.of(c) for c in many]
        of_seed = [f"{self.names.of(c)} of seed {seed}" for seed in both for c in many]
        return now.ravel(), then.ravel(), of_seed

    def gains(self, row: str, other: str) -> str:
        """How many clients gain and how many lose with a row, instead of another."""
        now, then, names = self.beside(row, other)
        change = self.unit.sign * (now - then)
        change = change[np.isfinite(change)]
        least = SAME if self.unit.mark else 0.0
        up, down = change[change > least], -change[change < -least]
        if not len(change):
            return ""
        points = " points" * bool(self.unit.mark) + " on average"
        told = []
        for some, does in ((up, "gain"), (down, "lose")):
            does += "s" * (len(some) < 2)
            if len(some):
                told.append(f"{len(some)} {does} {self.shown(some.mean())}{points}")
                points = ""
            else:
                told.append(f"none {does}")
        clients = len(next(iter(self.of[row].values())))
        seeds = len(names) // max(1, clients)
        whom = f"{len(change)} clients"
        if seeds > 1:
            whom = f"{len(change)} cases ({clients} clients under {seeds} seeds)"
        return f"of {whom}, {' and '.join(told)}"

    def worst(self, row: str, other: str = "") -> str:
        """Which client a row serves worst, and how another row serves it."""
        now, then, names = self.beside(row, other or row)
        known = np.flatnonzero(np.isfinite(now))
        if not len(known):
            return ""
        found = known[np.argmin(self.unit.sign * now[known])]
        text = f"{row} serves {names[found]} worst: {self.shown(now[found])}{self.unit.mark}"
        if other and np.isfinite(then[found]):
            text += f", where {other} reaches {self.shown(then[found])}{self.unit.mark}"
        return f"{text}."

    def shown(self, value: float) -> str:
        """A score or a change as people say it."""
        if not self.unit.mark:
            return f"{value:.3g}".replace("-", "−")
        return f"{value:.{0 if value >= 10 or not value else 1}f}"


def client_scores(
    owners: Sequence[Source], runs: Sequence[RunHistory], unit: Unit, model: Model, at: At
) -> ClientScores | None:
    """The scores of the clients of one federation; None where they cannot be compared."""
    found: dict[str, dict[int, FloatArray]] = {}
    for run in runs:
        if run.diverged or not len(run.tables.get("evaluated", ())):
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # shortly before it diverges
            scores = unit.scale * run.accuracy(model)[run.chosen(at, model)].mean(0)
        found.setdefault(run.label, {})[run.seed] = np.where(run.test_size > 0, scores, np.nan)
    names = {tuple(source.data.get("clients") or ()) for source in owners}
    sizes = {len(scores) for own in found.values() for scores in own.values()}
    if len(names) != 1 or len(sizes) != 1:
        return None
    pairs = zip(owners, runs, strict=True)
    divisions = {str(own.division[1].get(str(run.seed), run.seed)) for own, run in pairs}
    (named,) = names
    return ClientScores(found, Names(named), not named and len(divisions) > 1, unit)
