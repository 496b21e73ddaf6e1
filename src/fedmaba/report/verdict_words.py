"""A verdict in words: the fairest of all, the fairest at nearly the best mean, what is proven.

No torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedmaba.report.document import Cell, Grid, between, for_page, number, p_in_words
from fedmaba.report.plot_data import axis_name
from fedmaba.report.ranks import MOST_SEEDS
from fedmaba.report.row_styles import has_personal_models
from fedmaba.report.standing import ComparedRows
from fedmaba.report.table import capitalised
from fedmaba.report.verdict_clients import ClientScores
from fedmaba.results.metrics import PLAIN_UNIT, Unit
from fedmaba.results.selection import Found

TILE_FIGURES = ("variance", "worst", "accuracy")  # figures that a verdict shows large
FAIRER = ("fairer", "less fair")
WAYS = {  # how a strategy stands against the reference
    "better": FAIRER[0],
    "worse": FAIRER[1],
    "identical": "identical",
    "undecided": "undecided",
}
NO_RUN_YET = "No run has been evaluated yet."


class Tile(NamedTuple):
    """A figure of the named strategy, as its change against the reference."""

    name: str
    change: str  # with its sign
    half: str  # This is half of the 95 % interval, empty where there is none.
    unit: str
    way: str  # It is "better", "worse", "identical" or "undecided".
    now: str
    then: str


@dataclass
class Verdict:
    """What a page says first."""

    headline: str
    sentence: str = ""
    remarks: list[str] = field(default_factory=list)  # what to know beside it, a sentence each
    where: str = ""  # It names the folders, where there are several.
    so_far: str = ""  # "so far, round 12 of 60"
    named: str = ""  # the strategy it is about
    base: str = ""  # the reference, if there is one
    tiles: list[Tile] = field(default_factory=list)
    table: Grid | None = None  # every strategy against the reference
    tally: str = ""  # the table in a line

    @property
    def text(self) -> str:
        """All of it in a line or two."""
        front = f"{self.where}: " if self.where else ""
        front += f"{self.so_far}: " if self.so_far else ""
        stop = "" if self.headline.endswith(".") else "."
        return " ".join(
            [f"{front}{self.headline}{stop}", *[self.sentence] * bool(self.sentence), *self.remarks]
        )


class VerdictWords(ComparedRows):
    """What is said of rows that are compared."""

    clients: ClientScores | None = None  # None where they are not known one by one

    def verdict(self) -> Verdict:
        base, ranked = self.base, self.comparable()
        rivals = [x for x in ranked if x != base]
        if base and not rivals:
            few = f"No strategy shares its seeds with {base}, so none can be compared"
            return Verdict(few, f"Run them with the seeds of {base}.", named=self.labels[0])
        first = ranked[0]
        near = self.near_best_mean(ranked)
        fairer = [x for x in rivals if base and self.way(x) == "better"]
        best = next((x for x in near if x in fairer), near[0])
        same = self.same(base or first)
        others = [x for x in (best, first, *rivals) if x != base]
        named = next((x for x in others if x not in same), others[0])
        other = base or first
        table = self.table(other)
        return Verdict(
            self.headline(first, best, ranked, fairer),
            self.sentence(named, first, ranked),
            self.remarks(named, same),
            named=named,
            base=base,
            tiles=self.tiles(named) if base else [],
            table=table,
            tally=f"{len(table.rows) - 1} strategies against {other}: {self.counts(other)}",
        )

    def same(self, other: str) -> list[str]:
        """The rows with the figures of another one, to the last digit, seed by seed."""
        told = {x: {seed: tuple(f) for seed, f in self.found[x].items()} for x in self.labels}
        return [x for x in self.labels if x != other and repr(told[x]) == repr(told[other])]

    def remarks(self, named: str, same: Sequence[str]) -> list[str]:
        """What to know beside the verdict."""
        out = []
        if self.base and self.has_other_seeds(named, self.base):
            both = self.standing(named, self.base).seeds
            out.append(f"Compared under the {_seeds(both)} that both have.")
        own = [x for x in same if has_personal_models(x)] if self.base else []
        if own:
            out.append(
                f"{listed([*own, self.base])} agree in every digit because they train the same "
                "shared model; only the personal models beside it differ."
            )
        if self.base and (rest := [x for x in same if x not in own]):
            out.append(f"{listed([*rest, self.base])} agree in every digit.")
        return out

    def way(self, label: str) -> str:
        return self.standing(label, self.base).way

    def headline(self, first: str, best: str, ranked: Sequence[str], fairer: Sequence[str]) -> str:
        """The fairest of all, and the fairest at nearly the best mean where that is another."""
        base, many = self.base, len(self.labels)
        tied = [x for x in ranked if math.isclose(self.spread(x), self.spread(first))]
        if len(tied) > 1:
            return self.tie(tied, best, fairer)
        clear = all(x == first or self.standing(x, first).way == "worse" for x in self.labels)
        clear &= base in ("", first) or first in fairer
        if first == best == base:
            return f"{base} has the lowest variance of {many} strategies"
        if first == best and clear:
            return f"{first} is the fairest of {many} strategies"
        if first == best and first in fairer:
            return f"{first} is fairer than {base}, and looks fairest of {many} strategies"
        seeds = [self.standing(x, base) for x in ranked if x != base] if base else []
        rivals = [x for x in seeds if x.seeds > 1]
        if rivals and not fairer and not any(x.needed for x in rivals):
            return f"No strategy is measurably fairer than {base}"
        doubt = ""
        held = self.standing(next(x for x in (best, first) if x != base), base) if base else None
        if held and not fairer and held.way == "undecided":
            doubt = f", but {held.seeds} seeds are too few to be sure"
            doubt = ", but one seed proves nothing" if held.seeds == 1 else doubt
        elif not base and max(len(self.found[x]) for x in self.labels) == 1:
            doubt = ", but one seed proves nothing"
        if first == best:
            return f"{first} looks fairest of {many} strategies{doubt}"
        front = f"{first} {'is' if clear else 'looks'} fairest of all"
        mean = "" if first in self.near_best_mean(ranked) else " at nearly the best mean"
        if best in fairer:
            return f"{front}; {best} is fairer than {base}{mean}"
        return f"{front}, {best}{mean}{doubt}"

    def tie(self, tied: Sequence[str], best: str, fairer: Sequence[str]) -> str:
        """Several strategies have the lowest variance."""
        who = listed(tied) if len(tied) == 2 else f"{len(tied)} strategies"
        if len(tied) == len(self.labels):
            return f"No difference: {who} have the same variance"
        front = f"{who} share the lowest variance of {len(self.labels)} strategies"
        if tied[0] in fairer:
            return f"{front}, and are fairer than {self.base}"
        if best in fairer:
            return f"{front}; {best} is fairer than {self.base} at nearly the best mean"
        return front

    def only_one_strategy(self) -> Verdict:
        """The sentence for a run with one strategy."""
        (label,) = self.labels
        f, unit = self.mean[label], self.unit
        worst = f"worst {100 * self.share:g} % {self.shown(f.worst, 'worst')}{unit.mark}, "
        worst *= math.isfinite(f.worst)  # lines of a run in progress may not say it
        text = (
            f"Mean {unit.name} {self.shown(f.accuracy, 'accuracy')}{unit.mark}, variance over "
            f"clients {self.variance(f.variance)}, {worst}{_seeds(len(self.found[label]))}."
        )
        if self.clients:
            text = f"{text} {self.clients.worst(label)}".strip()
        return Verdict(f"{label} alone: nothing to compare it with", text, named=label)

    def sentence(self, named: str, first: str, ranked: Sequence[str]) -> str:
        """How far clients stray, whether that is proven, what it costs, and for whom."""
        base, unit = self.base, self.unit
        points = " points" if unit.mark else ""
        if not base:
            own = self.mean[named]
            out = [f"{named} has a variance of {self.variance(own.variance)} over clients"]
            out[0] += f" and a mean of {self.shown(own.accuracy, 'accuracy')}{unit.mark}."
        else:
            now, then = self.stray(named, base)
            out = [
                f"With {named}, clients typically stray {now}{points} from the mean {unit.name}; "
                f"with {base}, {then}{points}.",
                self.proof(named),
                self.cost(named),
            ]
        if self.clients:
            out.append(self.clients.worst(named, base))
        out.append(self.others(named, first, ranked))
        return " ".join(text for text in out if text)

    def stray(self, label: str, other: str) -> list[str]:
        """Two standard deviations, for people who think in points."""
        pairs = ((label, other), (other, label))
        sd = [math.sqrt(self.level(*pair, "variance")) for pair in pairs]
        if not self.unit.mark:
            return [f"{value:.3g}" for value in sd]
        far_apart = min(sd) >= 10 and round(sd[0]) != round(sd[1])
        return [f"{value:.{0 if far_apart else 1}f}" for value in sd]

    def variance(self, value: float) -> str:
        return f"{self.shown(value, 'variance')}{self.unit.square}"

    def proof(self, named: str) -> str:
        """Whether the difference in variance can be chance."""
        it, many = self.standing(named, self.base), self.comparisons(self.base)
        if it.way == "identical" or it.seeds < 2:
            return ""
        corrected = f"corrected for {many} comparisons, " * (many > 1)
        if it.way != "undecided":
            return f"This difference is significant ({corrected}{p_in_words(it.p)})."
        seeds = f"about {it.needed}" if it.needed else f"more than {MOST_SEEDS}"
        text = (
            f"{corrected.capitalize()}{p_in_words(it.p)}: a difference this large could be chance"
        )
        return f"{text}, and {seeds} seeds would decide."

    def cost(self, named: str) -> str:
        """What a strategy costs in the mean, and how many clients gain and lose."""
        it = self.standing(named, self.base, "accuracy")
        span = self.difference_of(named, self.base, "accuracy")
        size = self.shown(abs(span.mean), "accuracy")
        out = "The mean is the same"
        if not math.isnan(span.mean) and float(size):
            points, way = " points" * bool(self.unit.mark), "higher" if span.mean > 0 else "lower"
            out = f"The mean is {size}{points} {way}{' (undecided)' * (it.way == 'undecided')}"
        gains = self.clients.gains(named, self.base) if self.clients else ""
        return f"{out}; {gains}." if gains else f"{out}."

    def others(self, named: str, first: str, ranked: Sequence[str]) -> str:
        """The strategies that are not named yet, by how they stand against the reference."""
        base, unit, out = self.base, self.unit, []
        if first not in (named, base):
            best = max(unit.sign * self.mean[x].accuracy for x in ranked)
            below = self.shown(best - unit.sign * self.mean[first].accuracy, "accuracy")
            below += " points" * bool(unit.mark)
            far = f", at a mean {below} {'above' if unit.lower else 'below'} the best"
            words = self.standing(first, base).words(*FAIRER) if base else "the lowest variance"
            out.append(f"{first}: {words}{far * (first not in self.near_best_mean(ranked))}")
        told = (named, first, base, *self.same(base or first))
        left = [x for x in self.labels if base and x not in told]
        for way, word in WAYS.items():
            if some := [x for x in left if self.way(x) == way]:
                names = listed(sorted(some, key=self.spread))
                short = way == "better" or len(some) <= 3
                title = f"also {word}" if way == "better" else word
                out.append(f"{title}: {names if short else f'{len(some)} others'}")
        text = "; ".join(out)
        if first in (named, base):
            text = capitalised(text)
        return f"{text}." if text else ""

    def counts(self, other: str) -> str:
        """How many strategies stand how against one."""
        ways = [self.standing(x, other).way for x in self.labels if x != other]
        return ", ".join(f"{ways.count(way)} {word}" for way, word in WAYS.items() if way in ways)

    def tiles(self, named: str) -> list[Tile]:
        """The change of three figures against the reference."""
        out = []
        for figure in TILE_FIGURES:
            span = self.difference_of(named, self.base, figure)
            if math.isnan(span.mean):
                continue
            unit = self.unit.square if figure == "variance" else self.unit.mark
            now = self.level(named, self.base, figure)
            then = self.level(self.base, named, figure)
            out.append(
                Tile(
                    axis_name(figure, PLAIN_UNIT._replace(name=self.unit.name), self.share),
                    self.shown(span.mean, figure, "+"),
                    self.shown((span.high - span.low) / 2, figure) if span.bounded else "",
                    (" points" if unit == " %" else unit).strip(),
                    self.standing(named, self.base, figure).way,
                    f"{self.shown(now, figure)}{unit}",
                    f"{self.shown(then, figure)}{unit}",
                )
            )
        return out

    def table(self, other: str) -> Grid:
        """Every strategy against one, the fairest first."""
        figures = {"variance": "variance", "accuracy": "mean"}
        figures["worst"] = f"worst {100 * self.share:g} %"
        head = ["strategy", f"variance{self.unit.square}", f"against {other}"]
        head += [f"{name}, minus {other}" for name in figures.values()]
        body = []
        for x in sorted(self.labels, key=self.spread):
            row = [Cell(x), number(self.mean[x].variance, digits=self.digits["variance"])]
            row.append(Cell("–" if x == other else self.standing(x, other).words(*FAIRER)))
            for figure in figures:
                span = self.difference_of(x, other, figure)
                row.append(Cell("–") if x == other else between(span, self.digits[figure]))
            body.append(row)
        many = self.comparisons(other)
        title = f"Every strategy against {other}"
        if many > 1:
            title += ". Intervals (95 %) are for one comparison, so some exclude 0; the third "
            title += f"column is corrected for all {many}"
        if any(self.has_other_seeds(x, other) for x in self.labels):
            title += "; differences are under the seeds that both have"
        return Grid("beside", title, head, body)

    def shown(self, value: float, figure: str, sign: str = "") -> str:
        """A figure with the digits that the table shows."""
        return f"{value:{sign}.{self.digits[figure]}f}".replace("-", "−")


def judge(found: Found, share: float, unit: Unit, clients: ClientScores | None = None) -> Verdict:
    """The verdict on rows of one federation."""
    if not any(found.values()):
        return Verdict(NO_RUN_YET)
    rows = VerdictWords(found, share, unit)
    rows.clients = clients
    if not rows.labels:
        return Verdict("No score of any run is a finite number.")
    if len(rows.labels) == 1:
        return rows.only_one_strategy()
    return rows.verdict()


def no_model(alone: Sequence[str]) -> str:
    """Why rows of clients alone are no part of a verdict."""
    they = "hands" if len(alone) == 1 else "hand"
    return f"Not compared: {listed(alone)}, which {they} out no shared model."


def own_layers(kept: Sequence[str]) -> str:
    """How rows whose clients keep layers stand beside rows with one model for all."""
    they = "keeps" if len(kept) == 1 else "keep"
    return (
        f"{listed(kept)} {they} some layers at each client, so its clients are scored with layers "
        "of their own; the other strategies give every client the same model."
    )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    if len(names) > 3:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


def as_tree(said: Verdict) -> dict[str, Any]:
    """A verdict for the page's script."""
    tiles = [tile._asdict() for tile in said.tiles]
    return vars(said) | {"tiles": tiles, "table": said.table and for_page(said.table)}
