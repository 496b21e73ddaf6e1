"""Steps of the server that are tried before they are taken, by strategies that ask for it."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedmaba.data.attack import Attack, Hostile
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import refusal
from fedmaba.simulation.engine import Run, start
from fedmaba.strategies.base import Decision, Keep, Local, Needs, ServerStep, Strategy
from fedmaba.strategies.server_optimisers import ServerOptimiser
from plain_loop import PLAN, apart, mlp, one, played

pytestmark = pytest.mark.usefixtures("few_threads")
SOME = replace(PLAN, rounds=4, participants=3)


@dataclass(frozen=True)
class Longest(Strategy):
    """Takes the longest of some steps after which the sum of losses is smaller."""

    name: ClassVar[str] = "longest"
    factors: ClassVar[tuple[float, ...]] = (16.0, 4.0, 1.0)

    def needs(self):
        return Needs(loss="start", changes="norms", trials=True)

    def total(self):
        return None

    def weigh(self, state, replies):
        return Decision(np.full(len(replies.client), 1 / len(replies.client)), state)

    def search(self, replies, decision, tried):
        if (tried and tried[-1][1].sum() < replies.loss.sum()) or len(tried) == len(self.factors):
            return ServerStep(tried[-1][0], take=True)
        return ServerStep(self.factors[len(tried)])


class Same(Longest):
    """Tries nothing."""

    def search(self, replies, decision, tried):
        return ServerStep(1.0, take=True)


def test_a_strategy_of_your_own_may_try_steps(fed):
    """The trial losses are those of the model after the step, which the next round starts from."""
    seen = []

    class Watching(Longest):
        def search(self, replies, decision, tried):
            found = super().search(replies, decision, tried)
            if found.take:
                seen.append((replies.loss, tried, found.factor))
            return found

    plan = replace(PLAN, server_lr=0.7)  # trials and steps are both scaled by it
    _, shots = played([Run(Watching(), 3, fed)], fed, plan, mlp)
    assert len(seen) == 3
    for (_, tried, factor), (later, _, _), shot in zip(seen, seen[1:], shots, strict=False):
        (loss,) = [loss for f, loss in tried if f == factor]
        assert loss == pytest.approx(later, rel=1e-9)
        info = shot.rounds[0].info
        assert (info["step_factor"], info["trials"]) == (factor, len(tried))
        m = fed.n_clients
        assert shot.rounds[0].weight == pytest.approx([factor / m] * m)


def test_a_strategy_that_tries_nothing_is_as_one_without_trials(fed):
    runs = [Run(Same(), 3, fed), "fedavg:weights=uniform", Run(Longest(), 3, fed)]
    batch, shots = played(runs, fed, SOME, mlp)
    model = batch.progress.model
    assert apart(model[0], model[1]) < 1e-12
    assert apart(model[2], model[1]) > 1e-3
    assert shots[0].rounds[0].info == {"step_factor": 1.0, "trials": 0.0}
    assert shots[0].rounds[1].info == {}


def test_losses_of_steps_are_those_that_clients_report(fed):
    who = np.arange(fed.n_clients) == 1
    told = {}

    class Watching(Longest):
        lies: ClassVar[bool] = False

        def search(self, replies, decision, tried):
            told[self.lies] = tried or told.get(self.lies)
            return super().search(replies, decision, tried)

    class Lying(Watching):
        lies: ClassVar[bool] = True

    bad = replace(fed, hostile=Hostile(Attack(times=5.0), who))
    runs = [Run(Watching(), 3, fed), Run(Lying(), 3, bad)]
    played(runs, fed, replace(PLAN, rounds=1), mlp)
    (_, honest), (_, lied) = told[False][0], told[True][0]
    assert lied[1] == pytest.approx(5 * honest[1])
    assert np.delete(lied, 1) == pytest.approx(np.delete(honest, 1))


def test_a_step_that_leads_to_nowhere_has_an_infinite_loss(fed):
    class Far(Longest):
        factors: ClassVar[tuple[float, ...]] = (1e60, 1.0)

        def search(self, replies, decision, tried):
            if tried:
                assert np.isinf(tried[0][1]).all()
            return super().search(replies, decision, tried)

    _, shots = played([Run(Far(), 3, fed)], fed, replace(PLAN, rounds=1, dtype="float32"), mlp)
    assert shots[0].rounds[0].info["step_factor"] == 1


# what is refused


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (2.0, r"longest, round 1: search\(\) gave 2.0: return fedmaba.ServerStep\(factor, take\)"),
        (ServerStep(np.nan), r"search\(\) gave ServerStep\(factor=nan\): give a finite number"),
        (ServerStep("2"), r"search\(\) gave ServerStep\(factor='2'\): give a finite"),
        (ServerStep(1.0, take=1), r"search\(\) gave ServerStep\(take=1\): say True or False"),
        (ServerStep(1.0), r"search\(\) tried 100 steps and took none: return one to take"),
    ],
)
def test_no_length_and_endless_trials_are_refused(found, line, fed):
    kind = type("Odd", (Longest,), {"search": lambda *_: found})
    with pytest.raises(InputError, match=line):
        played([Run(kind(), 3, fed)], fed, replace(PLAN, rounds=1), mlp)


def test_steps_that_are_not_those_tried_are_refused(fed):
    with pytest.raises(InputError, match=r"fedmdfg tries the server's step .* leave out"):
        start([Run(one("fedmdfg"), 3, fed)], replace(PLAN, server_momentum=0.5), mlp)
    hooks = {
        "server_optimiser": lambda _: ServerOptimiser("momentum"),
        "local": lambda _: Local(keep={"v": Keep()}, server_adds={"v": 1.0}),
    }
    for hook, words in (("server_optimiser", "takes another"), ("local", "adds to it")):
        kind = type("Odd", (Longest,), {hook: hooks[hook]})
        with pytest.raises(InputError, match=rf"longest: needs\(\) asks .* {hook}\(\) {words}"):
            start([Run(kind(), 3, fed)], PLAN, mlp)
    with pytest.raises(InputError, match=r"Needs\(trials=True\): steps are tried once all changes"):
        Needs(loss="start", trials=True)


def test_flower_and_privacy_refuse_trials():
    why = "fedmdfg asks for losses after steps of several lengths, which sites do not send: simula"
    with pytest.raises(InputError, match=why):
        FederationSettings(one("fedmdfg"))
    assert "inner products of the clients' changes" in refusal(one("fedmdfg"))
