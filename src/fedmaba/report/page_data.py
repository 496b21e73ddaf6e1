"""What the page shows, as plain numbers: run folders in, one JSON-ready tree out.

Everything a reader could check against `fedmaba table` comes from `CurrentFigures`; nothing is
computed twice, and a figure has the same digits wherever it stands. Long runs are thinned here,
evenly, and the tree says so. No torch.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedmaba.errors import InputError
from fedmaba.experiment.trials import load_search, load_trials
from fedmaba.report import (
    cost_tables,
    document,
    federation,
    federation_commands,
    group_tables,
    numbers,
    page_numbers,
    verdict,
    verdict_words,
)
from fedmaba.report.current_figures import CurrentFigures
from fedmaba.report.data import ATS, MODELS, Source, short_names
from fedmaba.report.document import Cell
from fedmaba.report.row_styles import algorithm, hues, reference, shares_no_model
from fedmaba.report.table import (
    FIGURES,
    capitalised,
    caption,
    for_screen,
    grid_of_rows,
    incentive_grids,
    more_figures,
    noise_note,
    privacy_note,
    silence,
    unit_in_words,
)
from fedmaba.report.trials_table import trials_grid
from fedmaba.results import run_folder
from fedmaba.results.costs import Goal, spent_until_evaluations, turn_counts
from fedmaba.results.history import History
from fedmaba.results.metrics import Fairness, Unit
from fedmaba.results.run_history import At, IntArray, Model, RunHistory
from fedmaba.results.selection import REFERENCE
from fedmaba.strategies.base import Shown

ROUNDS = 400  # The page embeds at most this many rounds of a run.
CLIENTS = 2000  # The page shows at most this many clients of a run one by one.
# All runs' client x round tables together take at most this many bytes before base64.
BYTES = 2_800_000
POINTS = 12_000  # of the curves of all runs together
ADDS_UP = 1e-3  # Coefficients whose sum is nearer to 1 than this are shown as they are.
DIGITS = 2  # Every figure on the page has this many digits behind the point.


def tree(
    sources: Sequence[Source], share: float | None = None, until: Sequence[Goal] = ()
) -> dict[str, Any]:
    """Everything the page needs; worst and best by the runs' own share unless told."""
    if not sources:
        raise InputError("nothing to report on: name at least one run folder")
    scores = CurrentFigures(sources, share)
    labels, unit, runs = scores.labels, scores.unit, scores.history.runs
    keep = _keep(runs)
    shown = numbers.of_runs(runs)
    models = scores.history.models()
    switches: list[tuple[Model, At]] = [(model, at) for model in models for at in ATS]
    return {
        "models": list(models),
        "share": scores.share,
        "unit": unit._asdict(),
        "strategies": [
            {"label": label, "base": algorithm(label), "hue": hue, "variant": variant}
            | {"alone": shares_no_model(label)}
            for label, (hue, variant) in zip(labels, hues(labels), strict=True)
        ],
        "reference": reference(labels),
        "reference_missing": "" if REFERENCE in map(algorithm, labels) else REFERENCE,
        "numbers": [
            {"title": capitalised(n.title or n.name), "about": n.about, "limit_name": n.limit_name}
            for n in shown
        ],
        "runs": [
            _run(scores, r, labels.index(run.label), keep)
            | {"info": _info(run, shown, _places(len(runs)))}
            for r, run in enumerate(runs)
        ],
        "folders": [
            _folder(source, name)
            for source, name in zip(sources, short_names(sources), strict=True)
        ],
        "federations": [
            {"name": source.name, "words": federation.how_far(source.federation)}
            | {"tables": [document.for_page(grid) for grid in federation.tables(source.federation)]}
            for source in sources
            if source.federation is not None
        ],
        "model": _first_model(scores),
        "searches": _searches(sources, unit),
        "groups": _groups(scores),
        "tables": {f"{model}.{at}": _table(scores, model, at) for model, at in switches},
        "verdicts": {
            f"{model}.{at}": [
                verdict_words.as_tree(said) for said in verdict.verdicts_of(scores, model, at)
            ]
            for model, at in switches
        },
        "alone": {f"{model}.{at}": _alone(scores, model, at) for model, at in switches},
        "costs": _costs(scores, switches, until),
        "notes": notes(sources, scores.history, keep, unit),
        "live": [_live(scores, i) for i, source in enumerate(sources) if not source.finished],
    }


def _first_model(scores: CurrentFigures) -> Model:
    """The model that the page shows first: the deployed one, if any of it was evaluated."""
    known = {
        model: any(
            math.isfinite(figures.accuracy)
            for own in scores.values(model, "last").values()
            for figures in own.values()
        )
        for model in MODELS
    }
    return "last" if known["last"] and not known["deployed"] else "deployed"


