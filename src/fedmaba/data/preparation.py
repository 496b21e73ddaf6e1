"""What is done to the columns of a table once it is known who trains on what. No torch.

Filling gaps and standardising both use the training examples alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.data.cells import FloatArray, IntArray
from fedmaba.data.tables import Missing


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
