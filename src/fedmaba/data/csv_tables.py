"""CSV files with a header as tables. No torch."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedmaba.data.cells import ColumnValues, Interned, Numbers
from fedmaba.data.names import plain
from fedmaba.data.tables import RawTable, Reading, assign, columns_of_words, dropping
from fedmaba.errors import InputError, error_line, shortened

LINES_AT_ONCE = 1_000  # few enough for the cache of a core


def read_csv(path: Path, handle: IO[str], reading: Reading) -> RawTable:
    """A CSV file with a header; words and numbers are told apart by the cells."""
    header = _header(path, handle, reading.drop)
    reading = assign(reading, header, f"{path}: ")
    kept = [name for name in header if name not in reading.drop]
    words = {name: Interned() for name in columns_of_words(reading)}
    numbers = {name: Numbers() for name in kept if name not in words}
    lines = array("q")
    broken: list[int] = []
    for at, rows in _rows(path, handle, header, broken):
        lines.extend(at)
        across = dict(zip(header, zip(*rows, strict=True), strict=True))
        for name, found in list(numbers.items()):
            found.extend(across[name], at)
            if found.is_words() and not found.known:  # known by its first cells
                del numbers[name]
                words[name] = Interned(len(lines) - len(rows))
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
        words[name] = Interned()
    for _, rows in _rows(path, handle, header, []) if late else ():
        across = dict(zip(header, zip(*rows, strict=True), strict=True))
        for name in late:
            words[name].extend(across[name])
    columns: dict[str, ColumnValues] = {
        name: words[name].column() if name in words else np.concatenate(numbers[name].parts)
        for name in kept
    }
    many = f"rows with a line break in a cell: {len(broken)}, the first in line "
    return RawTable(columns, reading, lines, tuple(f"{many}{line}" for line in broken[:1]))


def _header(path: Path, handle: IO[str], drop: Sequence[str]) -> list[str]:
    """The names of the columns; one without a name is called as pandas does, and must be left out.

    `df.to_csv()` writes the index in such a column: it numbers the rows, and is no feature.
    """
    try:
        written = next(csv.reader(handle, strict=True), [])
    except csv.Error as err:
        raise _bad_quote(path, 1, err) from None
    if len(written) == 1:
        for mark in (";", "\t", "|"):
            if mark in written[0]:
                raise InputError(
                    f"{path}: the header is separated by {mark!r}: separate by commas (pandas: "
                    f"pd.read_csv(file, sep={mark!r}).to_csv(new, index=False))"
                )
    header = [plain(word) for word in written]
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


def _rows(
    path: Path, handle: IO[str], header: list[str], broken: list[int]
) -> Iterator[tuple[list[int], Any]]:
    """Line numbers and rows of cells, many at a time; empty lines are left out.

    `broken` gets the line of each row that has a line break in a cell.
    """
    handle.seek(0)
    reader = csv.reader(handle, strict=True)
    first = next(reader)

    def each() -> Iterator[tuple[int, list[str]]]:
        line = reader.line_num + 1  # a row begins in it
        try:
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"{path}, line {line}: {len(row)} cells, but the header has "
                        f"{len(header)}: correct the line"
                    )
                if reader.line_num > line:
                    _no_rows_in_cells(f"{path}, lines {line} to {reader.line_num}", header, row)
                    broken.append(line)
                if row == first:
                    raise InputError(f"{path}, line {line}: the header again: remove this line")
                if row:
                    yield line, row
                line = reader.line_num + 1
        except csv.Error as err:
            raise _bad_quote(path, line, err) from None

    rows = each()
    while chunk := list(islice(rows, LINES_AT_ONCE)):
        yield [line for line, _ in chunk], [row for _, row in chunk]


def _bad_quote(path: Path, line: int, err: csv.Error) -> InputError:
    """What is wrong with the row that begins in this line."""
    what = {
        "unexpected end of data": "the quote that opens in this row is never closed",
        "',' expected after '\"'": "text follows the closing quote of a cell in this row",
    }.get(str(err))
    if what is None and "field limit" in str(err):
        what = f"a cell has more than {csv.field_size_limit():,} characters"
    remedy = "close each quote right before a comma, and write one inside a cell twice"
    return InputError(f"{path}, line {line}: {what or error_line(err)}: {remedy}")


def _no_rows_in_cells(where: str, header: Sequence[str], row: Sequence[str]) -> None:
    """Refuse a cell whose lines look like rows of the table: its quote was closed rows later."""
    for place, cell in enumerate(row):
        after = [line.count(",") for line in cell.split("\n")[1:]]
        alike = after[:-1].count(len(header) - 1) + (after[-1:] == [place])
        if place > 1 and 2 * alike > len(after):
            raise InputError(
                f"{where}, column {header[place]}: one cell has line breaks, and the lines "
                "after them look like rows: close its quote, or take the line breaks out"
            )
