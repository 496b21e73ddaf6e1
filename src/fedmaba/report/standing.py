"""How strategies stand against one another in their figures, seed by seed. No torch.

Two differ where the p-value of a paired t-test stays below 0.05 after Holm's correction for all
comparisons with the same strategy: of many strategies some differ by chance. Else they are
undecided, which is no proof that they are alike; how many seeds would decide is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmaba.report import ranks
from fedmaba.report.document import p_in_words
from fedmaba.report.paired import Interval, difference, pairs, subtract
from fedmaba.report.row_styles import algorithm
from fedmaba.report.table import columns, digits_of, rows_of_one_seed
from fedmaba.results.metrics import Fairness, FloatArray, Unit
from fedmaba.results.selection import REFERENCE, Found

NEAR = 5.0  # A mean this many points below the best one is nearly as good.


class Standing(NamedTuple):
    """One strategy beside another, in one figure."""

    way: str  # It is "better", "worse", "identical" or "undecided".
    p: float  # after Holm's correction
    seeds: int  # that both have
    needed: int  # About so many would decide; 0 where more than could be run, or where unknown.

    def words(self, better: str, worse: str) -> str:
        """The standing in a cell."""
        if self.way == "undecided":
            few = {0: "no common seed", 1: "one seed"}.get(self.seeds, "")
            more = f"about {self.needed} seeds" if self.needed else f"over {ranks.MOST_SEEDS} seeds"
            return f"undecided ({few or more})"
        named = {"better": better, "worse": worse}.get(self.way)
        return f"{named} ({p_in_words(self.p)})" if named else self.way


def margin_below_best(unit: Unit) -> str:
    """How far below the best mean is still near it."""
    return f"{NEAR:g} points" if unit.mark else f"{NEAR:g} %"


def is_near(value: float, best: float, unit: Unit) -> bool:
    """Whether a mean score is near the best one."""
    room = NEAR if unit.mark else NEAR / 100 * abs(best)
    return unit.sign * value >= unit.sign * best - room


class ComparedRows:
    """Rows of one federation, and how they differ."""

    def __init__(self, found: Found, share: float, unit: Unit) -> None:
        self.found, self.share, self.unit = found, share, unit
        with np.errstate(over="ignore", invalid="ignore"):  # huge shortly before a run diverges
            self.mean = {
                label: Fairness(*np.mean([*own.values()], axis=0))
                for label, own in found.items()
                if own
            }
        self.labels = [label for label, mean in self.mean.items() if np.isfinite(mean[:2]).all()]
        self.base = next((x for x in self.labels if algorithm(x) == REFERENCE), "")
        self.columns = {column.field: column for column in columns(share, unit)}
        self.digits = {
            name: digits_of((getattr(mean, name) for mean in self.mean.values()), unit)
            for name in self.columns
        }
        self._standings: dict[tuple[str, str], dict[str, Standing]] = {}

    def comparable(self) -> list[str]:
        """The fairest first; too few seeds, of its own or the reference's, are no ground to win."""
        rivals = [x for x in self.labels if x != self.base]
        seeds = [len(self.found[x].keys() & self.found[self.base or x].keys()) for x in rivals]
        few = rows_of_one_seed(seeds)
        own = [x for x, n, one in zip(rivals, seeds, few, strict=True) if n and not one]
        return sorted([*[self.base] * bool(self.base), *own], key=self.spread)

    def near_best_mean(self, labels: Sequence[str]) -> list[str]:
        """Those whose mean is near the best: equally bad scores are not called fair."""
        means = [self.unit.sign * self.mean[x].accuracy for x in labels]
        best = self.unit.sign * max(means)
        return [x for x in labels if is_near(self.mean[x].accuracy, best, self.unit)]

    def spread(self, label: str) -> float:
        """The variance to rank by: the reference's plus the mean difference over shared seeds."""
        if (
            self.has_other_seeds(label, self.base)
            and (span := self.difference_of(label, self.base)).seeds
        ):
            return self.mean[self.base].variance + span.mean
        return self.mean[label].variance

    def has_other_seeds(self, label: str, other: str) -> bool:
        """Whether two have different seeds, so that their means do not subtract."""
        return bool(other) and self.found[label].keys() != self.found[other].keys()

    def level(self, label: str, other: str, figure: str) -> float:
        """A figure of a strategy under the seeds that another has too; its mean if it has none."""
        if not self.has_other_seeds(label, other):
            return float(getattr(self.mean[label], figure))
        ours, _ = pairs(self.by_seed(label, figure), self.by_seed(other, figure))
        return float(ours.mean()) if len(ours) else float(getattr(self.mean[label], figure))

    def by_seed(self, label: str, figure: str) -> dict[int, float]:
        return {seed: getattr(f, figure) for seed, f in self.found[label].items()}

    def difference_of(self, label: str, other: str, figure: str = "variance") -> Interval:
        return difference(self.by_seed(label, figure), self.by_seed(other, figure))

    def standing(self, label: str, other: str, figure: str = "variance") -> Standing:
        """How a strategy stands against another."""
        key = (other, figure)
        if key not in self._standings:
            self._standings[key] = self._all_standings(other, figure)
        return self._standings[key][label]

    def _all_standings(self, other: str, figure: str) -> dict[str, Standing]:
        theirs, samples = self.by_seed(other, figure), dict[str, FloatArray]()
        with np.errstate(over="ignore", invalid="ignore"):
            for x in self.labels:
                samples[x] = subtract(self.by_seed(x, figure), theirs)
            several = [x for x, own in samples.items() if x != other and len(own) > 1]
            p = ranks.holm([ranks.p_value(samples[x]) for x in several]).tolist()
            needed = ranks.seeds_needed([samples[x] for x in several])
        tested = {x: (q, n) for x, q, n in zip(several, p, needed, strict=True)}
        sign, out = self.columns[figure].sign, {}
        for x, own in samples.items():
            q, n = tested.get(x, (1.0, 0))
            way = "undecided"
            if len(own) > 1 and not own.any():
                way = "identical"
            elif q < ranks.SIGNIFICANT:
                way = "better" if sign * own.mean() > 0 else "worse"
            out[x] = Standing(way, q, len(own), n)
        return out

    def comparisons(self, other: str) -> int:
        """How many strategies are tested against one: what p-values are corrected for."""
        theirs = self.found[other].keys()
        return sum(x != other and len(self.found[x].keys() & theirs) > 1 for x in self.labels)
