"""The matrix of a table: a column per number and word, a flag per column with gaps. No torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmaba.data.cells import MAX_WORDS, FloatArray, Words
from fedmaba.data.preparation import Feature, Preparation
from fedmaba.data.tables import RawTable, dropping, roles
from fedmaba.errors import InputError


def features(table: RawTable) -> tuple[FloatArray, Preparation]:
    """The matrix of a table before it is prepared: words as columns of 0 and 1, gaps as nan."""
    reading = table.reading
    missing, standardise = reading.missing or "median", reading.standardise is not False
    used = roles(reading)
    made: list[FloatArray] = []
    names: list[Feature] = []
    gaps: dict[str, NDArray[np.bool_]] = {}
    for name, column in table.columns.items():
        if name in used:
            continue
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
