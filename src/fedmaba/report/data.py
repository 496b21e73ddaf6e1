"""What the page and the figures show, as plain numbers: run folders in, one JSON-ready tree out.

Everything a reader could check against `fedmaba table` comes from `History.summary`; nothing is
computed twice. Long runs are thinned here, evenly, and the tree says so.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.report import document, escape, numbers
from fedmaba.report.document import Cell
from fedmaba.report.table import (
    FIGURES,
    capitalised,
    caption,
    grid_of_rows,
    more_figures,
    plainly,
)
from fedmaba.results import files, run_folder
from fedmaba.results.history import (
    At,
    FloatArray,
    History,
    IntArray,
    Model,
    Row,
    RunHistory,
    metric_of,
)
from fedmaba.results.metrics import PERCENT, PLAIN, Unit
from fedmaba.results.selection import REFERENCE
from fedmaba.strategies import BUILT_IN
from fedmaba.strategies.base import Shown

ROUNDS = 400  # of a run that the page embeds at most
CLIENTS = 2000  # of a run that the page shows one by one
CELLS = 450_000  # client x round numbers of all runs together, of each kind
HUES = (BUILT_IN[0], *reversed(BUILT_IN[1:]))  # the place of an algorithm in a palette
NEAR = 5.0  # points of mean accuracy within which a verdict looks for the fairest
MODELS: tuple[Model, ...] = ("deployed", "last")
ATS: tuple[At, ...] = ("last", "best", "last5")


@dataclass
class Source:
    """One run folder, or a history in memory."""

    name: str
    history: History
    about: Mapping[str, Any] = field(default_factory=dict)
    experiment: str = ""  # TOML
    labels: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)  # seed -> (N, C)
    lines: Sequence[Mapping[str, Any]] = ()  # of rounds.jsonl, newer than the history
    rounds: int | None = None  # asked for
    finished: bool = True
    held: bool = False  # by a process that works on it

    @property
    def data(self) -> Mapping[str, Any]:
        data = self.about.get("data")
        return data if isinstance(data, dict) else {}

    @property
    def hostile(self) -> dict[str, list[int]]:
        """Clients that did not do as they were told, by seed."""
        found = _items(self.about.get("hostile"))
        return {
            seed: [c for c in who if isinstance(c, int)] if isinstance(who, list) else []
            for seed, who in found
        }


def load(path: Path) -> Source:
    """A run folder, finished or not; an unfinished one as far as its files go."""
    if not path.is_dir():
        raise InputError(f"{path} is no run folder: name one that fedmaba wrote")
    finished = files.exists(path / "runs.json")
    lines: list[dict[str, Any]] = []
    if finished or run_folder.checkpoints(path):
        history, saved = run_folder.load_history_and_offset(path)
        lines = [] if finished else run_folder.read_round_lines(path, saved)
    elif files.exists(path / "experiment.toml"):
        lines = run_folder.read_round_lines(path)
        ordered = dict.fromkeys((str(at["strategy"]), int(at["seed"])) for at in lines)
        nobody = np.zeros(0, np.int64)
        metric = metric_of(run_folder.load_about(path).get("metric"))
        history = History(
            [RunHistory(label, seed, "", nobody, metric=metric) for label, seed in ordered]
        )
    else:
        raise InputError(f"{path} is no run folder: name one that fedmaba wrote")
    text, rounds, lies, about = "", None, False, run_folder.load_about(path)
    if files.exists(path / "experiment.toml"):
        text = _text(path / "experiment.toml")
        try:
            asked = config.build(config.read_toml(path / "experiment.toml", links=False))
            rounds, history.share = asked.train.rounds, asked.eval.share
            lies = bool(asked.attack.does)
        except InputError:  # written by another version: show it, do not judge it
            rounds = None
        else:
            if finished:
                _as_begun(path, asked, about)
    labels = run_folder.load_labels(path)
    for run in history.runs:
        if run.n_clients and run.seed in labels and len(labels[run.seed]) != run.n_clients:
            raise InputError(
                f"{path / 'partition.npz'} is of {len(labels[run.seed])} clients, seed {run.seed} "
                f"of {run.n_clients}: {run_folder.RESTORE_HINT}"
            )
    if lies and not isinstance(about.get("hostile"), dict):
        raise InputError(
            f"{path / 'about.json'}, which says who is hostile, is not there or not whole: restore "
            "it, or run the experiment again with another --out"
        )
    held = not finished and run_folder.in_use(path)
    return Source(path.name, history, about, text, labels, lines, rounds, finished, held)


def _as_begun(path: Path, asked: config.Experiment, about: Mapping[str, Any]) -> None:
    """Refuse a finished folder whose experiment or origin is not that of its runs."""
    made = run_folder.load_runs(path).get("made")
    if made is None:  # of an earlier version
        return
    if edits := config.changed_keys(made["asked"], config.result_settings(asked)):
        raise InputError(config.edited_message(path / "experiment.toml", edits))
    told = {"data": about.get("data", {}).get("sha256"), "partition": about.get("partition")}
    if about and told != {key: made[key] for key in told}:
        raise InputError(
            f"{path / 'about.json'} is not that of this run: {run_folder.RESTORE_HINT}"
        )


def _text(file: Path) -> str:
    """What an experiment file says, also where it is no TOML."""
    try:
        return files.read(file, files.MAX_TOML_BYTES).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise run_folder.unreadable(file, error) from error


def of(history: History, name: str = "history") -> Source:
    """A history in memory as something to report on."""
    return Source(name, history)


def load_all(paths: Sequence[Path]) -> list[Source]:
    """Several run folders, each once."""
    found = [path.resolve() for path in paths]
    for i, path in enumerate(found):
        if path in found[:i]:
            raise InputError(f"{paths[i]} is named twice: name each run folder once")
    return [load(path) for path in paths]


def combine(sources: Sequence[Source]) -> History:
    """All runs in one history; a label that two folders share gets its folder's name."""
    owners: dict[str, set[int]] = {}
    for i, source in enumerate(sources):
        for run in source.history.runs:
            owners.setdefault(run.label, set()).add(i)
    runs = []
    for i, source in enumerate(sources):
        for run in source.history.runs:
            shared = len(owners[run.label]) > 1
            twin = [s.name for s in sources].count(source.name) > 1
            name = f"{source.name} #{i + 1}" if twin else source.name
            runs.append(replace(run, label=f"{run.label} ({name})") if shared else run)
    shares = {source.history.share for source in sources}
    return History(runs, shares.pop()) if len(shares) == 1 else History(runs)


