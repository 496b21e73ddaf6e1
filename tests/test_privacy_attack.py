"""Neighbouring federations cannot be told apart better than the stated epsilon allows.

An attacker who knows all other clients, both data sets of the one client, the noise's size and all
that is released plays the likelihood-ratio test over a thousand runs of the simulator.
"""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedmaba.data.datasets import Dataset
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.privacy import mechanism as of_privacy
from fedmaba.privacy.mechanism import Privacy
from fedmaba.rows import models
from fedmaba.rows.weights import GivenWeights
from fedmaba.simulation.engine import Plan, Run, simulate, start
from fedmaba.simulation.parts.privacy import PrivateRounds
from fedmaba.strategies import parse

pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_threads", "one_module")]
RUNS = 1000
ASKED = Privacy(epsilon=2.0, delta=1e-5, clip=0.5, loss=2.0, loss_share=0.3)
PLAN = Plan(rounds=2, minibatch=1, lr=5.0, lr_decay=1.0, dtype="float64", eval_every=2)


@pytest.fixture
def one_module(monkeypatch):
    """Build one module for all seeds, whose weights are given anyway: a thousand take a minute."""
    build, made = models.build_model, []

    def once(*args, **more):
        made.extend([] if made else [build(*args, **more)])
        return copy.deepcopy(made[0])

    monkeypatch.setattr(models, "build_model", once)


def federation(replaced: bool) -> Federation:
    """Two clients of one training example; the second one's label is turned round."""
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]], np.float32)
    y = np.array([0, int(replaced), 0, 1])
    mine, tested = (np.array([0]), np.array([1])), (np.array([2]), np.array([3]))
    nobody = np.zeros(0, np.int64)
    return Federation(Dataset("two", x, y, 4, ("a", "b")), Split(mine, (nobody, nobody), tested))


def released(spec: str, replaced: bool, weaker: float = 1.0):
    """(n, k) What a thousand runs release: models after each round, and losses where they are."""
    fed, (strategy,) = federation(replaced), parse(spec)
    runs = [Run(strategy, seed, fed) for seed in range(RUNS)]
    begin = {"1.weight": np.array([[0.0, 2.0], [0.0, -2.0]]), "1.bias": np.zeros(2)}
    start_from = GivenWeights(begin, "by hand")
    batch = start(runs, replace(PLAN, privacy=ASKED), "softmax", init=start_from)
    (part,) = (part for part in batch.parts if isinstance(part, PrivateRounds))
    part.mechanisms = [replace(m, noise=m.noise * weaker) for m in part.mechanisms]
    seen, before = [], batch.progress.model.clone()
    for shot in simulate(batch):
        now = batch.progress.model
        seen.append(((now - before) / part.mechanisms[0].sum_noise).numpy().copy())
        before = now.clone()
        if shot.rounds[0].loss is not None:
            losses = np.stack([r.loss for r in shot.rounds])
            seen.append(losses / part.mechanisms[0].loss_noise)
    return np.concatenate(seen, 1)


def certain_epsilon(spec: str, weaker: float = 1.0) -> float:
    """The largest epsilon that the runs disprove at 95 %: all below it are impossible."""
    one, other = (released(spec, replaced, weaker) for replaced in (False, True))
    half = RUNS // 2
    direction = one[:half].mean(0) - other[:half].mean(0)  # learnt on the first half
    score, against = one @ direction, other @ direction
    best = 0.0, np.median(score)
    for cut in np.quantile(np.concatenate([score[:half], against[:half]]), np.linspace(0, 1, 201)):
        hit, wrong = (score[:half] >= cut).mean(), (against[:half] >= cut).mean()
        best = max(best, (math.log((hit + 1e-3) / (wrong + 2e-3)), cut))
    cut, many = best[1], RUNS - half
    hits, wrongs = int((score[half:] >= cut).sum()), int((against[half:] >= cut).sum())
    least = stats.beta.ppf(0.025, hits, many - hits + 1) if hits else 0.0
    most = stats.beta.ppf(0.975, wrongs + 1, many - wrongs)
    return math.log(max(least - ASKED.delta, 1e-9) / most)


@pytest.mark.parametrize("spec", ["fedavg", "fedmaba:rho=9,eta_b=9", "afl:lam=1,weights=new"])
def test_no_attack_beats_the_stated_epsilon(spec):
    assert certain_epsilon(spec) <= ASKED.epsilon


@pytest.mark.parametrize("spec", ["fedavg", "fedmaba:rho=9,eta_b=9"])
def test_the_attack_finds_noise_that_is_too_small(spec):
    assert certain_epsilon(spec, weaker=0.05) > ASKED.epsilon


def test_the_attack_finds_a_weight_that_is_not_counted(monkeypatch):
    """As if the largest weight were a tenth of what it is."""
    usual = of_privacy.largest_weight
    monkeypatch.setattr(of_privacy, "largest_weight", lambda *asked: usual(*asked) / 10)
    monkeypatch.setattr(of_privacy.Mechanism, "check_weights", lambda *_: None)
    assert certain_epsilon("fedavg") > ASKED.epsilon
