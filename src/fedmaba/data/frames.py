"""Data frames and columns by name as tables, read by their own methods. No torch, no pandas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmaba.data.cells import GAPS, LARGEST, ColumnValues, FloatArray, Numbers, words_of
from fedmaba.data.names import plain
from fedmaba.data.tables import RawTable, Reading, assign, columns_of_words, dropping
from fedmaba.errors import InputError, installed, shortened

ARROW_NUMBERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
ARROW_NUMBERS |= {"float", "double"}


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
    wordy = columns_of_words(reading)
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
    columns: list[tuple[Any, Any]]
    if isinstance(frame, Mapping):
        columns = [*frame.items()]
    elif hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas
        columns = [(name, frame.iloc[:, at].array) for at, name in enumerate(frame.columns)]
    elif hasattr(frame, "to_pydict") and hasattr(frame, "column_names"):  # pyarrow
        read = map(_arrow_values, frame.columns)
        columns = [*zip(frame.column_names, read, strict=True)]
    elif hasattr(frame, "with_format") and hasattr(frame, "__len__"):  # Hugging Face
        table = frame.with_format("arrow")[:]  # The format numpy makes float32 of numbers.
        nested = any(str(kind).startswith(("struct", "list", "ext")) for kind in table.schema.types)
        return columns_of({**frame[:]} if nested else table)  # pictures and arrays
    elif hasattr(frame, "columns") and hasattr(frame, "to_arrow"):  # polars
        with installed("a polars frame is read over Arrow: pip install pyarrow"):
            return columns_of(frame.to_arrow())
    else:
        kinds = "a data frame (pandas, polars), a table (pyarrow, datasets) or a dict of columns"
        raise InputError(f"a table of type {type(frame).__name__}: give {kinds}")
    out: dict[str, Any] = {}
    for name, values in columns:
        if not isinstance(name, str):
            raise InputError(
                f"column {name!r}: names are text: use df.columns = df.columns.map(str)"
            )
        if plain(name) in out:
            raise InputError(f"two columns are called {plain(name)!r}: rename one of them")
        out[plain(name)] = values
    return out


def _arrow_values(column: Any) -> Any:
    """A column of pyarrow: numbers as an array with nan for gaps, everything else as a list."""
    plain = str(column.type) in ARROW_NUMBERS
    return column.to_numpy() if plain else column.to_pylist()


def _typed(name: str, values: Any, as_words: bool) -> ColumnValues:
    """A column of a frame by its values; None, nan, NaT and pandas' NA are gaps."""
    dtype = getattr(values, "dtype", None)
    kind = getattr(dtype, "kind", "")
    if kind and kind in "iuf" and not as_words:
        wide = values.astype(np.float64)
        return _finite(name, wide.filled(math.nan) if isinstance(wide, np.ma.MaskedArray) else wide)
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
    return words_of(code, list(seen))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _no_numbers_as_text(name: str, cells: Sequence[Any]) -> None:
    """Refuse a column of text in which many cells are numbers."""
    found = Numbers()
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
    return str(value)


def _finite(name: str, values: FloatArray) -> FloatArray:
    wrong = np.abs(values) >= LARGEST
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"row {row}, column {name}: {values[row]} is no finite number: correct it, or leave it "
            "empty"
        )
    return np.array(values, np.float64)
