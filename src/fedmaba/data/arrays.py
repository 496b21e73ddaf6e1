"""Arrays that people give, without a silent loss: of a mask, or of what float32 cannot hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError

ROWS = 20  # In fewer rows numbers without a gap may come by chance.
SOME = 1_000  # So many rows show whether numbers are whole.
LOST = 0.01  # Rounding may move a value by this share of its column's deviation.


def as_array(word: str, values: Any) -> NDArray[Any]:
    """The values as an array; masked ones are refused, for NumPy would show what is below."""
    if isinstance(values, list | tuple) and any(isinstance(v, np.ma.MaskedArray) for v in values):
        values = np.ma.array(values)
    if isinstance(values, np.ma.MaskedArray) and (mask := np.ma.getmaskarray(values)).any():
        row = int(np.argmax(mask.reshape(len(mask), -1).any(1)))
        many = f"{int(mask.sum())} masked values" if mask.sum() > 1 else "1 masked value"
        raise InputError(
            f"{word} has {many}, the first at row {row}: fill them, or leave these rows out"
        )
    return np.asarray(values)


def lost_by_float32(
    word: str, wide: NDArray[Any], names: Sequence[str] = (), remedy: str = ""
) -> tuple[str, ...]:
    """A doubt about columns (n, ...) whose values differ by less than float32 can tell apart."""
    if wide.dtype.kind not in "fiu" or wide.dtype == np.float32 or not wide.size:
        return ()
    flat = wide.reshape(len(wide), -1)
    least, most = (f.reduce(flat, axis=0).astype(np.float64) for f in (np.fmin, np.fmax))
    step = np.spacing(np.maximum(np.abs(least), np.abs(most)).astype(np.float32))
    # The deviation is at least this, so few columns need a closer look.
    near = np.flatnonzero(step > 2 * LOST * (most - least) / np.sqrt(2 * len(flat)))
    bad = [i for i in near if step[i] > 2 * LOST * np.nanstd(flat[:, i].astype(np.float64)) > 0]
    if not bad:
        return ()
    i = int(bad[0])
    where = f"{word}, column {names[i] if names else i}" if names or flat.shape[1] > 1 else word
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    text = f"{where}{more}: values from {least[i]:g} to {most[i]:g} lose their differences in "
    return (f"{text}float32, which training uses: {remedy or f'give {word} - {word}.mean(0)'}",)


def like_pixels(word: str, x: NDArray[Any]) -> tuple[str, ...]:
    """A doubt about images, or rows of as many numbers, with values up to 255."""
    shape, kind = x.shape[1:], x.dtype.kind
    image = len(shape) == 3 and shape[0] in (1, 3, 4) and kind in "fi"
    plain = min(shape, default=0) >= (64 if len(shape) == 1 else 8) and kind == "f"
    if not (image or (plain and len(shape) < 3)) or not 100 < x.max() <= 255 or x.min() < 0:
        return ()
    some = x[:SOME]
    if not image and not np.array_equal(some, np.rint(some)):
        return ()
    text = f"{word} has values from {x.min():g} to {x.max():g}, like pixels, with which training "
    return (f"{text}is slow or fails: give ({word} / 255).astype('float32')",)


def counting(word: str, x: NDArray[Any]) -> tuple[str, ...]:
    """A doubt about a column (n, features) that only numbers the rows."""
    n = len(x)
    if x.ndim != 2 or n < ROWS or x.dtype.kind == "b":
        return ()
    span = np.flatnonzero(x.max(0) - x.min(0) == n - 1)
    bad = next((i for i in span if (np.diff(np.sort(x[:, i])) == 1).all()), None)
    text = f"{word}, column {bad}: it only numbers the rows: leave it out, unless it is a feature"
    return () if bad is None else (text,)
