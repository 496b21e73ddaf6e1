"""Every kind of target trains as in a plain loop over clients, in every form of rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedmaba
from fedmaba.data import datasets
from fedmaba.rows import tasks
from fedmaba.rows.base import call, seed_torch
from fedmaba.rows.operations import RowMethod, RowOperations
from plain_loop import FEW, PLAN, Plain, Wrapped, apart, one, played, vector

pytestmark = pytest.mark.usefixtures("few_threads")
TASKS = ("regress", "multilabel", "sequence")
POSITIONS, TOKENS, FEATURES = 5, 6, 4
ALL_AT_ONCE = "all rows at once by torch.func"


def target(task, n, rng):
    if task == "regress":
        return rng.normal(size=(n, 3)).astype(np.float32)
    if task == "multilabel":
        return (rng.random((n, 4)) < 0.4).astype(np.float32)
    y = rng.integers(0, TOKENS, (n, POSITIONS))
    y[rng.random(y.shape) < 0.3] = -100
    y[:, 0] = rng.integers(0, TOKENS, n)  # one position of each example counts
    return y


def data_of(task, inputs, n):
    rng = np.random.default_rng(5)
    y = target(task, n, rng)
    tokens = rng.integers(0, TOKENS, (n, POSITIONS))
    if inputs == "tokens":
        x = tokens
    elif inputs == "several":
        x = {"ids": tokens, "mask": rng.random((n, POSITIONS)) < 0.7}
    else:
        x = rng.normal(size=(n, POSITIONS, FEATURES) if task == "sequence" else (n, FEATURES))
    return datasets.from_arrays(x, y, task=task)


@pytest.fixture
def federation(fed):
    def make(task, inputs="numbers"):
        return replace(fed, data=data_of(task, inputs, len(fed.data.y)))

    return make


# --- models ------------------------------------------------------------------------------------


def chain(shape, outputs):
    """Rows of layers, with dropout."""
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, outputs))


class Reader(nn.Module):
    """Tokens; with dropout, or with noise that only torch can draw."""

    def __init__(self, shape, outputs, each=False, drop=0.0, noise=0.0):
        super().__init__()
        self.each, self.drop, self.noise = each, drop, noise
        self.embed, self.out = nn.Embedding(TOKENS, 5), nn.Linear(5, outputs)

    def forward(self, x):
        hidden = self.embed(x).tanh()
        hidden = F.dropout(hidden, self.drop, self.training) if self.drop else hidden
        if self.noise and self.training:
            hidden = hidden + self.noise * torch.randn_like(hidden)
        return self.out(hidden if self.each else hidden.mean(1))


class Masked(nn.Module):
    """Tokens and a mask, as keywords."""

    def __init__(self, shape, outputs, each=False):
        super().__init__()
        self.each = each
        self.embed, self.out = nn.Embedding(TOKENS, 5), nn.Linear(5, outputs)

    def forward(self, *, ids, mask):
        hidden = self.embed(ids) * mask[..., None]
        return self.out(hidden if self.each else hidden.sum(1).tanh())


class PlainModel(Plain):
    """Models of any form; random numbers as one row after another draws them."""

    def forward(self, model, x, key=None):
        model.train(key is not None)
        with torch.random.fork_rng(devices=[]):
            seed_torch(0 if key is None else int(key) & (2**63 - 1))
            return call(model, x)


class Keyed(Plain):
    """Dropout that follows the client's random stream, as in all other forms of rows."""

    def forward(self, model, x, key=None):
        model.train(key is not None)
        if key is None:
            return call(model, x)
        with RowOperations(RowMethod(rows=False), key[0]):
            return call(model, x)


def numbers(task):
    return chain, Plain, "fast rows (Linear, ReLU, Dropout)"


def wrapped(task):
    def make(shape, outputs):
        return Wrapped(nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, outputs)))

    return make, PlainModel, ALL_AT_ONCE


def tokens(task):
    def make(shape, outputs):
        return Reader(shape, outputs, task == "sequence")

    return make, PlainModel, ALL_AT_ONCE


def dropped_tokens(task):
    def make(shape, outputs):
        return Reader(shape, outputs, task == "sequence", 0.3)

    return make, Keyed, ALL_AT_ONCE


def random_tokens(task):
    def make(shape, outputs):
        return Reader(shape, outputs, task == "sequence", noise=0.3)

    return make, PlainModel, "one client after another"


def several(task):
    def make(shape, outputs):
        return Masked(shape, outputs, task == "sequence")

    return make, PlainModel, ALL_AT_ONCE


CASES = {
    "fast": ("numbers", numbers),
    "vmap": ("numbers", wrapped),
    "tokens": ("tokens", tokens),
    "dropout": ("tokens", dropped_tokens),
    "loop": ("tokens", random_tokens),
    "several": ("several", several),
}


PAIRS = [(task, case) for task in TASKS for case in CASES]
QUICK = {"regress": ("fast", "several"), "multilabel": ("fast", "vmap", "dropout")}
QUICK |= {"sequence": ("fast", "tokens")}


