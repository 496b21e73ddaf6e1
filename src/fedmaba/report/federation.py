"""A real federation for people: its sites, who answered, who was left out and why. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedmaba.report.document import Cell, Grid, number
from fedmaba.results.joining import some_of
from fedmaba.results.metrics import PERCENT
from fedmaba.results.state_folder import ERROR_METRIC, NEARLY_ALL, FederationState
from fedmaba.strategies.base import LOSSES_INFO, PRIVACY_INFO

NEWEST = 50  # At most this many lines about sites that were left out are shown.


def how_far(state: FederationState) -> list[str]:
    """How far it is, in a few sentences."""
    of = f" of {state.asked}" if state.asked else ""
    if not state.rounds:
        here = f"; {len(state.sites)} sites are known" if state.sites else ""
        return [f"No round{of} has ended yet{here}."]
    line = state.rounds[-1]
    out = [f"Round {line['round']}{of}: {_answered(line)}."]
    when = state.timing.get(line["round"])
    if when is None:
        out.append("When it ended was not recorded: an older version wrote this folder.")
    else:
        out.append(f"It ended at {when['ended']} and took {when['seconds']:.3g} s.")
    told = {k: v for k, v in (line.get("info") or {}).items() if v is not None}
    epsilon, delta = (told.pop(name, None) for name in PRIVACY_INFO)
    of_losses, losses_delta = (told.pop(name, None) for name in LOSSES_INFO)
    if told:
        out.append("The strategy: " + ", ".join(f"{k} {v:.3g}" for k, v in told.items()) + ".")
    out += secure_sums(state)
    if epsilon is not None and delta is not None:
        out.append(f"Privacy spent by the busiest site: epsilon {epsilon:.3g} at delta {delta:g}.")
    if of_losses is not None and losses_delta is not None:
        out.append(
            f"Spent on losses by the busiest site: epsilon {of_losses:.3g} at delta "
            f"{losses_delta:g}. This is about losses alone: the model has no noise."
        )
    return out


def secure_sums(state: FederationState) -> list[str]:
    """What the server saw of single changes: in the last round, and in how many it saw more."""
    summed = [line for line in state.rounds if line.get("secure")]
    if not summed:
        return []
    out = [secure_words(summed[-1])]
    bare = sum(heaviest_site(line) >= NEARLY_ALL for line in summed)
    if bare:
        out.append(
            f"In {bare} of {len(summed)} rounds one site held at least {NEARLY_ALL:.0%} of the "
            "weight: most_share=0.9 refuses such sums."
        )
    return out


def secure_words(line: Mapping[str, Any]) -> str:
    """What the server saw of single changes in one round."""
    what, held = f"Secure sum of {line['secure'].get('summed')} changes", heaviest_site(line)
    if held >= NEARLY_ALL:
        return f"{what}: one site holds {held:.1%} of the weight: the sum is nearly its change."
    return f"{what}: the server saw no single one."


def heaviest_site(line: Mapping[str, Any]) -> float:
    """The part of the weight of a round that one site holds, at most; 0 where nothing counted."""
    weights = [_value(told.get("weight")) for told in line["sites"].values()]
    held = [w for w in weights if w >= 0]  # not where it is nan
    told = _value(line["secure"].get("largest"))  # older versions did not record it
    return told if told >= 0 else max(held) / sum(held) if any(held) else 0.0


def _answered(line: Mapping[str, Any]) -> str:
    """Who answered in a round, in a few words."""
    many, asked = len(line["sites"]), line.get("asked")
    missing = sorted(set(asked or ()) - set(line["sites"]))
    text = f"{many} of {len(asked)} sites answered" if asked else f"{many} sites answered"
    return text + (f", without {some_of(missing, 5)}" if missing else "")


def tables(state: FederationState) -> list[Grid]:
    """All tables of a federation."""
    return [*grids(state), *events(state)]


def grids(state: FederationState) -> list[Grid]:
    """The table of sites, and that of who was left out, newest first."""
    if not state.rounds:
        return []
    return [sites(state), *([left_out(state)] if any(x["refused"] for x in state.rounds) else [])]


def events(state: FederationState) -> list[Grid]:
    """The newest lines of the server's log, newest first, if it has any."""
    if not state.events:
        return []
    body = [
        [
            Cell(e["time"]),
            Cell(e["level"]),
            *(Cell("–" if e[k] is None else str(e[k])) for k in ("round", "site", "text")),
        ]
        for e in reversed(state.events)
    ]
    title = f"The server's log, its newest {len(body)} lines, newest first"
    return [Grid("events", title, ["when, in UTC", "level", "round", "site", "what"], body)]


def sites(state: FederationState) -> Grid:
    """Each site: how often it answered, and what it told when it answered last."""
    wrong = state.metric is ERROR_METRIC
    unit = "" if wrong else PERCENT.mark
    score = "error" if wrong else "accuracy"
    name = f"{score}{unit}"
    head = ["site", "answered", "last in round", "weight", "loss", name, "examples"]
    handed = state.finals[-1]["deployed"] if state.finals else {}
    head += [f"{name}, deployed"] * bool(handed)
    body = []
    for site in state.sites:
        theirs = [line for line in state.rounds if site in line["sites"]]
        asked = [line for line in state.rounds if site in (line.get("asked") or line["sites"])]
        told = theirs[-1]["sites"][site] if theirs else {}
        scale = 1.0 if wrong else PERCENT.scale
        row = [
            Cell(site),
            Cell(f"{len(theirs)} of {len(asked)}"),
            Cell(str(theirs[-1]["round"]) if theirs else "–"),
            number(_value(told.get("weight")), digits=4),
            number(_value(told.get("loss")), digits=4),
            number(scale * _value(told.get(score)), digits=4 if wrong else 2),
            Cell(str(told["examples"]) if told.get("examples") is not None else "–"),
        ]
        if handed:
            row.append(number(scale * _value(handed.get(site)), digits=4 if wrong else 2))
        body.append(row)
    title = "Sites: rounds answered of those asked for, and the numbers of the last answer"
    return Grid("sites", title, head, body)


def left_out(state: FederationState) -> Grid:
    """Who did not count in which round, and why."""
    found = [(line["round"], why) for line in reversed(state.rounds) for why in line["refused"]]
    title = f"Left out, {len(found)} in all"
    title += f", the newest {NEWEST}" if len(found) > NEWEST else ""
    body = [[Cell(str(t)), Cell(why)] for t, why in found[:NEWEST]]
    return Grid("left_out", title, ["round", "who and why"], body)


def _value(told: object) -> float:
    return float(told) if isinstance(told, int | float) else math.nan
