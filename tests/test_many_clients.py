"""The simplex steps hold their digits with a million entries: against exact rationals."""

import math
from fractions import Fraction
from functools import cache, partial

import numpy as np
import pytest

from fedmaba.strategies.simplex import project, tilt


def exact(y: np.ndarray) -> list[Fraction]:
    """The projection in rational numbers, by sorting."""
    values = [Fraction(v) for v in y.tolist()]
    total, level = Fraction(-1), Fraction(0)
    for k, value in enumerate(sorted(values, reverse=True), 1):
        total += value
        if value * k <= total:
            break
        level = total / k
    return [max(value - level, Fraction(0)) for value in values]


def just_below(n: int, many: int, gap: float) -> np.ndarray:
    """A few entries share the mass; all others lie alike, hardly below the level."""
    top = 0.3 + 1e-3 * np.arange(many)
    return np.concatenate([top, np.full(n - many, (top.sum() - 1.0) / many - gap)])


@cache  # to be looked at only
def cases(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {
        "climbing": 1 / n + 0.05 * rng.gamma(2, 1, n) * (rng.random(n) < 0.5),
        "narrow": 1 / n + 1e-6 * rng.random(n),
        "even": np.full(n, 1 / n),
        "spread": rng.random(n),
        "wide": rng.normal(0, 3, n),
        "far up": 1000.3 + 1e-6 * rng.random(n),
        "far down": -1000.3 - 0.5 * rng.random(n),
        "halving": -(2.0 ** -np.linspace(0, 50, n)),
        "one, and all hardly below": just_below(n, 1, 1e-7),
        "three, and all hardly below": just_below(n, 3, 3e-7),
        "ten, and all at the level": just_below(n, 10, 0.0),
    }


NAMES = list(cases(20))


QUICK = ("climbing",)  # of the larger ones
slow = partial(pytest.param, marks=pytest.mark.slow)  # repeats what a quicker case shows


@pytest.mark.parametrize(
    ("n", "name"),
    [(n, name) for n in (11, 100) for name in NAMES]
    + [(10_000, name) if name in QUICK else slow(10_000, name) for name in NAMES],
)
def test_projection_is_that_of_exact_rationals(n, name):
    y = cases(n)[name]
    for ours, true in zip(project(y).tolist(), exact(y), strict=True):
        assert abs(Fraction(ours) - true) <= true * Fraction(1, 10**14) + Fraction(1, 10**20)


@pytest.mark.parametrize("name", NAMES)
def test_projection_of_a_million_has_every_digit(name):
    """The exact level of the entries that ours keeps must part them from the others."""
    y = cases(10**6)[name]
    x = project(y)
    top = y[x > 0].tolist()
    whole = math.fsum([*top, -1.0])
    rest = math.fsum([*top, -1.0, -whole])
    level = (Fraction(whole) + Fraction(rest)) / len(top)
    slack = Fraction(1, 10**20)  # an entry so near the level may stand on either side
    assert Fraction(float(y[x > 0].min())) > level - slack
    assert not (x == 0).any() or Fraction(float(y[x == 0].max())) <= level + slack
    for i in np.unique(np.concatenate([np.argsort(y)[-50:], np.flatnonzero(x > 0)[::9973]])):
        true = max(Fraction(float(y[i])) - level, Fraction(0))
        assert abs(Fraction(float(x[i])) - true) <= true * Fraction(1, 10**14) + slack


# the KL ball


def tilted(a: np.ndarray, rho: float) -> np.ndarray:
    """softmax(s a) at the s whose KL is rho, in long double, by bisection."""
    a = a.astype(np.longdouble)
    low, high = np.longdouble(0), np.longdouble(1)
    middle = high / 2
    while low < middle < high:
        z = middle * (a - a.max())
        z -= np.log(np.exp(z).mean())
        kl = (np.exp(z) * z - np.expm1(z)).mean()  # no term is negative
        low, high = (middle, high) if kl < rho else (low, middle)
        middle = np.sqrt(low * high) if low > 0 else high / 16
    return np.exp(z) / np.exp(z).sum()


@cache
def tilts(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {
        "losses": rng.gamma(1, 3, n),
        "huge losses": rng.gamma(1, 1e6, n),
        "far up": 1e6 + 50 * rng.random(n),
        "one stands out": np.log(np.r_[np.full(n - 1, 1e-6), 1.0]),
    }


@pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 1e-18, reason="no long double to compare with here"
)
@pytest.mark.parametrize(
    ("n", "rho", "name"),
    [
        (n, rho, name) if n == 10 else slow(n, rho, name)
        for n in (10, 100_000)
        for rho in (1e-9, 1e-6, 1e-3, 0.02, 0.5)
        for name in tilts(20)
    ],
)
def test_tilt_has_its_digits_in_a_ball_of_any_size(n, rho, name):
    a = tilts(n)[name]
    p, _, kl = tilt(a, rho)
    true = tilted(a, rho)
    assert (abs(p - true) / true).max(where=true > 1e-15, initial=0) <= 1e-12
    assert kl == pytest.approx(rho, rel=1e-15 / math.sqrt(rho))
