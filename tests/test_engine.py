"""The engine against a plain loop: one client after another, nn.Module, autograd, torch.optim.

`Plain` is what a reader would write from the papers' pseudo-code. It shares with the engine only
what decides which clients, minibatches and masks are drawn, and `Strategy.weigh`.
"""

import copy
import math
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedmaba import engine, local, models, rng, rounds, strategies, tape, weigh
from fedmaba.average import parse as averaging
from fedmaba.average import share as averaging_step
from fedmaba.simulation.engine import Plan, Run, simulate, start
from fedmaba.errors import InputError
from fedmaba.local import _groups
from fedmaba.simulation.distributed import Ranks
from fedmaba.rows import kernels as triton
from fedmaba.rows.random import dropout_mask, shuffles
from fedmaba.rows.stack import LayerRows
from fedmaba.simplex import kkt_gap
from fedmaba.strategy import Decision, Local, Needs, Replies, Strategy

NAMES = [name for name, kind in strategies.REGISTRY.items() if "fedmaba." in kind.__module__]
SPECS = [
    *NAMES,
    "fedavg:weights=uniform",
    "fedprox:mu=1",
    "qffl:q=2",
    "qffl:q=0.5,mode=sgd",
    "afl:lam=0.5",
    "term:T=2",
    "term:T=2,normalise=reference",
    "fedmgda:epsilon=1,eta=0.3,decay=0.9",
    "propfair:M=1.5,epsilon=0.3",  # both branches of the bent loss
    "propfair:M=1.2,below=scaled",
    "fedfv:alpha=0,tau=2",
    "fedfv:alpha=1,tau=0",
    "fedmaba:alpha=0.8,eta_b=1,rho=0.3,eta_s=0.5,loss_at=mean",
    "fedmaba:ball=global,loss_at=end,eta_b=3",
    "fedmaba:sync=overwrite",
]
PLAN = Plan(rounds=3, minibatch=4, lr=0.2, lr_decay=0.9, dtype="float64")


def mlp(shape, classes):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 10),
        nn.ReLU(),
        nn.Linear(10, 8),
        nn.Tanh(),
        nn.Linear(8, classes),
    )


def cnn(shape, classes):
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        nn.Conv2d(4, 5, 2, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(80, 8),
        nn.ReLU(),
        nn.Linear(8, classes),
    )


MODELS = {"mlp": mlp, "cnn": cnn}


@pytest.fixture(autouse=True)
def _few_threads():
    """Torch's own threads only get in the way of models as small as these."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def one(spec: str) -> Strategy:
    (strategy,) = strategies.parse(spec)
    return strategy


# --- the plain loop ----------------------------------------------------------------------------


@dataclass
class Told:
    """What a plain round left behind."""

    client: np.ndarray
    weight: np.ndarray
    loss: np.ndarray | None


class Plain:
    """Federated learning as in the papers' pseudo-code, in float64."""

    def __init__(self, strategy, seed, fed, plan, make, loss=None):
        self.strategy, self.seed, self.fed, self.plan = strategy, seed, fed, plan
        shape, classes = fed.data.x.shape[1:], len(fed.data.classes)
        self.model = models.build(make, shape, classes, seed).double()
        self.worker = copy.deepcopy(self.model)  # trained by one client after another
        self.x = torch.from_numpy(fed.data.x).double()
        self.y = torch.from_numpy(fed.data.y)
        self.criterion = loss or (lambda out, y: F.cross_entropy(out, y, reduction="none"))
        self.state = strategy.init(fed.n_clients)
        self.past: dict[int, tuple[int, torch.Tensor]] = {}  # client -> round, change
        self.velocity = 0.0
        self.told: list[Told] = []
        self.path: list[torch.Tensor] = []  # the server's model after each round

    def forward(self, model, x, key=None):
        """The model's outputs; with a key in training mode, with the masks of that stream."""
        for number, layer in enumerate(m for m in model.modules() if not list(m.children())):
            if isinstance(layer, nn.Dropout):
                if key is not None:
                    mask = dropout_mask(key, number, (1, *x.shape), layer.p, x.dtype)
                    x = x * mask[0]
            else:
                x = layer(x)
        return x

    def measured(self, model, rows):
        """Mean loss over examples, in evaluation mode."""
        with torch.no_grad():
            return float(self.criterion(self.forward(model, self.x[rows]), self.y[rows]).mean())

    def minibatches(self, rows, key):
        """The examples of each local step."""
        size, batch = len(rows), self.plan.minibatch
        if self.strategy.local().full_batch:
            yield rows
            return
        left = self.plan.steps or self.plan.epochs * math.ceil(size / batch)
        for epoch in range(left):
            order = shuffles(key + ((1 + epoch) << 40), torch.tensor([[size]]), size)[0].numpy()
            for a in range(0, size, batch):
                if left == 0:
                    return
                left -= 1
                yield rows[order[a : a + batch]]

    def objective(self, data_loss, w, server):
        """What a client minimises, as its paper writes it."""
        work = self.strategy.local()
        if work.bend is not None:
            M, epsilon, slope = work.bend.M, work.bend.epsilon, work.bend.slope
            if M - data_loss >= epsilon:
                data_loss = -torch.log(M - data_loss)
            else:  # a line from where the logarithm ends
                data_loss = slope * (data_loss - (M - epsilon)) - math.log(epsilon)
        if work.prox:
            distance = sum(((a - b) ** 2).sum() for a, b in zip(w, server, strict=True))
            data_loss = data_loss + work.prox / 2 * distance
        return data_loss

    def train(self, client, t, lr):
        """A client's trained model and the mean loss it saw."""
        plan, seen = self.plan, []
        trained = self.worker
        trained.load_state_dict(self.model.state_dict())
        server = [p.detach().clone() for p in self.model.parameters()]
        sgd = torch.optim.SGD(trained.parameters(), lr, plan.momentum, 0.0, plan.weight_decay)
        key = torch.from_numpy(rng.key(self.seed, "local", t, client).view(np.int64))
        for k, rows in enumerate(self.minibatches(self.fed.split.train[client], key)):
            out = self.forward(trained, self.x[rows], key + k)
            data_loss = self.criterion(out, self.y[rows]).mean()
            seen.append(data_loss.item())
            sgd.zero_grad()
            self.objective(data_loss, list(trained.parameters()), server).backward()
            sgd.step()
        return trained, float(np.mean(seen))

    def round(self, t):
        plan, needs, n = self.plan, self.strategy.needs(), self.fed.n_clients
        lr = plan.lr * plan.lr_decay**t
        clients = rng.sample_clients(self.seed, t, n, plan.participants or n)
        server = parameters_to_vector(self.model.parameters()).detach()
        changes, losses = [], []
        for client in clients:
            trained, mean = self.train(client, t, lr)
            changes.append(parameters_to_vector(trained.parameters()).detach() - server)
            rows = self.fed.split.train[client]
            where = {"start": self.model, "end": trained}.get(needs.loss)
            losses.append(mean if where is None else self.measured(where, rows))
        since = t - needs.keep_rounds
        past = {c: kept for c, kept in self.past.items() if kept[0] >= since}
        every = torch.stack(changes + [change for _, change in past.values()])
        gram = (every @ every.T).numpy()
        replies = Replies(
            round=t,
            lr=lr,
            n_clients=n,
            client=clients,
            size=np.array([len(self.fed.split.train[c]) for c in clients]),
            loss=None if needs.loss == "none" else np.array(losses),
            norms=gram.diagonal()[: len(clients)] if needs.changes == "norms" else None,
            gram=gram if needs.changes == "gram" else None,
            past_client=np.array([*past], dtype=np.int64),
            past_round=np.array([r for r, _ in past.values()], dtype=np.int64),
        )
        coef, self.state, _ = self.strategy.weigh(self.state, replies)
        delta = torch.from_numpy(coef) @ every[: len(coef)]
        self.velocity = plan.server_momentum * self.velocity + delta
        vector_to_parameters(server + plan.server_lr * self.velocity, self.model.parameters())
        self.past |= {int(c): (t, change) for c, change in zip(clients, changes, strict=True)}
        self.told.append(Told(clients, coef[: len(clients)], replies.loss))
        self.path.append(parameters_to_vector(self.model.parameters()).detach().clone())

    def run(self):
        for t in range(self.plan.rounds):
            self.round(t)
        return self


