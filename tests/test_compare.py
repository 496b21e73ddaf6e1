"""`fedmaba.compare`: options reach the engine, and wrong arguments are one line."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import fedmaba
from fedmaba.data.federation import Federation
from fedmaba.errors import InputError
from fedmaba.experiment import session as experiment
from fedmaba.simulation import engine
from fedmaba.turnout.plan import Turnout
from run_folders import SMALL, asked, softmax


def test_every_option_reaches_the_engine(tiny_npz):
    plan = {
        "train": {
            "rounds": 7, "participants": 2, "epochs": 3, "minibatch": 6, "lr": 0.03,
            "schedule": "cosine", "step_schedule": "warmup:2", "optimiser": "adam", "beta1": 0.8,
            "beta2": 0.99, "epsilon": 1e-5, "weight_decay": 0.01, "clip": 3.0,
        },
        "server": {"lr": 0.7, "momentum": 0.2},
        "eval": {"every": 5, "finetune": 2},
        "machine": {"dtype": "float64", "device": "cpu", "chunk": 3, "threads": 1},
    }  # fmt: skip
    turnout = {"available": "p=0.9", "select": "fair", "dropout": "1%", "speed": "9"}
    turnout |= {"bandwidth": "2", "deadline": "1h"}
    flat = {f"{part}.{name}": value for part, keys in plan.items() for name, value in keys.items()}
    other = {"server.lr": "server_lr", "server.momentum": "server_momentum"}
    other["eval.every"] = "eval_every"
    want = {other.get(name, name.partition(".")[2]): value for name, value in flat.items()}
    changes = {name.replace(".", "__"): value for name, value in flat.items()}
    changes["batchnorm"] = want["batchnorm"] = "group"
    changes |= {f"turnout__{name}": value for name, value in turnout.items()}
    session = experiment.prepare(asked(tiny_npz, **changes))
    session.close()
    told = dataclasses.asdict(session.batch.plan)
    told |= told.pop("optimiser")
    assert session.batch.plan.turnout == Turnout.parse(turnout)
    del told["turnout"]
    rest = {"steps": None, "lr_decay": 0.999, "momentum": 0.0, "augment": None, "privacy": None}
    rest["own_layers"] = ()
    assert told == want | rest
    plain = experiment.prepare(
        asked(tiny_npz, train__lr_decay=0.98, train__momentum=0.4, train__optimiser="nesterov")
    )
    plain.close()
    assert plain.batch.plan.lr_decay == 0.98
    assert plain.batch.plan.optimiser == engine.Optimiser(0.4, optimiser="nesterov")
    steps = experiment.prepare(asked(tiny_npz, train__steps=4))  # instead of epochs
    steps.close()
    assert steps.batch.plan.steps == 4
    defaults = {
        f.name: f.default
        for kind in (engine.Plan, engine.Optimiser)
        for f in dataclasses.fields(kind)
    }
    assert [n for n, v in want.items() if v == defaults[n]] == ["device"]
    assert session.batch.pool.x.dtype == torch.float64
    assert session.batch.progress.chunk == 3


def test_the_options_of_data_and_runs_reach_the_engine(tiny_npz):
    changes = {"data__partition": "iid", "data__clients": 4, "data__test": "local"}
    changes |= {"data__validation": "25%", "seeds": [5, 3], "server__deploy": "ema:0.7"}
    session = experiment.prepare(asked(tiny_npz, strategies=["fedavg", "afl"], **changes))
    session.close()
    runs = session.batch.runs
    assert [(run.strategy.name, run.seed) for run in runs] == [
        ("fedavg", 5), ("fedavg", 3), ("afl", 5), ("afl", 3),
    ]  # fmt: skip
    assert {run.rules for run in runs} == {("ema:0.7",)}
    assert {run.federation.n_clients for run in runs} == {4}
    federation = runs[0].federation
    assert federation.validation.size.sum() == pytest.approx(0.25 * 80, abs=3)
    assert federation.test.size.sum() == pytest.approx(20, abs=3)
    assert federation is runs[2].federation  # a seed's clients are the same for all strategies
    assert federation.split.sha256() != runs[1].federation.split.sha256()
    plain = experiment.prepare(asked(tiny_npz))
    plain.close()
    assert {run.rules for run in plain.batch.runs} == {("poly:8",), ("average",)}  # each its own
    assert plain.batch.runs[0].federation.n_clients == 5  # the file's own clients


def test_compare_without_a_folder_writes_nothing(tiny_npz, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history = fedmaba.compare("fedavg", data=str(tiny_npz), model="softmax", **SMALL)
    assert [run.label for run in history.runs] == ["fedavg"]
    assert list(tmp_path.iterdir()) == []
    assert "fedavg" in str(history)


def test_compare_takes_objects_and_grids(fed):
    given_ = ["fedmaba:alpha=[0,1]", fedmaba.FedProx(mu=0.3)]
    history = fedmaba.compare(given_, data=fed, model=softmax, **SMALL)
    labels = [run.label for run in history.runs]
    assert labels == ["fedmaba:alpha=0", "fedmaba:alpha=1", "fedprox:mu=0.3"]
    assert isinstance(fed, Federation)
    assert history.runs[0].n_clients == fed.n_clients
    with pytest.raises(InputError, match="unknown option 'round': did you mean 'rounds'"):
        fedmaba.compare("fedavg", data=fed, round=3)
    with pytest.raises(InputError, match="listed twice"):
        fedmaba.compare(["fedavg", "fedavg"], data=fed, **SMALL)
    with pytest.raises(InputError, match=r"participants=9, .* 5 clients"):
        fedmaba.compare(["fedavg"], data=fed, participants=9, **SMALL)


@pytest.mark.parametrize(
    "option", [{"clients": 3}, {"partition": "iid"}, {"validation": 0.2}, {"validation": 10}]
)
def test_a_split_federation_takes_no_partition(option, fed):
    with pytest.raises(ValueError, match="split already"):
        fedmaba.compare("fedavg", data=fed, rounds=1, seeds=1, **option)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            {"data": (np.zeros((4, 2)), np.zeros(4))},
            r"data of type tuple: give .*from_arrays\(x, y",
        ),
        ({"data": None}, "data of type NoneType"),
        ({"strategies": [fedmaba.FedMABA]}, r"FedMABA is a class: write FedMABA\(\)"),
        ({"strategies": fedmaba.FedMABA}, r"FedMABA is a class: write FedMABA\(\)"),
        ({"strategies": ["fedavg", 3]}, "3 is no strategy: give a name"),
        ({"strategies": None}, "None is no list of strategies: name them"),
        ({"model": nn.Linear(6, 3)}, r"the model is a Linear already: give a function of \(shape"),
        ({"model": 3}, r"it must take \(shape, classes\)"),
    ],
)
def test_an_object_of_the_wrong_kind_is_one_line(words, said, tiny_npz):
    with pytest.raises(InputError, match=said) as error:
        fedmaba.compare(**{"strategies": "fedavg", "data": str(tiny_npz), **SMALL, **words})
    assert "\n" not in str(error.value)
