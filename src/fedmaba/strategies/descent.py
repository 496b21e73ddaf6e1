"""Directions that serve all clients: the shortest combination of gradients, and equal losses.

Vectors are known by their Gram matrix alone.
"""

from __future__ import annotations

import numpy as np

from fedmaba.strategies.base import SMALLEST_NORMAL, FloatArray
from fedmaba.strategies.simplex import min_norm

NO_LOSS = 1e-100  # losses below this count as 0: weights, which are 1 / loss, have finite squares
EQUAL_LOSSES = 1e-4  # losses that differ less than by this share count as equal
COUNTS_AS_ZERO = 1e-9  # a combination whose square is below this share of its longest part's is 0


def cosine(loss: FloatArray) -> float:
    """The cosine of the angle between the losses and the all-ones vector; 1 if all losses are 0."""
    top = float(np.abs(loss).max())
    if not SMALLEST_NORMAL <= top < np.inf:
        return 1.0 if top < SMALLEST_NORMAL else -1.0
    f = loss / top
    return float(f.sum() / np.sqrt(len(f) * (f @ f)))


def fair_combination(loss: FloatArray) -> FloatArray | None:
    """The gradient of -cos(1, F) as weights on the clients' gradients; None where it is 0."""
    top = float(np.abs(loss).max())
    if top < NO_LOSS:
        return None
    f = loss / top  # no square overflows
    size, one = float(np.sqrt(f @ f)), 1.0 / np.sqrt(len(f))
    weights: FloatArray = (one * f.sum() * f / size - one * size) / size**2
    weights = weights / top
    return weights if np.abs(weights).max() * top > EQUAL_LOSSES else None


def shortest_combination(rows: FloatArray, gram: FloatArray) -> tuple[FloatArray, bool]:
    """Weights on the changes of the shortest convex combination of rows, and whether it is 0."""
    among = rows @ gram @ rows.T
    size = float(among.diagonal().max())
    if size < SMALLEST_NORMAL:
        return np.zeros(len(gram)), True
    x = min_norm(among / size, np.full(len(rows), 1.0 / len(rows)), 1.0)
    coef: FloatArray = x @ rows
    nothing = float(coef @ gram @ coef) <= COUNTS_AS_ZERO * size
    return (np.zeros_like(coef) if nothing else coef), nothing