def vector(batch, flat):
    """A flat row of the engine as one vector in the order of nn.Module's parameters."""
    return torch.cat([w.flatten() for w in batch.rows.layout.unpack(flat).values()])


def apart(a, b):
    """Distance relative to the second's length."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def played(specs, fed, plan, make, seed=3, **own):
    """A simulated batch and its snapshots' rounds."""
    runs = [s if isinstance(s, Run) else Run(one(s), seed, fed) for s in specs]
    batch = start(runs, plan, make, **own)
    shots = list(simulate(batch))
    batch.workers.close()
    assert batch.progress.diverged == [""] * len(runs)
    return batch, shots


@pytest.fixture(scope="module")
def engine_of(fed):
    """All strategies simulated side by side, once for each setting."""

    @cache
    def get(model, participants, dtype):
        plan = replace(PLAN, participants=participants, dtype=dtype, threads=2)
        return played(SPECS, fed, plan, MODELS[model])

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


@pytest.mark.parametrize(
    ("spec", "model", "participants"),
    [c for c in CASES if c[1] == "mlp" or ":" not in c[0] or one(c[0]).local() != Local()],
)
def test_every_strategy_gives_the_model_of_a_plain_loop(
    spec, model, participants, engine_of, plain_of
):
    want = plain_of(spec, model, participants)
    r = SPECS.index(spec)
    batch, shots = engine_of(model, participants, "float64")
    assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9
    for shot, told in zip(shots, want.told, strict=True):
        got = shot.rounds[r]
        assert got.client.tolist() == told.client.tolist()
        assert (got.loss is None) == (told.loss is None)
        if told.loss is not None:
            np.testing.assert_allclose(got.loss, told.loss, rtol=1e-9)
        if not spec.startswith("fedmgda"):  # whose weights need not be unique
            np.testing.assert_allclose(got.weight, told.weight, rtol=1e-8, atol=1e-10)
    single, _ = engine_of(model, participants, "float32")
    assert single.progress.model.dtype == torch.float32
    assert apart(vector(single, single.progress.model[r]), want.path[-1]) < 1e-4


PLANS = {
    "epochs": replace(PLAN, epochs=2, participants=3),
    "steps": replace(PLAN, steps=4),  # more than an epoch of the small, less than one of the large
    "momentum": replace(PLAN, momentum=0.7, weight_decay=0.05, epochs=2),
    "server": replace(PLAN, server_lr=0.6, server_momentum=0.8, participants=4),
    "one minibatch": replace(PLAN, minibatch=50, lr_decay=1.0),
}
FEW = ["fedavg", "fedprox:mu=1", "propfair:M=1.5,epsilon=0.3", "fedfv", "fedmaba:loss_at=mean"]


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_local_and_server_step_is_that_of_a_plain_loop(name, fed):
    specs = [*FEW, "fedmaba:loss_at=end", "fedsgd"]
    batch, _ = played(specs, fed, PLANS[name], mlp)
    for r, spec in enumerate(specs):
        want = Plain(one(spec), 3, fed, PLANS[name], mlp).run().path[-1]
        assert apart(vector(batch, batch.progress.model[r]), want) < 1e-9, spec


def test_the_bent_loss_is_seen_on_both_sides_of_its_bend(fed):
    """So that the comparisons above mean something."""
    plain = Plain(one("propfair:M=1.5,epsilon=0.3"), 3, fed, PLAN, mlp)
    sides = set()
    written = plain.objective
    plain.objective = lambda loss, *rest: (sides.add(loss.item() > 1.2), written(loss, *rest))[1]
    plain.run()
    assert sides == {True, False}


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
    monkeypatch.setattr(local, "MICRO", 4)
    specs = ["fedsgd", "qffl:q=0.5,mode=sgd"]
    batch, _ = played(specs, fed, PLAN, MODELS[model])
    for r, spec in enumerate(specs):
        want = Pieces(one(spec), 3, fed, PLAN, MODELS[model]).run().path[-1]
        assert apart(vector(batch, batch.progress.model[r]), want) < 1e-9


