"""Every strategy, model and kind of step gives the model of a plain loop."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedmaba import rng
from fedmaba.rows.general import LoopRows
from fedmaba.rows.traced import TracedRows
from fedmaba.simulation import local_training
from fedmaba.simulation.engine import Optimiser
from fedmaba.strategies.base import Local
from plain_loop import (
    FEW,
    MODELS,
    NAMES,
    PLAN,
    SPECS,
    Functional,
    Plain,
    Wrapped,
    apart,
    mlp,
    one,
    played,
    vector,
)

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.fixture(scope="module")
def engine_of(fed):
    """Strategies simulated side by side, once for each setting."""

    @cache
    def get(specs, model, participants, dtype):
        plan = replace(PLAN, participants=participants, dtype=dtype, threads=2)
        return played(specs, fed, plan, MODELS[model])

    return get


@pytest.fixture(scope="module")
def plain_of(fed):
    @cache
    def get(spec, model, participants):
        plan = replace(PLAN, participants=participants)
        return Plain(one(spec), 3, fed, plan, MODELS[model]).run()

    return get


# --- the same model ----------------------------------------------------------------------------


CASES = [(s, m, k) for m, k in (("mlp", None), ("mlp", 3), ("cnn", 3)) for s in SPECS]
CASES += [(s, "cnn", None) for s in NAMES]
# For a rule of the server alone one model is as good as another: of each kind of rule, one.
WITH_CNN = ("fedavg", "fedsgd", "qffl", "fedfv", "fedmgda", "fedmaba", "fedprox:mu=1")
WITH_CNN += ("propfair:M=1.5,epsilon=0.3",)


def quick(spec, model, participants):
    """Whether a case is among the usual tests."""
    if model == "mlp":  # settings of a strategy: where some clients take part, which is more
        return participants is not None or ":" not in spec
    return participants is not None and spec in WITH_CNN


@pytest.mark.parametrize(
    ("spec", "model", "participants"),
    [
        c if quick(*c) else pytest.param(*c, marks=pytest.mark.slow)
        for c in CASES
        if c[1] == "mlp" or ":" not in c[0] or one(c[0]).local() != Local()
    ],
)
def test_every_strategy_gives_the_model_of_a_plain_loop(
    spec, model, participants, engine_of, plain_of
):
    want = plain_of(spec, model, participants)
    specs = WITH_CNN if model == "cnn" and quick(spec, model, participants) else tuple(SPECS)
    r = specs.index(spec)
    batch, shots = engine_of(specs, model, participants, "float64")
    assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9
    for shot, told in zip(shots, want.told, strict=True):
        got = shot.rounds[r]
        assert got.client.tolist() == told.client.tolist()
        assert (got.loss is None) == (told.loss is None)
        if told.loss is not None:
            np.testing.assert_allclose(got.loss, told.loss, rtol=1e-9)
        if not spec.startswith("fedmgda"):  # whose weights need not be unique
            np.testing.assert_allclose(got.weight, told.weight, rtol=1e-8, atol=1e-10)
    single, _ = engine_of(specs, model, participants, "float32")
    assert single.progress.model.dtype == torch.float32
    assert apart(vector(single, single.progress.model[r]), want.path[-1]) < 1e-4


PLANS = {
    "epochs": replace(PLAN, epochs=2, participants=3),
    "steps": replace(PLAN, steps=4),  # more than an epoch of the small, less than one of the large
    "momentum": replace(PLAN, optimiser=Optimiser(0.7, 0.05), epochs=2),
    "server": replace(PLAN, server_lr=0.6, server_momentum=0.8, participants=4),
    "one minibatch": replace(PLAN, minibatch=50, lr_decay=1.0),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_local_and_server_step_is_that_of_a_plain_loop(name, fed):
    specs = [*FEW[1:4], "fedmaba:loss_at=end", "fedsgd"]
    batch, _ = played(specs, fed, PLANS[name], mlp)
    for r, spec in enumerate(specs):
        want = Plain(one(spec), 3, fed, PLANS[name], mlp).run().path[-1]
        assert apart(vector(batch, batch.progress.model[r]), want) < 1e-9, spec


class Pieces(Plain):
    """Four examples at a time, each piece with masks of its own."""

    def forward(self, model, x, key=None):
        if key is None:
            return super().forward(model, x)
        pieces = x.split(4)
        return torch.cat(
            [super(Pieces, self).forward(model, p, key + (i << 32)) for i, p in enumerate(pieces)]
        )


@pytest.mark.parametrize("model", MODELS)
def test_a_large_full_batch_is_taken_in_pieces(model, fed, monkeypatch):
    monkeypatch.setattr(local_training, "FULL_BATCH_PIECE", 4)
    specs = ["fedsgd", "qffl:q=0.5,mode=sgd"]
    batch, _ = played(specs, fed, PLAN, MODELS[model])
    for r, spec in enumerate(specs):
        want = Pieces(one(spec), 3, fed, PLAN, MODELS[model]).run().path[-1]
        assert apart(vector(batch, batch.progress.model[r]), want) < 1e-9


def test_changes_are_kept_as_long_as_they_are_asked_for_once_per_client(fed):
    drawn = [{*rng.sample_clients(3, t, 5, 2).tolist()} for t in range(20)]
    rounds = next(  # one client answers twice within tau, another one's change has just expired
        t
        for t in range(3, 20)
        if drawn[t - 1] & drawn[t - 2] and drawn[t - 3] - drawn[t - 1] - drawn[t - 2]
    )
    plan = replace(PLAN, rounds=rounds, participants=2)
    specs = ["fedfv:tau=2", "fedavg", "fedfv:tau=0"]
    batch, _ = played(specs, fed, plan, mlp)
    plain = Plain(one(specs[0]), 3, fed, plan, mlp).run()
    kept, *others = batch.progress.memory.changes
    since = plan.rounds - 2
    recent = {c: past for c, past in plain.past.items() if c >= 0 and past[0] >= since}
    assert dict(zip(kept.client.tolist(), kept.round.tolist(), strict=True)) == {
        c: t for c, (t, _) in recent.items()
    }
    assert len(kept.client) == len(recent) == len(kept.change)
    for c, change in zip(kept.client, kept.change, strict=True):
        assert apart(vector(batch, change), recent[c][1]) < 1e-9
    assert [len(k.client) for k in others] == [0, 0]


# --- models the engine knows less about --------------------------------------------------------


@pytest.mark.parametrize("specs", [["fedavg", "fedprox:mu=1"], ["fedmaba", "propfair:M=1.5"]])
def test_a_model_without_a_row_form_gives_the_plain_loops_model(specs, fed):
    plan = replace(PLAN, participants=3)
    batch, _ = played(specs, fed, plan, lambda *args: Wrapped(mlp(*args)))
    assert batch.rows.path.startswith("all rows at once by torch.func")
    for r, spec in enumerate(specs):
        want = Plain(one(spec), 3, fed, plan, lambda *args: Wrapped(mlp(*args))).run()
        assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9


class Block(nn.Module):
    """Two convolutions with GroupNorm beside a shortcut, as in a ResNet."""

    def __init__(self, inside, out, stride):
        super().__init__()
        self.a = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.GroupNorm(2, out), nn.GroupNorm(2, out)
        plain = stride == 1 and inside == out
        self.short = nn.Identity() if plain else nn.Conv2d(inside, out, 1, stride, bias=False)

    def forward(self, x):
        y = self.norm_b(self.b(self.norm_a(self.a(x)).relu()))
        return (y + self.short(x)).relu()


class ResNet(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(shape[0], 4, 3, 1, 1, bias=False), nn.GroupNorm(2, 4))
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 6, 2))
        self.head = nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).relu()).mean((2, 3)))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_random_layers_of_an_unknown_model_repeat_alone_and_in_chunks(noise, fed):
    def make(*args):
        return Functional(*args, noise)

    plan = replace(PLAN, participants=3)
    batch, _ = played(["fedavg", "fedmaba"], fed, plan, make)
    assert type(batch.rows) is (LoopRows if noise else TracedRows)
    torch.manual_seed(5)  # the caller's own generator has no say, and is left alone
    expected = torch.rand(1)
    torch.manual_seed(5)
    alone, _ = played(["fedmaba"], fed, replace(plan, chunk=1), make)
    assert torch.equal(torch.rand(1), expected)
    assert apart(alone.progress.model[0], batch.progress.model[1]) < 1e-9
