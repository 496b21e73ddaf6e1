"""Going on after a stop; evaluations; your own loss and metric."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from fedmaba.errors import InputError
from fedmaba.simulation import evaluation
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies.base import Needs
from plain_loop import PLAN, Plain, apart, cnn, mlp, one, played, vector

pytestmark = pytest.mark.usefixtures("few_threads")


# --- your own loss, metric and evaluation ------------------------------------------------------


def hinge(out, y):
    """A multi-class hinge loss of each example."""
    own = out.gather(1, y[:, None])
    return (1 + out - own).clamp(min=0).square().sum(1) - 1


def test_a_loss_and_a_metric_of_ones_own(fed):
    def margin(out, y):
        top = out.topk(2, dim=1).values
        return (top[:, 0] - top[:, 1]) * (out.argmax(1) == y)

    specs = ["fedavg", "qffl:q=2", "propfair:M=9,epsilon=4", "fedmaba:loss_at=mean", "fedsgd"]
    plan = replace(PLAN, lr=0.05, participants=3)
    batch, shots = played(specs, fed, plan, mlp, loss=hinge, metric=margin)
    for r, spec in enumerate(specs):
        plain = Plain(one(spec), 3, fed, plan, mlp, loss=hinge).run()
        assert apart(vector(batch, batch.progress.model[r]), plain.path[-1]) < 1e-9
        for c, rows in enumerate(fed.split.test):
            out = plain.forward(plain.model, plain.x[rows]).detach()
            found = shots[-1].evaluations[r]["last"]
            assert found.loss[c] == pytest.approx(hinge(out, plain.y[rows]).mean().item())
            assert found.accuracy[c] == pytest.approx(margin(out, plain.y[rows]).mean().item())


@pytest.mark.parametrize("deploy", ["last", "ema:0.5"])
def test_an_evaluation_is_a_plain_pass_over_each_clients_test_examples(deploy, held_fed):
    specs, plan = ["fedavg", "fedmaba"], replace(PLAN, eval_every=2)
    runs = [Run(one(spec), 3, held_fed, deploy) for spec in specs]
    batch, shots = played(runs, held_fed, plan, cnn)
    assert [shot.evaluations is not None for shot in shots] == [False, True, True]
    plain = Plain(one("fedavg"), 3, held_fed, plan, cnn)  # for its forward pass only
    for r in range(len(specs)):
        found = shots[-1].evaluations[r]
        assert set(found) == {"last", "deployed", "last_validation", "deployed_validation"}
        for kind, flat in (("last", batch.progress.model), ("deployed", batch.progress.deployed)):
            vector_to_parameters(vector(batch, flat[r]), plain.model.parameters())
            for suffix, lists in (
                ("", held_fed.split.test),
                ("_validation", held_fed.split.validation),
            ):
                scores = found[kind + suffix]
                for c, rows in enumerate(lists):
                    out = plain.forward(plain.model, plain.x[rows]).detach()
                    assert scores.loss[c] == pytest.approx(plain.measured(plain.model, rows))
                    right = (out.argmax(1) == plain.y[rows]).double().mean().item()
                    assert scores.accuracy[c] == pytest.approx(right)
        same = found["last"].loss.tolist() == found["deployed"].loss.tolist()
        assert same == (deploy == "last")


def test_the_best_round_is_picked_on_validation_data(held_fed):
    plan = replace(PLAN, rounds=6, lr=1.0, lr_decay=1.0)
    runs = [Run(one(spec), 3, held_fed) for spec in ("fedavg", "fedsgd", "fedmaba")]
    batch = start(runs, plan, mlp)
    path, shots = [], []
    for shot in simulate(batch):
        path.append(batch.progress.model.clone())
        shots.append(shot)
    differs = False
    for r in range(len(runs)):
        judged, shown = (
            [float(np.mean(shot.evaluations[r][kind].accuracy)) for shot in shots]
            for kind in ("last_validation", "last")
        )
        best = int(np.argmax(judged))
        assert batch.progress.best_round[r] == best
        assert batch.progress.best_score[r] == pytest.approx(judged[best])
        assert torch.equal(batch.progress.best[r], path[best][r])
        differs |= best != int(np.argmax(shown))
    assert differs  # so that the choice of data was put to the test


def test_a_large_test_set_is_taken_in_pieces(fed, monkeypatch):
    _, shots = played(["fedavg"], fed, PLAN, cnn)
    monkeypatch.setattr(evaluation, "MAX_ACTIVATIONS", 1)  # one example at a time
    _, again = played(["fedavg"], fed, PLAN, cnn)
    a, b = (s[-1].evaluations[0]["last"].loss for s in (shots, again))
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("what", ["loss", "metric"])
def test_a_loss_or_metric_must_give_a_value_per_example(what, fed):
    with pytest.raises(ValueError, match="one value per example"):
        start([Run(one("fedavg"), 0, fed)], PLAN, mlp, **{what: nn.functional.cross_entropy})
    with pytest.raises(ValueError, match=f"{what}='mse': give a function"):
        start([Run(one("fedavg"), 0, fed)], PLAN, mlp, **{what: "mse"})


def test_a_metric_that_is_no_number_is_refused_at_once_and_survived_later(fed):
    def nothing(out, target):
        return torch.full((len(out),), math.nan, dtype=out.dtype)

    run = Run(one("fedavg"), 0, fed)
    with pytest.raises(InputError, match="the metric gave a value that is not finite"):
        start([run], PLAN, mlp, metric=nothing)
    batch = start([run], PLAN, mlp)
    batch.metric = nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        *_, last = simulate(batch)
    assert np.isnan(last.evaluations[0]["last"].accuracy).all()
    assert batch.progress.best_round.tolist() == [-1]


def test_what_a_strategy_needs_has_a_name():
    few = (
        {"keep_rounds": -1},
        {"keep_rounds": 0.5},
        {"keep_rounds": 2},
    )  # the last: without a gram
    for wrong in ({"loss": "Start"}, {"changes": "all"}, *few):
        with pytest.raises(InputError, match=rf"Needs\({next(iter(wrong))}="):
            Needs(**wrong)
