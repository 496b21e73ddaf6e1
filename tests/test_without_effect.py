"""An option that changes nothing is refused, or said where it changes some strategies alone."""

import pytest

import fedmaba
from fedmaba.errors import InputError
from fedmaba.experiment import config, without_effect
from fedmaba.strategies import parse

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.mark.parametrize(
    ("strategy", "options", "why"),
    [
        *(
            (name, {"server_momentum": 0.5}, "it has a server optimiser of its own")
            for name in ("fedavgm", "fedadam", "fedyogi")
        ),
        *(
            ("fedsgd", option, "each client takes one step on all of its examples")
            for option in (
                {"momentum": 0.5},
                {"epochs": 2},
                {"steps": 3},
                {"minibatch": 7},
                {"step_schedule": "cosine"},
            )
        ),
        ("ditto", {"finetune": 2}, "clients have models of their own, which are evaluated"),
        ("eagle", {"finetune": 2}, "clients have models of their own"),
        ("local", {"server_lr": 0.5}, "clients train alone, without a server's model"),
        ("local", {"deploy": "last"}, "clients train alone"),
        ("fedavg", {"dtype": "bf16", "device": "cpu"}, "a CPU computes in float32 or float64"),
        ("fedavg", {"dtype": "tf32", "device": "cpu"}, "a CPU computes in float32 or float64"),
    ],
    ids=str,
)
def test_an_option_that_changes_nothing_is_refused(strategy, options, why, fed, tmp_path):
    given = {"data": fed, "rounds": 1, "seeds": 1, "progress": False, **options}
    line = f"--.* changes nothing for {strategy}: {why}.*: leave it out"
    with pytest.raises(InputError, match=line):
        fedmaba.compare(strategy, out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype", ["tf32", "bf16"])
def test_a_search_refuses_the_precisions_of_a_gpu_on_a_cpu(dtype, tiny_npz, tmp_path):
    given = {"data": str(tiny_npz), "validation": "40%", "model": "softmax", "rounds": 1}
    line = f"--dtype {dtype} changes nothing: a CPU computes in float32 or float64: leave it out"
    with pytest.raises(InputError, match=line):
        fedmaba.tune(
            "fedavg", {"lr": [0.1, 0.5]}, dtype=dtype, device="cpu", out=tmp_path / "run", **given
        )
    assert not (tmp_path / "run").exists()


def said(specs, **options):
    keys = {key.argument: key.name for key in config.options()}
    tree = {"strategies": specs}
    for name, value in options.items():
        config.set_key(tree, keys[name], value)
    return without_effect.warnings(config.build(tree), [s for spec in specs for s in parse(spec)])


def test_where_it_changes_some_strategies_it_is_said_of_the_others(call, tiny_npz):
    assert said(["fedavg", "fedsgd"], momentum=0.9) == [
        "--momentum 0.9 changes nothing for fedsgd: each client takes one step on all of its "
        "examples"
    ]
    answer = call(
        *("compare", "fedavg", "fedsgd", "--epochs=2", f"--data={tiny_npz}", "--rounds=1"),
        *("--seeds=1", "--model=softmax", "--quiet", "--out=run"),
    )
    assert answer.code == 0
    assert "--epochs 2 changes nothing for fedsgd" in answer.err


@pytest.mark.parametrize(
    ("specs", "options"),
    [
        (["fedavg", "fedadam"], {}),
        (["fedsgd"], {"epochs": 1, "lr": 0.5, "weight_decay": 0.1, "clip": 1.0}),
        (["fedsgd"], {"momentum": 0.5, "optimiser": "nesterov"}),
        (["fedsgd"], {"step_schedule": "warmup:2,constant"}),
        (["fedadam"], {"server_lr": 0.5}),
        (["ditto"], {"server_momentum": 0.5}),
        (["fedavg"], {"dtype": "float64", "device": "cpu"}),
        (["fedavg"], {"dtype": "bf16", "device": "cuda"}),
    ],
)
def test_an_option_that_changes_something_is_not_named(specs, options):
    assert said(specs, **options) == []


def test_a_run_that_was_begun_with_such_an_option_goes_on(fed, tmp_path, monkeypatch):
    given = {"data": fed, "rounds": 1, "seeds": 1, "progress": False, "out": tmp_path / "run"}
    with monkeypatch.context() as before:
        before.setattr(without_effect, "refuse", lambda *_: None)
        fedmaba.compare("fedsgd", epochs=2, **given)
    assert fedmaba.compare("fedsgd", epochs=2, **given).runs[0].label == "fedsgd"