def _searches(sources: Sequence[Source], unit: Unit) -> list[dict[str, Any]]:
    """Of each folder of a search for settings: what was picked, then all trials."""
    out = []
    for path in dict.fromkeys(source.path for source in sources if source.path):
        if (there := load_search(path)) is not None:
            grid = trials_grid(load_trials(path), unit, str(there["search"].get("pick", "")))
            picked = [row for row in grid.rows if row[-1].rank == 0]
            grids = replace(grid, rows=picked), replace(grid, title="All trials")
            tables = dict(zip(("picked", "all"), map(document.for_page, grids), strict=True))
            out.append({"name": path.name} | tables)
    return out


def _keep(runs: Sequence[RunHistory]) -> int:
    """How many rounds of the client x round tables there is room for."""
    bytes_ = 0
    for run in runs:
        width = min(run.n_clients, CLIENTS)
        most = int(run.test_size.max(initial=0))
        whole = 1 if most < 255 else 2 if most < 65535 else 4
        if "deployed.accuracy" in run.tables and not _are_counts(run):
            whole = 4
        bytes_ += width * (whole + 4 + 4 * ("reported_loss" in run.tables))
    return max(2, min(ROUNDS, BYTES // max(1, bytes_)))


def _are_counts(run: RunHistory) -> bool:
    last = np.asarray(run.tables["deployed.accuracy"][-1:], np.float64)
    return "of" in page_numbers.shares(last, run.test_size)


def _places(runs: int) -> int:
    """How many points of a run's curves there is room for."""
    return max(2, min(ROUNDS, POINTS // max(1, runs)))


def thin(count: int, keep: int) -> IntArray:
    """At most `keep` of `count` places, evenly, the first and the last among them."""
    if count <= keep:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, keep).round().astype(np.int64))


def notes(sources: Sequence[Source], history: History, keep: int, unit: Unit) -> list[str]:
    """What the reader must know before trusting a picture."""
    out = [] if unit.mark else [f"This page shows {unit_in_words(unit)}."]
    if history.on == "validation":
        out.append("Every score and loss of a client on this page is on its validation examples.")
    longest = max((len(run.tables.get("round", ())) for run in history.runs), default=0)
    tested = max((len(run.tables.get("evaluated", ())) for run in history.runs), default=0)
    many = [f"{longest:,} rounds"] * (longest > keep)
    many += [f"{tested:,} evaluations"] * (tested > keep)
    if many:
        out.append(
            f"Of up to {' and '.join(many)} of a run, {keep}{' each' * (len(many) > 1)} are "
            f"embedded client by client, and up to {_places(len(history.runs))} as curves, evenly "
            "chosen, first and last included; tables, verdict and counts use all of them."
        )
    most = max((run.n_clients for run in history.runs), default=0)
    if most > CLIENTS:
        out.append(
            f"Of {most:,} clients, {CLIENTS:,} are shown one by one, evenly chosen; tables, "
            "verdict and curves over rounds use all of them."
        )
    out += [f"{capitalised(told)}." for told in silence(history.runs)]
    if any(run.unseen_size is not None for run in history.runs):
        out.append(
            "Clients that took no part in training are in a table of their own; all other figures "
            "are of the others."
        )
    if any((run.takes_part & (run.test_size == 0)).any() for run in history.runs):
        out.append(
            "Clients without test examples, as hostile ones, are not in the figures; weights and "
            "losses show them."
        )
    left = [run for run in history.runs if run.judged() < (run.test_size > 0).sum()]
    out += dict.fromkeys(run.UNJUDGED.format(name=unit.name) for run in left)
    kinds = {(s.data.get("sha256"), str(s.about.get("partition"))) for s in sources}
    if len(sources) > 1 and len(kinds) > 1:
        out.append(
            "These folders differ in data or partition: compare strategies within a folder, not "
            "across them."
        )
    if noise := noise_note(history.summary(), history.runs, history.on):
        out.append(f"Deployed model, at the last round: {document.minus_sign(noise)}.")
    if spent := privacy_note(history.runs, sources[0].lines if len(sources) == 1 else ()):
        out.append(f"{capitalised(spent)}.")
    out += [run.diverged for run in history.runs if run.diverged]
    for source in sources:
        told = source.federation.notes() if source.federation is not None else []
        where = f"{source.name}: " if len(sources) > 1 else ""
        out += [f"{capitalised(where + text)}." for text in told]
    return out


def _groups(scores: CurrentFigures) -> list[dict[str, Any]]:
    """The part by groups of people of each source that has some, rows named as everywhere else."""
    out = []
    for i, source in enumerate(scores.sources):
        pairs = zip(scores.history.runs, scores.owner, strict=True)
        own = replace(source.history, runs=[run for run, owner in pairs if owner == i])
        if group_tables.has_groups(own):
            names = group_tables.Names(tuple(source.data.get("clients") or ()))
            out.append({"name": source.name} | group_tables.page_part(own, names))
    return out


def _alone(scores: CurrentFigures, model: Model, at: At) -> dict[str, Any] | None:
    """What clients gain over training alone; None without a row `local`."""
    for grid in map(for_screen, incentive_grids(scores.history, model, at)):
        return document.for_page(replace(grid, title=capitalised(grid.title)))
    return None


def _costs(
    scores: CurrentFigures, switches: Sequence[tuple[Model, At]], until: Sequence[Goal]
) -> dict[str, list[dict[str, Any]]]:
    """What the rounds cost, and who was asked and heard; empty where no run recorded it."""
    out = {}
    for model, at in switches:
        if found := cost_tables.grids(scores.history, model, at, scores.share, until):
            tables = [replace(for_screen(grid), title=grid.title) for grid in found]
            out[f"{model}.{at}"] = [*map(document.for_page, tables)]
    return out


def _table(scores: CurrentFigures, model: Model, at: At) -> dict[str, Any]:
    """The table as `fedmaba table` prints it, with the numbers to sort by."""
    rows, unit = scores.rows(model, at), scores.unit
    title = caption(scores.history, model, at, unit)
    going = [p for p, s in zip(scores.progress, scores.sources, strict=True) if not s.finished]
    if going and any(row.seeds for row in rows):
        title += f"; so far, {', '.join(dict.fromkeys(p.words for p in going))}"
    grid = grid_of_rows("levels", title, rows, scores.share, unit=unit)
    figures, out = slice(2, 2 + len(FIGURES)), []
    for row, line, more in zip(rows, grid.rows, more_figures(rows, unit).rows, strict=True):
        cells = line[figures]
        out.append(
            {
                "label": row.label,
                "seeds": row.seeds,
                "note": row.note,
                "cells": [[document.minus_sign(cell.text), cell.rank] for cell in cells],
                "values": [_figure(cell.value, unit) for cell in cells],
                "sd": [_figure(cell.sd, unit) for cell in cells],
                "more": [document.minus_sign(cell.text) for cell in more[1:]],
                **{to: document.line([line[0], *cells], to) for to in document.MARKED},
            }
        )
    head = [Cell("strategy"), *map(Cell, grid.head[figures])]
    return {
        "caption": title,
        "columns": grid.head[figures],
        **{to: document.line(head, to) for to in document.MARKED},
        "rows": out,
    }


def _run(scores: CurrentFigures, r: int, strategy: int, keep: int) -> dict[str, Any]:
    """One run: curves, and its client x round tables as base64."""
    run = scores.history.runs[r]
    out: dict[str, Any] = {
        "strategy": strategy,
        "folder": scores.owner[r],
        "seed": run.seed,
        "deploy": run.deploy,
        "diverged": run.diverged,
        "n": run.n_clients,
        "fair": _fair(scores, r),
        "figures": {
            f"{model}.{at}": _means(scores.chosen(r, model, at), scores.unit)
            for model in scores.history.models()
            for at in ATS
        },
    }
    who = thin(run.n_clients, CLIENTS)
    out["client"] = who.tolist() if len(who) < run.n_clients else None
    size = run.test_size[who]
    if len(run.tables.get("evaluated", ())):
        at = thin(len(run.tables["evaluated"]), keep)
        out["evaluated"] = run.evaluated[at].tolist()
        out["accuracy"] = page_numbers.shares(run.accuracy()[at][:, who], size, exact=False)
        out["final"] = {}
        for model in scores.history.models():
            accuracy = run.accuracy(model)
            for when in ATS:
                some = run.chosen(when, model)
                mean = accuracy[some][:, who].mean(axis=0, keepdims=True)
                out["final"][f"{model}.{when}"] = page_numbers.shares(mean, size, len(some))
    if (turns := turn_counts(run)) is not None:
        out["heard"], out["of"] = turns[1][who].tolist(), len(run.tables["round"])
    if len(run.tables.get("round", ())):
        at = thin(len(run.tables["round"]), keep)
        out["rounds"] = run.column("round")[at].tolist()
        weights = run.weights()[at]
        out["weight"] = page_numbers.floats(weights[:, who])
        total = np.nansum(weights, axis=1)
        # As with q-FFL, all clients take a shorter or a longer step.
        if np.abs(total - 1).max() > ADDS_UP:
            out["total"] = [_short(v) for v in total]
        if "reported_loss" in run.tables:
            client, loss = run.column("client"), run.column("reported_loss")
            table = np.full((len(client), run.n_clients), np.nan)
            np.put_along_axis(table, client, loss.astype(np.float64), axis=1)
            out["loss"] = page_numbers.floats(table[at][:, who])
    return out


def _means(found: Sequence[Fairness], unit: Unit) -> list[float | None]:
    """The table's figures of some evaluations."""
    if not found:
        return [None] * len(FIGURES)
    mean = Fairness(*np.mean(found, axis=0))
    return [_figure(getattr(mean, name), unit) for name in FIGURES]


def _fair(scores: CurrentFigures, r: int) -> dict[str, Any]:
    """The figures over rounds of both models, and newer ones from the lines of a live run.

    Where bytes and time are recorded, also what was spent until then.
    """
    run, newer, source = scores.history.runs[r], scores.newer[r], scores.sources[scores.owner[r]]
    rounds = run.evaluated.tolist() if "evaluated" in run.tables else []
    at = thin(len(rounds) + len(newer), _places(len(scores.history.runs)))
    known, fresh = at[at < len(rounds)], [newer[i - len(rounds)] for i in at if i >= len(rounds)]
    out: dict[str, Any] = {"round": [*(rounds[i] for i in known), *(x["round"] for x in fresh)]}
    for model in scores.history.models():
        found = run.fairness(model, scores.share, known, scores.unit) if rounds else []
        found = [*found, *(scores.line(line, model, source) for line in fresh)]
        out[model] = {
            name: [_figure(getattr(f, name), scores.unit) for f in found] for name in FIGURES
        }
    if rounds and "turnout.answer" in run.tables:
        down, up, hours = spent_until_evaluations(run)[known].T
        for name, spent in (("gigabytes", down + up), ("hours", hours)):
            if np.isfinite(spent).all():
                out[name] = [*map(_short, spent), *[None] * len(fresh)]
    return out


def _info(run: RunHistory, shown: Sequence[Shown], keep: int) -> dict[str, Any]:
    """The effective number of clients, and what else is shown of the strategies, or None."""
    if not len(run.tables.get("round", ())):
        return {}
    at = thin(len(run.tables["round"]), keep)
    effective = [_short(v) for v in numbers.effective_clients(run, at)]
    own = {number.name: number for number in numbers.of_run(run)}
    out: list[dict[str, Any] | None] = []
    for name in (number.name for number in shown):
        values = numbers.values(run, name)
        if values is None:
            out.append(None)
            continue
        told, above = own[name], int((values > 0).sum())
        out.append(
            {
                "values": [_short(v) for v in values[at]],
                "limit": told.limit,
                "above": [above, len(values), told.above_zero, told.always_zero],
            }
        )
    return {"rounds": run.column("round")[at].tolist(), "effective": effective, "numbers": out}


def _folder(source: Source, name: str) -> dict[str, Any]:
    data, labels = source.data, {}
    for seed, counts in source.labels.items():
        who = thin(len(counts), CLIENTS)
        labels[str(seed)] = {"counts": page_numbers.counts(counts[who]), "n": len(who)}
    names = [str(client) for client in data.get("clients") or ()]
    if len(names) > CLIENTS:
        names = [names[i] for i in thin(len(names), CLIENTS)]
    return {
        "name": name,
        "classes": [str(one) for one in data.get("classes") or ()],
        "clients": names,
        "labels": labels,
    }


def _live(scores: CurrentFigures, i: int) -> dict[str, Any]:
    """How far an unfinished run is."""
    source, at = scores.sources[i], scores.progress[i]
    worker = run_folder.worker(source.path) if source.held and source.path else None
    return {
        "name": source.name,
        "left": source.left,
        "done": at.done,
        "clock": at.clock,
        "rounds": source.rounds,
        "held": source.held,
        "seconds": _short(np.mean(source.seconds)) if len(source.seconds) > 1 else None,
        "stop": f"kill -INT {worker}" if worker and source.federation is None else "",
        "resume": f"fedmaba resume {shlex.quote(str(source.path or source.name))}"
        if source.federation is None
        else federation_commands.resume_command(source.federation),
    }


def _figure(value: float | None, unit: Unit) -> float | None:
    """A figure with the digits that a table shows: no second rounding can differ."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}f}") if unit.mark else _short(value)


def _short(value: Any) -> float | None:
    """Short enough for a page, exact enough for a hover."""
    return float(f"{float(value):.6g}") if value is not None and math.isfinite(value) else None
