"""Options that are other readings of the paper: inputs, AFL's weights, layers, held-out losses."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedmaba
from fedmaba.data import datasets
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.experiment import checks
from fedmaba.rows import models
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.simulation.work import draw
from fedmaba.strategies.base import Replies
from plain_loop import PLAN, mlp, one

pytestmark = pytest.mark.usefixtures("few_threads")


# --- inputs --------------------------------------------------------------------------------------


def test_fashion_mnist_is_scaled_or_standardised(world):
    world.lay(world.plain["fashion-mnist"])
    scaled, usual = world.load("fashion-mnist", normalise="scale"), world.load("fashion-mnist")
    standard = world.load("fashion-mnist", normalise="standard")
    assert scaled.sha256() == usual.sha256() != standard.sha256()
    np.testing.assert_allclose(standard.x, (scaled.x - 0.2860) / 0.3530, rtol=0, atol=1e-5)
    assert (usual.inputs, standard.inputs) == (
        "scale: pixels / 255",
        "standard: (pixels / 255 - 0.2860) / 0.3530",
    )


@pytest.mark.parametrize("name", ["cifar100", "cifar100-coarse"])
def test_cifar100_has_cifar10s_numbers_unless_its_own_are_asked_for(world, name):
    world.lay(world.plain["cifar100"])
    usual, own, plain = (world.load(name, normalise=how) for how in (None, "standard", "scale"))
    assert usual.sha256() == world.load(name, normalise="cifar10").sha256()
    for data, mean, std in (
        (usual, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        (own, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ):
        wide = [np.array(v)[:, None, None] for v in (mean, std)]
        np.testing.assert_allclose(data.x, (plain.x - wide[0]) / wide[1], rtol=0, atol=1e-5)
    assert own.inputs.startswith("standard: (pixels / 255 - 0.5071 0.4865 0.4409) / 0.2673")


def test_inputs_are_in_the_record_of_a_run(tmp_path):
    fedmaba.compare("fedavg", rounds=1, seeds=1, normalise="standard", out=tmp_path / "run")
    about = json.loads((tmp_path / "run" / "about.json").read_text())
    assert about["data"]["inputs"] == "standard: (pixels / 255 - 0.2860) / 0.3530"
    assert 'normalise = "standard"' in (tmp_path / "run" / "experiment.toml").read_text()
    with pytest.raises(InputError, match=r"holds another experiment, in data\.normalise"):
        fedmaba.compare("fedavg", rounds=1, seeds=1, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("sample", "cifar10", "is for colour images, but sample is grey"),
        ("synthetic", "scale", "synthetic has no pixels of a published set"),
        (
            "own.csv",
            "standard",
            "own.csv has no pixels of a published set: .*--standardise is for tables",
        ),
        ("sample", "white", "it should be 'scale', 'standard' or 'cifar10'"),
    ],
)
def test_inputs_that_a_set_cannot_have_are_refused(name, how, words):
    with pytest.raises(InputError, match=words) as error:
        checks.build_checked({"strategies": ["fedavg"], "data": {"name": name, "normalise": how}})
    assert "\n" not in str(error.value)


def test_a_callers_own_data_are_not_normalised():
    data = datasets.load("sample")
    with pytest.raises(InputError, match="a Dataset is used as it is"):
        fedmaba.compare("fedavg", data=data, normalise="scale")
    fed = fedmaba.Federation.make(data, clients=4)
    with pytest.raises(InputError, match="normalise='scale'"):
        fedmaba.compare("fedavg", data=fed, normalise="scale")
    with pytest.raises(InputError, match="unknown normalise 'white'"):
        datasets.load("sample", normalise="white")


# --- AFL's weights -------------------------------------------------------------------------------


def test_afl_weighs_by_lambda_before_or_after_the_round():
    loss = np.array([1.0, 2.0, 4.0])
    replies = Replies(0, 0.1, 4, np.array([0, 1, 3]), np.full(3, 5), loss)
    old, new = (one(f"afl:lam=0.1,weights={which}") for which in ("old", "new"))
    assert old.label() == "afl:lam=0.1"
    state = {"lambda": np.array([0.1, 0.2, 0.3, 0.4])}
    before, after = (s.weigh(state, replies) for s in (old, new))
    np.testing.assert_array_equal(before.state["lambda"], after.state["lambda"])
    np.testing.assert_allclose(before.coef, np.array([0.1, 0.2, 0.4]) / 0.7)
    moved = after.state["lambda"]
    np.testing.assert_allclose(after.coef, moved[[0, 1, 3]] / moved[[0, 1, 3]].sum())
    assert abs(after.coef - before.coef).max() > 0.05


# --- one hidden layer ----------------------------------------------------------------------------


def test_mlp1_has_one_hidden_layer():
    model = models.build_model(models.find_factory("mlp1"), (1, 28, 28), 10, 0)
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert shapes == [(200, 784), (200,), (10, 200), (10,)]


# --- held-out losses -----------------------------------------------------------------------------


def test_held_losses_are_those_on_validation_examples(held_fed):
    """At the server's model, of the participants alone, in a batch with other strategies."""
    plan = replace(PLAN, rounds=1, participants=3)
    names = ("fedmaba:loss_at=held", "fedmaba", "fedavg", "fedmaba:loss_at=held,alpha=0.8")
    batch = start([Run(one(s), 3, held_fed) for s in names], plan, mlp)
    who = draw(batch, [0], 0).cohorts[0].client
    w = batch.progress.model[:1].clone()
    shots = list(simulate(batch))
    told = [shots[0].rounds[r].loss for r in range(4)]
    for r, part in ((0, held_fed.validation), (1, held_fed.train), (3, held_fed.validation)):
        for place, client in enumerate(who):
            index = torch.from_numpy(part.of(client))
            with torch.no_grad():
                loss, _ = batch.evaluate(w, index, scored=False)
            assert told[r][place] == pytest.approx(float(loss.mean()), rel=1e-6)
    assert told[2] is None
    assert abs(told[0] - told[1]).min() > 1e-4


def test_held_losses_need_a_validation_example_of_each_client(fed, make_federation):
    lacking = make_federation(held=(2, 0, 1, 1, 1))
    for some, who in ((fed, 0), (lacking, 1)):
        with pytest.raises(InputError, match=f"client {who} has no validation examples"):
            start([Run(one("fedmaba:loss_at=held"), 1, some)], PLAN, mlp)
    with pytest.raises(InputError, match="which sites do not send"):
        FederationSettings(one("fedmaba:loss_at=held"))