def test_a_bent_loss_is_that_of_the_whole_minibatch(fed, monkeypatch):
    monkeypatch.setattr(local, "MICRO", 4)
    plan, spec = replace(PLAN, minibatch=7, momentum=0.5), "propfair:M=1.5,epsilon=0.3"
    batch, _ = played([spec], fed, plan, mlp)
    want = Plain(one(spec), 3, fed, plan, mlp).run().path[-1]
    assert apart(vector(batch, batch.progress.model[0]), want) < 1e-9


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
    kept, *others = batch.progress.kept
    recent = {c: past for c, past in plain.past.items() if past[0] >= plan.rounds - 2}
    assert dict(zip(kept.client.tolist(), kept.round.tolist(), strict=True)) == {
        c: t for c, (t, _) in recent.items()
    }
    assert len(kept.client) == len(recent) == len(kept.change)
    for c, change in zip(kept.client, kept.change, strict=True):
        assert apart(vector(batch, change), recent[c][1]) < 1e-9
    assert [len(k.client) for k in others] == [0, 0]


@pytest.mark.parametrize("participants", [None, 3])
def test_fedmgda_steps_in_the_best_direction(fed, participants):
    """Its weights need not be unique; that they are optimal, and the step made of them, is."""
    strategy = one("fedmgda:epsilon=0.3,eta=0.5")
    plan = replace(PLAN, rounds=1, participants=participants)
    batch, (shot,) = played([Run(strategy, 3, fed)], fed, plan, mlp)
    plain = Plain(strategy, 3, fed, plan, mlp)
    before = parameters_to_vector(plain.model.parameters()).detach()
    client, weight = shot.rounds[0].client, torch.from_numpy(shot.rounds[0].weight)
    trained = (plain.train(c, 0, plan.lr)[0] for c in client)
    changes = torch.stack([parameters_to_vector(m.parameters()) - before for m in trained]).detach()
    unit = changes / changes.norm(dim=1, keepdim=True)
    mu = (weight * changes.norm(dim=1) / 0.5).numpy()
    size = fed.train.size[client]
    assert mu.sum() == pytest.approx(1)
    assert kkt_gap((unit @ unit.T).numpy(), mu, size / size.sum(), 0.3) < 1e-8
    moved = vector(batch, batch.progress.model[0]) - before
    assert apart(moved, 0.5 * torch.from_numpy(mu) @ unit) < 1e-9


# --- the deployed model ------------------------------------------------------------------------


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


@pytest.mark.parametrize("replayed", [False, True])
def test_runs_that_differ_in_the_deployed_model_are_trained_once(replayed, held_fed, monkeypatch):
    plan = replace(PLAN, rounds=5, participants=3, server_momentum=0.5, eval_every=2, chunk=4)
    rules = ("last", "poly:8", "ema:0.9", "last")  # the fourth is another run, for all one knows
    each = [one(s) for s in (*MIXED, "fedfv", "fedmaba:eta_s=1e299")]
    trained, train = Counter(), rounds.train

    def counted(rows, pool, models, job, *rest):
        trained[len(found)] += len(job.run)
        return train(rows, pool, models, job, *rest)

    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    found, shots = [], []
    monkeypatch.setattr(rounds, "train", counted)
    for asked in (rules, *([rule] for rule in rules[:3])):
        batch = start([Run(s, 3, held_fed, rule) for s in each for rule in asked], plan, mlp)
        if replayed:
            batch.tape = Replays()
            for module in (rounds, weigh):
                monkeypatch.setattr(module, "fetch", lambda values: values.clone().numpy)
        shots.append(list(simulate(batch)))
        found.append(batch.progress)
    assert 0 < trained[0] <= 2 * trained[1] == 2 * trained[2] == 2 * trained[3]
    for k, alone in enumerate(found[1:]):
        assert found[0].diverged[k::4] == alone.diverged
        assert any(alone.diverged)
        for name in ("model", "deployed", "best", "velocity", "best_score", "best_round"):
            close(getattr(found[0], name)[k::4], getattr(alone, name))
        for i in range(len(each)):
            j = 4 * i + k
            assert found[0].kept[j].client.tolist() == alone.kept[i].client.tolist()
            for name, value in alone.states[i].items():
                close(found[0].states[j][name], value)
            for shared, own in zip(shots[0], shots[k + 1], strict=True):
                assert (shared.rounds[j] is None) == (own.rounds[i] is None)
                if own.rounds[i] is not None:
                    close(shared.rounds[j].weight, own.rounds[i].weight)
                for name, scores in ((own.evaluations or {i: None})[i] or {}).items():
                    close(shared.evaluations[j][name].loss, scores.loss)


@pytest.mark.parametrize("text", ["", "ema", "ema:1", "ema:0", "poly", "poly:-1", "last:3", "x"])
def test_a_deploy_rule_that_makes_no_sense_is_refused(text, fed):
    with pytest.raises(InputError, match="deploy="):
        averaging(text)
    if text:
        with pytest.raises(ValueError, match="deploy="):
            start([Run(one("fedavg"), 0, fed, text)], PLAN, mlp)


def test_the_first_model_replaces_the_initial_one():
    for rule in ("last", "average", "poly:8", "poly:0", "ema:0.9"):
        assert averaging_step(rule, 0) == 1.0


# --- alone, in a batch, in chunks, on threads --------------------------------------------------

MIXED = ["fedavg", "fedsgd", "fedprox", "propfair", "qffl", "fedfv", "fedmaba:loss_at=mean"]


def test_a_minibatch_larger_than_any_client_takes_no_more_room(fed):
    chunks = [start([Run(one("fedavg"), 3, fed)], replace(PLAN, minibatch=b), mlp).progress.chunk
              for b in (max(fed.train.size), 10**9)]  # fmt: skip
    assert chunks[0] == chunks[1] > 1


@pytest.mark.parametrize("model", MODELS)
def test_a_run_is_the_same_alone_in_a_batch_and_in_other_chunks(model, fed, make_federation):
    plan = replace(PLAN, participants=3)
    other = replace(fed, split=make_federation(sizes=(9, 8, 6, 5, 3), seed=9).split)
    specs = MIXED if model == "mlp" else ["fedsgd", "fedprox", "fedfv"]
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


@pytest.mark.parametrize("model", [cnn, lambda *args: Functional(*args)])
@pytest.mark.parametrize("change", [{"momentum": 0.5}, {"steps": 1}])
def test_masks_of_large_minibatches_do_not_depend_on_other_runs(model, change, fed, monkeypatch):
    """Full batches are taken in pieces, bent losses are not."""

    @dataclass(frozen=True)
    class Bent(strategies.PropFair):
        name = "bent"

        def local(self):
            return replace(super().local(), full_batch=True)

    monkeypatch.setattr(local, "MICRO", 2)
    plan, runs = replace(PLAN, rounds=1, minibatch=50, **change), []
    for strategy in (one("fedavg"), one("fedsgd"), one("fedprox"), one("propfair"), Bent()):
        runs.append(Run(strategy, 3, fed))
    batch, _ = played(runs, fed, plan, model)
    for r, run in enumerate(runs):
        alone, _ = played([run], fed, plan, model)
        assert apart(alone.progress.model[0], batch.progress.model[r]) < 1e-9


