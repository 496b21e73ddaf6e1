"""Losses far above the others, which may be lies, count less. Pure NumPy functions."""

import numpy as np

from fedmaba.strategies.base import FloatArray

MEDIAN_TO_DEVIATION = 1.4826  # a normal sample's deviation over its median distance to the median
BELIEVED_UP_TO, IGNORED_FROM = 3.0, 4.5  # in deviations above the median


def shrink_outliers(loss: FloatArray, known: FloatArray) -> FloatArray:
    """The losses, with those far above most of `known` moved towards the median of `known`.

    This is a redescending rule like Hampel's. A loss counts as reported up to 3 deviations above
    the median. Beyond that it counts for less the larger it is, and from 4.5 deviations on it
    counts as the median. So a larger lie gains less; with a simple cap it would stay at the top.
    The rule works as long as most of `known` is honest.
    """
    known = np.clip(known, -1e300, 1e300)  # sums of two stay finite
    centre = float(np.median(known))
    spread = MEDIAN_TO_DEVIATION * float(np.median(np.abs(known - centre)))
    top = centre + BELIEVED_UP_TO * spread
    with np.errstate(over="ignore"):
        down = top - (loss - top) * (BELIEVED_UP_TO / (IGNORED_FROM - BELIEVED_UP_TO))
    return np.where(loss <= top, loss, np.maximum(down, centre))
