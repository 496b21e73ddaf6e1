"""The convex steps against solvers that share no code with them, and the properties they promise.

The KL-ball step is checked on the printed dual formula (a scalar root) and on the primal problem;
the simplex projection and the min-norm mix on SLSQP and on optimality certificates computed here.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq
from scipy.special import softmax

from fedmaba.strategies.simplex import effective_count, kl_uniform, min_norm, project, tilt
from strategy_cases import kkt_gap

vectors = arrays(np.float64, some.integers(1, 30), elements=some.floats(-1e6, 1e6))
radii = some.floats(0, 5)
relaxed = settings(max_examples=100, deadline=None)


def printed(lam: float, logq: np.ndarray, rho: float) -> float:
    """f(lambda) as printed: sum q^s log q / ((1 + lambda) Z) - log Z + log n - rho."""
    s, top = 1.0 / (1.0 + lam), logq.max()
    powers = np.exp(s * (logq - top))  # q^s, each divided by the largest
    log_z = np.log(powers.sum()) + s * top
    return s * powers @ logq / powers.sum() - log_z + np.log(len(logq)) - rho


# tilt


@pytest.mark.parametrize("seed", range(4))
def test_tilt_finds_the_root_of_the_printed_dual(seed):
    rng = np.random.default_rng(seed)
    active = 0
    for _ in range(250):
        n = int(rng.integers(2, 101))
        rho = rng.uniform(0.01, 1.5)
        p0 = rng.dirichlet(np.ones(n)) + 1e-6
        a = np.log(p0) + rng.choice([0.1, 0.5, 1.0]) * rng.gamma(1.0, rng.choice([0.3, 3, 30]), n)
        ours = tilt(a, rho)
        if printed(0.0, a, rho) <= 0:  # the ball does not bind
            lam = 0.0
            assert ours.multiplier == 0.0
        else:
            lam = brentq(printed, 0.0, 1e6, args=(a, rho), xtol=1e-13)
            active += 1
            assert abs(kl_uniform(ours.p) - rho) <= 1e-10
            assert ours.multiplier == pytest.approx(lam, rel=1e-6, abs=1e-9)
        assert abs(ours.p - softmax(a / (1.0 + lam))).max() <= 1e-6
        assert ours.kl == pytest.approx(kl_uniform(ours.p), abs=1e-12)
    assert 50 < active < 250, "the cases should cover both sides of the constraint"


@pytest.mark.parametrize("rho", [1e-3, 0.5, 1.0, 3.0])
def test_tilt_survives_huge_entries(rho):
    for a in ([1e300, 0.0, -1e300], [1e300, 1e300, 0.0], [-1e300, -1e300], [0.0, -1.0, -1e300]):
        found = tilt(np.array(a), rho)
        assert np.isfinite(found.p).all()
        assert found.p.sum() == pytest.approx(1.0, abs=1e-12)
        assert kl_uniform(found.p) <= rho + 1e-10


def test_no_ball_means_uniform():
    assert tilt(np.array([5.0, 1.0, 0.0]), 0.0).p.tolist() == [1 / 3] * 3
    assert tilt(np.array([5.0]), 1.0).p.tolist() == [1.0]


@relaxed
@given(vectors, radii)
def test_tilt_is_a_law_in_the_ball_and_keeps_the_order(a, rho):
    p, multiplier, kl = tilt(a, rho)
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert (p >= 0).all()
    assert multiplier >= 0
    assert kl <= rho + 1e-10
    assert kl_uniform(p) <= rho + 1e-10
    assert (np.diff(p[np.argsort(a)]) >= -1e-15).all()


@relaxed
@given(vectors, radii, some.floats(-1e6, 1e6), some.randoms(use_true_random=False))
def test_tilt_ignores_a_shift_and_follows_a_permutation(a, rho, shift, random):
    p = tilt(a, rho).p
    assert np.allclose(tilt(a + shift, rho).p, p, atol=1e-6)
    order = random.sample(range(len(a)), len(a))
    assert np.allclose(tilt(a[order], rho).p, p[order], atol=1e-6)


def test_effective_number_counts_equal_entries():
    assert effective_count(np.array([0.25, 0.25, 0.25, 0.25, 0, 0])) == pytest.approx(4.0)
    assert effective_count(np.array([1.0, 0.0])) == pytest.approx(1.0)
    assert kl_uniform(np.array([0.5, 0.5])) == pytest.approx(0.0, abs=1e-15)


# project


@pytest.mark.parametrize("top", [1e6, 1e12, 1e17, 1e300])
def test_projection_survives_large_entries(top):
    assert project(np.array([top, 0.0, 1.0])).tolist() == [1.0, 0.0, 0.0]
    assert np.allclose(project(np.array([top, top, 1.0])), [0.5, 0.5, 0.0])


# min_norm


def unit_rows(rng: np.random.Generator, n: int, kind: str) -> np.ndarray:
    """n vectors of length 1, in general position or not."""
    d = {"wide": 2 * n, "singular": max(2, n // 3), "parallel": n, "line": 1, "zero": n}[kind]
    rows = rng.normal(size=(n, d))
    if kind == "parallel":
        rows[n // 2 :] = rows[: n - n // 2] * rng.choice([-2.0, 1.0], (n - n // 2, 1))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    if kind == "zero":
        rows[0] = 0.0
    return rows


def duality_gap(gram: np.ndarray, x: np.ndarray, centre: np.ndarray, radius: float) -> float:
    """<g, x> minus the least <g, y> over the feasible set: bounds the distance to the optimum."""
    g = gram @ x
    y = np.maximum(centre - radius, 0.0)
    room = np.minimum(centre + radius, 1.0) - y
    left = 1.0 - y.sum()
    for i in np.argsort(g):
        add = min(room[i], left)
        y[i] += add
        left -= add
    return float(g @ x - g @ y)


@pytest.mark.parametrize("kind", ["wide", "singular", "parallel", "line", "zero"])
def test_min_norm_is_optimal(kind):
    rng = np.random.default_rng(5)
    for n in (2, 3, 5, 10, 30, 100):
        for radius in (0.02, 0.1, 1.0):
            rows = unit_rows(rng, n, kind)
            gram, centre = rows @ rows.T, rng.dirichlet(np.ones(n))
            x = min_norm(gram, centre, radius)
            assert x.sum() == pytest.approx(1.0, abs=1e-10)
            assert (x >= 0).all()
            assert abs(x - centre).max() <= radius + 1e-12
            assert kkt_gap(gram, x, centre, radius) <= 1e-9
            assert duality_gap(gram, x, centre, radius) <= 1e-9


def test_min_norm_ends_in_the_right_corner():
    """In a small even box, where a step as small as rounding must not be taken for the last."""
    rng = np.random.default_rng(1)
    for _ in range(100):
        n = 2 * int(rng.integers(1, 16))
        wide = int(rng.integers(1, n + 3))
        rows = rng.normal(size=(n, wide)) + 2 * rng.normal(size=wide)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        centre, radius = np.full(n, 1 / n), float(rng.choice([0.001, 0.01]))
        x = min_norm(rows @ rows.T, centre, radius)
        assert kkt_gap(rows @ rows.T, x, centre, radius) <= 1e-9


def test_arguments_are_left_alone():
    a, gram, centre = np.array([3.0, 1.0, 0.0]), np.diag([1.0, 2.0, 3.0]), np.full(3, 1 / 3)
    for x in (a, gram, centre):
        x.flags.writeable = False
    tilt(a, 0.1), project(a), min_norm(gram, centre, 0.5)


def test_min_norm_is_never_worse_than_its_centre():
    gram, centre = (
        np.array([[0.0, 1.0], [1.0, 0.0]]),
        np.array([0.7, 0.3]),
    )  # a saddle at (1/2, 1/2)
    assert min_norm(gram, centre, 0.3) == pytest.approx([1.0, 0.0])


def test_min_norm_ends_where_rounding_has_made_the_matrix_indefinite(monkeypatch):
    rng = np.random.default_rng(3)
    solved = []
    solve = np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda *args: solved.append(1) or solve(*args))
    for _ in range(40):
        v = rng.standard_normal((19, 5)).astype(np.float32)
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        gram = (v @ v.T).astype(np.float64) + 1e-3 * np.diag(rng.standard_normal(19))
        gram, centre = (gram + gram.T) / 2, np.full(19, 1 / 19)
        x = min_norm(gram, centre, 0.1)
        assert x @ gram @ x <= centre @ gram @ centre + 1e-12
        assert x.sum() == pytest.approx(1.0)
    assert len(solved) < 40 * 60