def tree(sources: Sequence[Source], share: float | None = None) -> dict[str, Any]:
    """Everything the page needs; worst and best by the runs' own share unless told."""
    if not sources:
        raise InputError("nothing to report on: name at least one run folder")
    history = combine(sources)
    share = history.share if share is None else share
    unit = unit_of(sources, history)
    labels = list(dict.fromkeys(run.label for run in history.runs))
    owner = [i for i, source in enumerate(sources) for _ in source.history.runs]
    widest = max((min(run.n_clients, CLIENTS) for run in history.runs), default=1)
    keep = max(2, min(ROUNDS, CELLS // max(1, widest * len(history.runs))))
    shown = numbers.of_runs(history.runs)
    runs = [
        _run(run, labels.index(run.label), owner[r], sources[owner[r]], share, keep, unit)
        | {"info": _info(run, shown, keep)}
        for r, run in enumerate(history.runs)
    ]
    return {
        "share": share,
        "unit": unit._asdict(),
        "strategies": [
            {"label": label, "base": _base(label), "hue": hue, "variant": variant}
            for label, (hue, variant) in zip(labels, hues(labels), strict=True)
        ],
        "reference": reference(labels),
        "reference_missing": "" if REFERENCE in map(_base, labels) else REFERENCE,
        "numbers": [
            {"title": capitalised(n.title or n.name), "about": n.about, "limit_name": n.limit_name}
            for n in shown
        ],
        "fairest": labels.index(best.label) if (best := fairest(history, share, unit)) else None,
        "runs": runs,
        "folders": [_folder(source) for source in sources],
        "tables": {
            f"{model}.{at}": _table(history, model, at, share, unit)
            for model in MODELS
            for at in ATS
        },
        "verdict": verdict(sources, share, unit),
        "notes": notes(sources, history, keep, unit),
        "live": [_live(source, share, unit) for source in sources if not source.finished],
    }


def unit_of(sources: Sequence[Source], history: History) -> Unit:
    """As the history's; of a run without a checkpoint its lines tell, which are in percent."""
    told = [line.get(model) for source in sources for line in source.lines for model in MODELS]
    scores = [f.get(name) for f in told if isinstance(f, dict) for name in FIGURES[1:]]
    odd = any(isinstance(x, int | float) and not -1e-4 <= x <= 100 + 1e-4 for x in scores)
    fixed = any(run.metric.shares is not None for run in history.runs)
    unit = history.unit
    return PLAIN._replace(name=unit.name, lower=unit.lower) if odd and not fixed else unit


def near(unit: Unit) -> str:
    """How far below the best mean a verdict looks for the fairest."""
    return f"{NEAR:g} points" if unit.mark else f"{NEAR:g} %"


def is_near(value: float, best: float, unit: Unit) -> bool:
    """Whether a mean score is near the best one."""
    room = NEAR if unit.mark else NEAR / 100 * abs(best)
    return unit.sign * value >= unit.sign * best - room


def top(values: Iterable[float], unit: Unit) -> float:
    """The best of some mean scores."""
    return unit.sign * float(np.fmax.reduce([unit.sign * v for v in values], initial=-np.inf))


def reference(labels: Sequence[str]) -> int:
    """Which strategy the others are measured against: the usual reference, else the first."""
    return next((i for i, label in enumerate(labels) if _base(label) == REFERENCE), 0)


def hues(labels: Sequence[str]) -> list[tuple[int, int]]:
    """Hue and variant of each row, no pair twice: an algorithm keeps its hue in every figure.

    Two rows of an algorithm share it; further ones, and unknown algorithms, take the least used.
    """
    used, chosen = [0] * len(HUES), {}
    second: dict[str, int] = {}  # where an unknown algorithm's second row belongs
    for label in labels:
        home = _base(label)
        if home in HUES and used[HUES.index(home)] < 2:
            chosen[label] = HUES.index(home)
            used[chosen[label]] += 1
    for label in labels:
        if label not in chosen:
            least = min(range(1, len(HUES)), key=lambda hue: used[hue])
            chosen[label] = second.pop(_base(label), least)
            used[chosen[label]] += 1
            if chosen[label] == least and _base(label) not in HUES:
                second[_base(label)] = least
    seen = [chosen[label] for label in labels]
    return [(hue, seen[:i].count(hue)) for i, hue in enumerate(seen)]


def thin(count: int, keep: int) -> IntArray:
    """At most `keep` of `count` places, evenly, the first and the last among them."""
    if count <= keep:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, keep).round().astype(np.int64))


