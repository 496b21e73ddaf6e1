"""Local steps after a first exchange: FedEBA+, GIFAIR-FL and Scaff-PD at their limits, and by hand.

test_paper_loops has them beside loops from their papers, test_any_way resumed, on ranks and so on.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import paper_loops
from fedmaba.data.attack import Attack, Hostile
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import refusal
from fedmaba.simulation.engine import Optimiser, Run
from fedmaba.strategies import GIFAIR, FedEBAPlus, ScaffPD
from fedmaba.strategies.answers import call_guide
from fedmaba.strategies.base import Decision, Guide, Local, Needs, Replies, Strategy
from fedmaba.strategies.contract import check_strategy
from plain_loop import PLAN, Plain, apart, mlp, one, played, vector

pytestmark = pytest.mark.usefixtures("few_threads")
WHOLE = replace(PLAN, minibatch=50)  # one step on all examples of a client


def told(loss, client=None, n=None, size=None):
    m = len(loss)
    who = np.arange(m) if client is None else np.array(client)
    size = np.full(m, 10) if size is None else np.array(size)
    return Replies(0, 0.1, n or m, who, size, loss=np.array(loss, np.float64))


@dataclass(frozen=True)
class Led(Strategy):
    """uniform weights, and a guide"""

    name: ClassVar[str] = "led"
    says: Any = Guide()

    def needs(self):
        return Needs(guided=True)

    def weigh(self, state, replies):
        m = len(replies.client)
        return Decision(np.full(m, 1 / m), state)

    def guide(self, replies, decision):
        return self.says


# limits


def test_each_is_another_algorithm_at_its_limits(fed):
    specs = ["term:T=2", "fedebaplus:a=0,theta=0", "fedeba", "fedebaplus:theta=90"]
    specs += ["fedavg", "gifair:lam=0,on=loss"]
    model = played(specs, fed, replace(PLAN, participants=3), mlp)[0].progress.model
    for same in (0, 2, 4):
        assert apart(model[same + 1], model[same]) < 1e-12
    assert apart(model[0], model[2]) > 1e-4


def test_with_one_step_on_all_examples_the_guide_changes_nothing_but_weights(fed):
    specs = ["gifair", "gifair:on=loss", "term:T=2", "fedebaplus:theta=0,a=0.7"]
    specs += ["fedavg:weights=uniform", "scaffpd:sigma=0", "afl:weights=new,lam=0.3"]
    specs += ["scaffpd:rho=0,sigma=0.3,theta=0"]
    model = played(specs, fed, WHOLE, mlp)[0].progress.model
    for same in range(0, len(specs), 2):
        assert apart(model[same + 1], model[same]) < 1e-9, specs[same]


def test_fedebaplus_aligns_gradients_in_some_rounds_and_models_in_others(fed):
    want = paper_loops.FedEBAPlus(3, fed, PLAN, mlp, a=0.4, theta=5.0)
    assert {*want.run().aligned} == {True, False}


def test_a_guide_that_says_nothing_is_the_plain_mean(fed):
    runs = [Run(Led(), 3, fed), Run(Led(Guide(scale=2.0)), 3, fed)]
    batch, _ = played([*runs, "fedavg:weights=uniform"], fed, PLAN, mlp)
    model = batch.progress.model
    assert apart(model[0], model[2]) < 1e-12
    assert apart(model[1], model[2]) > 1e-3
    twice, _ = played(["fedavg:weights=uniform"], fed, replace(PLAN, lr=2 * PLAN.lr), mlp)
    assert apart(model[1], twice.progress.model[0]) < 1e-9


@pytest.mark.parametrize(
    "how", [{"optimiser": Optimiser(0.7, 0.05)}, {"step_schedule": "cosine"}, {"epochs": 2}]
)
def test_optimisers_and_schedules_are_those_of_a_plain_loop(how, fed):
    plan = replace(PLAN, **how)
    for spec in ("scaffpd", "fedebaplus:theta=0,a=0.4"):
        batch, _ = played([spec, "fedavg"], fed, plan, mlp)
        want = Plain(one(spec), 3, fed, plan, mlp).run().path[-1]
        assert apart(vector(batch, batch.progress.model[0]), want) < 1e-9


def test_a_client_that_multiplies_its_change_multiplies_the_gradient_that_it_sends(fed):
    who = np.arange(fed.n_clients) == 1
    bad = replace(fed, hostile=Hostile(Attack(update=5.0), who))
    runs = [Run(Led(Guide(scale=0.0, mix=0.2)), 3, where) for where in (bad, fed)]
    model, path = {}, Plain(one("fedsgd"), 3, fed, replace(WHOLE, rounds=1), mlp)
    batch, _ = played(runs, fed, replace(WHOLE, rounds=1), mlp)
    for r, factor in enumerate((5.0, 1.0)):
        each = torch.stack([path.gradient(c, 0) for c in range(fed.n_clients)])
        lead = 0.2 * (each.sum(0) + (factor - 1) * each[1])
        many = (fed.n_clients - 1 + factor) / fed.n_clients  # it also multiplies its change
        first = torch.nn.utils.parameters_to_vector(path.model.parameters()).detach()
        model[r] = first - PLAN.lr * many * lead
        assert apart(vector(batch, batch.progress.model[r]), model[r]) < 1e-9


# by hand


def test_the_angle_is_that_of_the_losses_and_equal_ones():
    rule = FedEBAPlus(theta=20)
    decision = rule.weigh({}, told([1, 2, 4]))  # cosine 7 / sqrt(63)
    assert decision.info["angle"] == pytest.approx(28.1255057)
    assert rule.guide(told([1, 2, 4]), decision).scale == 0.9
    assert rule.guide(told([2, 2, 2]), rule.weigh({}, told([2, 2, 2]))) == Guide()
    for loss in ([0, 0], [1e-300, 1e-300], [1e300, 1e300]):
        assert rule.weigh({}, told(loss)).info["angle"] == pytest.approx(0, abs=1e-6)
    assert FedEBAPlus(theta=89).weigh({}, told([0, 1])).info["angle"] == pytest.approx(45)


def test_gifair_on_the_loss_scales_by_the_ratio_of_its_weights():
    seen = told([0.5, 0.5, 0.2, 0.2])
    found = GIFAIR(lam=0.5, on="loss")
    assert found.guide(seen, found.weigh({}, seen)).scale == pytest.approx(
        [1 + 1 / 3, 1 + 1 / 3, 2 / 3, 2 / 3]
    )
    assert found.weigh({}, seen).coef == pytest.approx([0.25] * 4)


def test_scaffpd_by_hand():
    rule = ScaffPD(rho=0.5, sigma=0.1, theta=1)
    first = rule.weigh(rule.init(4), told([1.0, 3.0], [0, 2], n=4))
    # absent ones count with the mean, 2: (1/4 + 0.1 (s + 0.5)) / 1.2, then 1/6 less to sum 1
    weights = np.array([0.4, 0.5, 0.6, 0.5]) / 1.2 - (2 / 1.2 - 1) / 4
    assert first.state["lambda"] == pytest.approx(weights)
    assert first.coef == pytest.approx(weights[[0, 2]] / weights[[0, 2]].sum())
    assert first.state["loss"].tolist() == [1, 0, 3, 0]
    second = rule.weigh(first.state, told([2.0, 4.0], [0, 1], n=4))
    climb = np.array([3.0, 4.0, 3.0, 3.0])  # 2 + (2 - 1), a first loss, a last one, the mean
    moved = (weights + 0.1 * (climb + 0.5)) / 1.2
    assert second.state["lambda"] == pytest.approx(moved - (moved.sum() - 1) / 4)
    assert rule.guide(told([2.0, 4.0]), second).own == -1
    grown = rule.join(second.state, 6)
    assert grown["lambda"].sum() == pytest.approx(1)
    assert grown["told"].tolist() == [1, 1, 1, 0, 0, 0]


# what is refused


@pytest.mark.parametrize(
    ("says", "line"),
    [
        (None, r"guide\(\) gave None: return fedmaba.Guide"),
        (Guide(mix=np.ones(3)), r"gave mix of shape \(3,\) and type float64 for 2 clients"),
        (Guide(scale=np.nan), r"gave scale=nan: give finite numbers"),
        (Guide(own="1"), r"gave own of shape \(\) and type <U1"),
    ],
)
def test_a_guide_is_a_number_for_each_participant(says, line):
    rule = type("Odd", (Led,), {"guide": lambda self, replies, decision: says})()
    with pytest.raises(InputError, match=line):
        call_guide(rule, told([1, 2]), Decision(np.full(2, 0.5), {}))


@pytest.mark.parametrize("spec", ["fedebaplus", "scaffpd", "gifair:on=loss"])
def test_a_second_exchange_is_simulated_alone_and_not_private(spec):
    with pytest.raises(InputError, match=r"which sites do not send|sites have one only"):
        FederationSettings(one(spec))
    assert "not clipped: run it without dp" in refusal(one(spec))
    with pytest.raises(InputError, match="weights="):
        one(f"median:weights={spec.replace(',', ';')}")


def test_a_guide_needs_plain_local_steps_and_losses_from_before():
    with pytest.raises(InputError, match=r"Needs\(guided=True\): their weights must be known"):
        Needs(loss="end", guided=True)
    both = type("Both", (Led,), {"name": "both", "local": lambda self: Local(prox=1.0)})
    with pytest.raises(InputError, match=r"both: needs\(\) asks to guide local steps, but local"):
        check_strategy(both())
    with pytest.raises(InputError, match="asks to guide local steps"):
        check_strategy(one("ditto:server=scaffpd"))
