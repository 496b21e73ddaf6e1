"""Tables with a header as examples: what each column is for, words as numbers, gaps filled.

A table becomes a matrix with one column per number, one per word of a column of words, and one flag
per column that has gaps. Filling gaps and standardising wait until it is known who trains on what,
because both use the training examples alone: see `Preparation`. No torch and no pandas here; a data
frame is read by its own methods.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError, shortened, unknown

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Missing = Literal["median", "client-median", "refuse"]
GAPS = frozenset(("", "?", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>"))
MAX_WORDS = 100  # different words of a column that become a column each
MOSTLY = 0.9  # of a column's cells are numbers: the others are taken for mistakes
LINES_AT_ONCE = 10_000
INDEX_NAMES = ("unnamed", "index", "level_0", "id", "row", "row_id", "row_name", "row_number")


class Roles(NamedTuple):
    """What columns are for; a name that is None is looked for under its usual name."""

    label: str | None = None  #          what is learnt: "label" or "y"
    client: str | None = None  #         who owns the example: "client"
    group: str | None = None  #          a group of people: "group"
    split: str | None = None  #          train, validation or test: "split"
    drop: tuple[str, ...] = ()  #        columns that are not used
    categorical: tuple[str, ...] = ()  # columns of numbers that stand for words


USUAL = {"label": ("label", "y"), "client": ("client",), "group": ("group",), "split": ("split",)}


@dataclass(frozen=True)
class Words:
    """A column of words: each cell is the number of its word, -1 for a gap."""

    code: IntArray  # (n,)
    words: tuple[str, ...]


Column = FloatArray | Words  # a column of numbers has nan for gaps


class Feature(NamedTuple):
    """One column of the matrix."""

    column: str  # of the table
    word: str | None  # that it is 1 for; None: the column's number


@dataclass(frozen=True)
class Preparation:
    """What is done to the columns of numbers, from training examples alone."""

    features: tuple[Feature, ...]
    flags: tuple[str, ...] = ()  # columns with gaps, in the order of their flags
    missing: Missing = "median"
    standardise: bool = True

    @property
    def numbers(self) -> list[int]:
        """Which columns of the matrix are numbers, neither words nor flags."""
        return [i for i, f in enumerate(self.features) if f.word is None]

    def names(self) -> tuple[str, ...]:
        """The names of the columns of the matrix."""
        plain = [f.column if f.word is None else f"{f.column}={f.word}" for f in self.features]
        return (*plain, *(f"{name} is missing" for name in self.flags))

    def in_words(self) -> list[str]:
        """Each step, as the record of a run tells it."""
        words = sorted({f.column for f in self.features if f.word is not None})
        out = [f"one column per word of {', '.join(words)}"] if words else []
        if self.flags:
            whose = "the client's" if self.missing == "client-median" else "all clients'"
            out.append(
                f"gaps filled by the median of {whose} training examples, and a flag: "
                f"{', '.join(self.flags)}"
            )
        if self.standardise and self.numbers:
            out.append("numbers standardised by the mean and deviation of the training examples")
        return out

    def apply(self, x: FloatArray, train: IntArray, owner: IntArray) -> NDArray[np.float32]:
        """The finished matrix; `train` names the training rows, `owner` the client of each row."""
        out = np.array(x, np.float64)
        for i in self.numbers:
            column = out[:, i]
            gap = np.isnan(column)
            if gap.any():
                self._fill(column, gap, train, owner)
            if self.standardise:
                seen = column[train]
                column -= seen.mean()
                deviation = seen.std()
                if deviation > 0:
                    column /= deviation
        return out.astype(np.float32)

    def _fill(
        self, column: FloatArray, gap: NDArray[np.bool_], train: IntArray, owner: IntArray
    ) -> None:
        known = train[~gap[train]]
        middle = float(np.median(column[known])) if len(known) else 0.0
        if self.missing == "client-median":
            for client in np.unique(owner[gap]):
                own = known[owner[known] == client]
                here = gap & (owner == client)
                column[here] = np.median(column[own]) if len(own) else middle
        else:
            column[gap] = middle


class Table(NamedTuple):
    """A table as it was read: all columns in order, and what they are for."""

    columns: Mapping[str, Column]
    roles: Roles  # all names are set that the table has


# --- reading ------------------------------------------------------------------------------------


def read_csv(path: Path, handle: IO[str], roles: Roles) -> Table:
    """A CSV file with a header; words and numbers are told apart by the cells."""
    header = _header(path, handle)
    roles = assign(roles, header, f"{path}: ")
    kept = [name for name in header if name not in roles.drop]
    wordy = {roles.label, roles.client, roles.group, roles.split} - {None} | set(roles.categorical)
    numbers: dict[str, list[FloatArray]] = {name: [] for name in kept if name not in wordy}
    words = {name: _Interned() for name in kept if name in wordy}
    strange: dict[str, list[tuple[int, str]]] = {}  # cells that are no number, by column
    many = 0
    for lines, rows in _rows(path, handle, header):
        many += len(rows)
        across = dict(zip(header, zip(*rows, strict=True), strict=True))
        for name, column in numbers.items():
            if len(found := strange.get(name, [])) > many * (1 - MOSTLY) + 20:
                continue  # a column of words
            column.append(_numbers(across[name], lines, found))
            if found:
                strange[name] = found
        for name, seen in words.items():
            seen.extend(across[name])
    if not many:
        raise InputError(f"{path}: no rows below the header: add some")
    for name, found in strange.items():
        _all_words(f"{path}, line {found[0][0]}", name, found[0][1], len(found), many)
        words[name] = _Interned()
    if strange:  # columns that turned out to be words are read again
        for _, rows in _rows(path, handle, header):
            across = dict(zip(header, zip(*rows, strict=True), strict=True))
            for name in strange:
                words[name].extend(across[name])
    columns: dict[str, Column] = {
        name: words[name].column() if name in words else np.concatenate(numbers[name])
        for name in kept
    }
    return Table(columns, roles)


def _header(path: Path, handle: IO[str]) -> list[str]:
    header = [word.strip() for word in next(csv.reader(handle), [])]
    if len(header) == 1:
        for mark in (";", "\t", "|"):
            if mark in header[0]:
                raise InputError(
                    f"{path}: the header is separated by {mark!r}: separate by commas (pandas: "
                    f"pd.read_csv(file, sep={mark!r}).to_csv(new, index=False))"
                )
    if "" in header:
        raise InputError(
            f"{path}: column {header.index('') + 1} has no name, like a saved index: leave it out "
            "(pandas: to_csv(file, index=False)), or name it"
        )
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: two columns are called {twice!r}: rename one of them")
    return header


def _rows(path: Path, handle: IO[str], header: list[str]) -> Iterator[tuple[list[int], Any]]:
    """Line numbers and rows of cells, many at a time; empty lines are left out."""
    handle.seek(0)
    reader = csv.reader(handle)
    next(reader)

    def each() -> Iterator[tuple[int, list[str]]]:
        for row in reader:
            if row and len(row) != len(header):
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(row)} cells, but the header has "
                    f"{len(header)}: correct the line"
                )
            if row:
                yield reader.line_num, row

    rows = each()
    while chunk := list(islice(rows, LINES_AT_ONCE)):
        yield [line for line, _ in chunk], [row for _, row in chunk]


def _numbers(
    cells: Sequence[str], lines: Sequence[int], strange: list[tuple[int, str]]
) -> FloatArray:
    """Cells as numbers, gaps as nan; what is no number goes to `strange` and is nan, too."""
    try:
        quick = np.fromiter(map(float, cells), np.float64, len(cells))
        if np.abs(quick).max() < 3.4e38 and "_" not in "".join(cells):
            return quick
    except ValueError:  # a gap or a word
        pass
    told = zip(lines, cells, strict=True)
    return np.array([_number(cell.strip(), line, strange) for line, cell in told])


def _number(word: str, line: int, strange: list[tuple[int, str]]) -> float:
    if word in GAPS:
        return math.nan
    try:
        value = float(word) if "_" not in word else math.nan  # Python reads 1_000 as a number
    except ValueError:
        value = math.nan
    if abs(value) < 3.4e38:  # the largest float32
        return value
    strange.append((line, word))
    return math.nan


def _all_words(at: str, name: str, cell: str, strange: int, many: int) -> None:
    """Refuse a column of numbers in which some cells are none: they look like mistakes."""
    if strange > many * (1 - MOSTLY):
        return
    what = f"{at}, column {name}: {shortened(cell)!r} is no finite number, but"
    raise InputError(
        f"{what} {many - strange} of {many} cells are: correct the cell, or leave it empty; "
        f"--categorical {name} takes the column as words"
    )


class _Interned:
    """A column of words while it is read: each word is kept once."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self.code = array("q")

    def extend(self, cells: Iterable[str]) -> None:
        number = self.number
        for cell in map(str.strip, cells):
            self.code.append(-1 if cell in GAPS else number.setdefault(cell, len(number)))

    def column(self) -> Words:
        return in_order(np.array(self.code, np.int64), list(self.number))