def test_steps_in_groups_give_the_same_run(fed, kernels, monkeypatch):
    def model(shape, classes):
        inner = nn.Linear(math.prod(shape), 10), nn.ReLU(), nn.Dropout(0.3)
        return nn.Sequential(nn.Flatten(), *inner, nn.Linear(10, classes))

    runs, plan = [Run(one(s), 3, fed) for s in MIXED], replace(PLAN, epochs=2)
    found, sweep = [], LayerRows.sweep
    for size in (1, 2):
        done = []

        def noted(rows, w, inputs, steps, pull, done=done):
            done.append((len(steps), pull is not None))
            return sweep(rows, w, inputs, steps, pull)

        monkeypatch.setattr(LayerRows, "sweep", noted)
        monkeypatch.setattr(LayerRows, "group", lambda *_, size=size: size)
        batch, _ = played(runs, fed, plan, model)
        assert (size, True) in done  # FedProx, too
        assert max(done)[0] == size
        found.append(batch.progress.model)
    assert apart(*found) < 1e-9


def test_runs_of_one_seed_share_their_inputs(make_federation, kernels, monkeypatch):
    def model(shape, classes):
        inner = nn.Linear(math.prod(shape), 10), nn.ReLU(), nn.Dropout(0.3)
        return nn.Sequential(nn.Flatten(), *inner, nn.Linear(10, classes))

    fed = make_federation(sizes=(7, 7, 7, 7, 7))
    specs = ("fedavg", "fedmaba", "term", "qffl", "fedprox", "fedsgd")
    runs = [Run(one(spec), seed, fed) for seed in (3, 4) for spec in specs]
    plan = replace(PLAN, epochs=2)
    monkeypatch.setattr(LayerRows, "group", lambda *_: 2)
    found, taken, sweep = [], [], LayerRows.sweep

    def noted(rows, w, inputs, steps, pull):
        taken.append((len(inputs.x), len(w), inputs.owner is not None))
        return sweep(rows, w, inputs, steps, pull)

    monkeypatch.setattr(LayerRows, "sweep", noted)
    for least in (math.inf, 1):
        taken.clear()
        monkeypatch.setattr(local, "ALIKE", least)
        batch, _ = played(runs, fed, replace(plan, chunk=1000), model)
        found.append(batch.progress.model)
        assert any(shared for *_, shared in taken) == (least == 1)
    assert (10, 40, True) in taken
    assert apart(*found) < 1e-9


def test_rows_share_inputs_where_runs_draw_alike():
    def shared(key, first=None, steps=None):
        key = np.array(key)
        first, same = np.array(first or key * 10), np.full(len(key), 4)
        steps = same if steps is None else np.array(steps)
        return local.Job(key, first, same, key, steps, 2, 0.1).shared()

    assert shared([5, 3, 9]) is None  # nobody does
    assert shared([5, 5, 3, 3]) is None  # 3 comes after 5 has come twice
    assert shared([5, 3, 5, 3], first=[1, 2, 1, 7]) is None  # of another federation
    assert shared([5, 3, 5, 3], steps=[2, 2, 2, 1]) is None
    many = np.arange(100)
    owner, blocks = shared([*many, *many, *many[40:]])
    assert owner.tolist() == [*many, *many, *many[40:]]
    assert blocks == [(0, 100, 0), (100, 200, 0), (200, 260, 40)]
    assert shared([*many[:50], *many[:50]]) is None  # blocks of 50


def test_compiling_kernels_ahead_changes_nothing(fed, kernels, monkeypatch):
    monkeypatch.setattr(LayerRows, "group", lambda *_: 1)
    found, asked = [], []
    for ahead in (lambda work: None, lambda work: asked.append(work())):
        monkeypatch.setattr(triton, "compiled", ahead)
        batch, _ = played(MIXED, fed, PLAN, MODELS["mlp"])
        found.append(batch.progress.model)
    assert len(asked) == 1
    assert torch.equal(*found)


def test_groups_of_steps_are_even_and_of_the_same_rows():
    found = [(a, list(k)) for a, k in _groups(np.array([7, 7, 2]), 3)]
    assert found == [(3, [0, 1]), (2, [2, 3, 4]), (2, [5, 6])]
    assert [list(k) for _, k in _groups(np.array([4]), 1)] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("model", MODELS)
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


