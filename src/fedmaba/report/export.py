"""The tables of a run as CSV or Parquet files, which a spreadsheet or another program reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedmaba.errors import InputError, installed
from fedmaba.experiment import parts
from fedmaba.report import data, model_card
from fedmaba.report.document import csv_text
from fedmaba.report.table import FIGURES
from fedmaba.results import costs as spent
from fedmaba.results import run_folder
from fedmaba.results.group_tables import CELL, cells
from fedmaba.results.history import History, On
from fedmaba.results.metrics import Fairness
from fedmaba.results.run_history import Model, RunHistory, of_unseen
from fedmaba.results.unseen import sides

FIRST_COLUMNS = ("strategy", "seed", "round")
WHO = ("client", "name", "hostile")
ANSWERS = {-1: "loss only", 0: "lost", 1: "late", 2: "heard"}


def write_export(
    folder: Path,
    out: Path,
    to: str = "csv",
    load: Callable[[Path], list[data.Source]] = data.load_parts,
    on: On = "test",
) -> list[Path]:
    """The tables summary, rounds, clients and weights of a run, a file each; others, if any.

    Where scores are on validation examples, a column `on` says so. With `to="card"`, the card of
    its models.
    """
    if to == "card":
        return [_write_card(folder, out, load(folder))]
    encode = {"csv": lambda rows: csv_text(rows).encode(), "parquet": _as_parquet}[str(to)]
    if to == "parquet":
        check_parquet()
    sources = [data.judged_on(source, on) for source in load(folder)]
    history = data.combine(sources)
    states = [source.federation for source in sources if source.federation is not None]
    if states and not any(state.rounds for state in states):
        raise InputError(f"{folder}: no round of this federation has ended yet: wait for one")
    if not any(run.tables for run in history.runs) and not all(s.finished for s in sources):
        raise InputError(
            f"{folder} holds no checkpoint yet: wait, or {parts.how_to_resume(folder)}"
        )
    tables = {
        "summary": summary(history),
        "rounds": rounds(history),
        "clients": _of_all(partial(clients, models=history.models()), sources),
        "weights": _of_all(weights, sources),
    }
    if len(asked := _of_all(turnout, sources)) > 1:
        tables["turnout"] = asked
        tables["costs"] = costs(history)
    if apart := sides(history):
        head: list[object] = ["strategy", "seeds", "model", "clients", *FIGURES]
        figures = [[getattr(row.mean, name) for name in FIGURES] for row in apart]
        tables["unseen"] = [head] + [
            [*row[:4], *one] for row, one in zip(apart, figures, strict=True)
        ]
    if states:
        told = [line for state in states for line in state.rounds]
        left: list[list[object]] = [["round", "left_out"]]
        tables["left_out"] = left + [[x["round"], why] for x in told for why in x["refused"]]
    if on == "test" and len(by_group := _of_all(groups, sources)) > 1:
        tables["groups"] = by_group
    if not folder.is_dir():  # Results of reproduce are files and no run folders.
        run_folder.make_folder(out)
    written = []
    for name, rows in tables.items():
        target = out / f"{name}.{to}"
        if on == "validation" and name != "weights":
            rows = [[*row, str(on) if i else "on"] for i, row in enumerate(rows)]
        _write(folder, target, encode(rows))
        written.append(target)
    return written


def _write_card(folder: Path, out: Path, sources: Sequence[data.Source]) -> Path:
    """The card of the models of a run, as one Markdown file."""
    if len(sources) != 1:
        raise InputError(f"{folder} has {len(sources)} parts: name one, as {folder}/parts/001")
    content, target = model_card.card_text(sources[0]).encode(), out / model_card.CARD_FILE
    _write(folder, target, content)
    return target


def _write(folder: Path, target: Path, content: bytes) -> None:
    below = folder if folder.is_dir() and target.is_relative_to(folder) else None
    run_folder.write_file(target, content, remedy="fix it, or choose another -o", below=below)


def check_parquet() -> None:
    """Say what to install before anything is read."""
    with installed("--to parquet wants pyarrow: in a clone of fedmaba, pip install '.[parquet]'"):
        import pyarrow.parquet  # noqa: F401


def _as_parquet(rows: Sequence[Sequence[object]]) -> bytes:
    """The same table with typed columns; a number that is not defined is null."""
    import pyarrow
    from pyarrow import parquet

    head, *body = rows
    columns = zip(*body, strict=True) if body else ([] for _ in head)
    cells = {
        str(name): [None if isinstance(v, float) and math.isnan(v) else v for v in column]
        for name, column in zip(head, columns, strict=True)
    }
    out = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(cells), out)
    return bytes(out.getvalue())


def _of_all(
    rows: Callable[[data.Source], list[list[object]]], sources: Sequence[data.Source]
) -> list[list[object]]:
    """The rows of all sources below one head."""
    first, *others = map(rows, sources)
    return first + [row for other in others for row in other[1:]]


def summary(history: History) -> list[list[object]]:
    """Every figure of every strategy at the last evaluation, all models."""
    names = Fairness._fields
    head: list[object] = [
        "strategy",
        "model",
        "seeds",
        *names,
        *(f"{name}_sd" for name in names),
        "note",
        "test_noise",
        "corrected_variance",
    ]
    return [head] + [
        [row.label, model, row.seeds, *row.mean, *row.sd, row.note, row.test_noise, row.corrected]
        for model in history.models()
        for row in history.summary(model)
    ]


def rounds(history: History) -> list[list[object]]:
    """The fairness figures over rounds, a row per run, evaluation and model."""
    rows: list[list[object]] = [[*FIRST_COLUMNS, "model", *Fairness._fields]]
    unit = history.unit
    for run in history.runs:
        for model in run.models() if "evaluated" in run.tables else ():
            found = run.fairness(model, history.share, unit=unit)
            pairs = zip(run.evaluated, found, strict=True)
            rows += [[run.label, run.seed, int(t), model, *figures] for t, figures in pairs]
    return rows


def clients(source: data.Source, models: Sequence[Model] = ()) -> list[list[object]]:
    """Accuracy and loss under these models, or all, a row per run, evaluation and client."""
    models = models or source.history.models()
    columns = [f"{model}_{what}" for model in models for what in ("accuracy", "loss")]
    runs = source.history.runs
    apart = any(run.unseen_size is not None for run in runs)
    rows: list[list[object]] = [[*FIRST_COLUMNS, *WHO, *columns, *["unseen"] * apart]]
    for run in runs:
        if "evaluated" not in run.tables:
            continue
        whole = run if run.unseen_size is None else of_unseen(run)
        tables = [t for m in models for t in (whole.accuracy(m), whole.loss(m))]
        unseen = [["" if part else "yes"] * apart for part in run.takes_part]
        # The shape is (E, N, 4), or 6 in place of 4 with models of clients.
        stacked: Any = np.stack(tables, axis=-1)
        who = _who(source, run)
        for i, done in enumerate(run.evaluated):
            head = [run.label, run.seed, int(done)]
            rows += [
                [*head, *who[c], *stacked[i, c].tolist(), *unseen[c]] for c in range(run.n_clients)
            ]
    return rows


def weights(source: data.Source) -> list[list[object]]:
    """Weight and reported loss, a row per run, round and participant."""
    rows: list[list[object]] = [[*FIRST_COLUMNS, *WHO, "weight", "reported_loss"]]
    for run in source.history.runs:
        losses, everyone = run.tables.get("reported_loss"), _who(source, run)
        for i, done in enumerate(run.tables.get("round", ())):
            who, weight = run.tables["client"][i], run.tables["weight"][i]
            loss = losses[i].tolist() if losses else [None] * len(who)
            head = [run.label, run.seed, int(done)]
            found = zip(who.tolist(), weight.tolist(), loss, strict=True)
            there = ((c, *one) for c, *one in found if not all(map(_unknown, one)))
            rows += [[*head, *everyone[c], *one] for c, *one in there]
    return rows


def turnout(source: data.Source) -> list[list[object]]:
    """Who was asked, what became of it, bytes and seconds: a row per run, round and client."""
    rows: list[list[object]] = [[*FIRST_COLUMNS, *WHO, "answer", "down", "up", "seconds"]]
    for run in source.history.runs:
        if "turnout.answer" not in run.tables:
            continue
        everyone, tables = _who(source, run), run.tables
        names = ("client", "turnout.answer", "turnout.down", "turnout.up")
        who, answer, down, up = (np.asarray(tables[name]) for name in names)
        seconds = tables.get("turnout.seconds")
        took = np.full(who.shape, np.nan) if seconds is None else np.asarray(seconds)
        for i, k in zip(*np.nonzero(down), strict=True):
            head = [run.label, run.seed, int(tables["round"][i]), *everyone[who[i, k]]]
            said = [ANSWERS[int(answer[i, k])], int(down[i, k]), int(up[i, k])]
            rows.append([*head, *said, float(took[i, k])])
    return rows


def costs(history: History) -> list[list[object]]:
    """What the rounds cost, and how often clients were asked and heard: a row per strategy."""
    names = [name for name in spent.Cost._fields if name != "until"]
    head: list[object] = ["strategy", *names[1:]]
    return [head] + [[getattr(row, name) for name in names] for row in spent.costs(history)]


def _unknown(value: float | None) -> bool:
    """Whether a site of a real federation told nothing: it did not answer in this round."""
    return value is None or math.isnan(value)


def groups(source: data.Source) -> list[list[object]]:
    """Rates of each client and group of people, a row per run, evaluation and model.

    Clients without a test example of a group have no row for it; a rate without examples is empty.
    """
    rows: list[list[object]] = [[*FIRST_COLUMNS, "model", *WHO, "group", *CELL]]
    for cell in cells(source.history.runs):
        run, who = cell.run, _who(source, cell.run)
        rates = np.stack(cell.rates, -1).tolist()
        for t, c, g, told in zip(cell.round, cell.client, cell.group, rates, strict=True):
            head = [run.label, run.seed, int(t), cell.model, *who[c], run.groups.names[g]]
            size, *shares = told
            rows.append([*head, int(size), *(None if np.isnan(v) else v for v in shares)])
    return rows


def _who(source: data.Source, run: RunHistory) -> list[tuple[int, str, str]]:
    """Every client's index, its name where it has one, and whether it was hostile."""
    names, lies = source.data.get("clients") or (), set(source.hostile.get(str(run.seed), ()))
    return [
        (c, str(names[c]) if c < len(names) else "", "yes" if c in lies else "")
        for c in range(run.n_clients)
    ]
