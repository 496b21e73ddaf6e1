"""Your own tables, .csv and .parquet files, as a data set: the label, client and part of each row.

No torch here. What the cells of a table become is the business of `tables`.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.data import (
    csv_tables,
    features,
    frames,
    names,
    questions,
    tables,
    targets,
    text,
    trees,
)
from fedmaba.data.arrays import lost_by_float32
from fedmaba.data.cells import Words, number_of
from fedmaba.data.dataset import Dataset, Inputs, IntArray
from fedmaba.data.paths import open_file
from fedmaba.data.preparation import Preparation
from fedmaba.data.tables import RawTable, Reading
from fedmaba.data.targets import TaskName
from fedmaba.errors import InputError, error_line, installed

PARTS = ("train", "validation", "test")


def load_table(path: Path, task: TaskName | None, reading: Reading) -> Dataset:
    """A .csv or .parquet file with named columns."""
    try:
        if path.suffix == ".parquet":
            table = frames.read_frame(_parquet(path), reading)
        else:
            with open_file(path, newline="", encoding="utf-8-sig") as handle:
                table = csv_tables.read_csv(path, handle, reading)
        return from_table(table, path.name, task)
    except InputError as err:
        told = str(err)
        raise InputError(told if told.startswith(str(path)) else f"{path}: {told}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise InputError(f"{path}: no CSV in UTF-8 ({error_line(err)}): save it anew") from None


def _parquet(path: Path) -> Any:
    """The table of a Parquet file."""
    with installed("a .parquet file needs pyarrow: pip install pyarrow, or save a .csv file"):
        from pyarrow import ArrowException, parquet
    with open_file(path, mode="rb") as handle:
        try:
            return parquet.read_table(handle)
        except (ArrowException, OSError, ValueError) as err:
            raise InputError(f"no Parquet file ({error_line(err)}): save it anew") from None


def from_table(table: RawTable, name: str = "table", task: str | None = None) -> Dataset:
    """A data set from a table: its matrix, and the label, client, group and part of each row."""
    reading, asked = table.reading, targets.check_task(task)
    x, how, steps, doubts = _inputs(table)
    assert reading.label is not None  # `tables.assign` found one
    label = _full(table, reading.label)
    y, kind, classes = _label_column(table, reading.label, label, asked)
    named = {"client": reading.client, "group": reading.group}
    named |= {"label": reading.label} if classes else {}
    client = None if reading.client is None else _full(table, reading.client)
    group = None if reading.group is None else _full(table, reading.group)
    unit = None if reading.together is None else _full(table, reading.together).code
    part = _part_column(table, len(y))
    if kind == "regress":
        values = np.array(label.words, np.float64)
        doubts += lost_by_float32(
            f"label {reading.label}", values, remedy="subtract the mean first"
        )
    doubts += targets.one_class(f"label {reading.label}", classes)
    joined: list[str] = []
    for role, column in named.items():
        if column is not None:
            words = _full(table, column)
            joined += names.read_as_one(f"{role} {column}", words.joined)
            doubts += names.look_alike(f"{role} {column}", words.words)
    # These are training rows, validation rows and test rows.
    order = np.argsort(part, kind="stable")
    held = part[order] == 1
    return Dataset(
        name,
        trees.mapped(lambda values: values[order], x),
        y[order],
        int((part < 2).sum()),
        classes,
        None if client is None else client.code[order],
        () if client is None else client.words,
        None if group is None else group.code[order],
        () if group is None else group.words,
        None if unit is None else unit[order],
        held if held.any() else None,
        how,
        (*tables.uses(reading), *table.steps, *steps, *joined),
        task=kind,
        task_given=task is not None,
        client_column=reading.client or questions.owner_like(table),
        doubts=tuple(doubts),
    )


def _inputs(table: RawTable) -> tuple[Inputs, Preparation | None, list[str], list[str]]:
    """What a model reads: the features, or the tokens of a text; what was done, and is doubtful."""
    reading = table.reading
    if reading.text is not None and reading.tokeniser is not None:
        words = _full(table, reading.text)
        found = text.inputs(reading.text, words, reading.tokeniser, reading.tokens)
        return found.inputs, None, [found.step], []
    doubts = [*questions.require_features(table)]
    return *features.features(table), [], doubts


def _full(table: RawTable, name: str) -> Words:
    """A column of words in which no cell may be empty."""
    column = table.columns[name]
    assert isinstance(column, Words)
    gap = column.code < 0
    if gap.any():
        row = int(np.argmax(gap))
        raise InputError(
            f"{table.at(row)}, column {name}: it is empty ({int(gap.sum())} such cells): fill it "
            "or drop the row; NA, None, ? and the like count as empty"
        )
    return column


def _part_column(table: RawTable, rows: int) -> IntArray:
    """(n,) 0, 1 or 2: the row is for training, validation or testing."""
    name = table.reading.split
    if name is None:
        return np.zeros(rows, np.int64)
    column = _full(table, name)
    known = {word: number for number, word in enumerate(PARTS)}
    number = np.array([known.get(word, -1) for word in column.words], np.int64)
    part: IntArray = number[column.code]
    if (part < 0).any():
        row = int(np.argmax(part < 0))
        word = column.words[column.code[row]]
        raise InputError(
            f"{table.at(row)}, column {name}: {word!r}: write train, validation or test"
        )
    if not (part == 0).any():
        raise InputError(f"no training rows among {len(part)}: add rows, or correct column {name}")
    return part


def _label_column(
    table: RawTable, name: str, label: Words, task: TaskName | None
) -> tuple[NDArray[Any], TaskName, tuple[str, ...]]:
    """The label column as classes, or as numbers to predict."""
    if task in ("multilabel", "sequence"):
        raise InputError(f"task {task}, but a table has one label for each row: save an .npz file")
    try:
        values = np.array(label.words, np.float64)
    except ValueError:
        values = None
    if values is None and task == "regress":
        row = next(
            i for i, code in enumerate(label.code) if math.isnan(number_of(label.words[code]))
        )
        word = label.words[label.code[row]]
        raise InputError(
            f"{table.at(row)}, column {name}: {word!r} is no number, but the task is regress: "
            "correct or drop the row"
        )
    numbers = None if values is None else values[label.code]
    if numbers is None or (
        task == "classify" or (task is None and targets.infer([numbers]) != "regress")
    ):
        targets.require_classes(f"column {name}", label.words, len(label.code), task)
        return label.code, "classify", label.words
    return targets.read_numbers(f"column {name}", numbers, len(numbers), "regress"), "regress", ()
