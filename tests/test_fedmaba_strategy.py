"""FedMABA's weights: its bandit, its balls and its ways to synchronise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from fedmaba.strategies import FedMABA
from fedmaba.strategies.base import Replies
from fedmaba.strategies.simplex import kl_uniform
from strategy_cases import quick, replies


def plain(n: int, client, loss, t: int = 0) -> Replies:
    """A round of losses alone."""
    return replies(FedMABA(), client, loss, np.zeros((len(client), 1)), n=n, t=t)


def weights(state: dict, told: Replies, **keys) -> np.ndarray:
    """The bandit's weights themselves: alpha = 1."""
    return FedMABA(alpha=1, **keys).weigh(state, told).coef


losses = some.lists(some.floats(0, 1e6), min_size=2, max_size=10)


@quick
@given(losses, some.floats(0.01, 2), some.floats(-10, 10), some.floats(1e-3, 1e3))
def test_fedmaba_weights_follow_the_losses(loss, rho, shift, scale):
    n = len(loss)
    who, start = range(n), FedMABA().init(n)
    loss = np.array(loss)
    found = weights(start, plain(n, who, loss), rho=rho)
    assert (np.diff(found[np.argsort(loss)]) >= -1e-15).all()
    assert np.allclose(weights(start, plain(n, who, loss + shift), rho=rho), found, atol=1e-6)
    scaled = {"p": start["p"] * scale}
    assert np.allclose(weights(scaled, plain(n, who, loss), rho=rho), found, atol=1e-6)
    assert np.allclose(weights(start, plain(n, who, np.full(n, loss[0]))), 1 / n, atol=1e-12)


@pytest.mark.parametrize("eta_b", [0.1, 0.5, 1.0])
def test_constant_losses_settle_where_the_ball_says_whatever_the_step(eta_b):
    n, rho = 20, 1.0
    loss = np.random.default_rng(0).gamma(2.0, 1.0, n)
    strategy, told = FedMABA(eta_b=eta_b, rho=rho), plain(n, range(n), loss)
    state = strategy.init(n)
    for _ in range(1500):
        _, state, info = strategy.weigh(state, told)
    p = state["p"]
    assert kl_uniform(p) == pytest.approx(rho, abs=1e-10)
    # p ~ exp(F / tau): log p is linear in F, with tau = lambda / eta_b
    slope, at_zero = np.polyfit(loss, np.log(p), 1)
    assert np.allclose(np.log(p), at_zero + slope * loss, atol=1e-8)
    assert 1 / slope == pytest.approx(info["lambda"] / eta_b, rel=1e-8)
    tau = 1 / slope
    logs = loss / tau - np.log(np.exp(loss / tau).mean())
    assert (np.exp(logs) * logs).mean() == pytest.approx(rho, abs=1e-8)  # the same tau for each


def play(strategy: FedMABA, n: int, m: int, rounds: int, seed: int = 0):
    """Decisions and cohorts of many rounds with random losses."""
    rng, state = np.random.default_rng(seed), strategy.init(n)
    for t in range(rounds):
        who = np.sort(rng.choice(n, m, replace=False))
        decision = strategy.weigh(state, plain(n, who, rng.gamma(1.0, 3.0, m), t))
        state = decision.state
        yield who, decision


@pytest.mark.parametrize("sync", ["mass", "overwrite"])
@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_cohort_ball_bounds_the_weights_of_each_round(sync, rho):
    bound = 0
    for who, decision in play(FedMABA(alpha=1, rho=rho, sync=sync), 100, 10, 100):
        assert kl_uniform(decision.coef) <= rho + 1e-9
        bound += decision.info["lambda"] > 0
        assert len(who) == 10
    assert bound > 20


def test_mass_stays_one_unless_it_is_overwritten():
    sums = [d.state["p"].sum() for _, d in play(FedMABA(), 100, 10, 100)]
    assert sums == pytest.approx([1.0] * 100, abs=1e-12)
    grown = [d.state["p"].sum() for _, d in play(FedMABA(sync="overwrite"), 100, 10, 100)]
    assert grown[0] == pytest.approx(1.9)  # 1 for the cohort, 0.9 for the others
    assert grown[10] > 4
    assert grown[-1] > 8


@pytest.mark.parametrize("rho", [0.05, 0.3, 1.0])
def test_global_ball_bounds_the_whole_vector(rho):
    bound = 0
    for _, decision in play(FedMABA(ball="global", rho=rho, eta_b=1), 50, 10, 150):
        p = decision.state["p"]
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert kl_uniform(p) <= rho + 1e-9
        bound += decision.info["lambda"] > 0
    assert bound > 20


def test_global_ball_survives_a_cohort_without_mass():
    strategy = FedMABA(ball="global")
    state = strategy.init(4)
    for who, loss in (([0, 1], [1e6, 0]), ([2, 3], [1e6, 0]), ([1, 3], [0, 1])):
        coef, state, _ = strategy.weigh(state, plain(4, who, loss))
    assert np.isfinite(coef).all()
    assert coef.sum() == pytest.approx(1.0)
    assert coef[1] > coef[0]  # no arm is dead: the losses still decide


def test_global_ball_survives_a_cohort_of_hardly_any_mass():
    strategy = FedMABA(ball="global")
    state = {"p": np.array([3e-311, 1.0])}
    coef, state, _ = strategy.weigh(state, plain(2, [0], [0.0]))
    assert coef.tolist() == [1.0]
    assert state["p"].tolist() == [3e-311, 1.0]


def test_an_arm_is_floored_at_a_trillionth_of_the_uniform_weight():
    # log(1e-12) + 0.5 * 60 = 2.4 above the other arm's 0
    coef = weights({"p": np.array([0.0, 1.0]) / 2}, plain(2, [0, 1], [60.0, 0.0]), rho=10)
    odds = 1e-12 * np.exp(30.0)
    assert coef == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])


def test_literal_ball_has_no_root_for_a_small_cohort():
    with pytest.warns(RuntimeWarning, match="no root with 10 of 100"):
        coef = weights(FedMABA().init(100), plain(100, range(10), np.arange(10.0)), ball="literal")
    assert coef.tolist() == [0.1] * 10


def test_literal_ball_has_a_root_from_37_of_100_on():
    told = plain(100, range(37), np.arange(37.0))
    p = weights(FedMABA().init(100), told, ball="literal")
    assert kl_uniform(p) == pytest.approx(1 - np.log(100 / 37), abs=1e-10)
    with pytest.warns(RuntimeWarning, match="36 of 100"):
        weights(FedMABA().init(100), plain(100, range(36), np.arange(36.0)), ball="literal")
