"""Each strategy has the limits that its paper implies."""

import dataclasses

import numpy as np
import pytest

from fedmaba.strategies import AFL, TERM, FedFV, FedMABA
from fedmaba.strategies import QFFL as QFedAvg
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
