"""Convex steps on the probability simplex: pure maths, float64, no federated words.

Nothing here knows what a client is. Every function is deterministic, allocates a few vectors of
its input's length and leaves its arguments alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Tilt(NamedTuple):
    """A point of the KL ball, and how it got there."""

    p: FloatArray  # (n,)      sums to 1
    multiplier: float  #       lambda* >= 0; 0 where the ball does not bind
    kl: float  #               KL(p || uniform), at most rho


def tilt(a: FloatArray, rho: float) -> Tilt:
    """softmax(s a) with the largest s in [0, 1] that keeps KL(. || uniform) <= rho.

    This is the mirror step inside a KL ball: a = log p + eta F, s = 1/(1 + lambda). KL grows with
    s (its derivative is s Var(a)), is 0 at s = 0, and so [0, 1] always brackets the root, however
    large a is. Newton runs on sqrt(KL), nearly linear in s near 0, and on log s where it would
    leave the bracket; near the root one step of it is enough. Differs: the multiplier is never
    searched for on an unbounded axis.
    """
    n = len(a)
    a = np.maximum(a - a.max(), -1e150)  # squares stay finite
    if n == 1 or rho <= 0.0:
        return Tilt(np.full(n, 1.0 / n), 0.0 if n == 1 else np.inf, 0.0)
    p, kl, _ = _softmax(a, 1.0)
    if kl <= rho:
        return Tilt(p, 0.0, kl)
    low, high, goal = 0.0, 1.0, math.sqrt(rho)
    deviation = math.sqrt(max(float(a @ a) / n - float(a.sum() / n) ** 2, 1e-300))
    s = min(0.5, math.sqrt(2.0 * rho) / deviation)
    near = max(1e-8 * rho, 1e-15 * goal)  # the second is what rounding leaves of a tiny ball
    for _ in range(200):
        p, kl, spread = _softmax(a, s)
        low, high = (s, high) if kl < rho else (low, s)
        if high - low <= 4e-16 * high:
            break
        root = math.sqrt(kl)
        slope = spread / (2.0 * root) if root > 0.0 else 0.0
        step = s + (goal - root) / slope if slope > 0.0 else math.inf
        inside = low < step < high
        if abs(kl - rho) <= near:
            if inside:
                s = step
                p, kl, _ = _softmax(a, s)
            break
        middle = math.sqrt(low * high) if low > 0.0 else high / 16.0
        s = step if inside else middle
    return Tilt(p, 1.0 / s - 1.0, kl)


def _softmax(a: FloatArray, s: float) -> tuple[FloatArray, float, float]:
    """softmax(s a), its KL to uniform, and the derivative s Var(a) of that; a is at most 0.

    The KL is a mean of n p log(n p), whose terms are small where it is: no large ones cancel.
    """
    z = s * a
    p = np.exp(z)
    total = p.sum()
    p /= total
    z -= math.log(total / len(a))  # log(n p), but for the rounding of this number
    kl = mean = float(p @ z)
    if kl < 0.1:  # where that rounding counts
        kl -= math.log1p(float(np.expm1(z).mean()))
    z -= mean
    z *= z
    return p, max(kl, 0.0), float(p @ z) / s


def kl_uniform(p: FloatArray) -> float:
    """KL(p || uniform) of a probability vector."""
    return float(np.log(len(p)) + (p * np.log(np.where(p > 0, p, 1.0))).sum())


def effective_count(p: FloatArray) -> float:
    """exp of the entropy: how many equally weighted entries p amounts to."""
    return float(len(p) * np.exp(-kl_uniform(p)))


def widen(p: FloatArray, n: int) -> FloatArray:
    """p with new entries at its mean, all scaled back to the old sum.

    Old entries keep their ratios to the mean, and KL(p || uniform) can only fall: the new value is
    len(p)/n times the old one.
    """
    return np.concatenate([p, np.full(n - len(p), p.mean())]) * (len(p) / n)


def project(y: FloatArray) -> FloatArray:
    """The nearest point to y with non-negative entries that sum to 1, to the last bits.

    It is max(y - level, 0) for one level. Newton finds it from below: of the entries still above
    the level, all are lowered alike until they sum to 1, and those that fall to 0 are left out. The
    excess falls at least fourfold in a step, so there are few. Sums are of parts on a grid, which
    add up without rounding, and of the small rests; so a million entries lose no digit.
    """
    top = float(y.max())
    y = y - (top if abs(top) > 2.0 else 0.0)  # exact near the top, and what is far below stays 0
    left = y[y > y.max() - 1.5]
    while True:
        k = len(left)
        parts = _on_grid(left)
        excess, rest = float(parts.sum()) - 1.0, float((left - parts).sum())
        level = float(_on_grid((excess + rest) / k))
        finer = (excess - level * k + rest) / k  # the level is both together
        above = left - level > finer
        if above.all():
            break
        left = left[above]
    out: FloatArray = np.maximum(y - level - finer, 0.0)
    return out


def _on_grid(values: FloatArray | float) -> FloatArray:
    """To the nearest multiple of 2^-26: tens of millions of them, each up to 3, sum exactly."""
    out: FloatArray = np.rint(np.multiply(values, 2.0**26)) * 2.0**-26
    return out


def min_norm(gram: FloatArray, centre: FloatArray, radius: float) -> FloatArray:
    """argmin x' G x over the simplex with |x - centre| <= radius, to a KKT gap of 1e-9.

    G is the Gram matrix of vectors of length at most 1: the gap is absolute. Where rounding has
    made G indefinite, it ends when x' G x falls no more.
    Mostly a few guesses of which entries stand at a bound are enough. Where they go round in
    circles, each turn moves the pair of entries that violates optimality most (a strict decrease,
    so it cannot cycle), then takes Newton steps on the entries strictly inside their box until one
    of them hits its bound or the free part is optimal. Dependency-free, also for singular G.
    """
    low, high = np.maximum(centre - radius, 0.0), np.minimum(centre + radius, 1.0)
    x = centre.astype(np.float64).copy()
    if radius <= 0.0 or len(x) == 1:
        return x
    gram = gram + 1e-10 * float(np.trace(gram)) / len(x) * np.eye(len(x))
    guessed = _by_sets(gram, low, high)
    if guessed is not None and guessed @ gram @ guessed <= x @ gram @ x:
        return guessed
    edge, value = 1e-12, np.inf  # nearer to its bound an entry is at it
    for _ in range(50 * len(x)):
        g = gram @ x
        before, value = value, float(x @ g)
        if not value < before:
            break
        down, up = x > low + edge, x < high - edge
        i = int(np.argmax(np.where(down, g, -np.inf)))
        j = int(np.argmin(np.where(up, g, np.inf)))
        if not down.any() or not up.any() or g[i] - g[j] <= 1e-10:
            break
        curve = gram[i, i] + gram[j, j] - 2.0 * gram[i, j]
        move = min((g[i] - g[j]) / max(curve, 1e-300), x[i] - low[i], high[j] - x[j])
        x[i] -= move
        x[j] += move
        _newton(gram, x, low, high, edge)
    return x


def _by_sets(gram: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray | None:
    """Primal-dual active sets: take some entries to be at bounds, solve for the others, correct.

    None where the sets come back before they are right; 6 to 26 solves saw to 100 clients.
    """
    at_low = np.zeros(len(low), bool)
    at_high, seen = at_low, set[bytes]()
    while (key := at_low.tobytes() + at_high.tobytes()) not in seen and len(seen) < 40:
        seen.add(key)
        free = ~(at_low | at_high)
        x = np.where(free, 0.0, np.where(at_low, low, high))
        f = np.flatnonzero(free)
        if not len(f):
            break
        try:
            both = np.linalg.solve(gram[f][:, f], np.stack([(gram @ x)[f], free[f]], axis=1))
        except np.linalg.LinAlgError:
            break
        level = (1.0 - x.sum() + both[:, 0].sum()) / both[:, 1].sum()
        x[f] = level * both[:, 1] - both[:, 0]
        slope = gram @ x - level
        below = (free & (x < low - 1e-13)) | (at_low & (slope > 0))
        above = (free & (x > high + 1e-13)) | (at_high & (slope < 0))
        if np.array_equal(below, at_low) and np.array_equal(above, at_high):
            return np.clip(x, low, high) if np.isfinite(x).all() else None
        at_low, at_high = below, above
    return None


def _newton(
    gram: FloatArray, x: FloatArray, low: FloatArray, high: FloatArray, edge: float
) -> None:
    """Minimise over the free entries with their sum kept, in place, stopping at bounds."""
    for _ in range(len(x)):
        free = np.flatnonzero((x > low + edge) & (x < high - edge))
        if len(free) < 2:
            return
        inner = gram[np.ix_(free, free)]
        both = np.linalg.solve(inner, np.stack([(gram @ x)[free], np.ones(len(free))], axis=1))
        ones = both[:, 1].sum()
        d = -both[:, 0] + both[:, 1] * (both[:, 0].sum() / ones)
        d -= d.mean()
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(d < 0, (low[free] - x[free]) / d, (high[free] - x[free]) / d)
        room = np.where(d == 0, np.inf, room)
        k = int(np.argmin(room))
        if room[k] >= 1.0:
            x[free] += d
            return
        leap = x.copy()
        leap[free] += d
        leap = _into_box(leap, low, high)  # many bounds at once, where that is downhill
        if leap @ gram @ leap < x @ gram @ x:
            x[:] = leap
            continue
        x[free] += room[k] * d
        x[free[k]] = low[free[k]] if d[k] < 0 else high[free[k]]
        np.clip(x, low, high, out=x)


def _into_box(y: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """The point nearest to y with low <= x <= high and sum 1: clip(y + shift) for one shift."""
    bends = np.concatenate([low - y, high - y])  # where an entry leaves, then reaches, its bound
    order = np.argsort(bends)
    at, free = bends[order], np.cumsum(np.repeat([1, -1], len(y))[order])  # entries that move
    total = low.sum() + np.concatenate([[0.0], np.cumsum(free[:-1] * np.diff(at))])
    k = min(max(int(np.searchsorted(total, 1.0, "right")) - 1, 0), len(at) - 1)
    shift = at[k] + (1.0 - total[k]) / max(int(free[k]), 1)
    out: FloatArray = np.clip(y + shift, low, high)
    return out


def kkt_gap(gram: FloatArray, x: FloatArray, centre: FloatArray, radius: float) -> float:
    """How far x is from optimal for `min_norm`: 0 at the optimum."""
    low, high = np.maximum(centre - radius, 0.0), np.minimum(centre + radius, 1.0)
    g = gram @ x
    down, up = x > low + 1e-12, x < high - 1e-12
    if not down.any() or not up.any():
        return 0.0
    return max(0.0, float(g[down].max() - g[up].min()))