class Wrapped(nn.Module):
    """A model the engine cannot look into."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_another_seed_draws_other_clients_and_another_start(fed):
    plan = replace(PLAN, participants=2, rounds=8, lr=1e-9)
    runs = [Run(one("fedavg"), seed, fed) for seed in (0, 1)]
    batch, shots = played(runs, fed, plan, mlp)
    drawn = [[shot.rounds[r].client.tolist() for shot in shots] for r in (0, 1)]
    assert drawn[0] != drawn[1]
    assert len({tuple(c) for c in drawn[0]}) > 3
    assert apart(batch.progress.model[0], batch.progress.model[1]) > 0.1


# --- going on after a stop ---------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_batch_has_the_same_bits(model, held_fed):
    plan = replace(PLAN, rounds=4, participants=3, server_momentum=0.5, dtype="float32", chunk=3)
    specs = SPECS if model == "mlp" else ["fedavg", "fedfv", "fedmaba:loss_at=end"]
    runs = [Run(one(s), 3, held_fed) for s in specs]
    whole = start(runs, plan, MODELS[model])
    unbroken = list(simulate(whole))

    first = start(runs, plan, MODELS[model])
    for shot in simulate(first):
        if shot.round == 1:
            break
    saved = {name: value.copy() for name, value in first.progress.arrays().items()}
    at = first.progress
    meta = {"round": at.round, "chunk": at.chunk, "diverged": at.diverged}
    second = start(runs, replace(plan, chunk=None), MODELS[model])  # the chunk comes with the rest
    second.progress.restore(saved, meta)
    resumed = list(simulate(second))
    assert [shot.round for shot in resumed] == [2, 3]
    for name in ("model", "deployed", "best", "velocity"):
        assert torch.equal(getattr(whole.progress, name), getattr(second.progress, name))
    for name, value in whole.progress.arrays().items():
        assert np.array_equal(second.progress.arrays()[name], value), name
    for a, b in zip(unbroken[2:], resumed, strict=True):
        for r in range(len(runs)):
            assert np.array_equal(a.rounds[r].weight, b.rounds[r].weight)
            assert a.rounds[r].info == b.rounds[r].info
            assert np.array_equal(a.evaluations[r]["last"].loss, b.evaluations[r]["last"].loss)


def test_saved_arrays_do_not_change_when_the_run_goes_on(fed):
    batch = start([Run(one("fedmaba"), 3, fed)], PLAN, mlp)
    rounds = simulate(batch)
    next(rounds)
    saved = batch.progress.arrays()
    copies = {name: value.copy() for name, value in saved.items()}
    next(rounds)
    changed = [name for name in saved if not np.array_equal(saved[name], copies[name])]
    assert changed == []


# --- one's own loss, metric and evaluation -----------------------------------------------------


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


def test_without_validation_data_the_best_round_is_picked_on_test_data(fed):
    batch, shots = played(["fedavg"], fed, replace(PLAN, rounds=5, lr=1.0), mlp)
    shown = [float(np.mean(shot.evaluations[0]["last"].accuracy)) for shot in shots]
    assert batch.progress.best_round[0] == int(np.argmax(shown))


def test_a_large_test_set_is_taken_in_pieces(fed, monkeypatch):
    _, shots = played(["fedavg"], fed, PLAN, cnn)
    monkeypatch.setattr(local, "BUDGET", 1)  # one example at a time
    _, again = played(["fedavg"], fed, PLAN, cnn)
    a, b = (s[-1].evaluations[0]["last"].loss for s in (shots, again))
    np.testing.assert_allclose(a, b, rtol=1e-12)


# --- runs that diverge -------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Odd(Strategy):
    """gives a weight that is not finite in its third round"""

    name = "odd"

    def needs(self):
        return Needs()

    def weigh(self, state, replies):
        bad = np.inf if replies.round == 2 else 1.0
        return Decision(np.full(len(replies.client), bad / len(replies.client)), state)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_strategy_that_gives_infinite_weights_ends_its_run(momentum, fed):
    plan = replace(PLAN, rounds=5, server_momentum=momentum)
    batch = start([Run(Odd(), 3, fed), Run(one("fedavg"), 3, fed)], plan, mlp)
    before = None
    for shot in simulate(batch):
        if shot.round == 1:
            before = batch.progress.model[0].clone()
    assert batch.progress.diverged[0].endswith(
        "round 3: the strategy gave a weight that is not finite"
    )
    assert torch.equal(batch.progress.model[0], before)
    assert batch.progress.diverged[1] == ""


def tiny(shape, classes):
    """So few weights that torch adds up a matrix and a vector of them in other orders."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, classes))


def test_a_run_that_ends_between_two_others_leaves_them_their_bits(fed):
    plan = replace(PLAN, dtype="float32", participants=3)
    found = []
    for middle in (one("fedavg"), Odd()):
        runs = [Run(s, 3, fed) for s in (one("fedmaba"), middle, one("afl"))]
        batch = start(runs, plan, tiny)
        list(simulate(batch))
        assert bool(batch.progress.diverged[1]) == isinstance(middle, Odd)
        found.append(batch.progress.model[::2])
    assert torch.equal(*found)


# --- a device that works while the host goes on ------------------------------------------------


class Replays:
    """A GPU's tape: work of a shape seen before overwrites what it returned the last time."""

    on = True

    def __init__(self):
        self.ready, self.count = {}, 0

    def __call__(self, shape, work, *arrays):
        out = work(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays))
        if shape not in self.ready:
            self.ready[shape] = out
            return out
        self.count += 1
        old = self.ready[shape]
        for a, b in zip(old, out, strict=True) if isinstance(out, tuple) else [(old, out)]:
            a.copy_(b)
        return old

    def restless(self, kind):
        return False

    def forget(self):
        self.ready.clear()


class Parts(Replays):
    """A GPU's tape where no round has the shape of another: parts of work are replayed."""

    def __init__(self):
        super().__init__()
        self.real = tape.Tape(torch.device("cpu"), recordable=True)
        self.real._record_part = self.record
        self.part, self.place = self.real.part, self.real.place

    def restless(self, kind):
        return True

    def record(self, work, tensors):
        inputs, out = [t.clone() for t in tensors], Later()

        def replay():  # with what it saw the first time, but for its inputs
            self.count += 1
            out.clone = work(*inputs).clone

        return SimpleNamespace(replay=replay), inputs, out


class Later:
    """What a recording gives, once it is replayed."""


def test_recordings_are_given_back_at_the_end(fed):
    batch = start([Run(one("fedmaba"), 3, fed)], PLAN, MODELS["mlp"])
    batch.tape = Replays()
    shots = simulate(batch)
    next(shots)
    assert batch.tape.ready
    shots.close()
    assert not batch.tape.ready
    assert len(list(simulate(batch))) == PLAN.rounds - 1
    assert batch.tape.count
    assert not batch.tape.ready


def test_arrays_that_share_a_copy_arrive_whole():
    rng = np.random.default_rng(0)
    first = [
        rng.integers(-9, 9, (7, 5)),
        rng.normal(size=(2, 33)).astype(np.float32),
        np.zeros((0, 3)),
        rng.normal(size=100)[::2],
        np.array([True, False, True]),
    ]
    mail = tape.Mail(first, torch.device("cpu"))
    for sent in (first, [a[::-1].copy() for a in first]):
        mail.send(sent)
        for array, tensor in zip(sent, mail.inputs, strict=True):
            assert tensor.data_ptr() % array.itemsize == 0
            assert np.array_equal(tensor.numpy(), array)
            assert tensor.numpy().dtype == array.dtype
    tape.Mail([], torch.device("cpu")).send([])
    with pytest.raises(ValueError, match="broadcast"):
        mail.send([np.zeros(4), *first[1:]])


