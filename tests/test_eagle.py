"""EAGLE: by hand, as the gradient of its objective, at its limits; its loop is in paper_loops."""

from dataclasses import replace

import numpy as np
import pytest

import fedmaba
from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import refusal
from fedmaba.strategies import Eagle
from fedmaba.strategies.base import Decision, Needs
from fedmaba.strategies.contract import check_strategy
from test_paper import told

RNG = np.random.default_rng(0)


def weighed(lam, loss, alone, size=None, best=None):
    """The weights of clients with these losses."""
    n = len(loss)
    state = Eagle().init(n)
    if best is not None:
        state = {"best": np.array(best), "rounds": np.ones(n)}
    replies = replace(told(range(n), loss=loss, size=size, n=n), alone=np.array(alone))
    return Eagle(lam=lam).weigh(state, replies)


def test_weights_are_the_gradient_of_the_penalised_loss():
    loss, size = RNG.gamma(2, 1, 7), RNG.integers(5, 30, 7)
    alone, share = loss * RNG.random(7), size / size.sum()

    def penalised(f):
        gap = f - alone
        return share @ f + 0.3 / 2 * share @ (gap - share @ gap) ** 2

    slope = [(penalised(loss + h) - penalised(loss - h)) / 2e-6 for h in 1e-6 * np.eye(7)]
    np.testing.assert_allclose(weighed(0.3, loss, alone, size).coef, slope, atol=1e-7)


def test_the_least_loss_alone_is_remembered():
    decision = weighed(1.0, [1.0, 1.0], [0.4, 0.9], best=[0.6, 0.5])
    assert decision.state["best"].tolist() == [0.4, 0.5]
    assert decision.coef == pytest.approx([0.5 * 1.05, 0.5 * 0.95])
    assert decision.state["rounds"].tolist() == [2, 2]
    grown = Eagle().join(decision.state, 3)["best"]
    assert grown.tolist() == [0.4, 0.5, 0.0]


def test_losses_alone_get_no_noise_so_privacy_is_refused():
    assert "losses of the clients' own models, which get no noise" in refusal(Eagle())


class NoModelOfTheirOwn(fedmaba.Strategy):
    """asks for what clients do not have"""

    name = "nomodel"

    def needs(self):
        return Needs(alone=True)

    def weigh(self, state, replies):
        return Decision(np.ones(len(replies.client)), state)


def test_the_loss_of_own_models_needs_own_models():
    with pytest.raises(InputError, match=r"nomodel: needs\(\) asks for the loss of clients' own"):
        check_strategy(NoModelOfTheirOwn())