@pytest.mark.parametrize(
    ("task", "case"),
    [p if p[1] in QUICK[p[0]] else pytest.param(*p, marks=pytest.mark.slow) for p in PAIRS],
)
def test_every_kind_of_target_gives_the_model_of_a_plain_loop(task, case, federation):
    inputs, of = CASES[case]
    make, plain, path = of(task)
    fed, specs = federation(task, inputs), FEW[1:] if case == "fast" else FEW[1:4]
    plan = replace(PLAN, participants=3)
    batch, shots = played(specs, fed, plan, make)
    assert batch.rows.path.startswith(path)
    rough, _ = played(specs, fed, replace(plan, dtype="float32"), make)
    for r, spec in enumerate(specs):
        want = plain(one(spec), 3, fed, plan, make).run()
        assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9, spec
        if case != "loop":  # torch draws other noise in float32
            assert apart(vector(rough, rough.progress.model[r]), want.path[-1]) < 1e-4, spec
        for shot, told in zip(shots, want.told, strict=True):
            if told.loss is not None:
                np.testing.assert_allclose(shot.rounds[r].loss, told.loss, rtol=1e-9)
    alone, _ = played(specs[-1:], fed, plan, make)
    assert apart(alone.progress.model[0], batch.progress.model[-1]) < 1e-9


@pytest.mark.parametrize("task", TASKS)
def test_clients_are_scored_by_the_metric_of_the_task(task, federation):
    fed = federation(task)
    batch, shots = played(["fedavg"], fed, PLAN, chain)
    model, data = chain(None, fed.data.target.outputs).double().eval(), fed.data
    model.load_state_dict(batch.rows.layout.unpack(batch.progress.model[0]))
    with torch.no_grad():
        out = model(torch.from_numpy(data.x).double()).numpy()
    for client, rows in enumerate(fed.split.test):
        y = data.y[rows]
        if task == "regress":
            each = ((out[rows] - y) ** 2).mean(1)
        elif task == "multilabel":
            each = ((out[rows] > 0) == (y == 1)).mean(1)
        else:
            each = [
                np.mean([a.argmax() == b for a, b in zip(*pair, strict=True) if b != -100])
                for pair in zip(out[rows], y, strict=True)
            ]
        got = shots[-1].evaluations[0]["last"].accuracy[client]
        assert got == pytest.approx(np.mean(each), rel=1e-9)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_numbers_to_predict_may_have_any_shape(shape, fed):
    n = len(fed.data.y)
    y = np.random.default_rng(0).normal(size=(n, *shape))
    mine = replace(fed, data=datasets.from_arrays(np.random.default_rng(1).normal(size=(n, 4)), y))
    assert (mine.data.task, mine.data.target.outputs) == ("regress", int(np.prod(shape)))
    plan = replace(PLAN, rounds=2)
    batch, _ = played(["fedavg"], mine, plan, "mlp")
    want = Plain(one("fedavg"), 3, mine, plan, fedmaba.rows.models.mlp).run()
    assert apart(vector(batch, batch.progress.model[0]), want.path[-1]) < 1e-9


def test_own_functions_see_numbers_in_the_shape_of_the_outputs(fed):
    seen = set()

    def absolute(outputs, targets):
        seen.add((outputs.shape[1:], targets.shape[1:]))
        return (outputs - targets).abs().mean(1)

    n, rng = len(fed.data.y), np.random.default_rng(1)
    data = datasets.from_arrays(rng.normal(size=(n, FEATURES)), rng.normal(size=n))
    mine, plan = replace(fed, data=data), replace(PLAN, rounds=2)
    batch, shots = played(["fedavg"], mine, plan, "softmax", loss=absolute, metric=absolute)
    assert {tuple(map(tuple, pair)) for pair in seen} == {((1,), (1,))}
    scores = shots[-1].evaluations[0]["last"]
    np.testing.assert_allclose(scores.accuracy, scores.loss)
    want = PlainModel(
        one("fedavg"), 3, mine, plan, fedmaba.rows.models.softmax,
        lambda out, y: (out[:, 0] - y).abs(),
    ).run()  # fmt: skip
    assert apart(vector(batch, batch.progress.model[0]), want.path[-1]) < 1e-9


def test_positions_that_do_not_count_do_not_count():
    out = torch.randn(2, 3, 4)
    y = torch.tensor([[1, -100, 2], [0, 3, -100]])
    changed = out.clone()
    changed[0, 1] += 9.0
    changed[1, 2] -= 9.0
    for function in (tasks.cross_entropy_over_positions, tasks.positions_right):
        assert torch.equal(function(out, y), function(changed, y))
    by_hand = torch.stack(
        [F.cross_entropy(out[0, [0, 2]], y[0, [0, 2]]), F.cross_entropy(out[1, :2], y[1, :2])]
    )
    torch.testing.assert_close(tasks.cross_entropy_over_positions(out, y), by_hand)


def test_integers_reach_a_model_of_tokens_as_integers_and_others_as_numbers(fed):
    n = len(fed.data.y)
    x = np.random.default_rng(0).integers(0, 9, (n, FEATURES)).astype(np.int32)
    data = datasets.from_arrays(x, fed.data.y)
    assert (data.shape.kind, data.shape.vocabulary) == ("i", 9)

    def look_up(shape, outputs):
        return nn.Sequential(
            nn.Embedding(shape.vocabulary, 3), nn.Flatten(), nn.LazyLinear(outputs)
        )

    plan = replace(PLAN, rounds=1)
    tokens, _ = played(["fedavg"], replace(fed, data=data), plan, look_up)
    assert tokens.pool.x.dtype == torch.int64
    numbers, _ = played(["fedavg"], replace(fed, data=data), plan, "mlp")
    as_floats = datasets.from_arrays(x.astype(np.float32), fed.data.y)
    before, _ = played(["fedavg"], replace(fed, data=as_floats), plan, "mlp")
    assert numbers.pool.x.dtype == torch.float64
    assert torch.equal(numbers.progress.model, before.progress.model)
    assert data.sha256() == as_floats.sha256()  # as of versions that knew numbers only
