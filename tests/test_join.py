"""New clients in a running federation: what a strategy's state becomes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmaba.errors import InputError
from fedmaba.strategies import REGISTRY, parse
from fedmaba.strategies.base import Decision, Replies, Strategy, uniform_weights
from fedmaba.strategies.simplex import kl_uniform, widen


def test_by_hand():
    np.testing.assert_allclose(widen(np.array([0.5, 0.3, 0.2]), 5), [0.3, 0.18, 0.12, 0.2, 0.2])
    (strategy,) = parse("fedmaba")
    state = strategy.join({"p": np.array([0.75, 0.25])}, 4)
    np.testing.assert_allclose(state["p"], [0.375, 0.125, 0.25, 0.25])
    (strategy,) = parse("afl")
    np.testing.assert_allclose(strategy.join({"lambda": np.array([1.0, 0.0])}, 3)["lambda"],
                               [2 / 3, 0, 1 / 3])  # fmt: skip


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.integers(0, 20))
def test_mass_ratios_and_the_ball_are_kept(values, more):
    p = np.array(values)
    p /= p.sum()
    wide = widen(p, len(p) + more)
    assert wide.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(wide[: len(p)] * len(wide), p * len(p))  # relative to uniform
    np.testing.assert_allclose(wide[len(p) :] * len(wide), 1.0)
    assert kl_uniform(wide) <= kl_uniform(p) + 1e-12


@pytest.mark.parametrize("spec", [*REGISTRY, "term:normalise=reference", "fedmaba:trust=usual"])
def test_every_strategy_takes_in_new_clients(spec):
    (strategy,) = parse(spec)
    state = strategy.init(3)
    grown = strategy.join(state, 7)
    for name, value in strategy.init(7).items():
        np.testing.assert_allclose(grown[name], value)  # uniform stays uniform
    same = strategy.join(state, 3)
    assert {n: v.tolist() for n, v in same.items()} == {n: v.tolist() for n, v in state.items()}


@pytest.mark.parametrize("spec", ["fedmaba", "fedmaba:ball=global", "fedmaba:trust=usual", "afl"])
def test_new_clients_weigh_in_the_next_round(spec):
    (strategy,) = parse(spec)
    everyone = np.arange(5)
    replies = Replies(0, 0.1, 3, everyone[:3], np.full(3, 10), loss=np.array([3.0, 1.0, 0.5]))
    state = strategy.join(strategy.weigh(strategy.init(3), replies).state, 5)
    more = Replies(1, 0.1, 5, everyone, np.full(5, 10), loss=np.ones(5))
    coef = strategy.weigh(state, more).coef
    assert coef.sum() == pytest.approx(1.0)
    assert coef[0] > coef[3] > 0
    assert coef[3] == pytest.approx(coef[4])


def test_a_strategy_with_state_per_client_must_say_how():
    @dataclass(frozen=True)
    class Own(Strategy):
        name: ClassVar[str] = "own"

        def init(self, n_clients):
            return {"seen": np.zeros(n_clients)}

        def weigh(self, state, replies):
            return Decision(uniform_weights(replies), state)

    with pytest.raises(InputError, match=r"own keeps 'seen' per client.*define join"):
        Own().join(Own().init(2), 3)
