"""BatchNorm by a declared choice: rows are torch's own layer, one client after another."""

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedmaba
from fedmaba.errors import InputError
from fedmaba.results.history import History
from fedmaba.rows import compile, models
from fedmaba.rows.base import Layout, Step, constants
from fedmaba.rows.batchnorm import groups_of
from fedmaba.rows.general import LoopRows
from fedmaba.rows.traced import TracedRows
from fedmaba.rows.weights import GivenWeights
from fedmaba.simulation.engine import Optimiser, Run, start
from fedmaba.simulation.parts.own_layers import OWN
from plain_loop import apart, one, played
from plain_norms import PLAN, PlainNorms, norm_net
from plain_norms import STATISTICS as MOVING

CHOICES = ("average", "local", "frozen")
PLANS = {
    "plain": PLAN,
    "momentum": dataclasses.replace(PLAN, optimiser=Optimiser(0.9, 0.01), server_momentum=0.5),
    "few": dataclasses.replace(PLAN, participants=3, epochs=2, server_lr=0.7),
    "four at a time": dataclasses.replace(PLAN, chunk=4),
    "one at a time": dataclasses.replace(PLAN, chunk=1, steps=4),
}
SPECS = ["fedavg", "fedmaba", "fedmaba:loss_at=mean", "fedmaba:loss_at=end", "fedprox:mu=0.5"]
SPECS += ["fedsgd", "propfair", "fedmgda"]


def _pair(mine, theirs, plain=None):
    """Two states as one vector each; without what clients keep, where a plain loop is given."""
    left_out = plain.norms if plain is not None and plain.choice == "local" else ()
    names = [name for name in mine if name not in left_out]
    return [torch.cat([state[name].flatten() for name in names]) for state in (mine, theirs)]


def assert_same(batch, shots, r, plain):
    """Models, losses, weights and scores are those of the plain loop."""
    at, layout = batch.progress, batch.rows.layout
    assert apart(*_pair(layout.unpack(at.model[r]), plain.server, plain)) < 1e-9
    if plain.choice == "local":
        for client, own in plain.own.items():
            kept = layout.kept_views(at.memory.columns[r][OWN][client][None])
            assert set(kept) == {n for n in own if "num_batches" not in n}
            assert apart(*_pair({n: v[0] for n, v in kept.items()}, own)) < 1e-9
    for shot, (clients, coef, loss) in zip(shots, plain.told, strict=True):
        told = shot.rounds[r]
        np.testing.assert_array_equal(told.client, clients)
        np.testing.assert_allclose(told.weight, coef, rtol=1e-8, atol=1e-9)
        if loss is not None:
            np.testing.assert_allclose(told.loss, loss, rtol=1e-9, atol=1e-9)
    scores = shots[-1].evaluations[r]["last"]
    np.testing.assert_allclose([scores.loss, scores.accuracy], plain.evaluated(), rtol=1e-9)


ASKED = [
    *(("plain", SPECS[1:2]), ("momentum", SPECS[1:2]), ("few", SPECS[:1])),
    *(("four at a time", SPECS[:1]), ("one at a time", SPECS[:2]), ("plain", SPECS)),
]
QUICK = [("plain", "average"), ("plain", "local"), ("plain", "frozen"), ("momentum", "average")]
QUICK += [("few", "local"), ("four at a time", "average")]


@pytest.mark.parametrize(
    ("plan", "specs", "choice"),
    [
        pytest.param(
            plan,
            specs,
            choice,
            marks=() if (plan, choice) in QUICK and specs != SPECS else pytest.mark.slow,
        )
        for plan, specs in ASKED
        for choice in CHOICES
    ],
)
def test_rows_are_the_plain_loop(plan, specs, choice, fed, few_threads):
    plan = dataclasses.replace(PLANS[plan], batchnorm=choice)
    batch, shots = played(specs, fed, plan, norm_net)
    if choice != "frozen":
        assert type(batch.rows) is LoopRows
    for r, spec in enumerate(specs):
        plain = PlainNorms(choice, one(spec), 3, fed, plan, norm_net)
        for t in range(plan.rounds):
            plain.round(t)
        assert_same(batch, shots, r, plain)


