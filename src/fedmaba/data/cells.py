"""The cells of a column while they are read: numbers, or words that are kept once each.

No torch here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedmaba.data import names

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
GAPS = frozenset(("", "?", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>"))
# If this share of a column's cells are no numbers, it is of words, else these are mistakes.
MOSTLY = 0.9
MAX_WORDS = 100  # This many different words of a column become a column each.
LARGEST = 3.4e38  # float32


@dataclass(frozen=True)
class Words:
    """A column of words: each cell is the number of its word, -1 for a gap."""

    code: IntArray  # (n,)
    words: tuple[str, ...]
    joined: tuple[str, ...] = ()  # spellings that were read as one word, in words


ColumnValues = FloatArray | Words  # A column of numbers has nan for gaps.


def number_of(text: str, kind: type[int] | type[float] = float) -> float:
    """What a text says as a number; nan where it is none."""
    try:
        return kind(text)
    except ValueError:
        return math.nan


class Numbers:
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
        value = number_of(word) if "_" not in word else math.nan  # Python reads 1_000 as a number
        if abs(value) < LARGEST:
            self.known += 1
            return value
        if not self.strange:
            self.first = (line, word)
        self.strange += 1
        return math.nan


class Interned:
    """A column of words while it is read: each word is kept once."""

    def __init__(self, gaps: int = 0) -> None:
        self.number: dict[str, int] = {}  # of what is written
        self.code = array("q", [-1]) * gaps

    def extend(self, cells: Iterable[str]) -> None:
        number = self.number
        self.code.extend([number.setdefault(cell, len(number)) for cell in cells])

    def column(self) -> Words:
        return words_of(np.array(self.code, np.int64), list(self.number))


def words_of(code: IntArray, written: Sequence[str], gaps: Collection[str] = GAPS) -> Words:
    """A column of cells by the number of what is written in them, -1 for a gap."""
    full = [cell for cell in written if names.plain(cell) not in gaps]
    words, joined = names.joined(full)
    number: dict[str, int] = {}
    place = {
        cell: number.setdefault(word.strip(), len(number))
        for cell, word in zip(full, words, strict=True)
    }
    table = np.array([*(place.get(cell, -1) for cell in written), -1], np.int64)
    return replace(in_order(table[code], list(number)), joined=tuple(joined))


def in_order(code: IntArray, words: Sequence[str]) -> Words:
    """Words numbered in sorted order, by value where all are whole numbers."""
    numeric = all(w.isascii() and w.removeprefix("-").isdecimal() and len(w) < 19 for w in words)
    order = sorted(range(len(words)), key=lambda i: (int(words[i]) if numeric else 0, words[i]))
    place = np.full(len(words) + 1, -1, np.int64)  # the last: a gap
    place[order] = np.arange(len(words))
    return Words(place[code], tuple(words[i] for i in order))
