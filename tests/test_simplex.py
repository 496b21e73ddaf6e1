"""The convex steps against solvers that share no code with them, and the properties they promise.

The KL-ball step is checked on the printed dual formula (a scalar root) and on the primal problem;
the simplex projection and the min-norm mix on SLSQP and on optimality certificates computed here.
"""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq, minimize
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


def test_tilt_solves_the_primal_problem():
    """max <p, F> - KL(p || q) / eta over the simplex with KL(p || uniform) <= rho."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        n = int(rng.integers(2, 8))
        rho, eta = rng.uniform(0.05, 1.0), rng.uniform(0.3, 2.0)
        q, loss = rng.dirichlet(np.ones(n) * 3) + 1e-3, rng.uniform(0, 3, n)
        q = q / q.sum()
        found = minimize(
            lambda p, q=q, loss=loss, eta=eta: p @ np.log(p / q) - eta * p @ loss,
            np.full(n, 1.0 / n),
            jac=lambda p, q=q, loss=loss, eta=eta: np.log(p / q) + 1.0 - eta * loss,
            bounds=[(1e-12, 1.0)] * n,
            constraints=[
                {"type": "eq", "fun": lambda p: p.sum() - 1.0, "jac": np.ones_like},
                {
                    "type": "ineq",
                    "fun": lambda p, n=n, rho=rho: rho - p @ np.log(p * n),
                    "jac": lambda p, n=n: -np.log(p * n) - 1.0,
                },
            ],
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 300},
        )
        assert abs(tilt(np.log(q) + eta * loss, rho).p - found.x).max() <= 1e-6


def test_tilt_stays_on_the_boundary_for_losses_up_to_a_million():
    rng = np.random.default_rng(1)
    for scale in 10.0 ** np.arange(7):
        for n in (3, 10, 100):
            found = tilt(rng.uniform(0, scale, n) * 30, 0.5)
            assert abs(kl_uniform(found.p) - 0.5) <= 1e-10
            assert found.multiplier > 0


def test_slack_ball_leaves_the_mirror_step_alone():
    a = np.array([0.3, 0.1, -0.2])
    found = tilt(a, 1.0)
    assert found.multiplier == 0.0
    assert np.allclose(found.p, softmax(a), atol=1e-15)


def test_two_entries_never_reach_a_radius_of_log_two():
    found = tilt(np.array([1e6, 0.0]), 0.7)
    assert found.multiplier == 0.0
    assert found.p.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("rho", [1e-3, 0.5, 1.0, 3.0])
def test_tilt_survives_huge_entries(rho):
    for a in ([1e300, 0.0, -1e300], [1e300, 1e300, 0.0], [-1e300, -1e300], [0.0, -1.0, -1e300]):
        found = tilt(np.array(a), rho)
        assert np.isfinite(found.p).all()
        assert found.p.sum() == pytest.approx(1.0, abs=1e-12)
        assert kl_uniform(found.p) <= rho + 1e-10


def test_tilt_survives_a_tiny_ball_and_huge_entries():
    found = tilt(np.array([1e300, 0.0, -1e300]), 1e-30)
    assert np.allclose(found.p, 1 / 3, atol=1e-6)


def test_tilt_sees_differences_far_below_the_largest_entry():
    a = np.array([0.0, -2000.0, -4000.0])
    p, multiplier, kl = tilt(a, 0.1)
    assert kl == pytest.approx(0.1, abs=1e-12)
    assert p[1] / p[2] == pytest.approx(p[0] / p[1], rel=1e-9)  # evenly spaced stays evenly spaced
    assert multiplier > 1000


def test_no_ball_means_uniform():
    assert tilt(np.array([5.0, 1.0, 0.0]), 0.0).p.tolist() == [1 / 3] * 3
    assert tilt(np.array([5.0]), 1.0).p.tolist() == [1.0]


def test_tilt_of_a_million_entries_is_quick():
    rng = np.random.default_rng(2)
    a = rng.gamma(1.0, 3.0, 10**6)
    times = []
    for _ in range(3):
        start = time.process_time()
        found = tilt(a, 0.5)
        times.append(time.process_time() - start)
    assert abs(kl_uniform(found.p) - 0.5) <= 1e-10
    assert min(times) < 0.5


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


def off_by_one(y: np.ndarray) -> np.ndarray:
    """A projection whose partial sum stops at j - 1, as one public implementation has it."""
    u = np.sort(y)[::-1]
    before = np.concatenate([[0.0], np.cumsum(u)[:-1]])
    count = np.arange(1, len(y) + 1)
    j = np.flatnonzero(u + (1.0 - before) / count > 0)[-1]
    return np.maximum(y + (1.0 - before[j]) / (j + 1), 0.0)


def test_projection_sums_to_one_where_the_partial_sum_trap_does_not():
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(200):
        y = rng.dirichlet(np.ones(5)) + 0.5 * rng.random(5)
        wrong += abs(off_by_one(y).sum() - 1.0) > 1e-6
        assert project(y).sum() == pytest.approx(1.0, abs=1e-12)
    assert wrong > 50


def test_projection_equals_a_quadratic_programme():
    rng = np.random.default_rng(4)
    for _ in range(30):
        n = int(rng.integers(1, 7))
        y = rng.normal(0, 1, n)
        found = minimize(
            lambda x, y=y: 0.5 * (x - y) @ (x - y),
            np.full(n, 1 / n),
            jac=lambda x, y=y: x - y,
            bounds=[(0, None)] * n,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 300},
        )
        assert np.allclose(project(y), found.x, atol=1e-6)


@relaxed
@given(arrays(np.float64, some.integers(1, 30), elements=some.floats(-100, 100)))
def test_projection_is_feasible_idempotent_and_nearest(y):
    x = project(y)
    assert (x >= 0).all()
    assert x.sum() == pytest.approx(1, rel=1e-12)
    assert np.allclose(project(x), x, atol=1e-12)
    # nearest: <y - x, z - x> <= 0 for every z of the set, so for each of its corners
    assert ((y - x) - (y - x) @ x).max() <= 1e-9


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


def test_kkt_gap_sees_what_is_not_optimal():
    gram, centre = np.diag([1.0, 4.0]), np.array([0.5, 0.5])
    assert kkt_gap(gram, centre, centre, 0.1) == pytest.approx(1.5)  # 4/2 - 1/2
    assert kkt_gap(gram, np.array([0.6, 0.4]), centre, 0.1) == 0.0  # stopped by the box
    assert kkt_gap(gram, np.array([0.8, 0.2]), centre, 1.0) == pytest.approx(0.0, abs=1e-15)


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


def test_min_norm_by_hand():
    gram, centre = np.diag([1.0, 4.0]), np.array([0.5, 0.5])
    assert np.allclose(min_norm(gram, centre, 1.0), [0.8, 0.2], atol=1e-9)  # x ~ 1/diagonal
    assert np.allclose(min_norm(gram, centre, 0.1), [0.6, 0.4], atol=1e-12)


def test_min_norm_with_no_radius_is_the_centre():
    rows = unit_rows(np.random.default_rng(6), 7, "wide")
    centre = np.arange(1.0, 8.0) / 28
    assert min_norm(rows @ rows.T, centre, 0.0).tolist() == centre.tolist()


def test_opposite_vectors_cancel():
    gram = np.array([[1.0, -1.0], [-1.0, 1.0]])
    x = min_norm(gram, np.array([0.9, 0.1]), 1.0)
    assert x @ gram @ x == pytest.approx(0.0, abs=1e-12)


def test_min_norm_agrees_with_slsqp():
    rng = np.random.default_rng(7)
    for _ in range(30):
        n, radius = int(rng.integers(2, 7)), rng.choice([0.1, 0.3, 1.0])
        rows = unit_rows(rng, n, "wide")
        gram, centre = rows @ rows.T, rng.dirichlet(np.ones(n))
        low, high = np.maximum(centre - radius, 0), np.minimum(centre + radius, 1)
        found = minimize(
            lambda x, gram=gram: 0.5 * x @ gram @ x,
            centre,
            jac=lambda x, gram=gram: gram @ x,
            bounds=list(zip(low, high, strict=True)),
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1.0, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 300},
        )
        assert np.allclose(min_norm(gram, centre, radius), found.x, atol=1e-6)


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
