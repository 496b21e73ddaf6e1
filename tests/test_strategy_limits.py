"""Each strategy has the limits that its paper implies."""

import dataclasses

import numpy as np
import pytest

from fedmaba.strategies import AFL, TERM, FedAvg, FedFV, FedMABA, FedMGDA, FedProx, PropFair
from fedmaba.strategies import QFFL as QFedAvg
from fedmaba.strategies.base import Local
from strategy_cases import coefficients, replies


@pytest.mark.parametrize(
    "strategy",
    [
        QFedAvg(q=0),
        TERM(T=0),
        TERM(T=1e-12),
        AFL(lam=0),
        FedMABA(eta_b=0),
        FedMABA(rho=0),
        FedFV(alpha=1, tau=0),
    ],
    ids=lambda s: s.label(),
)
def test_neutral_hyper_parameters_give_the_uniform_average(strategy):
    for coef in coefficients(strategy):
        assert np.allclose(coef, 1 / 5, rtol=0, atol=1e-12)


def test_fedmaba_without_its_bandit_part_is_the_average_bit_for_bit():
    expected = coefficients(FedAvg(weights="uniform"))
    found = coefficients(FedMABA(alpha=0))
    assert [c.tolist() for c in found] == [c.tolist() for c in expected]


def test_fedfv_looks_at_the_rounds_there_were():
    far, all_of_them = coefficients(FedFV(tau=10**12)), coefficients(FedFV(tau=100))
    assert [c.tolist() for c in far] == [c.tolist() for c in all_of_them]


def test_fedprox_without_its_term_is_fedavg():
    assert FedProx(mu=0).local() == Local() == FedAvg().local()
    assert FedProx(mu=0.3).local() == Local(prox=0.3)
    same_rule = zip(coefficients(FedProx(mu=0)), coefficients(FedAvg()), strict=True)
    assert all(x.tolist() == y.tolist() for x, y in same_rule)


def test_reference_form_of_term_is_a_fraction_of_the_average():
    sums = [c.sum() for c in coefficients(TERM(T=0, normalise="reference"), rounds=40)]
    assert sums[:3] == pytest.approx([2 / 5, 4 / 15, 8 / 35])  # the average starts at 0
    assert sums[-1] == pytest.approx(1 / 5, rel=1e-9)


def test_qffl_takes_a_loss_of_zero_for_a_tenth_of_a_billionth():
    told = replies(QFedAvg(q=1), [0, 1], [0.0, 1e-5], np.zeros((2, 3)))
    assert QFedAvg(q=1).weigh({}, told).coef == pytest.approx([1e-5, 1], rel=2e-5)


def test_qffl_takes_no_step_where_the_step_size_has_vanished():
    for lr, norm, want in ((0.0, 1.0, 0.0), (1e-320, 1.0, 0.0), (0.0, 0.0, 0.5)):
        told = replies(QFedAvg(q=0.1), [0, 1], [1.0, 1.0], np.full((2, 1), norm))
        assert QFedAvg(q=0.1).weigh({}, dataclasses.replace(told, lr=lr)).coef == pytest.approx(
            [want] * 2
        )


def test_afl_weighs_a_cohort_without_mass_alike_whatever_its_sizes():
    strategy = AFL()
    told = replies(strategy, [0, 1], [1.0, 2.0], np.zeros((2, 3)), n=3, size=[10, 90])
    assert strategy.weigh({"lambda": np.array([0.0, 0, 1])}, told).coef.tolist() == [0.5, 0.5]


def test_qffl_never_steps_further_than_the_average():
    for q in (0.1, 1, 15):
        assert all(0 < c.sum() <= 1 + 1e-12 for c in coefficients(QFedAvg(q=q)))


def test_fedmgda_without_freedom_averages_normalised_changes():
    strategy = FedMGDA(epsilon=0, eta=0.5, decay=0.9)
    changes = np.array([[3.0, 0.0], [0.0, 4.0]])
    told = replies(strategy, [0, 1], None, changes, t=2, size=[1, 3])
    # 0.5 * 0.9^2 * (1/4, 3/4) / (3, 4)
    assert strategy.weigh({}, told).coef == pytest.approx([0.03375, 0.0759375])


def test_propfair_with_equal_bounds_is_a_scaled_loss():
    numbers = PropFair(M=0.2, epsilon=0.2).local().objective.numbers
    assert numbers["slope"] == 5.0  # M - loss < epsilon for every positive loss: always the slope


def test_fedfv_adds_nothing_where_everything_cancels():
    rng = np.random.default_rng(0)
    for _ in range(50):
        line = rng.normal(size=2)
        line[1] = -abs(line[1]) * np.sign(line[0])
        strategy = FedFV(alpha=0, tau=0)
        told = replies(strategy, [0, 1], rng.random(2), line[:, None])
        coef = strategy.weigh({}, told).coef  # each is projected off the other: 0
        assert abs(coef).max() <= 1e-6


def test_fedfv_takes_what_rounding_leaves_of_a_sum_for_nothing():
    # 1 and -1 + 1e-4, as a float32 Gram matrix has them: their mean is mostly rounding
    told = replies(FedFV(alpha=1, tau=0), [0, 1], [1.0, 2.0], [[1.0], [-0.9999]])
    decision = FedFV(alpha=1, tau=0).weigh({}, told)
    assert decision.coef.tolist() == [0.0, 0.0]
    assert decision.info["shrunk"] == 0.0