def test_one_row_after_another_gives_the_same(fed):
    shape = fed.data.x.shape[1:]
    model = models.build_model(norm_net, shape, 4, 0, "average").double()
    layout, x = Layout(model), torch.randn(2, 5, *shape).double()
    flat = layout.pack(model).double().repeat(2, 1)
    flat[1] *= 1.1
    weight = torch.tensor([[0.2] * 5, [1 / 3] * 3 + [0.0] * 2]).double()
    y = torch.randint(4, (2, 5))
    step = (x, y, weight, torch.tensor(0.5).double(), None, torch.tensor([1, 2]))
    found = []
    for kind in (TracedRows, LoopRows):
        form = kind(model, layout, x[0], None, "")
        sink = flat.clone()
        found.append((form.add_gradients(flat, sink, Step(*step)), sink, form.outputs(sink, x)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert not torch.equal(found[0][1][:, layout.trained :], flat[:, layout.trained :])


def test_group_takes_over_the_weights_and_says_how_many_groups(fed):
    def make(shape, classes):
        model = norm_net(shape, classes)
        nn.init.uniform_(model[1].weight)
        return model

    shape = fed.data.x.shape[1:]
    before = models.build_model(make, shape, 4, 0, "average")
    after = models.build_model(make, shape, 4, 0, "group")
    assert [type(after[i]) for i in (1, 6)] == [nn.GroupNorm] * 2
    assert torch.equal(after[1].weight, before[1].weight)
    assert [groups_of(c) for c in (1, 7, 8, 16, 20, 64, 100, 512)] == [1, 1, 1, 2, 2, 8, 10, 32]
    plan = dataclasses.replace(PLAN, batchnorm="group")
    batch, _ = played(["fedavg"], fed, plan, norm_net)
    assert batch.rows.layout.size == batch.rows.layout.trained == batch.rows.layout.shared


def test_frozen_statistics_are_held_once(fed):
    model = models.build_model(norm_net, fed.data.x.shape[1:], 4, 0, "frozen")
    found = compile(model, torch.zeros(2, 1, 8, 8))
    assert found.path.startswith("fast rows")
    assert found.layout.names == ["0.weight", "0.bias", "5.weight", "5.bias", "8.weight", "8.bias"]
    assert set(model.state_dict()) == set(norm_net((1, 8, 8), 4).state_dict())


def test_a_client_that_never_took_part_uses_the_first_layer(fed):
    plan = dataclasses.replace(PLAN, batchnorm="local", participants=2, rounds=1)
    batch, shots = played(["fedavg"], fed, plan, norm_net)
    first = start([Run(one("fedavg"), 3, fed)], plan, norm_net).progress.memory.columns[0][OWN]
    (took,) = [shots[0].rounds[0].client]
    moved = (batch.progress.memory.columns[0][OWN] != first).any(1).numpy()
    assert sorted(np.flatnonzero(moved)) == sorted(took)
    shared = batch.rows.layout.shared
    assert torch.equal(batch.progress.model[0, shared:], first[0])


def with_norm(shape, classes):
    """Small, with weights of BatchNorm that are not those it begins with."""
    model = nn.Sequential(nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.Flatten())
    return model.append(nn.Linear(128, classes))


@pytest.mark.parametrize("choice", ["frozen", "average", "group"])
def test_given_weights_of_a_model_with_batchnorm_fit_every_choice(choice, fed):
    given = {n: np.full(v.shape, 0.5, np.float32) for n, v in with_norm((), 4).state_dict().items()}
    given["1.num_batches_tracked"] = np.array(7)
    plan = dataclasses.replace(PLAN, batchnorm=choice)
    batch = start([Run(one("fedavg"), 0, fed)], plan, with_norm, init=GivenWeights(given, "it"))
    state = {**constants(batch.rows.model), **batch.rows.layout.unpack(batch.progress.model[0])}
    for name, value in state.items():
        assert bool((value == given[name].flat[0]).all()), name
    assert ("1.running_var" in state) == (choice != "group")


@pytest.mark.parametrize("choice", ["local", "average"])
def test_a_folder_resumes_to_the_bit_and_has_the_clients_layers(choice, fed, tmp_path, monkeypatch):
    asked = {"data": fed, "model": with_norm, "batchnorm": choice, "rounds": 4, "minibatch": 3}
    asked |= {"participants": 3, "seeds": [0], "checkpoint_every": 1, "eval_every": 2}
    fedmaba.compare("fedmaba", out=tmp_path / "whole", **asked)
    usual, seen = History.add, []

    def add(history, snapshot):
        usual(history, snapshot)
        seen.append(snapshot.round)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(History, "add", add)
    with pytest.raises(KeyboardInterrupt):
        fedmaba.compare("fedmaba", out=tmp_path / "part", **asked)
    monkeypatch.setattr(History, "add", usual)
    fedmaba.compare("fedmaba", out=tmp_path / "part", **asked)
    every = sorted(f.name for f in (tmp_path / "whole" / "models").iterdir())
    for name in every:
        found = [(tmp_path / run / "models" / name).read_bytes() for run in ("whole", "part")]
        assert found[0] == found[1], name
    kinds = {name.rpartition("-")[2].partition(".")[0] for name in every}
    assert kinds == {"last", "deployed", "best"} | ({"clients"} if choice == "local" else set())
    read = {k: load_file(tmp_path / "whole" / "models" / f"00-fedmaba-s0-{k}.safetensors")
            for k in kinds}  # fmt: skip
    with_norm((), 4).load_state_dict(read["deployed"])
    if choice == "local":
        assert set(read["clients"]) == {f"1.{n}" for n in ("weight", "bias", *MOVING)}
        assert read["clients"]["1.running_var"].shape == (5, 8)
    with pytest.raises(InputError, match="in batchnorm"):
        fedmaba.compare("fedmaba", out=tmp_path / "whole", **(asked | {"batchnorm": "frozen"}))


def test_the_command_line_and_toml_know_the_choice(call, small_sample, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "with_norm.py").write_text(
        "from torch import nn\n\n\ndef make(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, 9), nn.BatchNorm1d(9),\n"
        "                         nn.Linear(9, classes))\n"
    )
    words = ["compare", "fedavg", "--model", "with_norm:make", "--rounds", "1", "--seeds", "1"]
    words += ["--out", "run"]
    found = call(*words)
    assert found.code == 2
    assert "--batchnorm group, local, average or frozen" in found.err
    assert not (tmp_path / "run").exists()
    assert call(*words, "--batchnorm", "average").code == 0
    assert 'batchnorm = "average"' in (tmp_path / "run" / "experiment.toml").read_text()
    assert call(*words, "--batchnorm", "mean").code == 2


@pytest.mark.parametrize(
    ("make", "choice", "message"),
    [
        (norm_net, "refuse", r"layer '1' is a BatchNorm2d.*--batchnorm group, local, average or"),
        (lambda s, c: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=None),
                                    nn.Linear(64, c)), "average", "momentum"),
        (lambda s, c: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False),
                                    nn.Linear(64, c)), "local", "without running statistics"),
        (lambda s, c: nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(),
                                    nn.Linear(64, c)), "average", "InstanceNorm2d .* no rule"),
        (lambda s, c: nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.BatchNorm1d(1),
                                    nn.Linear(1, c)), "group", "one channel"),
    ],
    ids=["refuse", "momentum", "untracked", "other", "one channel"],
)  # fmt: skip
def test_what_has_no_rule_is_one_line(make, choice, message):
    with pytest.raises(InputError, match=message) as caught:
        models.build_model(make, (1, 8, 8), 4, 0, choice)
    assert "\n" not in str(caught.value)


def test_a_minibatch_of_one_example_is_refused_where_a_layer_needs_two(fed):
    runs = [Run(one("fedavg"), 0, fed)]
    for choice in ("average", "local"):
        plan = dataclasses.replace(PLAN, minibatch=4, batchnorm=choice)
        with pytest.raises(InputError, match=r"client 0 has 5 training examples.*'6' takes the"):
            start(runs, plan, norm_net)
    start(runs, dataclasses.replace(plan, batchnorm="frozen"), norm_net)
    few = dataclasses.replace(plan, steps=1)  # the second minibatch of no client is reached
    start(runs, few, norm_net)
