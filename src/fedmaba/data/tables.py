"""Tables with a header as examples: what each column is for, words as numbers, gaps filled.

A table becomes a matrix with one column per number, one per word of a column of words, and one flag
per column that has gaps. Filling gaps and standardising wait until it is known who trains on what,
because both use the training examples alone: see `Preparation`. No torch and no pandas here; a data
frame is read by its own methods.
"""

from __future__ import annotations

import csv
import math
import shlex
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError, shortened, unknown

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Missing = Literal["median", "client-median", "refuse"]
GAPS = frozenset(("", "?", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>"))
MAX_WORDS = 100  # This many different words of a column become a column each.
# If this share of a column's cells are no numbers, it is of words, else these are mistakes.
MOSTLY = 0.9
LARGEST = 3.4e38  # float32
LINES_AT_ONCE = 1_000  # few enough for the cache of a core
ARROW_NUMBERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
ARROW_NUMBERS |= {"float", "double"}
INDEX_NAMES = ("unnamed", "index", "level_0", "id", "row", "row_id", "row_name", "row_number")


class Reading(NamedTuple):
    """How a table is read; a column that is None is looked for under its usual name."""

    label: str | None = None  # This column is learnt: "label" or "y".
    client: str | None = None  # This column says who owns the example: "client".
    group: str | None = None  #          a group of people: "group"
    split: str | None = None  # This column has train, validation or test: "split".
    drop: tuple[str, ...] = ()  #        columns that are not used
    categorical: tuple[str, ...] = ()  # These columns have numbers that stand for words.
    missing: Missing | None = None  # Gaps are filled in this way, by default with the median.
    # It says whether numbers are standardised, which they are by default.
    standardise: bool | None = None


USUAL = {"label": ("label", "y"), "client": ("client",), "group": ("group",), "split": ("split",)}


@dataclass(frozen=True)
class Words:
    """A column of words: each cell is the number of its word, -1 for a gap."""

    code: IntArray  # (n,)
    words: tuple[str, ...]


ColumnValues = FloatArray | Words  # A column of numbers has nan for gaps.


class Feature(NamedTuple):
    """One column of the matrix."""

    column: str  # of the table
    word: str | None  # The column is 1 for this word; None means the column's number.


@dataclass(frozen=True)
class Preparation:
    """What is done to the columns of numbers, from training examples alone."""

    features: tuple[Feature, ...]
    flags: tuple[str, ...] = ()  # These columns have gaps, in the order of their flags.
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
            whose = "the client's own" if self.missing == "client-median" else "all clients'"
            out.append(
                f"gaps of numbers filled by the median of {whose} training examples; a column of "
                f"0 and 1 marks the gaps of {', '.join(self.flags)}"
            )
        if self.standardise and self.numbers:
            out.append("numbers standardised by the mean and deviation of the training examples")
        return out

    def apply(self, x: FloatArray, train: IntArray, owner: IntArray) -> NDArray[np.float32]:
        """The finished matrix; `train` names the training rows, `owner` the client of each row."""
        out = np.array(x, np.float64, order="F")  # it is worked on column by column
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
        return out.astype(np.float32, order="C")

    @property
    def learns(self) -> bool:
        """Whether the matrix depends on which examples train."""
        gaps = {self.features[i].column for i in self.numbers} & set(self.flags)
        return bool(gaps) or (self.standardise and bool(self.numbers))

    def _fill(
        self, column: FloatArray, gap: NDArray[np.bool_], train: IntArray, owner: IntArray
    ) -> None:
        known = train[~gap[train]]
        column[gap] = np.median(column[known]) if len(known) else 0.0
        if self.missing == "client-median":
            own = _medians(column[known], owner[known], int(owner.max()) + 1)[owner[gap]]
            column[gap] = np.where(np.isnan(own), column[gap], own)


def _medians(values: FloatArray, owner: IntArray, clients: int) -> FloatArray:
    """The median of each client's values; nan for one without any, and last for no client."""
    size = np.bincount(owner, minlength=clients)
    ranked, start = values[np.lexsort((values, owner))], np.cumsum(size) - size
    some, out = size > 0, np.full(clients + 1, np.nan)
    low, high = (start + (size - 1) // 2)[some], (start + size // 2)[some]
    out[:-1][some] = (ranked[low] + ranked[high]) / 2
    return out


def reading(
    label: str | None = None,
    client: str | None = None,
    group: str | None = None,
    split: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str | None = None,
    standardise: bool | str | None = None,
) -> Reading:
    """What a user says about a table, checked; one name or several are a list of names."""
    lists = {}
    for word, names in (("drop", drop), ("categorical", categorical)):
        lists[word] = (names,) if isinstance(names, str) else tuple(names)
        if wrong := next((name for name in lists[word] if not isinstance(name, str)), None):
            raise InputError(f"{word} names {wrong!r}: give names of columns")
    if missing is not None and missing not in get_args(Missing):
        raise unknown("way to fill gaps", str(missing), get_args(Missing))
    if isinstance(standardise, str):
        if standardise not in ("yes", "no"):
            raise InputError(f"standardise={standardise!r}: say yes or no")
        standardise = standardise == "yes"
    how = cast("Missing | None", missing)
    return Reading(
        label, client, group, split, lists["drop"], lists["categorical"], how, standardise
    )


class RawTable(NamedTuple):
    """A table as it was read: all columns in order, and what they are for."""

    columns: Mapping[str, ColumnValues]
    reading: Reading  # All names that the table has are set.
    # These are lines of the file, by row; there are none where there is no file.
    lines: Sequence[int] = ()

    def at(self, row: int) -> str:
        """Where a row stands, for people."""
        return f"line {self.lines[row]}" if len(self.lines) else f"row {row}"


# --- reading ------------------------------------------------------------------------------------


def read_csv(path: Path, handle: IO[str], reading: Reading) -> RawTable:
    """A CSV file with a header; words and numbers are told apart by the cells."""
    header = _header(path, handle, reading.drop)
    reading = assign(reading, header, f"{path}: ")
    kept = [name for name in header if name not in reading.drop]
    words = {name: _Interned() for name in _columns_of_words(reading)}
    numbers = {name: _Numbers() for name in kept if name not in words}
    lines = array("q")
    for at, rows in _rows(path, handle, header):
        lines.extend(at)
        across = dict(zip(header, zip(*rows, strict=True), strict=True))
        for name, found in list(numbers.items()):
            found.extend(across[name], at)
            if found.is_words() and not found.known:  # known by its first cells
                del numbers[name]
                words[name] = _Interned(len(lines) - len(rows))
        for name, seen in words.items():
            seen.extend(across[name])
    if not lines:
        raise InputError(f"{path}: no rows below the header: add some")
    late = [name for name, found in numbers.items() if found.strange]
    for name in late:
        found = numbers.pop(name)
        line, cell = found.first
        if not found.is_words():
            raise InputError(
                f"{path}, line {line}, column {name}: {shortened(cell)!r} is no finite number, but "
                f"{found.known} of {found.known + found.strange} cells are: correct the cell, or "
                f"leave it empty; --categorical {name} takes the column as words"
            )
        words[name] = _Interned()
    for _, rows in _rows(path, handle, header) if late else ():
        across = dict(zip(header, zip(*rows, strict=True), strict=True))
        for name in late:
            words[name].extend(across[name])
    columns: dict[str, ColumnValues] = {
        name: words[name].column() if name in words else np.concatenate(numbers[name].parts)
        for name in kept
    }
    return RawTable(columns, reading, lines)


def _columns_of_words(reading: Reading) -> set[str]:
    """The columns whose cells are words, whatever they look like."""
    named = (reading.label, reading.client, reading.group, reading.split, *reading.categorical)
    return {name for name in named if name is not None}


def _header(path: Path, handle: IO[str], drop: Sequence[str]) -> list[str]:
    """The names of the columns; one without a name is called as pandas does, and must be left out.

    `df.to_csv()` writes the index in such a column: it numbers the rows, and is no feature.
    """
    header = [word.strip() for word in next(csv.reader(handle), [])]
    if len(header) == 1:
        for mark in (";", "\t", "|"):
            if mark in header[0]:
                raise InputError(
                    f"{path}: the header is separated by {mark!r}: separate by commas (pandas: "
                    f"pd.read_csv(file, sep={mark!r}).to_csv(new, index=False))"
                )
    nameless = [place for place, name in enumerate(header) if not name]
    for place in nameless:
        header[place] = name = f"Unnamed: {place}"
        if name not in drop:
            raise InputError(
                f"{path}: column {place + 1} has no name, like a saved index: leave it out with "
                f"{dropping(name)} (pandas: to_csv(file, index=False)), or name it"
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


class _Numbers:
    """A column of numbers while it is read; cells that are no number are counted."""

    def __init__(self) -> None:
        self.parts: list[FloatArray] = []
        self.known = self.strange = 0
        self.first = (0, "")  # These are the line and text of the first cell that is no number.

    def is_words(self) -> bool:
        """Whether so few cells are numbers that the column must be one of words."""
        return self.strange > MOSTLY * (self.known + self.strange)

    def extend(self, cells: Sequence[str], lines: Sequence[int]) -> None:
        try:
            told = map(float, [cell or "nan" for cell in cells])
            quick = np.fromiter(told, np.float64, len(cells))
            largest = np.fmax.reduce(np.abs(quick), initial=0.0)
            if largest < LARGEST and "_" not in "".join(cells):
                self.known += len(cells) - int(np.isnan(quick).sum())
                self.parts.append(quick)
                return
        except ValueError:  # It may be a word, or a gap that is written as one.
            pass
        each = zip(lines, cells, strict=True)
        self.parts.append(np.array([self._number(cell.strip(), line) for line, cell in each]))

    def _number(self, word: str, line: int) -> float:
        if word in GAPS:
            return math.nan
        try:
            value = float(word) if "_" not in word else math.nan  # Python reads 1_000 as a number
        except ValueError:
            value = math.nan
        if abs(value) < LARGEST:
            self.known += 1
            return value
        if not self.strange:
            self.first = (line, word)
        self.strange += 1
        return math.nan


class _Interned:
    """A column of words while it is read: each word is kept once."""

    def __init__(self, gaps: int = 0) -> None:
        self.number: dict[str, int] = {}
        self.code = array("q", [-1]) * gaps

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


def read_frame(frame: Any, reading: Reading) -> RawTable:
    """A data frame of pandas or polars, a table of pyarrow or Hugging Face, or columns by name."""
    columns = columns_of(frame)
    reading = assign(reading, list(columns), "")
    for name in columns:
        if (not name.strip() or name.startswith("__index_level_")) and name not in reading.drop:
            raise InputError(
                f"column {name!r} is a saved index: leave it out"
                + f" with {dropping(name)}" * bool(name.strip())
                + " (pandas: to_csv or to_parquet with index=False), or name it"
            )
    out: dict[str, ColumnValues] = {}
    wordy = _columns_of_words(reading)
    many = {len(values) for values in columns.values()}
    if len(many) != 1 or not max(many):
        lengths = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise InputError(f"columns of lengths {shortened(lengths)}: give each the same, above 0")
    for name, values in columns.items():
        if name not in reading.drop:
            out[name] = _typed(name, values, name in wordy)
    return RawTable(out, reading)


def columns_of(frame: Any) -> dict[str, Any]:
    """The columns of a frame by name."""
    if isinstance(frame, Mapping):
        found = dict(frame)
    elif hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise InputError(f"two columns are called {twice!r}: rename one of them")
        found = {name: frame[name].array for name in frame.columns}
    elif hasattr(frame, "to_pydict") and hasattr(frame, "column_names"):  # pyarrow
        names = frame.column_names
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"two columns are called {twice!r}: rename one of them")
        found = {name: _arrow_values(frame.column(name)) for name in names}
    elif hasattr(frame, "column_names") and hasattr(frame, "features"):  # Hugging Face
        found = dict(frame[:])
    elif hasattr(frame, "columns") and hasattr(frame, "to_dict"):  # polars
        found = frame.to_dict(as_series=False)
    else:
        kinds = "a data frame (pandas, polars), a table (pyarrow, datasets) or a dict of columns"
        raise InputError(f"a table of type {type(frame).__name__}: give {kinds}")
    wrong = next((name for name in found if not isinstance(name, str)), None)
    if wrong is not None:
        raise InputError(f"column {wrong!r}: names are text: use df.columns = df.columns.map(str)")
    return found


def _arrow_values(column: Any) -> Any:
    """A column of pyarrow: numbers as an array with nan for gaps, everything else as a list."""
    plain = str(column.type) in ARROW_NUMBERS
    return column.to_numpy() if plain else column.to_pylist()


def _typed(name: str, values: Any, as_words: bool) -> ColumnValues:
    """A column of a frame by its values; None, nan, NaT and pandas' NA are gaps."""
    dtype = getattr(values, "dtype", None)
    kind = getattr(dtype, "kind", "")
    if kind and kind in "iuf" and not as_words:
        return _finite(name, np.asarray(values, dtype=np.float64))
    cells = [None if _is_gap(v) else v for v in cells_of(values)]
    real = [v for v in cells if v is not None]
    if not as_words and all(_is_number(v) for v in real):
        return _finite(name, np.array([math.nan if v is None else float(v) for v in cells]))
    for row, v in enumerate(cells):
        if v is not None and not isinstance(v, str | bool | int | float | np.number | np.bool_):
            raise InputError(
                f"row {row}, column {name}: {shortened(str(v))!r} is of type {type(v).__name__}: "
                f"give numbers or text, for a date for example df[{name!r}].dt.year"
            )
    if not as_words and str(dtype) != "category":
        _no_numbers_as_text(name, cells)
    seen: dict[str, int] = {}
    code = np.array(
        [-1 if v is None else seen.setdefault(_word(v), len(seen)) for v in cells], np.int64
    )
    return in_order(code, list(seen))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _no_numbers_as_text(name: str, cells: Sequence[Any]) -> None:
    """Refuse a column of text in which many cells are numbers."""
    found = _Numbers()
    found.extend(["" if cell is None else str(cell) for cell in cells], range(len(cells)))
    if found.is_words():
        return
    many = f"{found.known} of {found.known + found.strange} cells are numbers"
    odd = f"; row {found.first[0]} is {shortened(found.first[1])!r}" if found.strange else ""
    raise InputError(
        f"column {name} is text, but {many}{odd}: correct it and use pd.to_numeric, or take the "
        f"column as words with --categorical {name} (in Python categorical=[{name!r}])"
    )


def cells_of(values: Any) -> list[Any]:
    """The cells of a column as plain objects."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _is_gap(value: Any) -> bool:
    if value is None or (isinstance(value, str) and value.strip() in GAPS):
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # The NA of pandas is neither equal nor unequal to itself.
        return True


def _word(value: Any) -> str:
    """A cell as a word: 1.0 is the word 1, as a column of whole numbers with gaps has it."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _finite(name: str, values: FloatArray) -> FloatArray:
    wrong = np.abs(values) >= LARGEST
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"row {row}, column {name}: {values[row]} is no finite number: correct it, or leave it "
            "empty"
        )
    return np.array(values, np.float64)


# --- columns and features -----------------------------------------------------------------------


def assign(reading: Reading, header: Sequence[str], where: str) -> Reading:
    """The reading with the names that this header has; a name that it has not is refused."""
    found: dict[str, Any] = {}
    for role, usual in USUAL.items():
        name = getattr(reading, role)
        if name is not None and name not in header:
            other = " (--clients says how many clients)" if role == "client" else ""
            raise InputError(f"{where}{unknown(f'column for {role}', name, header, other=other)}")
        here = [n for n in usual if n in header and n not in reading.drop]
        if name is None and len(here) > 1:
            raise InputError(
                f"{where}columns {' and '.join(here)}: say which is the {role} with --{role}"
            )
        found[role] = name if name is not None else next(iter(here), None)
    for role in ("drop", "categorical"):
        for name in getattr(reading, role):
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
        if name in reading.drop:
            raise InputError(f"{where}column {name!r} is used and dropped: do one of them")
    return reading._replace(**found)


def uses(reading: Reading) -> tuple[str, ...]:
    """What the columns of a table are for, as the record of a run tells it."""
    named = [f"{role} {name}" for role in USUAL if (name := getattr(reading, role)) is not None]
    out = [f"columns: {', '.join(named)}; the others are features"]
    if reading.drop:
        out.append(f"columns left out: {', '.join(reading.drop)}")
    return tuple(out)


def features(table: RawTable) -> tuple[FloatArray, Preparation]:
    """The matrix of a table before it is prepared: words as columns of 0 and 1, gaps as nan."""
    reading = table.reading
    missing, standardise = reading.missing or "median", reading.standardise is not False
    used = {reading.label, reading.client, reading.split, reading.group}
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
                    f"{MAX_WORDS}: leave it out with {dropping(name)}, or group the words"
                )
            for number, word in enumerate(column.words):
                made.append((column.code == number).astype(np.float64))
                names.append(Feature(name, word))
        else:
            gap = np.isnan(column)
            if gap.all():
                raise InputError(f"column {name} is empty: leave it out with {dropping(name)}")
            made.append(column)
            names.append(Feature(name, None))
        if gap.any():
            gaps[name] = gap
    if not made:
        raise InputError("the table has no column left to learn from: drop fewer")
    if missing == "refuse" and gaps:
        name, gap = next(iter(gaps.items()))
        raise InputError(
            f"{table.at(int(np.argmax(gap)))}, column {name}: the cell is empty "
            f"({int(gap.sum())} such cells): fill them, or choose --missing median"
        )
    made += [gap.astype(np.float64) for gap in gaps.values()]
    return np.stack(made, 1), Preparation(tuple(names), tuple(gaps), missing, standardise)


def dropping(name: str) -> str:
    """What a user types to leave a column out."""
    return f"--drop {shlex.quote(name)}"


def _no_index(name: str, column: ColumnValues) -> None:
    """Refuse a column that has the name of a saved index and numbers the rows from 0 or 1."""
    base = name.lower().split(":")[0].strip()
    if base not in INDEX_NAMES or isinstance(column, Words) or len(column) < 2:
        return
    first = float(column.min())
    if first in (0.0, 1.0) and np.array_equal(np.sort(column), first + np.arange(len(column))):
        raise InputError(
            f"column {name!r} only numbers the rows: leave it out with {dropping(name)} (pandas: "
            "to_csv(file, index=False)), or give it another name if it is a feature"
        )
