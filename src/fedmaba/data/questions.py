"""Columns that may be no features: they count rows, name owners, or say who trains. No torch.

Each question names the options that answer it; `feature` says that the column is one after all.
"""

from __future__ import annotations

import re

import numpy as np

from fedmaba.data.arrays import ROWS
from fedmaba.data.cells import MAX_WORDS, ColumnValues, FloatArray, IntArray, Words
from fedmaba.data.tables import RawTable, dropping, roles
from fedmaba.errors import InputError

INDEX_NAMES = ("unnamed", "index", "level_0", "id", "row", "row_id", "row_name", "row_number")
IDS = {"id", "ids", "idx", "uid", "uuid", "guid", "index"}
OWNERS = re.compile(
    "client|owner|site|hospital|clinic|cent(re|er)|school|user|patient|person|subject|participant|"
    "customer|household|station|institut(e|ion)|organi[sz]ation|store|shop|farm|author|writer|"
    "speaker|driver|lab|laboratory"
)
NAMING = {"name", "code", "key", "no", "nr", "num", "number"}  # hospital_name names hospitals
TRAINS = {"train", "training"}
JUDGES = {"test", "testing", "validation", "valid", "val", "dev", "eval", "holdout"}
FEW = 10  # In fewer rows such patterns come by chance.


def require_features(table: RawTable) -> tuple[str, ...]:
    """Refuse columns that can be no features, unless the user says so; what else is doubtful."""
    doubts = []
    named = None if table.reading.client is None else table.columns[table.reading.client]
    owner = named.code if isinstance(named, Words) else None
    for name, column in _unsaid(table):
        if _counts_rows(name, column):
            raise InputError(
                f"column {name!r} only numbers the rows: leave it out with {dropping(name)} "
                f"(pandas: to_csv(file, index=False)), or say --feature {name} if it is a feature"
            )
        if isinstance(column, Words):
            words = {word.casefold() for word in column.words}
            if words & TRAINS and words & JUDGES and words <= TRAINS | JUDGES:
                raise InputError(
                    f"column {name} has the words {', '.join(column.words)}: if it says which "
                    f"rows train, say --split {name}; else {dropping(name)} or --feature {name}"
                )
        elif rises := _rises(column, owner):
            doubts.append(
                f"column {name} {rises}, so it may only count them: leave it out with "
                f"{dropping(name)}, or say --feature {name}"
            )
    return tuple(doubts)


def owner_like(table: RawTable) -> str:
    """A column that looks as if it named the clients, where none is said to; else nothing."""
    if table.reading.client is not None:
        return ""
    return next((name for name, column in _unsaid(table) if _owns(name, column)), "")


def _unsaid(table: RawTable) -> list[tuple[str, ColumnValues]]:
    """The columns of which nobody said what they are for."""
    said = {*roles(table.reading), *table.reading.feature}
    return [(name, column) for name, column in table.columns.items() if name not in said]


def _tokens(name: str) -> list[str]:
    """The words of a column's name: patient and id of patientID or patient_id."""
    return re.findall("[^\\W_]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).casefold())


def _whole(column: FloatArray) -> bool:
    return bool(np.array_equal(column, np.rint(column)))  # false with a gap


def _counts_rows(name: str, column: ColumnValues) -> bool:
    """Whether each row has a value of its own that only says which row it is."""
    n, tokens = len(column.code if isinstance(column, Words) else column), _tokens(name)
    named = bool(tokens) and tokens[-1] in IDS
    if isinstance(column, Words):
        return FEW <= n == len(column.words) <= MAX_WORDS
    ranked = np.sort(column)  # gaps last
    along = np.diff(column)  # as the rows stand in the file
    if n >= FEW and along[0] != 0 and np.allclose(along, along[0], rtol=1e-9, atol=0):
        return True
    if not _whole(column):
        return False
    if name.lower().split(":")[0].strip() in INDEX_NAMES and n > 1:
        first = float(ranked[0])
        if first in (0.0, 1.0) and np.array_equal(ranked, first + np.arange(n)):
            return True
    step = np.diff(ranked)
    if n < FEW or not (step > 0).all():
        return False
    return named or bool((step == 1).all())


def _rises(column: FloatArray, owner: IntArray | None) -> str:
    """Whether whole numbers rise with the rows, or count those of each client; in words."""
    n = len(column)
    if n < ROWS or not _whole(column):
        return ""
    if 2 * len(np.unique(column)) >= n and (
        (np.diff(column) >= 0).all() or (np.diff(column) <= 0).all()
    ):
        return "goes up or down with the rows"
    if owner is None or (owner < 0).any():
        return ""
    size = np.bincount(owner)
    if len(size) < 2 or size.min() < FEW:
        return ""
    order = np.lexsort((column, owner))
    ends = np.cumsum(size)
    rank = np.arange(n) - np.repeat(ends - size, size)
    gone = column[order] - rank
    same = np.array_equal(gone, np.repeat(gone[ends - size], size))
    return "numbers the rows of each client" if same else ""


def _owns(name: str, column: ColumnValues) -> bool:
    """Whether a column has an owner's name, and few values, most of them in several rows."""
    tokens = _tokens(name)
    tail = tokens[-1:] and tokens[-1] in IDS
    if not tail:
        rest = tokens[:-1] if len(tokens) > 1 and tokens[-1] in NAMING else tokens
        if len(rest) != 1 or not OWNERS.fullmatch(rest[0]):
            return False
    if isinstance(column, Words):
        count = np.bincount(column.code[column.code >= 0])
    elif not _whole(column):
        return False
    else:
        count = np.unique(column, return_counts=True)[1]
    n = int(count.sum())
    return n >= FEW and 2 <= len(count) <= n // 2 and float(np.median(count)) >= 2
