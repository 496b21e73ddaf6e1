"""EAGLE: by hand, as the gradient of its objective, at its limits; its loop is in paper_loops."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmaba
from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import refusal
from fedmaba.strategies import Eagle
from fedmaba.strategies.base import Decision, Needs
from fedmaba.strategies.contract import check_strategy
from plain_loop import PLAN, apart, mlp, played
from test_by_hand import play
from test_paper import told
from test_paper_loops import equal_clients

RNG = np.random.default_rng(0)


def test_three_rounds_by_hand():
    """Alone, A passes 1, 0.9, ... and B 1, 1.4, 1.64, ...: mean losses 0.4525 and 1.36 in round 1.

    The losses at w = 1 are 0.5 and 2, the gaps 0.0475 and 0.64, the weights 0.351875 and 0.648125.
    """
    path, _ = play("eagle")
    assert path[0] == pytest.approx(1 - 0.351875 * 0.19 + 0.648125 * 0.64, abs=1e-12)
    assert path == pytest.approx(in_scalars(lam=1.0), abs=1e-12)


def in_scalars(lam):
    w, alone, least, path = 1.0, [1.0, 1.0], [np.inf, np.inf], []
    for _ in range(3):
        gap, change = [], []
        for i, (curve, aim) in enumerate([(1.0, 0.0), (4.0, 2.0)]):
            seen, y = [], w
            for _ in range(2):
                seen.append(curve * (alone[i] - aim) ** 2 / 2)
                alone[i] -= 0.1 * curve * (alone[i] - aim)
                y -= 0.1 * curve * (y - aim)
            least[i] = min(least[i], sum(seen) / 2)
            gap.append(curve * (w - aim) ** 2 / 2 - least[i])
            change.append(y - w)
        coef = [0.5 * max(0.0, 1 + lam * (g - sum(gap) / 2)) for g in gap]
        w += sum(c * d for c, d in zip(coef, change, strict=True)) / sum(coef)
        path.append(w)
    return path


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


def test_equal_gaps_and_lambda_zero_are_fedavg(fed):
    specs = ["fedavg", "eagle:lam=0"]
    batch, _ = played(specs, fed, replace(PLAN, participants=3), mlp)
    assert apart(batch.progress.model[1], batch.progress.model[0]) < 1e-12
    whole = replace(PLAN, minibatch=1000)  # in minibatches equal clients would differ
    batch, _ = played(["fedavg", "eagle:lam=5"], equal_clients(fed), whole, mlp)
    assert apart(batch.progress.model[1], batch.progress.model[0]) < 1e-12


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=8),
    st.floats(0, 1e3),
)
def test_weights_are_never_negative_and_sum_to_one(losses, lam):
    loss, alone = map(np.array, zip(*losses, strict=True))
    coef = weighed(lam, loss, alone).coef
    assert (coef >= 0).all()
    assert coef.sum() == pytest.approx(1)


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