def in_order(code: IntArray, words: Sequence[str]) -> Words:
    """Words numbered in sorted order, by value where all are whole numbers."""
    numeric = all(w.isascii() and w.removeprefix("-").isdecimal() and len(w) < 19 for w in words)
    order = sorted(range(len(words)), key=lambda i: (int(words[i]) if numeric else 0, words[i]))
    place = np.full(len(words) + 1, -1, np.int64)  # the last: a gap
    place[order] = np.arange(len(words))
    return Words(place[code], tuple(words[i] for i in order))


def read_frame(frame: Any, roles: Roles) -> Table:
    """A data frame of pandas or polars, a table of pyarrow or Hugging Face, or columns by name."""
    columns = _columns(frame)
    roles = assign(roles, list(columns), "")
    out: dict[str, Column] = {}
    wordy = {roles.label, roles.client, roles.group, roles.split} - {None} | set(roles.categorical)
    many = {len(values) for values in columns.values()}
    if len(many) != 1 or not max(many):
        lengths = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise InputError(f"columns of lengths {shortened(lengths)}: give each the same, above 0")
    for name, values in columns.items():
        if name not in roles.drop:
            out[name] = _typed(name, values, name in wordy)
    return Table(out, roles)


def _columns(frame: Any) -> dict[str, Any]:
    """The columns of a frame by name."""
    if isinstance(frame, Mapping):
        found = dict(frame)
    elif hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise InputError(f"two columns are called {twice!r}: rename one of them")
        found = {name: frame[name].array for name in frame.columns}
    elif hasattr(frame, "to_pydict"):  # pyarrow
        found = frame.to_pydict()
    elif hasattr(frame, "column_names") and hasattr(frame, "to_dict"):  # Hugging Face
        found = frame.to_dict()
    elif hasattr(frame, "columns") and hasattr(frame, "to_dict"):  # polars
        found = frame.to_dict(as_series=False)
    else:
        kinds = "a data frame (pandas, polars), a table (pyarrow, datasets) or a dict of columns"
        raise InputError(f"a table of type {type(frame).__name__}: give {kinds}")
    wrong = next((name for name in found if not isinstance(name, str)), None)
    if wrong is not None:
        raise InputError(f"column {wrong!r}: names are text: use df.columns = df.columns.map(str)")
    return found