def test_a_recording_that_is_no_longer_used_makes_room_for_another(monkeypatch):
    kept, done = tape.Tape(torch.device("cpu"), recordable=True), []

    def record(work, arrays):
        done.append(work())
        graph = SimpleNamespace(replay=lambda: None)
        return tape.Recording(graph, tape.Mail(arrays, torch.device("cpu")), work())

    monkeypatch.setattr(kept, "_record", record)
    kept.on = True
    old, new = range(tape.RECORDED), range(tape.RECORDED, tape.RECORDED + 3)
    for shape in [*old, *old]:
        assert kept(shape, lambda shape=shape: shape) == shape
    assert done == list(old)
    kept.calls += tape.STALE
    for shape in [0, *old[2:], *new, *new]:  # all but one are still in use
        assert kept(shape, lambda shape=shape: shape) == shape
    assert done == [*old, new[0]]
    assert sorted(kept.ready) == [0, *old[2:], new[0]]
    kept.calls += tape.STALE
    kept(new[1], lambda: new[1])  # there was no room for it before
    assert done[-1] == new[0]  # the one that made room had not paid: four times are wanted now
    for _ in range(tape.PAYS):
        kept(0, lambda: 0)
    kept(new[1], lambda: new[1])
    assert done[-1] == new[1]
    assert kept.wanted == 8
    kept.calls += tape.STALE
    for shape in [*old[3:], new[0], new[1], *[new[2]] * 6]:
        kept(shape, lambda shape=shape: shape)
    assert (0 in kept.ready, kept.wanted) == (False, 2)  # it had paid
    assert done[-1] == new[2]
    for shape in range(100, 200 + tape.SHAPES):
        kept(shape, lambda: None)
    assert len(kept.seen) < 200
    assert new[2] in kept.ready


def test_parts_of_work_without_a_shape_of_its_own_are_recorded(monkeypatch):
    kept, done = tape.Tape(torch.device("cpu"), recordable=True), []
    assert not any(kept.restless("a") for _ in range(2 * tape.RESTLESS))  # not on a CPU
    kept.on = True
    assert [kept.restless("a") for _ in range(tape.RESTLESS + 2)][-3:] == [False, True, True]
    assert not kept.restless("b")
    kept.recording = True
    assert not kept.restless("a")

    def record(work, tensors):
        inputs, out = [t.clone() for t in tensors], torch.zeros(2)
        done.append(len(inputs[0]))
        return SimpleNamespace(replay=lambda: out.copy_(work(*inputs))), inputs, out

    monkeypatch.setattr(kept, "_record_part", record)
    found = []
    for value in (1.0, 2.0, 3.0):
        given = torch.full((2,), value)
        found.append(kept.part(2, lambda x: x + 1, given))
        assert given.tolist() == [value] * 2
    assert [x.tolist() for x in found] == [[2.0] * 2, [3.0] * 2, [4.0] * 2]  # none overwritten
    assert done == [2]
    monkeypatch.setattr(tape, "PARTS", 1)
    for _ in range(3):
        assert kept.part(3, lambda x: x, torch.ones(3)).tolist() == [1.0] * 3
    assert done == [2]  # no room for another
    first = kept.place("w", torch.zeros(1, 4), 3)
    assert first.shape == (3, 4)
    assert kept.place("w", torch.zeros(1, 4), 3) is first


def test_parts_of_clients_smaller_than_a_minibatch_are_replayed(make_federation):
    sizes = (1, 3, 5, 6, 7, 9, 20)
    small = make_federation(sizes=sizes, tested=(3,) * len(sizes))
    plan, found = replace(PLAN, rounds=40, participants=2, minibatch=8), []
    for device in (None, Parts()):
        batch = start([Run(one("fedavg"), 3, small)], plan, mlp)
        batch.tape = device or batch.tape
        for _ in simulate(batch):
            pass
        found.append(batch.progress.model)
    assert device.count > 20
    assert torch.equal(*found)


@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize("kind", [Replays, Parts])
@pytest.mark.parametrize("specs", [[*MIXED, "fedmaba:loss_at=end"], ["fedmaba", "afl", "fedavg"]])
def test_rounds_begun_ahead_and_replayed_have_the_same_bits(specs, kind, chunk, fed, monkeypatch):
    plan = replace(PLAN, rounds=7, participants=3, chunk=chunk, server_momentum=0.5)
    ends = [one("fedmaba:eta_s=1e299"), Odd()]  # after and before the next round has begun
    found, lanes = [], rounds._lanes
    monkeypatch.setattr(rounds, "_lanes", lambda batch, apart: lanes(batch, apart=True))
    for device in (None, kind()):
        batch = start([Run(s, 3, fed) for s in (*ends, *map(one, specs))], plan, mlp)
        if device is not None:
            batch.tape = device
            for module in (rounds, weigh):
                monkeypatch.setattr(module, "fetch", lambda values: values.clone().numpy)
        for shot in simulate(batch):
            if shot.round == 4:
                batch.progress.model *= 0.9  # what has begun is void
        assert all(batch.progress.diverged[:2])
        found.append(batch.progress)
    assert device.count > 3
    first, second = found
    assert first.diverged == second.diverged
    for name, value in first.arrays().items():
        np.testing.assert_array_equal(second.arrays()[name], value, name)


def test_runs_in_lanes_are_those_in_one(fed):
    plan, runs = replace(PLAN, server_momentum=0.5), [Run(one(s), 3, fed) for s in MIXED]
    want, batch = played(runs, fed, plan, mlp)[0], start(runs, plan, mlp)
    batch.tape = Replays()
    list(simulate(batch))
    for name in ("model", "deployed", "velocity"):
        assert apart(getattr(batch.progress, name), getattr(want.progress, name)) < 1e-9


