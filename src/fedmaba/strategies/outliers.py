"""What to believe of the numbers that clients report. NumPy only, no state of its own."""

import numpy as np

from fedmaba.strategies.base import FloatArray

SIGMA = 1.4826  # times the median distance to the median is the deviation of a normal sample
FULL, NONE = 3.0, 4.5  # deviations above the median: up to here believed, from here on not at all


def usual(loss: FloatArray, known: FloatArray) -> FloatArray:
    """Losses, those far above most of `known` taken back towards its median.

    A redescending rule, as Hampel's: what is believed grows with the report up to 3 deviations,
    then falls to the median at 4.5 and stays there: a larger lie is worth less, not more.
    A cap would leave it at the top. Right as long as most of `known` is honest.
    """
    known = np.clip(known, -1e300, 1e300)  # sums of two stay finite
    centre = float(np.median(known))
    spread = SIGMA * float(np.median(np.abs(known - centre)))
    top = centre + FULL * spread
    with np.errstate(over="ignore"):
        down = top - (loss - top) * (FULL / (NONE - FULL))
    return np.where(loss <= top, loss, np.maximum(down, centre))
