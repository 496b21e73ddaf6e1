"""Layers that stay with clients, by patterns of names: rows are the plain loop everywhere."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedmaba
from fedmaba.errors import InputError
from fedmaba.layer_names import names_kept, patterns
from fedmaba.rows import models
from fedmaba.rows.stack import LayerRows
from fedmaba.simulation.engine import Optimiser, Run, start
from fedmaba.simulation.parts.own_layers import OWN
from fedmaba.simulation.parts.phases import STREAM
from fedmaba.strategies.base import Local
from plain_loop import PLAN, Plain, apart, cnn, mlp, one, played
from plain_norms import norm_net
from toys import Heads, norm_free

pytestmark = pytest.mark.usefixtures("few_threads")
SOME = replace(PLAN, participants=3, rounds=6, epochs=2)


class PlainHeads(Plain):
    """The plain loop of clients that keep weights by name."""

    def __init__(self, names, *given):
        super().__init__(*given)
        self.names, self.own = set(names), {}

    def train(self, client, t, lr):
        sent = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(self.own.get(client, sent).get(name, p))
        trained, seen = self.local(client, t, lr)
        after = {n: p.detach().clone() for n, p in trained.named_parameters()}
        self.own[client] = {n: after[n] for n in self.names}
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.copy_(sent[name])
            for name, p in trained.named_parameters():
                p.copy_(sent[name] if name in self.names else p)
        return trained, seen

    def local(self, client, t, lr):
        return super().train(client, t, lr)


class PlainPhases(PlainHeads):
    """The same, whose clients train their own weights for some epochs, then the others."""

    def __init__(self, names, epochs, *given):
        super().__init__(names, *given)
        self.epochs = epochs

    def local(self, client, t, lr):
        usual = self.plan
        if self.epochs:
            self.plan, self.stream = replace(usual, epochs=self.epochs, steps=None), STREAM
            after = dict(self.some(client, t, lr, own=True)[0].named_parameters())
            with torch.no_grad():
                for name in self.names:
                    dict(self.model.named_parameters())[name].copy_(after[name])
        self.plan, self.stream = usual, 0
        return self.some(client, t, lr, own=False)

    def some(self, client, t, lr, own):
        """The training of their own weights alone, or of the others alone."""
        for name, p in self.worker.named_parameters():
            p.requires_grad_((name in self.names) == own)
        return Plain.train(self, client, t, lr)


def assert_plain(batch, r, plain):
    """The server's weights and what each client keeps are the plain loop's."""
    at, layout = batch.progress, batch.rows.layout
    named = layout.unpack(at.model[r])
    assert set(layout.kept_names()) == plain.names
    for name, want in plain.model.named_parameters():
        assert apart(named[name], want.detach()) < 1e-9, name
    whole = at.model[r].expand(len(plain.fed.split.train), -1).clone()
    whole[:, layout.shared :] = at.memory.columns[r][OWN]
    for client, own in plain.own.items():
        kept = layout.unpack(whole[client])
        for name, want in own.items():
            assert apart(kept[name], want) < 1e-9, (client, name)


LAST, FIRST, BIASES = ["5.weight", "5.bias"], ["1.weight", "1.bias"], ["1.bias", "3.bias", "5.bias"]
CASES = [
    (mlp, "5.*", LAST, True),
    (mlp, "1.*", FIRST, False),
    (mlp, "*.bias", BIASES, False),
    (cnn, "7.*", ["7.weight", "7.bias"], True),
    (norm_free, "0.*", ["0.weight", "0.bias"], False),
]


@pytest.mark.parametrize(("make", "kept", "names", "fast"), CASES)
@pytest.mark.parametrize("plan", [PLAN, SOME, replace(SOME, chunk=2)], ids=["all", "some", "cut"])
def test_clients_that_keep_layers_are_the_plain_loop(plan, make, kept, names, fast, fed):
    runs = [Heads(kept), Heads(kept, late=True), Heads(kept, mu=0.7), Heads(kept, lean=0.3)]
    runs += [Heads(kept, mu=0.7, lean=-0.3)]
    batch, _ = played([Run(s, 3, fed) for s in runs], fed, plan, make)
    assert isinstance(batch.rows, LayerRows) == fast
    for r, strategy in enumerate(runs):
        assert_plain(batch, r, PlainHeads(names, strategy, 3, fed, plan, make).run())


REST = ["1.weight", "1.bias", "3.weight", "3.bias"]
ALGORITHMS = {  # which weights stay, and their epochs; None: trained together
    "fedper": (LAST, None),
    "fedper:layers=1.*+3.bias": ([*FIRST, "3.bias"], None),
    "lgfedavg": (REST, None),
    "fedrep:epochs=2": (LAST, 2),
    "fedrep:epochs=1,layers=1.*": (FIRST, 1),
    "fedbabu": (LAST, 0),
}
MOMENTUM = Optimiser(0.6, 0.01, clip=0.7)


@pytest.mark.parametrize("spec", ALGORITHMS)
@pytest.mark.parametrize(
    "plan",
    [PLAN, SOME, replace(SOME, chunk=2, optimiser=MOMENTUM), replace(PLAN, steps=3)],
    ids=["all", "some", "momentum", "steps"],
)
def test_algorithms_whose_clients_keep_layers_are_their_papers_loops(spec, plan, fed):
    names, epochs = ALGORITHMS[spec]
    given = one(spec), 3, fed, plan, mlp
    plain = PlainHeads(names, *given) if epochs is None else PlainPhases(names, epochs, *given)
    batch, _ = played([spec], fed, plan, mlp)
    assert_plain(batch, 0, plain.run())


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"own_epochs": 1}, r"Local\(own_epochs\): no layers are kept"),
        ({"own_epochs": -1, "own_layers": ("a",)}, r"own_epochs=-1\): give a whole number from 0"),
        (
            {"own_epochs": 1, "own_layers": ("a",), "full_batch": True},
            "does not go with full_batch",
        ),
    ],
)
def test_phases_that_cannot_be_are_one_line(more, line):
    with pytest.raises(InputError, match=line):
        Local(**{**more, "own_layers": (*more.get("own_layers", ()),)})


def test_patterns_fit_names():
    names = ["a.weight", "a.bias", "b.0.weight", "b.0.bias"]
    assert names_kept("last", names) == {"b.0.weight", "b.0.bias"}
    assert names_kept("!last", names) == {"a.weight", "a.bias"}
    assert names_kept("*.bias", names) == {"a.bias", "b.0.bias"}
    assert patterns("a.*+b.0.bias") == ("a.*", "b.0.bias")


@pytest.mark.parametrize(
    ("kept", "make", "choice", "line"),
    [
        ("head.*", mlp, "refuse", r"'head\.\*' fits no weight: its weights are 1\.weight, 1\.bias"),
        ("*", mlp, "refuse", r"own_layers='\*' leaves nothing to send: its weights are 1\.weight"),
        ("8.*", norm_net, "average", "send the statistics of '1': choose batchnorm='local'"),
    ],
)
def test_patterns_that_cannot_be_followed_are_one_line(kept, make, choice, line, fed):
    with pytest.raises(InputError, match=line):
        start([Run(Heads(kept), 3, fed)], replace(PLAN, batchnorm=choice), make)


def test_runs_that_keep_other_layers_are_simulated_apart(fed):
    with pytest.raises(InputError, match=r"but fedavg has.*simulate them apart"):
        start([Run(one("fedavg"), 3, fed), Run(Heads(), 3, fed)], PLAN, mlp)


def test_what_local_says_of_layers_is_checked_and_travels():
    with pytest.raises(InputError, match=r"own_layers='head'\): give a tuple of words"):
        Local(own_layers="head")
    local = Local(own_layers=["head.*"])
    assert Local.from_json(local.to_json()) == local == Local(own_layers=("head.*",))


def test_a_weight_of_two_names_is_kept_by_either(fed):
    def tied(shape, classes):
        model = mlp(shape, classes)
        model.add_module("again", nn.Identity())
        model.again.register_parameter("first", model[1].bias)
        return model

    model = models.build_model(tied, (1, 8, 8), 4, 0, own_layers=("again.*",))
    assert set(models.sent_weights(model)) == {"1.weight", "3.weight", "3.bias", "5.weight",
                                               "5.bias"}  # fmt: skip


def test_strategies_that_keep_other_layers_are_computed_apart(tmp_path):
    asked = {"clients": 6, "rounds": 2, "seeds": 2, "progress": False}
    mixed = ["fedavg", "fedrep:epochs=1", "fedmaba", "fedper", "moon"]
    history = fedmaba.compare(mixed, out=tmp_path / "run", **asked)
    alone = fedmaba.compare(["fedavg", "fedmaba"], **asked)
    assert [row.label for row in history.summary()] == [
        *("fedavg", "fedmaba", "moon", "fedrep:epochs=1", "fedper"),
    ]
    rows = {(run.label, run.seed): run for run in history.runs}
    for run in alone.runs:
        np.testing.assert_array_equal(rows[run.label, run.seed].accuracy("last"),
                                      run.accuracy("last"))  # fmt: skip
    again = fedmaba.compare(mixed, out=tmp_path / "run", **asked)  # which is finished
    assert [r.label for r in again.runs] == [r.label for r in history.runs]
    assert len(list((tmp_path / "run" / "parts").iterdir())) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fedavg", "--own-layers", "nix"], "own_layers='nix' fits no weight: its weights are 1."),
        (["fedper:layers=nix"], "own_layers='nix' fits no weight: its weights are 1."),
        (["fedper", "--own-layers", "last"], "it says itself which layers stay with clients"),
        (["fedavg", "--own-layers", ""], "own layers '': name weights, as last or fc1.*+fc2.*"),
        (["fedrep:layers=+"], "own layers '+': name weights"),
        (["fedavg", "--own-layers", "last+!"], "own layers 'last+!': name weights"),
        (["local", "--own-layers", "last"], "clients train alone, without a server's model"),
    ],
)
def test_layers_that_cannot_be_kept_are_refused_before_the_run(words, line, refused):
    assert line in refused("compare", *words, "--clients", "10", "--rounds", "1")


def test_a_run_says_what_stays_with_clients_and_what_a_loss_reads(call, tmp_path):
    words = ("--clients", "10", "--rounds", "1", "--seeds", "1")
    told = call("compare", "fedper", *words).err
    assert "own layers: 5.weight, 5.bias stay with clients, who are judged with their own" in told
    told = call("compare", "moon", "fedntd", *words).err
    assert "moon: each local step also reads 2 other models" in told
    assert "fedntd: each local step also reads another model" in told


@pytest.mark.parametrize("spec", ["fedrep", "moon", "median", "trimmed", "krum"])
def test_a_built_in_strategy_that_python_began_is_resumed_by_a_command(spec, tmp_path):
    fedmaba.compare(spec, out=tmp_path / "run", clients=5, rounds=1, seeds=1, progress=False)
    assert json.loads((tmp_path / "run" / "about.json").read_text())["python"] is False