def test_the_host_weighs_a_lane_while_the_device_trains_the_other(fed, monkeypatch):
    """Each lane's next round begins once, and before changes of this one are weighed."""
    events, begin, look, ask = [], rounds._begin, weigh._look, weigh.ask

    def begins(batch, runs, t, *drawn):
        events.append(("begin", t, runs))
        return begin(batch, runs, t, *drawn)

    def weighs(at, c, t, lr, **changes):
        events.append(("weigh", t, c.r))
        ask(at, c, t, lr, **changes)

    def looks(c, change, kept):
        events.append(("look", c.r))
        return look(c, change, kept)

    monkeypatch.setattr(rounds, "_begin", begins)
    monkeypatch.setattr(weigh, "_look", looks)
    monkeypatch.setattr(weigh, "ask", weighs)
    specs = ["fedmgda", "fedavg", "fedfv", "fedmaba"]
    batch = start([Run(one(s), 3, fed) for s in specs], replace(PLAN, rounds=4, chunk=4), mlp)
    batch.tape = Replays()
    list(simulate(batch))
    weighed = sorted(event for event in events if event[0] == "weigh")
    assert weighed == [("weigh", t, r) for t in range(4) for r in range(4)]
    begun = [tuple(event) for what, *event in events if what == "begin"]
    assert sorted(begun) == [(t, runs) for t in range(4) for runs in ([0, 2], [1, 3])]
    for t in range(1, 3):
        order = [events.index(("weigh", t, 3)), events.index(("begin", t + 1, [1, 3]))]
        order += [events.index(("weigh", t, 0)), events.index(("begin", t + 1, [0, 2]))]
        assert order == sorted(order)
        assert events[: order[0]].count(("look", 0)) == t + 1  # asked for before the others weigh


def test_several_ranks_begin_nothing_ahead(fed, monkeypatch):
    """Changes are looked at when all ranks have added theirs."""

    class Two(Ranks):
        def sum(self, tensor):
            return tensor

        def least(self, value):
            return value

    batch = start([Run(one(s), 3, fed) for s in ("fedmgda", "fedavg")], PLAN, mlp, ranks=Two())
    batch.tape = Replays()
    begun, play = [], engine.play

    def played(batch, t, ahead):
        out, ahead = play(batch, t, ahead)
        begun.append(len(ahead.lanes))
        return out, ahead

    monkeypatch.setattr(engine, "play", played)
    for shot in simulate(batch):
        batch.ranks.count = 2 - shot.round % 2
    assert begun == [2, 0, 0]  # of one rank, of two, and at the end


def test_the_client_that_breaks_the_model_is_named_after_replays(make_federation):
    fed = make_federation(sizes=(8, 8, 8, 8, 8))
    fed.data.x[fed.split.train[4][0]] = 3e38
    plan = replace(PLAN, rounds=2, chunk=1, dtype="float32")  # no third is begun
    batch = start([Run(one("fedavg"), 3, fed)], plan, "softmax")
    batch.tape = Replays()
    list(simulate(batch))
    assert batch.tape.count >= 4  # each client but the first overwrites the one before
    assert "client 4" in batch.progress.diverged[0]


def test_the_client_whose_model_breaks_after_a_finite_loss_is_named_after_replays(make_federation):
    fed = make_federation(sizes=(8, 8, 8, 8, 8))
    fed.data.x[fed.split.train[4]] = 1e30
    plan = replace(PLAN, participants=2, minibatch=8, lr=1e9, dtype="float32")
    drawn = ([4 in rng.sample_clients(seed, t, 5, 2) for t in (0, 1)] for seed in count())
    seed = next(i for i, has in enumerate(drawn) if has == [True, False])
    batch = start([Run(one("fedavg"), seed, fed)], plan, "softmax")
    batch.tape = Replays()
    list(simulate(batch))
    assert batch.tape.count == 1  # the next round, without the client, has overwritten its model
    assert "round 1: the model of client 4 is not finite" in batch.progress.diverged[0]


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [np.ones(4), np.ones((5, 1)), [[1], [1, 2]], None])
def test_a_strategy_that_gives_too_few_weights_is_told(answer, fed, monkeypatch):
    given = None if answer is None else Decision(answer, {})
    monkeypatch.setattr(Odd, "weigh", lambda *_: given)
    batch = start([Run(Odd(), 3, fed)], PLAN, mlp)
    with pytest.raises(InputError, match=r"odd: weigh\(\) gave .* for 5 clients: return Decision"):
        list(simulate(batch))


@pytest.mark.parametrize("kind", [list, tuple, np.longdouble, np.float32])
def test_weights_of_any_kind_of_number_count(kind, fed, monkeypatch):
    coef = [0.25, 0.125, 0.5, 0.0, 0.125]
    given = kind(coef) if kind in (list, tuple) else np.array(coef, kind)
    models = []
    for answer in (np.array(coef), given):
        monkeypatch.setattr(Odd, "weigh", lambda *_, a=answer: Decision(a, {}))
        batch = start([Run(Odd(), 3, fed)], replace(PLAN, chunk=2), mlp)
        (seen,) = [shot.rounds[0].weight for shot in simulate(batch)][-1:]
        assert seen.dtype == np.float64
        models.append(batch.progress.model)
    assert torch.equal(*models)


@pytest.mark.parametrize("answer", [np.ones(5, complex), ["a"] * 5, [None] * 5])
def test_weights_that_are_no_numbers_are_refused(answer, fed, monkeypatch):
    monkeypatch.setattr(Odd, "weigh", lambda *_: Decision(answer, {}))
    with pytest.raises(InputError, match=r"odd: weigh\(\) gave coefficients of .*: give floats"):
        list(simulate(start([Run(Odd(), 3, fed)], PLAN, mlp)))


@pytest.mark.parametrize(
    ("state", "info", "said"),
    [
        ({"seen": {1, 2}}, {}, "state 'seen' is of type set, which cannot be saved: keep arrays"),
        ({"seen": [1.0]}, {}, "state 'seen' is of type list"),
        ({"seen": np.array(["a"])}, {}, r"state 'seen' is an array of <U1, shape \(1,\)"),
        ({"seen": np.zeros(2, np.complex128)}, {}, "state 'seen' is an array of complex128"),
        ({3: np.zeros(2)}, {}, "its state is .*: give a dict by names"),
        (None, {}, "its state is None: give a dict by names"),
        ({}, {"each": np.zeros(6)}, r"info 'each' is an array of float64, shape \(6,\): a round"),
        ({}, {"each": "many"}, "info 'each' is of type str"),
        ({"\udc80": np.zeros(2)}, {}, "its state is .*: give a dict by names"),
        ({}, {"round": 0.5}, "info 'round' would stand for the round of the run: choose another"),
        ({}, {"big": 10**400}, r"info 'big' is no number below 1e\+300"),
        ({}, [1], r"its info is \[1\]: give a dict by names"),
    ],
)
def test_what_a_strategy_keeps_and_tells_is_looked_at_in_its_first_round(
    state, info, said, fed, monkeypatch
):
    monkeypatch.setattr(Odd, "weigh", lambda *_: Decision(np.ones(5), state, info))
    with pytest.raises(InputError, match=f"odd: {said}"):
        next(simulate(start([Run(Odd(), 3, fed)], PLAN, mlp)))
    if state:
        monkeypatch.setattr(Odd, "init", lambda *_: state)
        with pytest.raises(InputError, match=f"odd: {said}"):
            start([Run(Odd(), 3, fed)], PLAN, mlp)