def _typed(name: str, values: Any, as_words: bool) -> Column:
    """A column of a frame by its values; None, nan, NaT and pandas' NA are gaps."""
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    if kind in "biuf" and kind and not as_words:
        wide = np.asarray(values, dtype=np.float64) if kind != "O" else None
        if wide is not None:
            return _finite(name, wide)
    cells = [None if _is_gap(v) else v for v in _items(values)]
    real = [v for v in cells if v is not None]
    if not as_words and all(isinstance(v, bool | int | float | np.number | np.bool_) for v in real):
        return _finite(name, np.array([math.nan if v is None else float(v) for v in cells]))
    for row, v in enumerate(cells):
        if v is not None and not isinstance(v, str | bool | int | float | np.number | np.bool_):
            raise InputError(
                f"column {name}, row {row}: {shortened(str(v))!r} is of type {type(v).__name__}: "
                f"give numbers or text, for a date for example df[{name!r}].dt.year"
            )
    seen: dict[str, int] = {}
    code = np.array(
        [-1 if v is None else seen.setdefault(_word(v), len(seen)) for v in cells], np.int64
    )
    return in_order(code, list(seen))


def _items(values: Any) -> list[Any]:
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _is_gap(value: Any) -> bool:
    if value is None or (isinstance(value, str) and value.strip() in GAPS):
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas' NA is neither equal nor unequal to itself
        return True