def verdict(sources: Sequence[Source], share: float, unit: Unit | None = None) -> list[str]:
    """One sentence with numbers and seeds for each set of folders on the same data."""
    unit = unit or unit_of(sources, combine(sources))
    groups: dict[object, list[Source]] = {}
    for i, source in enumerate(sources):
        same = (source.data.get("sha256"), str(source.about.get("partition")))
        groups.setdefault(same if all(same) else i, []).append(source)
    return [
        (f"{', '.join(s.name for s in group)}: " if len(groups) > 1 else "")
        + _sentence(combine(group), share, unit)
        for group in groups.values()
    ]


def brief(value: float, unit: Unit) -> str:
    """A score or a variance in a sentence."""
    return f"{value:.1f}" if unit.mark or not abs(value) < 1 else f"{value:.3g}"


def _near(rows: Sequence[Row], unit: Unit) -> list[Row]:
    """Strategies whose mean score is not far from the best: equal misery is not fairness."""
    best = top((row.mean.accuracy for row in rows), unit)
    return [row for row in rows if is_near(row.mean.accuracy, best, unit)]


def fairest(history: History, share: float, unit: Unit) -> Row | None:
    """The strategy a verdict names: the least variance among those near the best mean."""
    rows = history.summary(share=share, unit=unit)
    close = _near([row for row in rows if row.seeds], unit)
    return min(close, key=lambda row: row.mean.variance, default=None)


