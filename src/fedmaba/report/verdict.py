"""Who is fairest, who cannot be told apart from it, and what each costs: a verdict in words.

Strategies are compared under the same seeds. Two are told apart where the paired t-test of their
difference stays below 0.05 after Holm's correction for all comparisons with the same strategy: of
many strategies some differ by chance. Of those that cannot be told apart, the one with the highest
mean is named first: it costs least. A row of clients that train alone has no model to hand out;
it takes part only where every client is scored under a model of its own. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedmaba.report import ranks
from fedmaba.report.current_figures import CurrentFigures, unit_of
from fedmaba.report.data import Source, combine, short_names
from fedmaba.report.document import Cell, Grid, between, minus_sign, number
from fedmaba.report.paired import Interval, difference, pairs
from fedmaba.report.plot_data import axis_name
from fedmaba.report.row_styles import algorithm, shares_no_model
from fedmaba.report.table import columns, digits_of, p_in_words, rows_of_one_seed
from fedmaba.results.history import At, Model
from fedmaba.results.metrics import PLAIN_UNIT, Fairness, Unit
from fedmaba.results.selection import REFERENCE, Found

NEAR = 5.0  # A verdict looks for the fairest within this many points of the best mean.
LONG = 40  # A headline has room for names of this many signs.
TILE_FIGURES = ("variance", "worst", "accuracy")  # figures that a verdict shows large
NO_RUN_YET = "No run has been evaluated yet."


class Tile(NamedTuple):
    """A figure of the named strategy, as its change against the reference."""

    name: str
    change: str  # with its sign
    half: str  # This is half of the 95 % interval, empty where there is none.
    unit: str
    way: str  # It is "better", "worse", "may be chance" or "not told apart".
    now: str
    then: str


@dataclass
class Verdict:
    """What a page says first."""

    headline: str
    sentence: str = ""
    where: str = ""  # It names the folders, where there are several.
    so_far: str = ""  # "so far, round 12 of 60"
    named: str = ""  # the strategy it is about
    base: str = ""  # the reference, if there is one
    tiles: list[Tile] = field(default_factory=list)
    costs: Grid | None = None  # of those that cannot be told apart

    @property
    def text(self) -> str:
        """All of it in a line or two."""
        front = f"{self.where}: " if self.where else ""
        front += f"{self.so_far}: " if self.so_far else ""
        stop = "" if self.headline.endswith(".") else "."
        return f"{front}{self.headline}{stop} {self.sentence}".strip()


def margin_below_best(unit: Unit) -> str:
    """How far below the best mean a verdict looks for the fairest."""
    return f"{NEAR:g} points" if unit.mark else f"{NEAR:g} %"


def is_near(value: float, best: float, unit: Unit) -> bool:
    """Whether a mean score is near the best one."""
    room = NEAR if unit.mark else NEAR / 100 * abs(best)
    return unit.sign * value >= unit.sign * best - room


def top(values: Iterable[float], unit: Unit) -> float:
    """The best of some mean scores."""
    return unit.sign * float(np.fmax.reduce([unit.sign * v for v in values], initial=-np.inf))


def verdicts_of(scores: CurrentFigures, model: Model, at: At) -> list[Verdict]:
    """One for each set of folders on the same data."""
    found, groups = scores.values(model, at), _groups(scores.sources)
    names = short_names(scores.sources)
    out = []
    for group in groups:
        own = {
            run.label: found.get(run.label, {})
            for run, i in zip(scores.history.runs, scores.owner, strict=True)
            if i in group
        }
        alone = [label for label in own if model != "personal" and shares_no_model(label)]
        shared = {label: f for label, f in own.items() if label not in alone}
        if any(shared.values()):
            own = shared
        else:  # nothing else to speak of
            alone = []
        said = judge(own, scores.share, scores.unit)
        if alone:
            said.sentence = f"{said.sentence} {_no_model(alone)}".strip()
        said.where = ", ".join(names[i] for i in group) if len(groups) > 1 else ""
        going = [scores.progress[i] for i in group if not scores.sources[i].finished]
        if going and any(own.values()):
            said.so_far = "so far, " + ", ".join(dict.fromkeys(p.words for p in going))
        out.append(said)
    return out


def verdicts_of_sources(sources: Sequence[Source], share: float | None = None) -> list[Verdict]:
    """On the deployed model at the last round."""
    history = combine(sources)
    share = history.share if share is None else share
    return verdicts_of(
        CurrentFigures(sources, share, unit_of(sources, history)), "deployed", "last"
    )


def _groups(sources: Sequence[Source]) -> list[list[int]]:
    """Which sources have the same data and the same partition."""
    groups: dict[object, list[int]] = {}
    for i, source in enumerate(sources):
        same = (source.data.get("sha256"), str(source.about.get("partition")))
        groups.setdefault(same if all(same) else i, []).append(i)
    return [*groups.values()]


def judge(found: Found, share: float, unit: Unit) -> Verdict:
    """The verdict on rows of one federation."""
    if not any(found.values()):
        return Verdict(NO_RUN_YET)
    rows = _ComparedRows(found, share, unit)
    if not rows.labels:
        return Verdict("No score of any run is a finite number.")
    if len(rows.labels) == 1:
        return rows.only_one_strategy()
    return rows.verdict()


class _ComparedRows:
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
        base = [label for label in self.labels if algorithm(label) == REFERENCE]
        self.base = base[0] if base else ""
        self.columns = {column.field: column for column in columns(share, unit)}
        self.digits = {
            name: digits_of((getattr(mean, name) for mean in self.mean.values()), unit)
            for name in self.columns
        }
        self._corrected: dict[tuple[str, str], dict[str, float]] = {}

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

    def corrected(self, other: str, figure: str = "variance") -> dict[str, float]:
        """By strategy, the p-value of its difference to another, after Holm; as in tables."""
        if (other, figure) not in self._corrected:
            theirs, found = self.by_seed(other, figure), {}
            for x in self.labels:
                both = pairs(self.by_seed(x, figure), theirs)
                if x != other and len(both[0]) > 1:
                    with np.errstate(over="ignore", invalid="ignore"):
                        found[x] = ranks.p_value(np.subtract(*both))
            after = ranks.holm([*found.values()]).tolist()
            self._corrected[other, figure] = dict(zip(found, after, strict=True))
        return self._corrected[other, figure]

    def differs_significantly(self, label: str, other: str, figure: str = "variance") -> bool:
        """Whether two differ significantly after correcting for the number of comparisons."""
        return self.corrected(other, figure).get(label, 1.0) < ranks.SIGNIFICANT

    def near_best_mean(self) -> list[str]:
        """Strategies whose mean is near the best; equally bad scores are not called fair."""
        best = top((self.mean[x].accuracy for x in self.labels), self.unit)
        return [x for x in self.labels if is_near(self.mean[x].accuracy, best, self.unit)]

    def shown(self, value: float, figure: str, sign: str = "") -> str:
        """A figure with the digits that the table shows."""
        return f"{value:{sign}.{self.digits[figure]}f}".replace("-", "−")

    def verdict(self) -> Verdict:
        close, base = self.near_best_mean(), self.base
        few = rows_of_one_seed(
            [len(self.found[label]) for label in self.labels]
        )  # one seed beside several
        judged = [x for x, one in zip(self.labels, few, strict=True) if x in close and not one]
        best = min(judged or close, key=self.spread)
        several = max(len(self.found[label]) for label in self.labels) > 1
        fairer = [
            x
            for x in judged
            if base and self.differs_significantly(x, base) and self.spread(x) < self.spread(base)
        ]
        looks = fairer or [  # by its own interval alone
            x for x in judged if base and self.difference_of(x, base).high < 0
        ]
        top = min(looks or [best], key=self.spread)
        tied = [
            x
            for x in (looks or judged or close)
            if x == top or not self.differs_significantly(x, top)
        ]
        named = max(tied, key=lambda x: self.unit.sign * self.mean[x].accuracy)
        if best == base:
            rest = [x for x in close if x != best] or [x for x in self.labels if x != best]
            named = min(rest, key=self.spread)
            headline = f"None here is fairer than {base}"
            if not several:
                headline = f"None looks fairer than {base}, but one seed proves nothing"
        elif not several:
            named = best
            headline = f"{best} looks fairest, but one seed proves nothing"
        elif base and looks and not fairer:
            headline = f"{named} looks fairer than {base}, but it may be chance"
        elif base and not fairer:
            named = best
            headline = f"No strategy is measurably fairer than {base}"
        elif len(tied) > 1:
            first = [named, *(x for x in tied if x != named)]
            listed = _listed(first)
            if len(listed) > LONG:  # the sentence below has the names
                listed = f"{named} and {len(tied) - 1} other{'s' * (len(tied) > 2)}"
            headline = f"{listed} are fairest, and cannot be told apart"
        elif any(
            x not in (named, base) and not self.differs_significantly(x, named) for x in self.labels
        ):
            headline = f"{named} is fairer than {base}" if base else f"{named} is among the fairest"
        else:
            headline = f"{named} is the fairest of {len(self.labels)} strategies"
        alike = [
            x
            for x in self.labels
            if x != named and several and not self.differs_significantly(x, named)
        ]
        return Verdict(
            headline,
            self.sentence(named, alike, close),
            named=named,
            base=base,
            tiles=self.tiles(named),
            costs=self.costs(named, alike) if alike else None,
        )

    def only_one_strategy(self) -> Verdict:
        """The sentence for a run with one strategy."""
        (label,) = self.labels
        f, unit = self.mean[label], self.unit
        seeds = len(self.found[label])
        text = (
            f"Its mean {unit.name} is {self.shown(f.accuracy, 'accuracy')}{unit.mark} with a "
            f"variance of {self.shown(f.variance, 'variance')}{unit.square} over clients, and "
            f"{self.shown(f.worst, 'worst')}{unit.mark} for the worst {100 * self.share:g} % of "
            f"them ({_seeds(seeds)})."
        )
        return Verdict(f"{label} alone: nothing to compare it with", text, named=label)

    def sentence(self, named: str, alike: Sequence[str], close: Sequence[str]) -> str:
        """The change against the reference with its interval, then the runner-up."""
        unit, base = self.unit, self.base
        square, points = unit.square, " points" if unit.mark else ""
        now = f"{self.shown(self.level(named, base, 'variance'), 'variance')}{square}"
        if base and self.has_other_seeds(named, base) and not self.difference_of(named, base).seeds:
            theirs = f"{self.shown(self.mean[base].variance, 'variance')}{square}"
            out = f"The variance over clients is {now} with {named} and {theirs} with {base}, but "
            out += "no seed is of both, so they cannot be compared: run both with the same seeds."
        elif base:
            change = self.change("variance", named, square, ("less", "more"), base)
            cost = self.change("accuracy", named, points, ("lower", "higher"))
            out = f"The variance over clients is {now} with {named}, {change}; "
            out += f"the mean {unit.name} is {cost}." + self.seeds_of_both(named)
        else:
            out = f"The variance over clients is {now} with {named} at a mean {unit.name} of "
            out += f"{self.shown(self.mean[named].accuracy, 'accuracy')}{unit.mark}."
        rest = [x for x in close if x not in (named, base, *alike)]
        if alike:
            out += self.not_told_apart(named, [x for x in alike if x != base and x in close])
        elif rest:
            next_ = min(rest, key=self.spread)
            its = self.shown(self.mean[next_].variance, "variance")
            out += f" The runner-up is {next_} with {its}{square}."
        if far := [x for x in self.labels if x not in close]:
            way = "above" if unit.lower else "below"
            margin = margin_below_best(unit)
            out += f" More than {margin} {way} the best mean, so left out: {_listed(far)}."
        if base and self.by_chance(named, "variance"):
            many = len(self.corrected(base))
            out += f" One of {many} comparisons can look like this by chance: add seeds to be sure."
        return out

    def not_told_apart(self, named: str, alike: Sequence[str]) -> str:
        """Those whose own interval holds no difference; then those that Holm's correction adds."""
        near = sorted(alike, key=lambda x: abs(self.spread(x) - self.spread(named)))
        unclear = [x for x in near if self.difference_of(x, named).distinguishable]
        equal = [x for x in near if x not in unclear]
        out = f" Not told apart from {named}: {_listed(equal)}." if equal else ""
        if unclear and not (self.base and self.by_chance(named, "variance")):  # said of it already
            many = len(self.corrected(named))
            out += f" Likely different, but not told apart after Holm's correction for {many} "
            out += f"comparisons: {_listed(unclear)}."
        return out

    def seeds_of_both(self, named: str) -> str:
        """What was compared, where a strategy and the reference have different seeds."""
        base = self.base
        if not self.has_other_seeds(named, base):
            return ""
        many = [len(self.found[x]) for x in (named, base)]
        both = len(self.found[named].keys() & self.found[base].keys())
        theirs = self.shown(self.level(base, named, "variance"), "variance")
        under = f"the {both} that both have" if both > 1 else "the one that both have"
        return (
            f" {named} has {_seeds(many[0])}, {base} {many[1]}; this is under {under}, where "
            f"{base} has {theirs}{self.unit.square}."
        )

    def by_chance(self, label: str, figure: str) -> bool:
        """Whether only the number of comparisons speaks against a difference to the reference."""
        shown = self.difference_of(label, self.base, figure).distinguishable
        return shown and not self.differs_significantly(label, self.base, figure)

    def change(
        self, figure: str, named: str, unit: str, ways: tuple[str, str], other: str = ""
    ) -> str:
        """How a strategy differs from the reference, with the interval, or why there is none."""
        span = self.difference_of(named, self.base, figure)
        size = self.shown(abs(span.mean), figure)
        if math.isnan(span.mean) or float(size) == 0:
            return f"the same as with {other}" if other else "the same"
        out = f"{size}{unit} {ways[span.mean > 0]}" + (f" than with {other}" if other else "")
        if span.distinguishable:
            low, high = (self.shown(x, figure) for x in sorted((abs(span.low), abs(span.high))))
            p, many = "", self.corrected(self.base, figure)
            if self.by_chance(named, figure):
                p = f"; p = {p_in_words(many[named])} after Holm's correction for {len(many)}"
            return f"{out} (95 % interval {low} to {high}{p})"
        if span.bounded:
            low, high = (self.shown(x, figure, "+") for x in (span.low, span.high))
            return f"{out} (95 % interval {low} to {high}, so no difference is shown)"
        return f"{out} ({'in every seed' if span.seeds > 1 else 'one seed, no interval'})"

    def tiles(self, named: str) -> list[Tile]:
        """The change of three figures against the reference."""
        if not self.base:
            return []
        out = []
        for figure in TILE_FIGURES:
            column, span = self.columns[figure], self.difference_of(named, self.base, figure)
            if math.isnan(span.mean):
                continue
            unit = self.unit.square if figure == "variance" else self.unit.mark
            better = column.sign * span.mean > 0
            way = "may be chance" if self.by_chance(named, figure) else "not told apart"
            if self.differs_significantly(named, self.base, figure):
                way = "better" if better else "worse"
            now = self.level(named, self.base, figure)
            then = self.level(self.base, named, figure)
            out.append(
                Tile(
                    axis_name(figure, PLAIN_UNIT._replace(name=self.unit.name), self.share),
                    self.shown(span.mean, figure, "+"),
                    self.shown((span.high - span.low) / 2, figure) if span.bounded else "",
                    (" points" if unit == " %" else unit).strip(),
                    way,
                    f"{self.shown(now, figure)}{unit}",
                    f"{self.shown(then, figure)}{unit}",
                )
            )
        return out

    def costs(self, named: str, alike: Sequence[str]) -> Grid:
        """What each strategy costs of those that cannot be told apart in their variance."""
        head = ["strategy", f"variance{self.unit.square}", f"variance, minus {named}"]
        base = self.base
        worst = f"worst {100 * self.share:g} %"
        head += [f"mean, minus {base}", f"{worst}, minus {base}"] * bool(base)
        body = []
        for x in [named, *alike]:
            row = [Cell(x), number(self.mean[x].variance, digits=self.digits["variance"])]
            pairs = [("variance", named), *(("accuracy", base), ("worst", base)) * bool(base)]
            for figure, other in pairs:
                span = self.difference_of(x, other, figure)
                row.append(between(span, self.digits[figure]) if x != other else Cell("–"))
            body.append(row)
        many = len(self.corrected(named))
        how = f" after Holm's correction for {many} comparisons" if many > 1 else ""
        alone = " of that comparison alone" if many > 1 else ""
        title = (
            f"Not told apart in variance{how}, and what each costs (mean [95 % interval{alone}])"
        )
        if any(self.has_other_seeds(x, y) for x in [named, *alike] for y in (named, base)):
            title += "; differences are under the seeds that both have"
        return Grid("costs", title, head, body)


def _no_model(alone: Sequence[str]) -> str:
    """Why rows of clients alone are no part of a verdict."""
    they = "hands" if len(alone) == 1 else "hand"
    return f"Not compared: {_listed(alone)}, which {they} out no shared model."


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    if len(names) > 3:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


def as_tree(said: Verdict) -> dict[str, Any]:
    """A verdict for the page's script."""
    costs: Mapping[str, Any] | None = None
    if said.costs:
        rows = [[x.text, *(minus_sign(cell.text) for cell in rest)] for x, *rest in said.costs.rows]
        costs = {"title": said.costs.title, "head": [*said.costs.head], "rows": rows}
    return {
        "headline": said.headline,
        "sentence": said.sentence,
        "where": said.where,
        "so_far": said.so_far,
        "named": said.named,
        "base": said.base,
        "tiles": [tile._asdict() for tile in said.tiles],
        "costs": costs,
    }
