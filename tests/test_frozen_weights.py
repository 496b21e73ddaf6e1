"""Weights with requires_grad=False: shared by all rows, held once, not trained, saved once."""

import dataclasses

import pytest
import safetensors.torch
import torch
from torch import nn

import fedmaba
from fedmaba.deploy.client import first_model
from fedmaba.errors import InputError
from fedmaba.results.history import History
from fedmaba.rows import compile, models
from fedmaba.rows.base import Layout, constants
from fedmaba.rows.general import LoopRows
from fedmaba.rows.stack import LayerRows
from fedmaba.rows.traced import TracedRows
from fedmaba.simulation.engine import Run, start
from plain_loop import PLAN, Plain, apart, one, played, vector
from row_cases import FLAT, Wrapped

SEEDED = 11  # of frozen weights: the same for every seed of a run


def frozen(module):
    """A module with frozen weights that no seed of a run decides."""
    with torch.random.fork_rng():
        torch.manual_seed(SEEDED)
        for p in module.parameters():
            nn.init.uniform_(p, -0.5, 0.5)
    return module.requires_grad_(False)


def body(shape, classes):
    """A frozen body with a convolution, and a head that is trained."""
    return nn.Sequential(
        frozen(nn.Conv2d(shape[0], 3, 3)),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        frozen(nn.Linear(27, 8)),
        nn.ReLU(),
        nn.Linear(8, 6),
        nn.ReLU(),
        frozen(nn.Linear(6, 6)),
        nn.Tanh(),
        nn.Linear(6, classes),
    )


def only_biases(shape, classes):
    """Training changes biases alone."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, classes))
    for p in (model[1].weight, model[3].weight):
        with torch.random.fork_rng():
            torch.manual_seed(SEEDED)
            nn.init.uniform_(p, -0.5, 0.5)
        p.requires_grad_(False)
    return model


def wrapped(shape, classes):
    return Wrapped(body(shape, classes))


class PlainFrozen(Plain):
    """The plain loop: its optimiser is given what has gradients, and nothing else moves."""

    def __init__(self, *args):
        super().__init__(*args)
        for net in (self.model, self.worker):
            every = net.parameters
            net.parameters = lambda every=every: (p for p in every() if p.requires_grad)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (body, LayerRows),
        (only_biases, TracedRows),
        (wrapped, LoopRows),
    ],
)
def test_rows_are_the_plain_loop(make, kind, fed, few_threads):
    specs = ["fedmaba", "fedprox:mu=1"]
    batch, _ = played(specs, fed, PLAN, make)
    assert type(batch.rows) is kind
    before = models.build_model(make, fed.data.x.shape[1:], 4, 3)
    for r, spec in enumerate(specs):
        plain = PlainFrozen(one(spec), 3, fed, PLAN, make).run()
        assert apart(vector(batch, batch.progress.model[r]), plain.path[-1]) < 1e-9
    for name, value in constants(batch.rows.model).items():
        assert torch.equal(value, before.state_dict()[name].double())


def test_kernels_leave_frozen_layers_to_torch(kernels, fed, few_threads):
    batch, _ = played(["fedavg"], fed, PLAN, body)
    assert type(batch.rows) is LayerRows
    plain = PlainFrozen(one("fedavg"), 3, fed, PLAN, body).run()
    assert apart(vector(batch, batch.progress.model[0]), plain.path[-1]) < 1e-9


def test_frozen_weights_have_no_place_in_rows_and_are_not_sent():
    model = models.build_model(body, (1, 8, 8), 4, 0)
    trained = {"6.weight", "6.bias", "10.weight", "10.bias"}
    for kind in (TracedRows, LoopRows):
        found = kind(model, Layout(model), torch.zeros(2, 1, 8, 8), None, "")
        assert set(found.layout.names) == trained
        assert found.outputs(found.layout.pack(model)[None], torch.ones(1, 2, 1, 8, 8)).shape == (
            1,
            2,
            4,
        )
    assert set(compile(model, torch.zeros(2, 1, 8, 8)).layout.names) == trained
    assert set(first_model(body, (1, 8, 8), 4, 0)) == trained
    assert set(constants(model)) == set(model.state_dict()) - trained


def test_the_deployed_model_of_a_folder_is_whole(fed, tmp_path):
    fedmaba.compare("fedavg", data=fed, model=body, rounds=2, seeds=2, out=tmp_path / "run")
    files = sorted((tmp_path / "run" / "models").iterdir())
    whole = [safetensors.torch.load_file(f) for f in files if f.stem.endswith("deployed")]
    for state in whole:
        body((1, 8, 8), 4).load_state_dict(state)  # every name is there
    assert torch.equal(whole[0]["0.weight"], whole[1]["0.weight"])
    last = [safetensors.torch.load_file(f) for f in files if f.stem.endswith("last")]
    assert all("0.weight" not in state for state in last)


def drawn(shape, classes):
    """Frozen weights that each seed draws anew."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, classes))
    model[1].requires_grad_(False)
    return model


def test_frozen_weights_that_differ_by_seed_are_refused(fed):
    plan = dataclasses.replace(PLAN, rounds=1)
    with pytest.raises(InputError, match=r"'1\.weight' are others with seed 1 than with seed 0"):
        start([Run(one("fedavg"), seed, fed) for seed in (0, 1)], plan, drawn)
    start([Run(one("fedavg"), 1, fed)], plan, drawn)


def test_a_run_is_not_resumed_with_another_base(fed, tmp_path, monkeypatch):
    asked = {"data": fed, "model": body, "rounds": 4, "seeds": [0], "checkpoint_every": 1}
    usual, seen = History.add, []

    def add(history, snapshot):
        usual(history, snapshot)
        seen.append(snapshot.round)
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(History, "add", add)
    with pytest.raises(KeyboardInterrupt):
        fedmaba.compare("fedavg", out=tmp_path / "run", **asked)
    monkeypatch.setattr(History, "add", usual)
    monkeypatch.setitem(globals(), "SEEDED", 12)
    with pytest.raises(InputError, match="begun with other frozen weights"):
        fedmaba.compare("fedavg", out=tmp_path / "run", **asked)
    monkeypatch.setitem(globals(), "SEEDED", 11)
    fedmaba.compare("fedavg", out=tmp_path / "run", **asked)


def test_a_model_without_a_trainable_weight_is_refused():
    with pytest.raises(InputError, match="all weights are frozen: let it have weights with"):
        models.build_model(lambda s, c: frozen(nn.Linear(6, c)), FLAT, 4, 0)
