"""What the theory_*.py share: slopes with intervals, and figures that are the same on every run."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 1, 2, ... degrees


def slopes(x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """Least-squares slope of log y over log x, of each column of y."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def interval(values: ArrayLike) -> tuple[float, float]:
    """Mean and half-width of its 95 % interval, from 2 to 10 independent values."""
    v = np.asarray(values)
    return float(v.mean()), float(T975[len(v) - 2] * v.std(ddof=1) / np.sqrt(len(v)))


def figure(draw: Callable[..., None], panels: int, found: Any) -> None:
    """`python theory_x.py FILE.svg`: hand the panels to `draw` and write them there."""
    if len(sys.argv) < 2:
        return
    if sys.argv[1].startswith("-"):
        sys.exit(f"{sys.argv[1]} is no name of a figure: give FIGURE.svg, or nothing")
    from fedmaba.report import figures

    with figures.style():  # as the figures of runs
        made = figures.canvas((3.4 * panels, 2.9))
        draw(*np.atleast_1d(made.subplots(1, panels)), found)
        Path(sys.argv[1]).write_bytes(figures.encode(made, ".svg"))
