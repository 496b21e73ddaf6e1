"""Fairness figures against numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedmaba.errors import InputError
from fedmaba.results import metrics
from fedmaba.results.metrics import Fairness, fairness, mean_of_tail

ACCURACY = np.array([0.5, 1.0, 0.75, 0.75])
quick = settings(max_examples=50, deadline=None, database=None)
shares = some.lists(some.floats(0, 1), min_size=1, max_size=40).map(np.array)


def test_every_figure_by_hand():
    loss, size = np.array([2.0, 1.0, 1.0, 4.0]), np.array([10, 30, 40, 20])
    got = fairness(ACCURACY, loss, size, share=0.5)
    p = np.array([0.5, 1, 0.75, 0.75]) / 3
    want = Fairness(
        variance=312.5,  # deviations of -25, 25, 0, 0 percent: (625 + 625) / 4
        accuracy=75.0,
        by_sample=80.0,  # (5 + 30 + 30 + 15) / 100
        worst=62.5,  # of 50 and 75
        best=87.5,
        loss_variance=1.5,  # around 2: (0 + 1 + 1 + 4) / 4
        gini=1.5 / 12,  # (-3 * 0.5 - 0.75 + 0.75 + 3 * 1) / (4 * 3)
        jain=9 / (4 * 2.375),
        entropy=float(-(p * np.log(p)).sum() / math.log(4)),
        gap=50.0,
    )
    assert got._asdict() == pytest.approx(want._asdict())


def test_the_default_tail_is_five_percent():
    accuracy = np.linspace(0.0, 0.99, 100)
    got = fairness(accuracy, accuracy, np.ones(100, np.int64))
    assert got.worst == pytest.approx(2.0)  # 0, 1, 2, 3, 4 percent
    assert got.best == pytest.approx(97.0)


@pytest.mark.parametrize(
    ("share", "n", "count"),
    [
        (0.05, 1, 1),
        (0.05, 20, 1),
        (0.05, 21, 2),
        (0.05, 41, 3),
        (0.07, 100, 7),  # 0.07 * 100 = 7.000000000000001
        (0.29, 100, 29),  # 28.999999999999996
        (1 / 3, 3, 1),
        (0.001, 10, 1),
        (1.0, 10, 10),
    ],
)
def test_the_tail_counts_the_ceiling_of_its_share(share, n, count):
    values = np.random.default_rng(n).permutation(np.arange(n, dtype=float))
    assert mean_of_tail(values, share) == pytest.approx(np.arange(count).mean())
    assert mean_of_tail(values, share, best=True) == pytest.approx(np.arange(n - count, n).mean())


@quick
@given(shares, some.integers(1, 100))
def test_the_tail_by_exact_arithmetic(values, percent):
    count = max(1, -(-percent * len(values) // 100))
    assert mean_of_tail(values, percent / 100) == pytest.approx(
        np.sort(values)[:count].mean(), abs=1e-12
    )


def test_one_has_everything():
    values = np.array([0.0, 0.0, 0.0, 0.8])
    assert metrics.gini(values) == pytest.approx(0.75)  # 1 - 1/N
    assert metrics.jain(values) == pytest.approx(0.25)
    assert metrics.entropy(values) == pytest.approx(0.0)
    assert metrics.gap(values) == pytest.approx(0.8)


def test_a_client_without_a_figure_leaves_none_of_the_whole():
    found = fairness(np.array([0.5, np.nan]), np.array([1.0, np.nan]), np.array([10, 10]))
    for name in ("variance", "accuracy", "best", "gini", "jain", "entropy", "gap"):
        assert np.isnan(getattr(found, name)), name


def test_figures_of_lists_and_of_what_does_not_fit():
    whole = fairness([0.9, 0.4], [0.3, 1.9], [50, 50])
    assert whole == fairness(np.array([0.9, 0.4]), np.array([0.3, 1.9]), np.array([50, 50]))
    for wrong in (([], [], []), ([0.5], [1.0, 2.0], [3]), ([[0.5]], [[1.0]], [[3]])):
        with pytest.raises(InputError, match="give one of each per client"):
            fairness(*wrong)
    with pytest.raises(InputError, match="share=3: give a share"):
        fairness([0.5], [1.0], [3], share=3)


def test_nobody_has_anything():
    """No division by zero, and equal is equal."""
    got = fairness(np.zeros(3), np.ones(3), np.ones(3, np.int64))
    assert (got.gini, got.jain, got.entropy, got.variance, got.accuracy) == (0, 1, 1, 0, 0)


@pytest.mark.parametrize("n", [3, 400_000])  # all at once, or two at a time
def test_many_evaluations_are_one_after_another(n):
    draw = np.random.default_rng(n)
    accuracy, loss = draw.random((2, 5, n))
    accuracy[1] = 0.0
    accuracy[2, 0] = loss[2, 0] = np.nan
    size = draw.integers(0, 3, n)
    size[:2] = 2
    found = metrics.every(accuracy, loss, size, 0.3)
    each = [fairness(*one, size, 0.3) for one in zip(accuracy, loss, strict=True)]
    assert np.allclose(found, each, rtol=1e-12, atol=0, equal_nan=True)
    assert np.isnan(found[2].variance)
    assert found[1].gini == 0


def test_a_single_client():
    got = fairness(np.array([0.4]), np.array([1.0]), np.array([5]))
    assert (got.gini, got.entropy, got.variance, got.gap) == (0, 1, 0, 0)
    assert got.worst == got.best == got.accuracy == pytest.approx(40)
    assert got.jain == pytest.approx(1)


@quick
@given(shares)
def test_figures_stay_in_their_ranges_and_do_not_depend_on_the_order(values):
    n = len(values)
    size = np.ones(n, np.int64)
    got = fairness(values, values, size)
    again = fairness(values[::-1], values[::-1], size)
    assert got._asdict() == pytest.approx(again._asdict(), abs=1e-9)
    assert got.worst <= got.accuracy + 1e-9
    assert got.accuracy <= got.best + 1e-9
    assert -1e-9 <= got.gini <= 1 - 1 / n + 1e-9
    assert 1 / n - 1e-9 <= got.jain <= 1 + 1e-9
    assert -1e-9 <= got.entropy <= 1 + 1e-9
    assert got.by_sample == pytest.approx(got.accuracy)
    assert 0 <= got.variance <= 2500 + 1e-9


@quick
@given(shares)
def test_the_gini_coefficient_is_the_mean_difference_of_pairs(values):
    total = np.abs(values[:, None] - values).sum()
    n = len(values)
    want = total / (2 * n * values.sum()) if values.sum() > 0 else 0
    assert metrics.gini(values) == pytest.approx(want, abs=1e-9)


def test_arguments_are_left_alone():
    values = np.array([0.3, 0.1, 0.2])
    fairness(values, values, np.ones(3, np.int64))
    assert values.tolist() == [0.3, 0.1, 0.2]


@pytest.mark.parametrize("accuracy", [[50, 60], [0.5, 1.01], [-0.1, 0.2]])
def test_shares_are_not_per_cent(accuracy):
    with pytest.raises(InputError, match="of a client: give shares from 0 to 1, as"):
        fairness(accuracy, [1, 1], [10, 10])
