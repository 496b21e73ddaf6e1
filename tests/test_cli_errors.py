"""Wrong words, files and folders: one line on stderr, exit code 2, nothing written."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import QUICK
from fedmaba import strategies


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedmba"], "unknown strategy 'fedmba': did you mean 'fedmaba'?"),
        (["fedmaba:alfa=0.5"], "did you mean 'alpha'?"),
        (["fedmaba:alpha=1.5"], "fedmaba: alpha=1.5: give a finite number of at least 0 and at"),
        (["fedmaba:alpha"], "'alpha' is not key=value"),
        (
            ["gdro"],
            f"'gdro': choose one of {', '.join(sorted(strategies.REGISTRY))}, or write "
            "package.module.Class for your own\n",
        ),
        (
            ["fedmaba", "--alpha", "0.8"],
            "--alpha: hyper-parameters stand with their strategy: write STRATEGY:alpha=VALUE\n",
        ),
        (
            ["fedavg", "--participants", "50%"],
            "train.participants='50%': say 'all' or a number of at least 1\n",
        ),
        (["fedavg", "--validation", "10"], "data.validation='10': write"),
        (["fedavg:x=1"], "hyper-parameter of fedavg 'x'"),
        (["fedavg", "fedavg"], "'fedavg' is listed twice"),
        (["fedavg", "--set", "train.epoch=3"], "did you mean 'train.epochs'?"),
        (
            ["fedavg", "--set", "train.foo=3"],
            "unknown key 'train.foo': choose one of augment, beta1",
        ),
        (["fedavg", "--participants", "6"], "participants=6, but the federation has 5 clients"),
        (["fedavg", "--participants", "few"], "train.participants='few'"),
        (["fedavg", "--lr", "-1", "--rounds", "0"], "train.rounds=0"),
        (["fedavg", "--model", "mlpp"], "did you mean 'mlp'?"),
        (["fedavg", "--model", "cnn"], "model cnn wants images"),
        (["fedavg", "--model", "no.where:make"], "No module named 'no'"),
        (["fedavg", "--device", "gpu"], "device='gpu'"),
        (["fedavg", "--device", "cuda:99"], ": say auto or cpu\n"),
        (["fedavg", "--device", "meta"], "device='meta'"),
        (["fedavg", "--partition", "shard:2"], "did you mean 'shards'?"),
        (["fedavg", "--deploy", "ema:2"], "deploy='ema:2'"),
        (["fedavg", "--test", "official"], "no official test part"),
        (["fedavg", "--validation", "120%"], "120%"),
        (["fedavg", "--seeds", "1,1"], "none twice"),
        (["fedavg", "--seeds", "2-0"], "seeds='2-0': 2-0 is no range: write 0-2\n"),
        (["fedavg", "--seeds", "few"], "seeds='few': write a count (3)"),
        (
            ["fedavg", "--data", "mine.txt"],
            "data 'mine.txt': your own file must end in .npz, .csv or",
        ),
        (["fedavg", "--minibatch", str(10**30)], "train.minibatch=1000000"),
        (["fedavg", "--rounds", "1e2"], "train.rounds=1e2: it should be a valid integer"),
        (["fedavg,fedmaba"], "strategy 'fedavg,fedmaba': name each by itself: fedavg fedmaba"),
        (["fedavg", "--set", "lr=0.1"], "'lr': did you mean 'train.lr' or 'server.lr'?"),
        (["fedavg", "--set", "train.eval_every=1"], "did you mean 'eval.every'?"),
        (["fedavg", "--out", ""], "save.out='': it is empty: name a folder, or leave it out\n"),
        (["fedavg", "--data-dir="], "data.dir='': it is empty"),
        (["fedavg", "--data="], "unknown data set ''"),
        (["fedavg", ""], "unknown strategy ''"),
        (["fedavg", "--set", "save.out="], "save.out='': it is empty: name a folder"),
        (["fedavg", "--model", ":make"], "write package.module:factory"),
        (["fedavg", "--model", "os:getpid"], "it must take (shape, classes)"),
        (["..x.y"], "write package.module.Class"),
        (["fedavg", "--partition", "a\nb"], "control characters"),
        (["fedavg", "--clients", "4", "--participants", "5"], "participants=5, but clients=4"),
        (["fedavg", "--clients", "9"], "clients=9, but the data name 5 clients"),
        (["fedavg", "--rouns", "9"], "--rouns"),
        ([], "STRATEGY"),
    ],
)
def test_a_bad_argument_is_one_line_and_nothing_is_written(words, said, refused, tiny_npz):
    assert said in refused("compare", "--data", tiny_npz, "--out", "mine", *QUICK, *words)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("own_broken", "x = 1\nclass Shy(:\n", "own_broken.py, line 2: invalid syntax: fix it"),
        ("own_needy", "import nosuchpkg\n", "module 'own_needy' needs 'nosuchpkg', which is not"),
        ("own_typo", "import os\nprnt(os)\n", "own_typo.py, line 2: NameError: name 'prnt' is"),
        ("own_other", "from os import nothing\n", "own_other.py, line 1: ImportError: cannot"),
        ("own_empty", "", "module 'own_empty' has no 'Shy': write package.module"),
    ],
)
def test_a_module_of_ones_own_that_cannot_be_read_is_named(name, text, said, refused, tiny_npz):
    Path(f"{name}.py").write_text(text)
    words = ["compare", "--data", tiny_npz, "--out", "mine", *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        assert said in refused(*words, f"{name}.Shy")
        assert said in refused(*words, "fedavg", "--model", f"{name}:Shy")


def test_an_experiment_file_is_no_strategy(refused):
    Path("exp.toml").write_text("")
    assert "'exp.toml' is an experiment file: say fedmaba run exp.toml" in refused(
        "compare", "exp.toml"
    )


def test_all_errors_are_told_at_once(refused):
    words = ["fedmba", "fedmaba:alpha=2", "afl", "afl", "--lr", "0", "--deploy", "ema:2"]
    words += ["--partition", "shard:2", "--data", "cifar-10", "--model", "mlpp"]
    words += ["--validation", "120%", "--set", "train.epoch=3", "--device", "gpu"]
    words += ["--attack", "labels=swap", "--hostile", "130%"]
    said = refused("compare", *words, "--out", "mine")
    for part in ("'fedmba'", "alpha=2", "'afl' is listed twice", "train.lr=0", "deploy='ema:2'",
                 "partition 'shard'", "'cifar-10'", "'mlpp'", "data.validation='120%'",
                 "'train.epoch'", "machine.device='gpu'", "attack 'labels=swap'",
                 "attack.share='130%'"):  # fmt: skip
        assert part in said, part


@pytest.mark.parametrize("kind", ["truncated", "empty", "garbage"])
def test_a_damaged_data_file_is_one_line(kind, refused, tiny_npz):
    good = tiny_npz.read_bytes()
    bad = {"truncated": good[: len(good) // 2], "empty": b"", "garbage": b"\x93NUMPY\xff" * 70}
    Path("mine.npz").write_bytes(bad[kind])
    said = refused("compare", "fedavg", "--data", "mine.npz", *QUICK)
    assert "mine.npz: not an .npz file of plain arrays" in said


def test_a_missing_data_file_is_one_line(refused):
    assert "none.npz" in refused("compare", "fedavg", "--data", "none.npz", *QUICK)
    assert "did you mean 'cifar10'" in refused("compare", "fedavg", "--data", "cifar-10", *QUICK)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": np.nan}, "non-finite values, first at row 0"),
        ({"y_test": 0}, "x_test and y_test belong together"),
        ({"weight": 0}, "unknown array 'weight'"),
    ],
)
def test_data_that_cannot_be_learned_from_are_one_line(change, said, refused, tiny_npz):
    with np.load(tiny_npz) as z:
        arrays = dict(z)
    for name, value in change.items():
        arrays.setdefault(name, np.zeros(3)).flat[0] = value
    np.savez("mine.npz", **arrays)
    assert said in refused("compare", "fedavg", "--data", "mine.npz", *QUICK)


def test_a_bad_experiment_file_is_one_line(refused):
    assert "none.toml: No such file" in refused("run", "none.toml")
    Path("e.toml").write_text("strategies = ['fedavg'\n")
    assert "e.toml is not TOML" in refused("run", "e.toml")
    Path("e.toml").write_text("strategies = ['fedavg']\n[train]\nlearning_rate = 3\nlr = 0\n")
    said = refused("run", "e.toml")
    assert "e.toml: " in said
    assert "unknown key 'train.learning_rate'" in said
    assert "train.lr=0" in said
    Path("e.toml").write_text("rounds = 3\n")
    said = refused("run", "e.toml")
    assert "strategies is missing" in said
    assert "unknown key 'rounds': did you mean 'train.rounds'?" in said
    Path("e.toml").write_text("strategies = 'fedavg'\nseeds = [true]\ntrain.rounds = true\n")
    said = refused("run", "e.toml")
    for name in ("seeds=[True]", "train.rounds=True"):
        assert f"{name}: no key is true or false: give a number" in said


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["table", "mine", "--share", "5"], "5"),
        (["table", "mine", "--share", "few"], "few"),
        (["flower", "demo", "--sites", "0"], "0"),
        (["watch", "mine", "--port", "99999"], "99999"),
        (["reproduce", "table1-grid", "--rounds", "1.5"], "1.5"),
    ],
)
def test_a_number_out_of_range_is_shown(words, value, refused):
    said = refused(*words)
    assert re.search(rf"'{words[-2]}': '?{value}\b", said)
    assert "Input" not in said


def test_a_folder_in_use_for_something_else_is_left_alone(call, refused, tiny_npz):
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK, "--out"]
    Path("thesis").mkdir()
    Path("thesis", "chapter1.tex").write_text("")
    assert "no run folder" in refused(*words, "thesis")
    Path("notes").write_text("")
    assert "notes" in refused(*words, "notes")
    assert call(*words, "done").code == 0
    assert "holds another experiment, in train.lr: choose another --out" in refused(
        *words, "done", "--lr", "0.3"
    )
    assert "is no run folder" in refused("resume", "nowhere")
    assert "is no run folder" in refused("table", "nowhere")
    assert "thesis" in refused("table", "thesis")
    assert "--at" in refused("table", "done", "--at", "never")
    assert "--share" in refused("table", "done", "--share", "3")
    assert "unknown list 'strategy': did you mean 'strategies'" in refused("list", "strategy")
    assert "No such command" in refused("comparee", "fedavg")
    next(Path("done", "clients").iterdir()).unlink()
    assert "done" in refused("table", "done")
