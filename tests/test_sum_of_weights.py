"""A strategy's coefficients sum to what its total() says, or the round is refused by name."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.deploy.validation import Reply
from fedmaba.errors import InputError
from fedmaba.strategies.answers import call_weigh
from fedmaba.strategies.base import Decision, Replies, Strategy


@dataclass(frozen=True)
class Scaled(Strategy):
    """equal weights, times a factor from a round on"""

    name: ClassVar[str] = "scaled"
    factor: float = 1.0
    since: int = 0
    says: float | None = 1.0

    def total(self):
        return self.says

    def weigh(self, state, replies):
        m = len(replies.client)
        factor = self.factor if replies.round >= self.since else 1.0
        return Decision(np.full(m, factor / m), state)


def told(m: int, t: int = 0) -> Replies:
    return Replies(t, 0.1, m, np.arange(m), np.full(m, 5))


def test_another_sum_is_refused_with_the_round_and_both_numbers():
    with pytest.raises(InputError) as caught:
        call_weigh(Scaled(1.5), {}, told(3, t=6))
    line = "scaled, round 7: weigh() gave coefficients that sum to 1.5, but total() says 1: "
    assert str(caught.value) == line + "scale them, or let total() return None"


@pytest.mark.parametrize("factor", [0.0, 0.999, 1.001, -1.0, 1e299])
def test_sums_that_are_off(factor):
    with pytest.raises(InputError, match=r"but total\(\) says 1"):
        call_weigh(Scaled(factor), {}, told(7))


@pytest.mark.parametrize("m", [1, 3, 1000, 10**6])
def test_what_rounding_leaves_passes(m):
    assert call_weigh(Scaled(), {}, told(m)).coef.shape == (m,)
    rough = (np.random.default_rng(m).dirichlet(np.ones(m))).astype(np.float32)

    class Rough(Scaled):
        def weigh(self, state, replies):
            return Decision(rough, state)

    assert call_weigh(Rough(), {}, told(m)).coef.dtype == np.float64


def test_a_free_sum_and_another_one_pass():
    assert call_weigh(Scaled(3.0, says=None), {}, told(2)).coef.sum() == 3.0
    assert call_weigh(Scaled(3.0, says=3.0), {}, told(2)).coef.sum() == 3.0


def test_a_weight_that_is_not_finite_is_left_to_the_rule_of_divergence():
    class Lost(Scaled):
        def weigh(self, state, replies):
            return Decision(np.array([np.nan, np.inf]), state)

    assert not np.isfinite(call_weigh(Lost(), {}, told(2)).coef).any()


@pytest.mark.parametrize("wrong", ["one", np.nan, np.inf])
def test_a_total_that_is_no_number_is_refused(wrong):
    class Says(Scaled):
        def total(self):
            return wrong

    with pytest.raises(InputError, match=r"scaled: total\(\) gave .*: return a finite number"):
        call_weigh(Says(), {}, told(2))


def test_a_server_refuses_it_too():
    server = FederationServer(FederationSettings(Scaled(2.0)), {"w": np.zeros(3, np.float32)})
    server.join(["a", "b"])
    reply = Reply(0, "a", {"w": np.ones(3, np.float32)}, 5)
    with pytest.raises(InputError, match="scaled, round 1"):
        server.finish_round([reply, replace(reply, node=1, site="b")])