def _sentence(history: History, share: float, unit: Unit) -> str:
    rows = [row for row in history.summary(share=share, unit=unit) if row.seeds]
    if not rows:
        return "No run has been evaluated yet."
    rows = [row for row in rows if not np.isnan(row.mean.accuracy)]
    if not rows:
        return "No score of any run is a number."
    base = next((row for row in rows if _base(row.label) == REFERENCE), None)
    close, mark, square, say = _near(rows, unit), unit.mark, unit.square, partial(brief, unit=unit)
    best = min(close, key=lambda row: row.mean.variance)
    tail = f"the worst {100 * share:g} % of clients"
    if len(rows) == 1 or base is None:
        first = f"{best.label} is the fairest of {len(rows)} strategies" if len(rows) > 1 else ""
        return (
            f"{first or best.label}{':' if first else ' reaches'} a mean {unit.name} of "
            f"{say(best.mean.accuracy)}{mark} with a variance of {say(best.mean.variance)}{square} "
            f"over clients, and {say(best.mean.worst)}{mark} for {tail} ({_seeds(best.seeds)})."
        )
    if best is base:
        rest = [row for row in close if row is not base]
        what = "the next fairest" if rest else "which has the least of the others"
        others = min(rest or [r for r in rows if r is not base], key=lambda r: r.mean.variance)
        return (
            f"No strategy here that keeps its mean {unit.name} within {near(unit)} is fairer than "
            f"{base.label}: variance over clients {say(base.mean.variance)}{square} at "
            f"{say(base.mean.accuracy)}{mark} against {say(others.mean.variance)}{square} at "
            f"{say(others.mean.accuracy)}{mark} for {others.label}, {what} ({_seeds(base.seeds)})."
        )
    ratio = best.mean.variance / base.mean.variance if base.mean.variance else math.nan
    varies = "less" if best.mean.variance <= base.mean.variance else "more"
    varies = varies if math.isnan(ratio) else f"{abs(100 * (1 - ratio)):.0f} % {varies}"
    won, pairs = _paired(history, best.label, base.label, share)
    moved = best.mean.accuracy - base.mean.accuracy
    small = 0.05 if mark else 5e-4 * abs(base.mean.accuracy)
    change = "the same" if abs(moved) <= small else f"{say(abs(moved))}{' points' * bool(mark)} "
    change += "" if abs(moved) <= small else "higher" if moved > 0 else "lower"
    served = unit.sign * best.mean.worst >= unit.sign * base.mean.worst
    reach = "reach" if served else "rise to" if unit.lower else "fall to"
    head = f"{best.label} is the fairest of {len(rows)} strategies"
    if len(close) < len(rows):
        few = f"Of the {len(close)} strategies" if len(close) > 1 else "Of the strategies"
        head = f"{few} within {near(unit)} of the best mean, {best.label} is the fairest"
    return (
        f"{head}: {unit.name} varies {varies} "
        f"from client to client than with {base.label} (variance {say(best.mean.variance)} against "
        f"{say(base.mean.variance)}{square}, lower in {won} of {_seeds(pairs)}), {tail} "
        f"{reach} "
        f"{say(best.mean.worst)}{mark} against {say(base.mean.worst)}{mark}, and the mean is "
        f"{change} ({say(best.mean.accuracy)} against {say(base.mean.accuracy)}{mark})."
    )


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


