"""Maths on the probability simplex (vectors of non-negative numbers that sum to 1), in float64.

Nothing here knows what a client is. Every function is deterministic, needs memory for a few vectors
of its input's length, and does not change its arguments.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Tilt(NamedTuple):
    """A point of the KL ball, with the multiplier that leads to it."""

    p: FloatArray  # (n,)      sums to 1
    multiplier: float  #       lambda* >= 0; 0 if the point lies inside the ball anyway
    kl: float  #               KL(p || uniform), at most rho


def tilt(a: FloatArray, rho: float) -> Tilt:
    """softmax(s a) with the largest s in [0, 1] that keeps KL(. || uniform) <= rho.

    This is the mirror step inside a KL ball, with a = log p + eta F and s = 1/(1 + lambda). KL is 0
    at s = 0 and grows with s (its derivative is s Var(a)), so the root always lies in [0, 1],
    however large a is. The root is found by Newton's method on sqrt(KL), which is nearly linear in
    s near 0. A Newton step that would leave the interval in which the root must lie is replaced by
    the middle of that interval on a log scale. Close to the root, one more Newton step is enough.
    Differs: the multiplier itself, which has no upper limit, is never searched for.
    """
    n = len(a)
    a = np.maximum(a - a.max(), -1e150)  # so that squares stay finite
    if n == 1 or rho <= 0.0:
        return Tilt(np.full(n, 1.0 / n), 0.0 if n == 1 else np.inf, 0.0)
    p, kl, _ = _softmax(a, 1.0)
    if kl <= rho:
        return Tilt(p, 0.0, kl)
    low, high, goal = 0.0, 1.0, math.sqrt(rho)
    deviation = math.sqrt(max(float(a @ a) / n - float(a.sum() / n) ** 2, 1e-300))
    s = min(0.5, math.sqrt(2.0 * rho) / deviation)
    near = max(1e-8 * rho, 1e-15 * goal)  # the second is the rounding error in a tiny ball
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
    """softmax(s a), its KL to uniform, and the derivative s Var(a) of that KL; a is at most 0.

    KL is computed as the mean of n p log(n p). If KL is small, all of its terms are small, so that
    no large terms cancel.
    """
    z = s * a
    p = np.exp(z)
    total = p.sum()
    p /= total
    z -= math.log(total / len(a))  # log(n p), apart from rounding
    kl = mean = float(p @ z)
    if kl < 0.1:  # then that rounding matters
        kl -= math.log1p(float(np.expm1(z).mean()))
    z -= mean
    z *= z
    return p, max(kl, 0.0), float(p @ z) / s


def kl_uniform(p: FloatArray) -> float:
    """KL(p || uniform) of a probability vector."""
    return float(np.log(len(p)) + (p * np.log(np.where(p > 0, p, 1.0))).sum())


def largest_entry(n: int, rho: float) -> float:
    """The largest entry that a probability vector of n entries with KL(. || uniform) <= rho has.

    For one entry x, the KL is smallest if the others are equal. It is 0 at x = 1/n and grows from
    there to log n at x = 1, so bisection finds the root. It errs upwards, by rounding at most.
    """
    if n == 1 or rho >= math.log(n):
        return 1.0

    def kl(x: float) -> float:
        rest = 1.0 - x
        return x * math.log(n * x) + (rest * math.log(n * rest / (n - 1)) if rest > 0.0 else 0.0)

    low, high = 1.0 / n, 1.0
    while high - low > 1e-15 and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if kl(middle) <= rho + 1e-14 else (low, middle)
    return high


def effective_count(p: FloatArray) -> float:
    """The exponential of the entropy: how many entries of equal weight p is worth."""
    return float(len(p) * np.exp(-kl_uniform(p)))


def widen(p: FloatArray, n: int) -> FloatArray:
    """Give p new entries, each its mean, and scale it so that the sum stays the same.

    The ratio of each old entry to the mean stays the same. KL(p || uniform) gets smaller: it is
    multiplied by len(p)/n.
    """
    return np.concatenate([p, np.full(n - len(p), p.mean())]) * (len(p) / n)


def project(y: FloatArray) -> FloatArray:
    """The point nearest to y with non-negative entries that sum to 1, exact to the last bits.

    It is max(y - level, 0) for one level, which Newton's method approaches from below. Each step
    lowers all remaining entries by the same amount, so that they sum to 1, and drops those that
    fall below 0. What the sum has too much shrinks at least fourfold per step, so few steps are
    needed. Each entry is split into a multiple of 2^-26, which add up without rounding, and a small
    rest, so that no digit is lost even with a million entries.
    """
    top = float(y.max())
    # This is exact for the largest entries. The others become 0 anyway.
    y = y - (top if abs(top) > 2.0 else 0.0)
    left = y[y > y.max() - 1.5]
    while True:
        k = len(left)
        parts = _on_grid(left)
        excess, rest = float(parts.sum()) - 1.0, float((left - parts).sum())
        level = float(_on_grid((excess + rest) / k))
        finer = (excess - level * k + rest) / k  # the full level is level + finer
        above = left - level > finer
        if above.all():
            break
        left = left[above]
    out: FloatArray = np.maximum(y - level - finer, 0.0)
    return out


def _on_grid(values: FloatArray | float) -> FloatArray:
    """Round to multiples of 2^-26: tens of millions of them, each up to 3, add up exactly."""
    out: FloatArray = np.rint(np.multiply(values, 2.0**26)) * 2.0**-26
    return out


def min_norm(gram: FloatArray, centre: FloatArray, radius: float) -> FloatArray:
    """argmin x' G x over the simplex with |x - centre| <= radius, to a KKT gap of 1e-9.

    G is the Gram matrix of vectors of length at most 1, so the gap is absolute. G may be singular.
    If rounding has made it indefinite, the search ends when x' G x gets no smaller.

    First, a few guesses are made of which entries lie at a bound; mostly one of them is right. If
    the guesses repeat, a slower search starts. Each turn of it moves the pair of entries that
    violates optimality most, which makes x' G x strictly smaller, so no turn repeats. Then it takes
    Newton steps on the entries between their bounds, until one reaches a bound or they are optimal.
    """
    low, high = np.maximum(centre - radius, 0.0), np.minimum(centre + radius, 1.0)
    x = centre.astype(np.float64).copy()
    if radius <= 0.0 or len(x) == 1:
        return x
    gram = gram + 1e-10 * float(np.trace(gram)) / len(x) * np.eye(len(x))
    guessed = _by_sets(gram, low, high)
    if guessed is not None and guessed @ gram @ guessed <= x @ gram @ x:
        return guessed
    edge, value = 1e-12, np.inf  # an entry nearer to its bound than this counts as at the bound
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
    """Primal-dual active sets: assume which entries lie at bounds, solve for the others, correct.

    Returns None if the assumptions repeat before they are right. 100 clients took 6 to 26 solves.
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
    """Minimise in place over the entries between their bounds; their sum stays the same."""
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
        leap = _into_box(leap, low, high)  # reach many bounds at once, if x' G x gets smaller
        if leap @ gram @ leap < x @ gram @ x:
            x[:] = leap
            continue
        x[free] += room[k] * d
        x[free[k]] = low[free[k]] if d[k] < 0 else high[free[k]]
        np.clip(x, low, high, out=x)


def _into_box(y: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """The point nearest to y with low <= x <= high and sum 1: clip(y + shift) for one shift."""
    # The shifts at which an entry leaves its lower bound, then those at which it reaches the upper.
    bends = np.concatenate([low - y, high - y])
    order = np.argsort(bends)
    at, free = bends[order], np.cumsum(np.repeat([1, -1], len(y))[order])  # how many entries move
    total = low.sum() + np.concatenate([[0.0], np.cumsum(free[:-1] * np.diff(at))])
    k = min(max(int(np.searchsorted(total, 1.0, "right")) - 1, 0), len(at) - 1)
    shift = at[k] + (1.0 - total[k]) / max(int(free[k]), 1)
    out: FloatArray = np.clip(y + shift, low, high)
    return out
