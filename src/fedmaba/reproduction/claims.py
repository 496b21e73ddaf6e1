"""The paper's statements, each held against our runs: a number, its interval, a verdict. No torch.

What a statement measures and against which row is told by paper.toml.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmaba.report.document import Cell, Document, Grid
from fedmaba.report.paired import Interval, interval, pairs
from fedmaba.reproduction import paper
from fedmaba.reproduction.archive import ArchiveFile, deployed_history
from fedmaba.reproduction.targets import Target
from fedmaba.results.history import History, Model
from fedmaba.results.selection import (
    CHOICES,
    REFERENCE,
    by_seed,
    fairness_by_seed,
    tail,
    variances,
)

Claim = dict[str, Any]
LOOKS: tuple[tuple[Model, str], ...] = (("last", "last"), ("last", "best"), ("deployed", "last"))


def show_claims(out: Document, target: Target, batches: Sequence[ArchiveFile]) -> None:
    """Every statement with its rows."""
    out.text.append(
        "Each statement is held against the last server model at the last round and at its best "
        "round picked on test data, and against the deployed model (ema:0.98 with 10 of 100 "
        "clients, else poly:8) at the last round, paired over seeds with a 95 % t-interval. "
        "Holds: our mean reaches the number, and the interval leaves out no effect. Within the "
        "interval: the mean does not reach it, but the interval does. Smaller: the direction "
        "holds, the size does not. Not distinguishable: the interval contains no effect, and not "
        "the number. Cannot tell: it contains both. Contradicted: the effect goes the other way. "
        "Not contradicted: the interval contains no loss, and no loss is all that is said. "
        "The paper's sentences were not at hand: what each number is held against is our reading."
    )
    known = {t.name: t for t in target.uses}
    head = ["the paper", "our reading", "where", "row", "seeds"]
    head += ["last round", "best round", "deployed model"]
    body = []
    for claim in paper.load()["claim"]:
        told = [claim["says"], claim["reading"]]
        for name in claim["targets"]:
            if name not in known:
                line = [*told, name, "", "0", *["left out"] * len(LOOKS)]
                body.append([Cell(text) for text in line])
                told = ["", ""]
                continue
            history = deployed_history(batches, known[name].jobs[0])
            rows = {paper.name_of(row): row for row in claim["rows"]}
            if not fairness_by_seed(history, "last", CHOICES["last"]):
                rows = {"": ""}
            for title, row in rows.items():
                spans = [our_number(claim, history, row, model, at) for model, at in LOOKS]
                texts = [said(claim, span) for span in spans]
                if claim["measure"] == "steadier":  # said of many rounds: none is the best
                    texts[1] = "–"
                line = [*told, name, title, str(spans[0].seeds), *texts]
                body.append([Cell(text) for text in line])
                told = ["", ""]
    out.grids.append(Grid("claims", "Statement by statement", head, body))


def our_number(claim: Claim, history: History, row: str, model: Model, at: str) -> Interval:
    """Our number for a statement."""
    base, kind = claim.get("against", REFERENCE), claim["measure"]
    if kind == "steadier":
        found = variances(history, model)
        ours, theirs = pairs(
            *(
                {seed: float(np.std(tail(curve))) for seed, curve in found.get(r, {}).items()}
                for r in (row, base)
            )
        )
        return interval(theirs - ours)
    seen = fairness_by_seed(history, model, CHOICES[at])
    ours, theirs = pairs(*(by_seed(seen, r, claim["figure"]) for r in (row, base)))
    with np.errstate(divide="ignore", invalid="ignore"):
        sample = {
            "less": 100 * (1 - ours / theirs),
            "more": 100 * (ours / theirs - 1),
            "times": theirs / ours,
            "points": ours - theirs,
        }[kind]
    return interval(sample)


def said(claim: Claim, span: Interval) -> str:
    """Our number with its interval and the verdict."""
    if span.seeds < 2 or np.isnan(span.mean):
        return judgement(claim, span)
    sign, unit = {"times": ("", " x"), "less": ("+", " %"), "more": ("+", " %")}.get(
        claim["measure"], ("+", "")
    )
    return f"{span.text(sign, unit)}: {judgement(claim, span)}"


def judgement(claim: Claim, span: Interval) -> str:
    """What our number says of a statement."""
    nothing = 1.0 if claim["measure"] == "times" else 0.0
    if span.seeds < 2:
        return "not run" if not span.seeds else "one seed only"
    if np.isnan(span.mean):
        return "undefined: FedAvg's is 0"
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