def _paired(history: History, label: str, base: str, share: float) -> tuple[int, int]:
    """In how many of the common seeds the variance is lower."""

    def final(name: str) -> dict[int, float]:
        return {
            run.seed: run.fairness(share=share, at=[-1], unit=PERCENT)[0].variance
            for run in history.runs
            if run.label == name and not run.diverged and "evaluated" in run.tables
        }

    ours, theirs = final(label), final(base)
    seeds = ours.keys() & theirs.keys()
    return sum(ours[s] < theirs[s] for s in seeds), len(seeds)


def notes(sources: Sequence[Source], history: History, keep: int, unit: Unit) -> list[str]:
    """What the reader must know before trusting a picture."""
    out = [] if unit.mark else [f"This page shows {plainly(unit)}."]
    longest = max((len(run.tables.get("round", ())) for run in history.runs), default=0)
    tested = max((len(run.tables.get("evaluated", ())) for run in history.runs), default=0)
    many = [f"{longest:,} rounds"] * (longest > keep) + [f"{tested:,} evaluations"] * (
        tested > keep
    )
    if many:
        out.append(
            f"Of up to {' and '.join(many)} of a run, {keep}{' each' * (len(many) > 1)} are "
            "embedded in this page, evenly chosen, first and last included; tables, verdict and "
            "counts use all of them."
        )
    most = max((run.n_clients for run in history.runs), default=0)
    if most > CLIENTS:
        out.append(
            f"Of {most:,} clients, {CLIENTS:,} are shown one by one, evenly chosen; tables, "
            "verdict and curves over rounds use all of them."
        )
    if any((run.test_size == 0).any() for run in history.runs):
        out.append(
            "Clients without test examples, as hostile ones, are not in the figures; weights and "
            "losses show them."
        )
    kinds = {(s.data.get("sha256"), str(s.about.get("partition"))) for s in sources}
    if len(sources) > 1 and len(kinds) > 1:
        out.append(
            "These folders differ in data or partition: compare strategies within a folder, not "
            "across them."
        )
    out += [run.diverged for run in history.runs if run.diverged]
    return out


