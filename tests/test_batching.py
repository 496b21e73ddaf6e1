"""A run is the same alone, in a batch, in chunks and on threads."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fedmaba import strategies
from fedmaba.rows import grouped
from fedmaba.rows import kernels as triton
from fedmaba.rows.grouped import GroupedRows
from fedmaba.simulation import local_training
from fedmaba.simulation.engine import Optimiser, Run
from plain_loop import (
    MIXED,
    MODELS,
    PLAN,
    Functional,
    Wrapped,
    apart,
    cnn,
    mlp,
    one,
    played,
)

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.mark.parametrize(
    ("model", "specs"),
    [
        ("mlp", ["fedprox", "qffl", "fedmaba:loss_at=mean"]),
        ("cnn", ["fedsgd", "fedfv"]),
        pytest.param("mlp", MIXED, marks=pytest.mark.slow),
        pytest.param("cnn", ["fedsgd", "fedprox", "fedfv"], marks=pytest.mark.slow),
    ],
)
def test_a_run_is_the_same_alone_in_a_batch_and_in_other_chunks(model, specs, fed, make_federation):
    plan = replace(PLAN, participants=3)
    other = replace(fed, split=make_federation(sizes=(9, 8, 6, 5, 3), seed=9).split)
    mixed = [Run(one(s), seed, f) for s in specs for seed, f in ((3, fed), (5, other))]
    batch, shots = played(mixed, fed, plan, MODELS[model])
    chunks = [played(mixed, fed, replace(plan, chunk=c), MODELS[model]) for c in (1, 4)]
    for r, run in enumerate(mixed):
        alone, lone_shots = played([run], fed, plan, MODELS[model])
        for again, row, seen in ((alone, 0, lone_shots), *((c, r, s) for c, s in chunks)):
            for kind in ("model", "deployed", "best"):
                a, b = (getattr(p.progress, kind) for p in (again, batch))
                assert apart(a[row], b[r]) < 1e-9
            for x, y in zip(seen, shots, strict=True):
                assert x.rounds[row].client.tolist() == y.rounds[r].client.tolist()
    a, b = batch.progress.model[:2]
    assert apart(a, b) > 1e-3  # two seeds are two runs


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (cnn, {"optimiser": Optimiser(0.5)}),
        (lambda *args: Functional(*args), {"steps": 1}),
        pytest.param(cnn, {"steps": 1}, marks=pytest.mark.slow),
        pytest.param(Functional, {"optimiser": Optimiser(0.5)}, marks=pytest.mark.slow),
    ],
)
def test_masks_of_large_minibatches_do_not_depend_on_other_runs(model, change, fed, monkeypatch):
    """Full batches are taken in pieces, bent losses are not."""

    @dataclass(frozen=True)
    class Bent(strategies.PropFair):
        name = "bent"

        def local(self):
            return replace(super().local(), full_batch=True)

    monkeypatch.setattr(local_training, "FULL_BATCH_PIECE", 2)
    plan, runs = replace(PLAN, rounds=1, minibatch=50, **change), []
    for strategy in (one("fedavg"), one("fedsgd"), one("fedprox"), one("propfair"), Bent()):
        runs.append(Run(strategy, 3, fed))
    batch, _ = played(runs, fed, plan, model)
    for r, run in enumerate(runs):
        alone, _ = played([run], fed, plan, model)
        assert apart(alone.progress.model[0], batch.progress.model[r]) < 1e-9


def test_runs_of_one_seed_share_their_inputs(make_federation, kernels, monkeypatch):
    def model(shape, classes):
        inner = nn.Linear(math.prod(shape), 10), nn.ReLU(), nn.Dropout(0.3)
        return nn.Sequential(nn.Flatten(), *inner, nn.Linear(10, classes))

    fed = make_federation(sizes=(7, 7, 7, 7, 7))
    specs = ("fedavg", "fedmaba", "term", "qffl", "fedprox", "fedsgd")
    runs = [Run(one(spec), seed, fed) for seed in (3, 4) for spec in specs]
    plan = replace(PLAN, epochs=2)
    monkeypatch.setattr(GroupedRows, "group", lambda *_: 2)
    found, taken, run_group = [], [], GroupedRows.run_group

    def noted(rows, w, inputs, *more):
        taken.append((len(inputs.x), len(w), inputs.owner is not None))
        return run_group(rows, w, inputs, *more)

    monkeypatch.setattr(GroupedRows, "run_group", noted)
    for least in (math.inf, 1):
        taken.clear()
        monkeypatch.setattr(grouped, "MIN_SHARED_ROWS", least)
        batch, _ = played(runs, fed, replace(plan, chunk=1000), model)
        found.append(batch.progress.model)
        assert any(shared for *_, shared in taken) == (least == 1)
    assert (10, 40, True) in taken
    assert apart(*found) < 1e-9


def test_compiling_kernels_ahead_changes_nothing(fed, kernels, monkeypatch):
    monkeypatch.setattr(GroupedRows, "group", lambda *_: 1)
    found, asked = [], []
    for ahead in (lambda work: None, lambda work: asked.append(work())):
        monkeypatch.setattr(triton, "compile_only", ahead)
        batch, _ = played(MIXED, fed, PLAN, MODELS["mlp"])
        found.append(batch.progress.model)
    assert len(asked) == 1
    assert torch.equal(*found)


def test_groups_of_steps_are_even_and_of_the_same_rows():
    plan = grouped.GroupPlan(3, False, ())
    assert list(plan.groups([3, 3, 2, 2, 2, 2, 2])) == [(3, [2]), (2, [3, 2])]
    assert list(plan.groups([1] * 4)) == [(1, [2, 2])]


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_the_bits_do_not_depend_on_the_number_of_threads(model, fed):
    torch.set_num_threads(2)
    results = []
    for threads in (1, 2):
        plan = replace(PLAN, participants=4, threads=threads, chunk=2, dtype="float32")
        batch, shots = played(MIXED[:5], fed, plan, MODELS[model])
        assert batch.workers.count == threads
        results.append((batch.progress, shots[-1].evaluations))
    (first, scores), (second, again) = results
    for name in ("model", "deployed", "best"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    for x, y in zip(scores, again, strict=True):
        assert np.array_equal(x["deployed"].loss, y["deployed"].loss)


def test_threads_bound_the_cores_in_use(fed):
    """Also torch's own threads inside a matrix product count."""
    for make in (mlp, lambda shape, classes: Wrapped(mlp(shape, classes))):
        used = set()

        def metric(out, y, used=used):
            used.add(torch.get_num_threads())
            return (out.argmax(1) == y).double()

        torch.set_num_threads(2)
        played(["fedavg"], fed, replace(PLAN, rounds=1, threads=1), make, metric=metric)
        assert used == {1}
        assert torch.get_num_threads() == 2  # as it was
