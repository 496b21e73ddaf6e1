"""Clients one by one: who is served worst, and how much each strategy helps it. No torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmaba.errors import InputError, unknown
from fedmaba.report import data
from fedmaba.report.document import Cell, Document, Grid, between, minus_sign, number
from fedmaba.report.group_tables import Names
from fedmaba.report.json_forms import FORMAT, json_text, metric_in_json
from fedmaba.report.paired import Interval, difference, moments
from fedmaba.report.table import LISTED, capitalised, caption, digits_of
from fedmaba.results.history import History, On
from fedmaba.results.metrics import Unit, finite
from fedmaba.results.run_history import At, Model, RunHistory
from fedmaba.results.selection import good

MAX_CLIENTS_SHOWN = 20  # clients that a terminal shows


class Client(NamedTuple):
    """One client: its score with each strategy, and its differences to the reference."""

    name: str
    examples: float  # This is the mean over seeds of the examples that the client is judged on.
    mean: dict[str, float]  # Its score by row is the mean over the seeds in which it has one.
    seeds: dict[str, int]  # how many these are
    minus: dict[str, Interval]  # The difference by row is under the seeds that both have.


class ClientTable(NamedTuple):
    """All clients, the worst served with the reference first."""

    history: History
    base: str
    labels: list[str]
    clients: list[Client]
    unjudged: int  # clients without a score
    apart: bool  # This says whether each row is a client of one seed.
    model: Model
    at: At

    @property
    def others(self) -> list[str]:
        return [label for label in self.labels if label != self.base]


def table(
    sources: Sequence[data.Source],
    model: Model = "deployed",
    at: At = "last",
    on: On = "test",
    against: str | None = None,
) -> ClientTable:
    """The clients of one federation, compared with the first row, or with the row `against`."""
    history = data.combine(sources).judged_on(on)
    labels = list(dict.fromkeys(run.label for run in history.runs))
    if against is not None and against not in labels:
        raise unknown("row", against, labels)
    if against is not None and len(labels) == 1:
        raise InputError(f"against {against!r}: there is no other row: leave it out")
    base = labels[0] if against is None else against
    owners = [source for source in sources for _ in source.history.runs]
    who, apart = _identities(owners, history.runs)
    unit, done = history.unit, {id(run) for run in good(history)}
    scores: dict[Hashable, dict[str, dict[int, float]]] = {}
    sizes: dict[Hashable, dict[int, float]] = {}
    names: dict[Hashable, str] = {}
    for run, source, keys in zip(history.runs, owners, who, strict=True):
        if id(run) not in done:
            continue
        found = unit.scale * run.accuracy(model)[run.chosen(at, model)].mean(0)
        of = Names(source.data.get("clients") or ())
        for c, key in enumerate(keys):
            if not run.takes_part[c]:
                continue
            names[key] = of.of(c) + (f", seed {run.seed}" if apart else "")
            sizes.setdefault(key, {})[run.seed] = (
                int(run.test_size[c]) if run.SIZES_KNOWN else math.nan
            )
            own = scores.setdefault(key, {}).setdefault(run.label, {})
            if run.test_size[c] and math.isfinite(found[c]):
                own[run.seed] = float(found[c])
    clients = [
        _client(names[key], sizes[key], scores[key], labels, base)
        for key in scores
        if any(scores[key].values())
    ]
    if not clients:
        told = "; ".join(_ended(history))
        smaller = any(run.ended == "diverged" for run in history.runs)
        raise InputError(
            f"no client has a score: {told}" + ": try a smaller --lr" * smaller
            if told
            else "no client has a score yet: wait for the first checkpoint of a run"
        )
    clients.sort(key=lambda client: _order(client, labels, base, unit))
    return ClientTable(history, base, labels, clients, len(scores) - len(clients), apart, model, at)


def _client(
    name: str,
    sizes: Mapping[int, float],
    scores: Mapping[str, Mapping[int, float]],
    labels: Sequence[str],
    base: str,
) -> Client:
    own = {label: scores.get(label, {}) for label in labels}
    return Client(
        name,
        float(np.mean([*sizes.values()])),
        {label: moments([*found.values()])[0] for label, found in own.items()},
        {label: len(found) for label, found in own.items()},
        {label: difference(own[label], own[base]) for label in labels if label != base},
    )


def _order(client: Client, labels: Sequence[str], base: str, unit: Unit) -> tuple[bool, float]:
    """Clients with a score of the reference first; of all, the worst served first."""
    known = [client.mean[x] for x in (base, *labels) if math.isfinite(client.mean[x])]
    return math.isnan(client.mean[base]), unit.sign * known[0]


def _identities(
    owners: Sequence[data.Source], runs: Sequence[RunHistory]
) -> tuple[list[list[Hashable]], bool]:
    """What tells the clients of each run from others, and whether seeds have different clients.

    A name is the same client in every seed. Without names, a number is the same client only where
    the examples are divided in the same way.
    """
    if len({source.division[0] for source in owners}) > 1:
        raise InputError("these runs have different data, so their clients cannot be compared")
    out: list[list[Hashable]] = []
    split: dict[int, Hashable] = {}
    for source, run in zip(owners, runs, strict=True):
        if names := source.data.get("clients") or ():
            out.append([Names(names).of(c) for c in range(run.n_clients)])
            continue
        mine = source.division[1].get(str(run.seed), f"seed {run.seed}")
        if split.setdefault(run.seed, mine) != mine:
            raise InputError(
                f"the runs of seed {run.seed} have different clients, which have no names, so they "
                "cannot be compared: show one part by itself, as RUN/parts/001"
            )
        out.append([(mine, c) for c in range(run.n_clients)])
    return out, len({*split.values()}) > 1


def document(found: ClientTable, title: str = "") -> Document:
    """One row per client: its examples, its score with each strategy, and the differences."""
    unit, on = found.history.unit, found.history.on
    levels = digits_of((x for client in found.clients for x in client.mean.values()), unit)
    spans = digits_of((x.mean for client in found.clients for x in client.minus.values()), unit)
    body = [
        [
            Cell(client.name),
            number(client.examples, digits=0),
            *(number(client.mean[label], digits=levels) for label in found.labels),
            *(between(client.minus[label], spans) for label in found.others),
        ]
        for client in found.clients
    ]
    head = ["client", f"{on} examples", *(f"{label}{unit.mark}" for label in found.labels)]
    head += [f"{label} minus {found.base}" for label in found.others]
    what = capitalised(caption(found.history, found.model, found.at).partition(";")[0])
    over = "one seed each" if found.apart else "mean over seeds"
    words = f"{what}: {unit.name}{unit.mark} of each client, {over}; served worst first"
    if found.others:
        words += "; differences under the same seeds [95 % t-interval]"
    return Document(title, [], [Grid("clients", words, head, body)], foot=_foot(found))


def for_terminal(page: Document, found: ClientTable) -> Document:
    """The worst served clients; of three strategies or more, differences in their own table."""
    (grid,) = page.grids
    rows = grid.rows[:MAX_CLIENTS_SHOWN]
    cut = 2 + len(found.labels) if len(found.labels) > 2 else len(grid.head)
    grids = [replace(grid, head=grid.head[:cut], rows=[row[:cut] for row in rows])]
    if cut < len(grid.head):
        title = f"Minus {found.base} under the same seeds [95 % t-interval]"
        body = [[row[0], *row[cut:]] for row in rows]
        grids[0] = replace(grids[0], title=grid.title.rpartition("; differences")[0])
        grids.append(Grid("differences", title, ["client", *found.others], body))
    left, foot = len(grid.rows) - len(rows), page.foot
    if left:
        more = f"{left:,} more client{'s are' if left > 1 else ' is'} served better with "
        foot = [f"{more}{found.base}: --to csv, json or markdown has all.", *foot]
    return replace(page, grids=grids, foot=[minus_sign(text) for text in foot])


def _foot(found: ClientTable) -> list[str]:
    """Who is served worst and what each strategy does for it, and who is left out."""
    unit, worst = found.history.unit, found.clients[0]
    out = []
    if not math.isnan(worst.mean[found.base]):
        shown = f"{worst.mean[found.base]:.{digits_of([worst.mean[found.base]], unit)}f}"
        text = f"{found.base} serves {worst.name} worst: {unit.name} {shown}{unit.mark}."
        helped = [x for x in found.others if worst.minus[x].seeds]
        text += "".join(f" With {x}: {_help(worst.minus[x], unit)}." for x in helped[:LISTED])
        out.append(text)
    if told := _ended(found.history):
        out.append(f"Left out of every mean: {'; '.join(told)}.")
    if found.apart:
        out.append(
            "These results do not name clients, and each seed divides the examples anew: each row "
            "is a client of one seed."
        )
    if found.unjudged:
        left = f"{found.unjudged:,} client" + "s" * (found.unjudged > 1)
        out.append(
            f"Left out: {left} without {found.history.on} examples or with an undefined "
            f"{unit.name}."
        )
    return out


def _ended(history: History) -> list[str]:
    """What is told of each run that ended early."""
    return list(dict.fromkeys(run.diverged for run in history.runs if run.diverged))


def _help(span: Interval, unit: Unit) -> str:
    """A difference in words, and whether chance explains it."""
    text = span.text(unit=" points" if unit.mark else "", digits=digits_of([span.mean], unit))
    if span.distinguishable:
        return f"{text}, {'better' if unit.sign * span.mean > 0 else 'worse'}"
    return f"{text}, so no difference is shown" if span.bounded else text


def json_document(found: ClientTable) -> str:
    """All clients as one JSON document."""
    return json_text(
        {
            "format": FORMAT,
            "model": found.model,
            "at": found.at,
            "on": found.history.on,
            "metric": metric_in_json(found.history.unit),
            "against": found.base if found.others else None,
            "clients": [
                {
                    "client": client.name,
                    "examples": finite(client.examples),
                    "strategies": [
                        {
                            "strategy": label,
                            "seeds": client.seeds[label],
                            "mean": finite(client.mean[label]),
                            "difference": _span(client.minus.get(label)),
                        }
                        for label in found.labels
                    ],
                }
                for client in found.clients
            ],
        }
    )


def _span(span: Interval | None) -> dict[str, float | None] | None:
    if span is None:
        return None
    return {name: finite(value) for name, value in zip(("mean", "low", "high"), span, strict=False)}