def _table(history: History, model: Model, at: At, share: float, unit: Unit) -> dict[str, Any]:
    """The table as `fedmaba table` prints it, with the numbers to sort by."""
    rows, title = history.summary(model, at, share, unit), caption(history, model, at, unit)
    grid = grid_of_rows("levels", title, rows, share, unit=unit)
    figures, out = slice(2, 2 + len(FIGURES)), []
    for row, line, more in zip(rows, grid.rows, more_figures(rows, unit).rows, strict=True):
        cells = line[figures]
        out.append(
            {
                "label": row.label,
                "seeds": row.seeds,
                "note": row.note,
                "cells": [[cell.text, cell.rank] for cell in cells],
                "values": [_number(cell.value) for cell in cells],
                "more": [cell.text for cell in more[1:]],
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


def _run(
    run: RunHistory, strategy: int, folder: int, source: Source, share: float, keep: int, unit: Unit
) -> dict[str, Any]:
    """One run: curves, and its client x round tables as base64."""
    out: dict[str, Any] = {
        "strategy": strategy,
        "folder": folder,
        "seed": run.seed,
        "deploy": run.deploy,
        "diverged": run.diverged,
        "n": run.n_clients,
        "fair": _fair(run, source, share, keep, unit),
    }
    who = thin(run.n_clients, CLIENTS)
    out["client"] = who.tolist() if len(who) < run.n_clients else None
    if "evaluated" in run.tables:
        at = thin(len(run.tables["evaluated"]), keep)
        accuracy = run.accuracy()
        out["evaluated"] = run.evaluated[at].tolist()
        out["accuracy"] = packed(accuracy[at][:, who])
        out["final"] = {"deployed": packed(accuracy[-1:, who])}
        out["final"]["last"] = packed(run.accuracy("last")[-1:, who])
    if "round" in run.tables:
        at = thin(len(run.tables["round"]), keep)
        out["rounds"] = run.column("round")[at].tolist()
        out["weight"] = packed(run.weights()[at][:, who])
        if "reported_loss" in run.tables:
            client, loss = run.column("client"), run.column("reported_loss")
            table = np.full((len(client), run.n_clients), np.nan)
            np.put_along_axis(table, client, loss.astype(np.float64), axis=1)
            out["loss"] = floats(table[at][:, who])  # one lie may be a million times the rest
    return out


def _fair(run: RunHistory, source: Source, share: float, keep: int, unit: Unit) -> dict[str, Any]:
    """The figures over rounds of both models, and newer ones from the lines of a live run."""
    own = re.sub(rf" \({re.escape(source.name)}( #\d+)?\)$", "", run.label)  # as before `combine`
    newer = [
        line
        for line in source.lines
        if line.get("strategy") == own and line.get("seed") == run.seed and "deployed" in line
    ]
    rounds = run.evaluated.tolist() if "evaluated" in run.tables else []
    newer = [line for line in newer if line["round"] > (rounds[-1] if rounds else 0)]
    at = thin(len(rounds) + len(newer), keep)
    known, fresh = at[at < len(rounds)], [newer[i - len(rounds)] for i in at if i >= len(rounds)]
    out: dict[str, Any] = {"round": [*(rounds[i] for i in known), *(x["round"] for x in fresh)]}
    for model in MODELS:
        found = [f._asdict() for f in run.fairness(model, share, known, unit)] if rounds else []
        rows = [*found, *(_from_line(line[model], source, share, unit) for line in fresh)]
        out[model] = {name: [_number(row.get(name)) for row in rows] for name in FIGURES}
    return out


def _from_line(
    figures: Mapping[str, Any], source: Source, share: float, unit: Unit
) -> dict[str, Any]:
    """What a line says in percent, without the worst and best of another share of clients."""
    shown = FIGURES if share == source.history.share else FIGURES[:2]
    told = [run.metric.unit(True).scale for run in source.history.runs] or [PERCENT.scale]
    factor = unit.scale / told[0]
    return {
        name: figures[name] * (factor**2 if name == "variance" else factor)
        for name in shown
        if isinstance(figures.get(name), int | float)
    }


def _info(run: RunHistory, shown: Sequence[Shown], keep: int) -> dict[str, Any]:
    """The effective number of clients, and what else is shown of the strategies, or None."""
    if "round" not in run.tables:
        return {}
    at = thin(len(run.tables["round"]), keep)
    effective = [_number(v) for v in numbers.effective_clients(run, at)]
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
                "values": [_number(v) for v in values[at]],
                "limit": told.limit,
                "above": [above, len(values), told.above_zero, told.always_zero],
            }
        )
    return {"effective": effective, "numbers": out}


def _folder(source: Source) -> dict[str, Any]:
    data, labels = source.data, {}
    for seed, counts in source.labels.items():
        who = thin(len(counts), CLIENTS)
        labels[str(seed)] = {"counts": packed(counts[who].astype(np.float64)), "n": len(who)}
    names = [str(name) for name in data.get("clients") or ()]
    if len(names) > CLIENTS:
        names = [names[i] for i in thin(len(names), CLIENTS)]
    return {
        "name": source.name,
        "classes": [str(name) for name in data.get("classes") or ()],
        "clients": names,
        "labels": labels,
    }


