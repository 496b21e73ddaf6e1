"""Hostile clients of strategies whose clients keep something: what they send, keep and say."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import paper_loops
from fedmaba.data import attack
from fedmaba.data.attack import Hostile
from fedmaba.data.federation import attacked
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies import Eagle
from plain_loop import PLAN, apart, mlp, played, vector

pytestmark = pytest.mark.usefixtures("few_threads")
LOOPS = {
    "feddyn": (paper_loops.FedDyn, {}),
    "ditto:lam=0.5": (paper_loops.Ditto, {"lam": 0.5}),
    "mifa": (paper_loops.MIFA, {"whole": True}),
}
SHORT = replace(PLAN, rounds=4)


def lying(fed, does):
    return attacked({3: fed}, attack.parse_attack(does), 0.4)[3]


@pytest.mark.parametrize("participants", [None, 3])
@pytest.mark.parametrize("factor", [-1.0, 4.0])
@pytest.mark.parametrize("spec", LOOPS)
def test_what_is_sent_so_many_times_is_also_what_is_kept(spec, factor, participants, fed):
    """A client's own model is never sent, so no factor reaches it."""
    loop, options = LOOPS[spec]
    turned, plan = lying(fed, f"update={factor}"), replace(SHORT, participants=participants)
    who = turned.hostile.who

    class Lying(loop):
        def claimed(self, client, start, end):
            return start + factor * (end - start) if who[client] else end

    want = Lying(3, turned, plan, mlp, **options).run()
    honest = loop(3, turned, plan, mlp, **options).run()
    assert apart(want.model, honest.model) > 1e-2
    for chunk in (None, 2):
        batch, _ = played(["fedavg", spec], turned, replace(plan, chunk=chunk), mlp)
        assert apart(vector(batch, batch.progress.model[1]), want.model) < 1e-9
        (kept,) = batch.progress.memory.columns[1].values()
        for i in range(fed.n_clients):
            assert float((vector(batch, kept[i]) - want.own[i]).abs().max()) < 1e-9


# --- losses alone --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listening(Eagle):
    """EAGLE that remembers what it was told"""

    name: ClassVar[str] = "listening"
    heard: ClassVar[list] = []

    def weigh(self, state, replies):
        self.heard.append((replies.loss, replies.alone))
        return super().weigh(state, replies)


def told(fed, does):
    """The losses, those alone and the weights of the first round."""
    Listening.heard.clear()
    batch = start([Run(Listening(), 3, lying(fed, does))], replace(PLAN, rounds=1), mlp)
    (shot,) = simulate(batch)
    loss, alone = Listening.heard[-1]  # after made-up replies
    return loss, alone, shot.rounds[0].weight


@pytest.mark.parametrize("does", ["loss=x4", "loss=50", "loss=worst", "loss=x0.5"])
def test_who_says_a_multiple_of_its_loss_says_the_inverse_of_its_loss_alone(does, fed):
    loss, alone, weight = told(fed, "update=1")
    said, said_alone, lied = told(fed, does)
    who = lying(fed, does).hostile.who
    assert said_alone[~who].tolist() == alone[~who].tolist()
    np.testing.assert_allclose(said_alone[who], (alone * loss / said)[who], rtol=1e-12)
    if does in ("loss=x4", "loss=50"):  # they lose more by the federation, they say
        assert (said_alone[who] < alone[who]).all()
        assert lied[who].sum() > weight[who].sum()


def test_lies_about_a_loss_alone_by_hand():
    client, who = np.array([2, 0, 1]), np.array([True, False, True])
    loss, alone = np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.0, 1.0])

    def said(does, loss=loss):
        seen = {"alone": alone, "norms": loss}
        hostile = Hostile(attack.parse_attack(does), who)
        now, more = hostile.reported(client, loss, seen)
        assert more["norms"] is loss
        assert hostile.reported(client, loss, {})[1] == {}
        return now.tolist(), more["alone"].tolist()

    assert said("loss=x2") == ([2, 4, 4], [0.25, 0, 1])
    assert said("loss=8") == ([8, 8, 4], [0.0625, 0, 1])
    assert said("loss=0") == ([0, 0, 4], [0.5, 0, 1])
    assert said("loss=x1e-320")[1][0] == np.finfo(float).max / 2
    assert said("update=3") == (loss.tolist(), alone.tolist())
    assert said("loss=x2", np.zeros(3)) == ([0, 0, 0], alone.tolist())