def _word(value: Any) -> str:
    """A cell as a word: 1.0 is the word 1, as a column of whole numbers with gaps has it."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _finite(name: str, values: FloatArray) -> FloatArray:
    wrong = np.abs(values) >= 3.4e38  # the largest float32
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"column {name}, row {row}: {values[row]} is no finite number: correct it, or leave it "
            "empty"
        )
    return np.array(values, np.float64)


# --- roles and features -------------------------------------------------------------------------


def assign(roles: Roles, header: Sequence[str], where: str) -> Roles:
    """The roles with the names that this header has; a name that it has not is refused."""
    found: dict[str, Any] = {}
    for role, usual in USUAL.items():
        name = getattr(roles, role)
        if name is not None and name not in header:
            raise InputError(f"{where}{unknown(f'column for {role}', name, header)}")
        here = [n for n in usual if n in header and n not in roles.drop]
        if name is None and len(here) > 1:
            raise InputError(
                f"{where}columns {' and '.join(here)}: say which is the {role} with --{role}"
            )
        found[role] = name if name is not None else next(iter(here), None)
    for role in ("drop", "categorical"):
        for name in getattr(roles, role):
            if name not in header:
                raise InputError(f"{where}{unknown(f'column to {role}', name, header)}")
    if found["label"] is None:
        raise InputError(
            f"{where}no column is called label or y among {shortened(', '.join(header))}: say "
            "which one is learnt with --label"
        )
    named = [name for name in found.values() if name is not None]
    for name in named:
        if named.count(name) > 1 and found["group"] != name:
            raise InputError(f"{where}column {name!r} has two uses: give each column one")
        if name in roles.drop:
            raise InputError(f"{where}column {name!r} is used and dropped: do one of them")
    return roles._replace(**found)


def features(
    table: Table, missing: Missing = "median", *, standardise: bool = True
) -> tuple[FloatArray, Preparation]:
    """The matrix of a table before it is prepared: words as columns of 0 and 1, gaps as nan."""
    roles = table.roles
    used = {roles.label, roles.client, roles.split} | ({roles.group} if roles.group else set())
    made: list[FloatArray] = []
    names: list[Feature] = []
    gaps: dict[str, NDArray[np.bool_]] = {}
    for name, column in table.columns.items():
        if name in used:
            continue
        _no_index(name, column)
        if isinstance(column, Words):
            gap = column.code < 0
            if len(column.words) > MAX_WORDS:
                raise InputError(
                    f"column {name} has {len(column.words)} different words, more than "
                    f"{MAX_WORDS}: leave it out with --drop {name}, or group the words"
                )
            for number, word in enumerate(column.words):
                made.append((column.code == number).astype(np.float64))
                names.append(Feature(name, word))
        else:
            gap = np.isnan(column)
            if gap.all():
                raise InputError(f"column {name} is empty: leave it out with --drop {name}")
            made.append(column)
            names.append(Feature(name, None))
        if gap.any():
            gaps[name] = gap
    if not made:
        raise InputError("the table has no column left to learn from: name fewer roles, drop less")
    if missing == "refuse" and gaps:
        name, gap = next(iter(gaps.items()))
        raise InputError(
            f"column {name}, row {int(np.argmax(gap))}: the cell is empty, with {int(gap.sum())} "
            "gaps in this column: fill them, or choose --missing median"
        )
    made += [gap.astype(np.float64) for gap in gaps.values()]
    return np.stack(made, 1), Preparation(tuple(names), tuple(gaps), missing, standardise)


def _no_index(name: str, column: Column) -> None:
    """Refuse a column that has the name of a saved index and numbers the rows from 0 or 1."""
    base = name.lower().split(":")[0].strip()
    if base not in INDEX_NAMES or isinstance(column, Words) or len(column) < 2:
        return
    first = float(column.min())
    if first in (0.0, 1.0) and np.array_equal(np.sort(column), first + np.arange(len(column))):
        raise InputError(
            f"column {name!r} only numbers the rows: leave it out with --drop {name} (pandas: "
            "to_csv(file, index=False)), or give it another name if it is a feature"
        )