def setup(source: Source) -> dict[str, Any]:
    """What was asked for, where it ran, the hashes, and the command that repeats it."""
    about = source.about
    command = [str(word) for word in about.get("command") or ()]
    if command:
        command[0] = "fedmaba"
    versions, model = about.get("versions") or {}, about.get("model") or {}
    facts = [(name, str(version)) for name, version in _items(versions)]
    facts.append(("device", str(about.get("device", "unknown"))))
    facts += [(f"model {name}", str(value)) for name, value in _items(model)]
    if "task" in source.data:
        words = source.data.get("target")
        facts.append(("task", f"{source.data['task']}: {words}" if words else source.data["task"]))
    hashes = [("data " + str(source.data.get("name", "")), str(source.data.get("sha256", "")))]
    partitions = _items(about.get("partition") or {})
    hashes += [(f"partition, seed {seed}", str(digest)) for seed, digest in partitions]
    again = f"fedmaba run {quoted([source.name + '/experiment.toml'])} --out NEW"
    names = dict(enumerate(source.data.get("clients") or ()))
    for seed, who in source.hostile.items():
        listed = [str(names.get(c, c)) for c in who]
        more = ", ..." if len(listed) > 100 else ""
        facts.append((f"hostile clients, seed {seed}", ", ".join(listed[:100]) + more))
    return {
        "name": source.name,
        "experiment": source.experiment,
        "command": escape.one_line(quoted(command)),  # pasted, a second line would run at once
        "repeat": escape.one_line(str(about.get("repeat")) if about.get("python") else again),
        "facts": facts,
        "hashes": hashes if source.data else [],
        "finished": source.finished,
    }


def quoted(words: Sequence[str]) -> str:
    """Words as one would type them in a shell."""
    import shlex

    return shlex.join(words)


def _items(found: object) -> list[tuple[str, Any]]:
    return [(str(k), v) for k, v in found.items()] if isinstance(found, dict) else []


def _live(source: Source, share: float, unit: Unit) -> dict[str, Any]:
    """How far an unfinished run is, and its newest figures."""
    saved = [run.tables["round"][-1:] for run in source.history.runs if "round" in run.tables]
    newer = [line["round"] for line in source.lines]
    done = max((int(at) for at in [*newer, *(at for last in saved for at in last)]), default=0)
    rows = []
    for run in source.history.runs:
        own = [
            line
            for line in source.lines
            if line.get("strategy") == run.label
            and line.get("seed") == run.seed
            and "deployed" in line
        ]
        last: Mapping[str, Any] | None = None
        if own:
            last = _from_line(own[-1]["deployed"], source, share, unit)
        elif len(run.tables.get("evaluated", ())):
            last = run.fairness(share=share, at=[-1], unit=unit)[0]._asdict()
        if last is not None:
            figures = [_number(last.get(name)) for name in FIGURES]
            rows.append({"label": run.label, "seed": run.seed, "figures": figures})
    about = {"name": source.name, "done": done, "rounds": source.rounds, "held": source.held}
    return {**about, "rows": rows}


def packed(values: FloatArray) -> dict[str, Any]:
    """A table as 16-bit steps between its least and greatest value; 65535 is 'none'."""
    finite = np.isfinite(values)
    low = float(values[finite].min()) if finite.any() else 0.0
    high = float(values[finite].max()) if finite.any() else 0.0
    span = high - low or 1.0
    steps = np.full(values.shape, 65535, "<u2")
    steps[finite] = np.rint((values[finite] - low) / span * 65534)
    data = base64.b64encode(steps.tobytes()).decode()
    return {"low": low, "span": span, "shape": list(values.shape), "data": data}


def floats(values: FloatArray) -> dict[str, Any]:
    """A table as 32-bit numbers; what is not finite is 'none'."""
    shown = np.where(np.abs(values) < 3e38, values, np.nan).astype("<f4")
    return {"shape": list(values.shape), "data": base64.b64encode(shown.tobytes()).decode()}


def _number(value: Any) -> float | None:
    """Short enough for a page, exact enough for a hover."""
    return float(f"{float(value):.6g}") if value is not None and math.isfinite(value) else None


def _base(label: str) -> str:
    """The algorithm of a row: afl of `afl:lam=0.5` and of `AFL, λ=0.5 (code)`."""
    return re.sub(r"[^a-z0-9_]", "", re.split(r"[:,]| \(", label)[0].lower())
