"""What is believed of reported losses, and what a lie is still worth."""

import numpy as np
import pytest

from fedmaba.strategies import FedMABA
from fedmaba.strategies.base import Replies
from fedmaba.strategies.outliers import MEDIAN_TO_DEVIATION, shrink_outliers

KNOWN = np.array([1.0, 2.0, 3.0, 4.0, 5.0])  # median 3, median distance 1


def test_by_hand():
    top = 3 + 3 * MEDIAN_TO_DEVIATION
    said = np.array([-9.0, 0.0, 5.0, top, top + 1, 3 + 4.5 * MEDIAN_TO_DEVIATION, 1e6, 1e300])
    assert shrink_outliers(said, KNOWN) == pytest.approx([-9, 0, 5, top, top - 2, 3, 3, 3])


def test_numbers_at_the_end_of_what_floats_hold_do_no_harm():
    huge = np.array([1.7e308, -1.7e308, 1.7e308, 1.0])
    assert np.isfinite(shrink_outliers(huge, huge)).all()


def test_where_most_say_the_same_others_above_are_not_believed():
    assert shrink_outliers(np.array([0.0, 1.0, 2.0]), np.ones(5)).tolist() == [0.0, 1.0, 1.0]


def rounds(strategy, n, said, many=30):
    """The liar's weight in the end, and how many reports were doubted each round."""
    rng, state, doubted = np.random.default_rng(0), strategy.init(n), []
    for t in range(many):
        loss = rng.normal(2.0, 0.3, n)
        loss[0] = said(loss[1:])
        seen = Replies(t, 0.1, n, np.arange(n), np.full(n, 10), loss)
        coef, state, info = strategy.weigh(state, seen)
        doubted.append(info.get("doubted"))
    return coef[0], doubted


@pytest.mark.parametrize("lie", [1e6, 6.0])
def test_a_lie_is_worth_nothing(lie):
    weight, doubted = rounds(FedMABA(trust="usual"), 20, lambda honest: lie)
    assert weight < 0.07  # 1/20 is the average
    assert min(doubted) >= 1
    assert rounds(FedMABA(), 20, lambda honest: lie)[0] > 0.2


def test_a_lie_of_the_worst_honest_size_still_is():
    weight, _ = rounds(FedMABA(trust="usual"), 20, lambda honest: honest.max())
    assert weight > 0.1


def test_reports_are_held_against_the_last_of_all_clients():
    strategy = FedMABA(trust="usual", alpha=1)
    everyone = Replies(
        0, 0.1, 6, np.arange(6), np.full(6, 10), np.array([1.0, 1.1, 0.9, 1.2, 1, 9])
    )
    _, state, info = strategy.weigh(strategy.init(6), everyone)
    assert info["doubted"] == 1
    pair = Replies(1, 0.1, 6, np.array([0, 5]), np.full(2, 10), np.array([1.0, 9.0]))
    coef, state, info = strategy.weigh(state, pair)  # alone with one other, it would be no outlier
    assert info["doubted"] == 1
    assert coef[1] < 0.55
    assert state["said"].tolist() == [1.0, 1.1, 0.9, 1.2, 1.0, 9.0]
