"""Runs that diverge end with a reason and a finite model; the others do not notice."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedmaba.simulation.engine import Run, simulate, start
from plain_loop import PLAN, SPECS, Odd, apart, mlp, one

pytestmark = pytest.mark.usefixtures("few_threads")


def bilinear(shape, classes):
    """No activation saturates here: whatever grows keeps growing."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, classes))


@pytest.mark.parametrize("spec", SPECS)
def test_a_run_that_diverges_stops_with_a_finite_model_and_a_reason(spec, fed):
    plan = replace(PLAN, rounds=30, lr=1e200, lr_decay=1.0)
    batch = start([Run(one(spec), 3, fed)], plan, bilinear)
    shots = list(simulate(batch))
    reason = batch.progress.diverged[0]
    ended = len(shots)
    assert ended < 30
    assert reason.startswith(f"{one(spec).label()}, seed 3, diverged in round {ended}: ")
    assert "client" in reason or "server" in reason
    assert reason.endswith(": lower --lr")
    assert shots[-1].rounds[0] is None
    assert shots[-1].evaluations[0] is None
    for name in ("model", "deployed", "best"):
        assert getattr(batch.progress, name).isfinite().all()


def test_the_client_that_breaks_the_model_is_named(make_federation):
    fed = make_federation()
    for client in (2, 3):  # the first is named
        fed.data.x[fed.split.train[client][0]] = 3e38  # finite, as data must be
    for spec in ("fedavg", "fedmaba", "fedfv", "qffl", "fedmaba:loss_at=end"):
        plan = replace(PLAN, dtype="float32")
        batch = start([Run(one(spec), 3, fed)], plan, "softmax")
        list(simulate(batch))
        assert "client 2" in batch.progress.diverged[0], spec


@pytest.mark.parametrize("chunk", [1, None])
def test_the_other_runs_of_a_batch_do_not_notice(chunk, fed):
    wild, calm = "fedmaba:eta_s=1e299", "fedmaba:eta_s=0.9"
    plan = replace(PLAN, rounds=5, chunk=chunk, server_momentum=0.5)
    results = []
    for spec in (wild, calm):
        batch = start([Run(one(s), 3, fed) for s in ("fedavg", spec, "fedfv")], plan, mlp)
        shots = list(simulate(batch))
        assert len(shots) == 5
        assert bool(batch.progress.diverged[1]) == (spec == wild)
        assert batch.progress.diverged[::2] == ["", ""]
        assert (shots[-1].rounds[1] is None) == (spec == wild)
        results.append(batch.progress)
    for name in ("model", "deployed", "best"):
        a, b = (getattr(progress, name) for progress in results)
        assert a.isfinite().all()
        if chunk == 1:
            assert torch.equal(a[::2], b[::2])
        else:
            assert apart(a[0], b[0]) < 1e-9
            assert apart(a[2], b[2]) < 1e-9


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_strategy_that_gives_infinite_weights_ends_its_run(momentum, fed):
    plan = replace(PLAN, rounds=5, server_momentum=momentum)
    batch = start([Run(Odd(), 3, fed), Run(one("fedavg"), 3, fed)], plan, mlp)
    before = None
    for shot in simulate(batch):
        if shot.round == 1:
            before = batch.progress.model[0].clone()
    assert batch.progress.diverged[0].endswith("round 3: the strategy gave client 0 the weight inf")
    assert torch.equal(batch.progress.model[0], before)
    assert batch.progress.diverged[1] == ""
