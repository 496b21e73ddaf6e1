"""The models that are handed out: averages of the server's."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fedmaba.errors import InputError
from fedmaba.simulation import measurements
from fedmaba.simulation import round as round_
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies.deployed import parse_rule as averaging
from plain_loop import MIXED, PLAN, apart, mlp, one
from recordings import Replays

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.mark.parametrize("rule", ["last", "average", "poly:8", "poly:0", "ema:0.9", None])
def test_the_deployed_model_is_its_formula_of_the_server_models(rule, fed):
    plan = replace(PLAN, rounds=4, eval_every=4)
    runs = [Run(one(s), 3, fed, rule) for s in ("fedavg", "afl")]
    batch = start(runs, plan, mlp)
    path = [batch.progress.model.clone() for _ in simulate(batch)]
    w = torch.stack(path)  # (T, R, P)
    t = torch.arange(1, 5, dtype=torch.float64)
    poly = torch.stack([torch.prod((t[k + 1 :] - 1) / (t[k + 1 :] + 8)) for k in range(4)])
    poly *= 9 / (t + 8)  # each later round keeps (t - 1)/(t + 8) of what was there
    shares = {
        "last": torch.tensor([0, 0, 0, 1.0], dtype=torch.float64),
        "average": torch.full((4,), 0.25, dtype=torch.float64),
        "poly:0": torch.full((4,), 0.25, dtype=torch.float64),
        "poly:8": poly,
        "ema:0.9": torch.tensor([0.729, 0.081, 0.09, 0.1], dtype=torch.float64),
    }
    for r, own in enumerate(("poly:8", "average")):  # what the two strategies say themselves
        share = shares[rule or own]
        assert share.sum() == pytest.approx(1)
        want = torch.einsum("t,tp->p", share, w[:, r])
        assert apart(batch.progress.deployed[r], want) < 1e-12
    assert not torch.equal(batch.progress.model[0], batch.progress.model[1])


@pytest.mark.parametrize("replayed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_that_hands_out_several_models_is_trained_once(replayed, held_fed, monkeypatch):
    plan = replace(PLAN, rounds=5, participants=3, server_momentum=0.5, eval_every=2, chunk=4)
    rules = ("last", "poly:8", "ema:0.9")
    each = [one(s) for s in (*MIXED, "fedfv", "fedmaba:eta_s=1e299")]
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    found, shots = [], []
    for asked in (rules, *((rule,) for rule in rules)):
        batch = start([Run(s, 3, held_fed, asked) for s in each], plan, mlp)
        if replayed:
            batch.graphs = Replays()
            for module in (round_, measurements):
                monkeypatch.setattr(module, "start_fetch", lambda values: values.clone().numpy)
        shots.append(list(simulate(batch)))
        found.append(batch.progress)
    several = found[0]
    assert several.model.shape[0] == len(each)
    assert several.owner.tolist() == [r for r in range(len(each)) for _ in rules]
    for k, alone in enumerate(found[1:]):
        assert several.diverged == alone.diverged
        assert any(alone.diverged)
        for name in ("model", "best", "velocity", "best_score", "best_round"):
            close(getattr(several, name), getattr(alone, name))
        close(several.deployed[k::3], alone.deployed)
        for shared, own in zip(shots[0], shots[k + 1], strict=True):
            for r in range(len(each)):
                assert (shared.rounds[r] is None) == (own.rounds[r] is None)
                if own.rounds[r] is not None:
                    close(shared.rounds[r].weight, own.rounds[r].weight)
                for name, scores in ((own.evaluations or {r: None})[r] or {}).items():
                    close(shared.evaluations[3 * r + k][name].loss, scores.loss)


@pytest.mark.parametrize("text", ["", "ema", "ema:1", "ema:0", "poly", "poly:-1", "last:3", "x"])
def test_a_deploy_rule_that_makes_no_sense_is_refused(text, fed):
    with pytest.raises(InputError, match="deploy="):
        averaging(text)
    if text:
        with pytest.raises(ValueError, match="deploy="):
            start([Run(one("fedavg"), 0, fed, text)], PLAN, mlp)
