"""Gaussian noise that nobody can repeat: from the operating system's generator. NumPy only.

Every bit comes from `os.urandom`, the generator that keys are made with, and is used once. A NumPy
generator would not do, whatever its seed: none promises that its other numbers cannot be computed
from those that are known, and an attacker who knows some entries of a sum knows some of them.

Uniform numbers become normal ones by the formula of Box and Muller. Each number is half the sum of
four of them, so that its last bits do not give away the uniform numbers behind it (Holohan and
Braghin 2021, "Secure random sampling in differential privacy").
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
SECRET_GENERATOR = (
    "secret: the operating system's (os.urandom), every bit used once; nobody can repeat it"
)
SUMMED = 4  # normal numbers in each one that is given out
NUMBERS_AT_ONCE = 2**18  # numbers at a time, so that memory stays small
GRID_BITS = 40  # a step of the grid is the noise's standard deviation by 2**40, or a little less


def normals(many: int) -> FloatArray:
    """(many,) standard normal numbers."""
    parts = [_normals(min(NUMBERS_AT_ONCE, many - a)) for a in range(0, many, NUMBERS_AT_ONCE)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _normals(many: int) -> FloatArray:
    return np.asarray(_box_muller(SUMMED * many).reshape(SUMMED, many).sum(0) / SUMMED**0.5)


def _box_muller(many: int) -> FloatArray:
    """(many,) for an even number: two normal numbers from two uniform ones."""
    words = np.frombuffer(os.urandom(8 * many), np.dtype("<u8")) >> np.uint64(11)
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-53  # above 0 and, rounded, at most 1
    first, second = uniform.reshape(2, -1)
    radius, angle = np.sqrt(-2.0 * np.log(first)), 2.0 * np.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def add(total: FloatArray, deviation: float) -> FloatArray:
    """(P,) the sum with noise of this standard deviation on each entry.

    Both are rounded to one grid before they are added. So which numbers can come out does not
    depend on the sum: a noised number on the grid is the rounding of an unrounded one.
    """
    grid = 2.0 ** (np.floor(np.log2(deviation)) - GRID_BITS)
    noise = np.rint(normals(len(total)) * (deviation / grid))
    return np.asarray((np.rint(total / grid) + noise) * grid)