def test_numbers_of_every_kind_are_kept_and_told(fed, monkeypatch):
    kinds = [1, True, 0.5, np.float32(1), np.int64(2), np.array(3.0), np.bool_(True)]
    told = {str(i): value for i, value in enumerate(kinds)}
    kept = {"a": np.zeros((2, 3), np.float32), "b": np.float64(1), "c": np.zeros(2, bool)}
    monkeypatch.setattr(Odd, "weigh", lambda *_: Decision(np.full(5, 0.2), kept, told))
    (seen, *_) = next(simulate(start([Run(Odd(), 3, fed)], PLAN, mlp))).rounds
    assert seen.info == told


def test_a_plan_that_does_not_fit_is_refused_before_any_work(fed, make_federation):
    run = Run(one("fedavg"), 0, fed)
    with pytest.raises(ValueError, match="participants=6, but the federation has 5 clients"):
        start([run], replace(PLAN, participants=6), mlp)
    with pytest.raises(ValueError, match="participants=0"):
        start([run], replace(PLAN, participants=0), mlp)
    with pytest.raises(ValueError, match="no runs"):
        start([], PLAN, mlp)
    with pytest.raises(ValueError, match="share one data set"):
        start([run, Run(one("fedavg"), 0, make_federation())], PLAN, mlp)
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        start([run], PLAN, "sotfmax")
    with pytest.raises(ValueError, match=r"sides of at least 16.*\(1, 8, 8\)"):
        start([run], PLAN, "cnn")


NONE = np.zeros(0, np.int64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: {"train": (*s.train[:4], NONE)}, "client 4 has no training examples: leave"),
        (lambda s: {"test": (NONE,) * 5}, "no client has a test example"),
        (lambda s: {"test": (NONE,) * 5, "validation": s.test}, "no client has a test example"),
        (lambda s: {"test": s.test[:4]}, "the split has 5 clients, but 4 in test"),
        (
            lambda s: {"train": (s.train[0] + 99, *s.train[1:])},
            r"train names .* outside 0\.\.\d+: name rows of x$",
        ),
        (lambda s: {"test": (-s.test[0] - 1, *s.test[1:])}, r"test names examples outside 0\.\."),
        (
            lambda s: {"test": (s.train[1][:2], *s.test[1:])},
            r"test names example \d+, which .*: put it into one part$",
        ),
        (lambda s: dict.fromkeys(("train", "test", "validation"), ()), "there are no clients"),
    ],
)
def test_a_split_made_by_hand_that_no_run_can_use_is_refused(change, said, fed):
    odd = replace(fed, split=replace(fed.split, **change(fed.split)))
    with pytest.raises(InputError, match=said):
        start([Run(one("fedavg"), 0, odd)], PLAN, mlp)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", "cpu:x", ""])
def test_a_device_that_is_not_there_is_refused(device, fed):
    with pytest.raises(ValueError, match="device="):
        start([Run(one("fedavg"), 0, fed)], replace(PLAN, device=device), mlp)


def test_layers_that_mix_examples_are_refused_or_right(fed):
    """Minibatches are padded: padding may not leak into what a client learns."""

    def mixing(shape, classes):
        norm = nn.BatchNorm1d(8, track_running_stats=False)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), norm, nn.Linear(8, classes))

    plan = replace(PLAN, minibatch=3, rounds=1)
    try:
        batch, _ = played(["fedavg"], fed, plan, mixing)
    except InputError:
        return  # with which words: see test_rows
    want = Plain(one("fedavg"), 3, fed, plan, mixing).run()
    assert apart(vector(batch, batch.progress.model[0]), want.path[-1]) < 1e-9


# --- models the engine knows less about --------------------------------------------------------


class Functional(nn.Module):
    """Dropout by function call, which torch.func does not vectorise."""

    def __init__(self, shape, classes):
        super().__init__()
        self.a, self.b = nn.Linear(math.prod(shape), 6), nn.Linear(6, classes)

    def forward(self, x):
        x = F.dropout(x.flatten(1), 0.2, self.training)
        return self.b(F.dropout(self.a(x).relu(), 0.5, self.training))


@pytest.mark.parametrize("specs", [["fedavg", "fedprox:mu=1"], ["fedmaba", "propfair:M=1.5"]])
def test_a_model_without_a_row_form_gives_the_plain_loops_model(specs, fed):
    plan = replace(PLAN, participants=3)
    batch, _ = played(specs, fed, plan, lambda *args: Wrapped(mlp(*args)))
    assert batch.rows.path.startswith("torch.func.vmap")
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


class Whole(Plain):
    """The plain loop for a model that is no sequence of layers."""

    def forward(self, model, x, key=None):
        return model(x)


@pytest.mark.parametrize("participants", [None, 3])
def test_a_resnet_with_group_norm_gives_the_plain_loops_model_and_its_path_is_named(
    participants, fed
):
    specs, plan = ["fedmaba", "fedmgda"], replace(PLAN, participants=participants)
    batch, _ = played(specs, fed, plan, ResNet)
    assert batch.rows.path == "torch.func.vmap: ResNet has no row form"
    for r, spec in enumerate(specs):
        want = Whole(one(spec), 3, fed, plan, ResNet).run()
        assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9


def test_random_layers_of_an_unknown_model_repeat_alone_and_in_chunks(fed):
    plan = replace(PLAN, participants=3)
    batch, _ = played(["fedavg", "fedmaba"], fed, plan, Functional)
    assert batch.rows.path.startswith("one client after another")
    torch.manual_seed(5)  # the caller's own generator has no say, and is left alone
    expected = torch.rand(1)
    torch.manual_seed(5)
    alone, _ = played(["fedmaba"], fed, replace(plan, chunk=1), Functional)
    assert torch.equal(torch.rand(1), expected)
    assert apart(alone.progress.model[0], batch.progress.model[1]) < 1e-9


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
    for wrong in ({"loss": "Start"}, {"changes": "all"}, {"keep_rounds": -1}, {"keep_rounds": 0.5}):
        with pytest.raises(InputError, match=rf"Needs\({next(iter(wrong))}="):
            Needs(**wrong)
