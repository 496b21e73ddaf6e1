"""The paper's statements, each held against our runs: a number, its interval, a verdict. No torch.

What a statement measures and against which row is told by paper.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmaba.report.document import Cell, Document, Grid
from fedmaba.report.paired import Interval, interval, pairs
from fedmaba.results.history import History
from fedmaba.results.run_history import Model
from laboratory import paper
from laboratory.archive import ArchiveFile, deployed_history
from laboratory.paper import name_of
from laboratory.selection import (
    CHOICES,
    REFERENCE,
    Found,
    by_seed,
    fairness_by_seed,
    tail,
    variances,
)
from laboratory.targets import Target

Claim = dict[str, Any]
SECOND_BEST, MEAN_OF_BASELINES = (
    "second best",
    "mean of the baselines",
)  # instead of a row, in paper.toml
MODELS_AND_ROUNDS: tuple[tuple[Model, str], ...] = (
    ("last", "last"),
    ("last", "best"),
    ("deployed", "last"),
)


def show_claims(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Every statement with its rows."""
    out.text.append(
        "Each statement is held against the last server model, at the last round and at its best "
        "round picked on test data. It is also held against the deployed model (ema:0.98 with 10 "
        "of 100 clients, else poly:8) at the last round. Differences are paired over seeds with a "
        "95 % t-interval. "
        "Holds: our mean reaches the number, and the interval leaves out no effect. Within the "
        "interval: the mean does not reach it, but the interval does. Smaller: the direction "
        "holds, the size does not. Not distinguishable: the interval contains no effect, and not "
        "the number. Cannot tell: it contains both. Contradicted: the effect goes the other way. "
        "Not contradicted: the interval contains no loss, and no loss is all that is said. "
        "Second best: the paper's baseline with the least variance in our runs, of that model and "
        "round, whatever its accuracy; picking it after looking favours the baseline. Mean of the "
        "baselines: of those that the paper has, without rows of which a run diverged."
    )
    head = ["the paper", "what it means", "where", "row", "seeds"]
    head += ["last round", "best round", "deployed model"]
    body, before = [], -1
    for found in found_for(target, batches):
        told = [found.claim["says"], found.claim["reading"]]
        told = told if found.number != before else ["", ""]
        before = found.number
        texts = [verdict_in_words(found.claim, *one) for one in found.by_model_and_round] or [
            "left out"
        ] * len(MODELS_AND_ROUNDS)
        # This measure is over many rounds, of which none is the best.
        if found.claim["measure"] == "steadier":
            texts[1] = "–"
        seeds = str(found.by_model_and_round[0].span.seeds) if found.by_model_and_round else "0"
        line = [*told, found.where, found.row and name_of(found.row), seeds, *texts]
        body.append([Cell(text) for text in line])
    out.grids.append(Grid("claims", "Statement by statement", head, body))


class OurNumber(NamedTuple):
    """Our number for a statement, and the row it was compared with if the statement names none."""

    span: Interval
    against: str = ""


class FoundFor(NamedTuple):
    """What one row of one target says of a statement, by model and round; empty if left out."""

    number: int  # of the statement in paper.toml
    claim: Claim
    where: str
    row: str
    by_model_and_round: list[OurNumber]


class TargetFigures:
    """The runs of a target, whose figures are computed once for each model and round."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._found: dict[tuple[Model, str], Found] = {}

    def values(self, model: Model, at: str) -> Found:
        if (model, at) not in self._found:
            self._found[model, at] = fairness_by_seed(self.history, model, CHOICES[at])
        return self._found[model, at]


def found_for(target: Target, batches: Sequence[ArchiveFile]) -> Iterator[FoundFor]:
    """Every statement, in its order, with all its targets and rows."""
    known, seen = {t.name: t for t in target.uses}, {}
    for number, claim in enumerate(paper.load_paper()["claim"]):
        for name in claim["targets"]:
            if name not in known:
                yield FoundFor(number, claim, name, "", [])
                continue
            if name not in seen:
                seen[name] = TargetFigures(deployed_history(batches, known[name].jobs[0]))
            base = baselines(known[name], claim)
            for row in claim["rows"] if seen[name].values("last", "last") else [""]:
                ours = [
                    our_number(claim, seen[name], row, model, at, base)
                    for model, at in MODELS_AND_ROUNDS
                ]
                yield FoundFor(number, claim, name, row, ours)


def baselines(target: Target, claim: Claim) -> list[str]:
    """The rows of the paper's own table that a statement may be held against."""
    known, without = paper.load_paper().get(target.view.paper, {}), claim.get("without", [])
    rows = [row for row in paper.load_paper()["baselines"] if row in known]
    return [row for row in rows if row.partition(":")[0] not in without]


