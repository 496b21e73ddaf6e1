"""Tables of numbers as base64 for the page's script, each value the true one. Pure, no torch.

An accuracy is so many right answers of so many: both are kept as whole numbers, and the script
divides. Scores that are no such share are kept as floating-point numbers.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.results.run_history import FloatArray, IntArray

SHARE_ROUNDING = 1e-7  # This is the relative error of a share that is stored in 32 bits.


def shares(values: FloatArray, size: IntArray, times: int = 1, *, exact: bool = True) -> Any:
    """Shares of a client's `size` test examples (last axis), or means of `times` such shares."""
    known = np.isfinite(values)
    right = values * (size * times)
    whole = np.rint(right)
    near = np.abs(right - whole) <= SHARE_ROUNDING * size * times
    if not (near & (whole >= 0) & (whole <= size * times))[known].all():
        return floats(values, "<f8" if exact else "<f4")
    of = (size * times).tolist()
    return counts(whole, "of", of[0] if len({*of}) == 1 else of)


def counts(values: FloatArray | IntArray, name: str = "of", of: Any = 1) -> dict[str, Any]:
    """Whole numbers in the fewest bytes; the largest of them is 'none'."""
    known = np.isfinite(values)
    top = int(values[known].max()) if known.any() else 0
    kind: np.dtype[Any] = next(
        np.dtype(k) for k in ("<u1", "<u2", "<u4") if top < np.iinfo(k).max or k == "<u4"
    )
    out: NDArray[Any] = np.full(values.shape, np.iinfo(kind).max, kind)
    out[known] = values[known]
    return _table(out) | {name: of}


def floats(values: FloatArray, kind: str = "<f4") -> dict[str, Any]:
    """Floating-point numbers; what is not finite in them is 'none'."""
    most = 3e38 if kind == "<f4" else np.inf
    return _table(np.where(np.abs(values) < most, values, np.nan).astype(kind))


def _table(values: NDArray[Any]) -> dict[str, Any]:
    data = base64.b64encode(values.tobytes()).decode()
    return {"kind": values.dtype.str[1:], "shape": list(values.shape), "data": data}