def our_number(
    claim: Claim, seen: TargetFigures, row: str, model: Model, at: str, base: Sequence[str] = ()
) -> OurNumber:
    """Our number for a statement; `base`: the rows of the paper that it may be held against."""
    against, kind = claim.get("against", REFERENCE), claim["measure"]
    if kind == "steadier":
        curves = variances(seen.history, model)
        ours, theirs = pairs(
            *(
                {seed: float(np.std(tail(curve))) for seed, curve in curves.get(r, {}).items()}
                for r in (row, against)
            )
        )
        return OurNumber(interval(theirs - ours))
    found, figure, shown = seen.values(model, at), claim["figure"], ""
    if against == MEAN_OF_BASELINES:
        whole = _whole(seen.history, base)
        shown, other = f"the mean of {len(whole)} rows", _mean(found, whole, figure)
    else:
        if against == SECOND_BEST:
            against = _second_best(found, row, base)
            shown = name_of(against)
        other = by_seed(found, against, figure)
    ours, theirs = pairs(by_seed(found, row, figure), other)
    with np.errstate(divide="ignore", invalid="ignore"):
        sample = {
            "less": 100 * (1 - ours / theirs),
            "times": theirs / ours,
            "points": ours - theirs,
        }[kind]
    return OurNumber(interval(sample), shown)


def _second_best(found: Found, row: str, base: Sequence[str]) -> str:
    """The baseline of least mean variance, among those with two seeds of the row's or more."""
    rows = [r for r in base if len(found.get(r, {}).keys() & found.get(row, {}).keys()) > 1]
    return min(
        rows, key=lambda r: float(np.mean([*by_seed(found, r, "variance").values()])), default=""
    )


def _whole(history: History, base: Sequence[str]) -> list[str]:
    """The baselines that were run and of which no run diverged."""
    diverged = {run.label for run in history.runs if run.diverged}
    there = {run.label for run in history.runs}
    return [row for row in base if row in there - diverged]


def _mean(found: Found, rows: Sequence[str], figure: str) -> dict[int, float]:
    """The mean of some rows' figures, under each seed that all of them have."""
    own = [by_seed(found, row, figure) for row in rows]
    seeds = set(own[0]).intersection(*own) if own else ()
    return {seed: float(np.mean([one[seed] for one in own])) for seed in seeds}


def verdict_in_words(claim: Claim, span: Interval, against: str = "") -> str:
    """Our number with its interval, the verdict, and what it was held against if picked."""
    if span.seeds < 2 or np.isnan(span.mean):
        return judgement(claim, span)
    sign, unit = {"times": ("", " x"), "less": ("+", " %")}.get(claim["measure"], ("+", ""))
    picked = f" (against {against})" if against else ""
    return f"{span.text(sign, unit)}: {judgement(claim, span)}{picked}"


def judgement(claim: Claim, span: Interval) -> str:
    """What our number says of a statement."""
    nothing = 1.0 if claim["measure"] == "times" else 0.0
    if span.seeds < 2:
        return "not run" if not span.seeds else "one seed only"
    if np.isnan(span.mean):
        return "undefined: the other's is 0"
    if not span.bounded:
        return "no interval"
    if span.low <= nothing <= span.high:
        if claim.get("at_least"):
            return "not contradicted"
        return "cannot tell" if nothing < claim["number"] <= span.high else "not distinguishable"
    if span.high < nothing:
        return "contradicted"
    if span.mean >= claim["number"]:
        return "holds"
    return "within the interval" if span.high >= claim["number"] else "smaller"
