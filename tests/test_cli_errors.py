"""Wrong words, files and folders: one line on stderr, exit code 2, nothing written."""

import re
from pathlib import Path

import pytest

from command_line import QUICK
from fedmaba import strategies


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedmba"], "unknown strategy 'fedmba': did you mean 'fedmaba'?"),
        (["fedmaba:alfa=0.5"], "did you mean 'alpha'?"),
        (["fedmaba:alpha=1.5"], "fedmaba: alpha=1.5: give a finite number of at least 0 and at"),
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
        (
            ["fedavg", "--set", "train.foo=3"],
            "unknown key 'train.foo': choose one of augment, beta1",
        ),
        (["fedavg", "--participants", "6"], "participants=6, but the federation has 5 clients"),
        (["fedavg", "--model", "cnn"], "model cnn wants images"),
        (["fedavg", "--device", "cuda:99"], ": say auto or cpu\n"),
        (["fedavg", "--device", "meta"], "device='meta'"),
        (["fedavg", "--test", "official"], "no official test part"),
        (
            ["fedavg", "--data", "mine.txt"],
            "data 'mine.txt': your own file must end in .npz, .csv or",
        ),
        (["fedavg", "--minibatch", str(10**30)], "train.minibatch=1000000"),
        (["fedavg,fedmaba"], "strategy 'fedavg,fedmaba': name each by itself: fedavg fedmaba"),
        (["fedavg", "--set", "train.lr"], "--set 'train.lr': write KEY=VALUE, as train.lr=0.05"),
        (["fedavg", "--set", "lr=0.1"], "'lr': did you mean 'train.lr' or 'server.lr'?"),
        (["fedavg", "--set", "train.eval_every=1"], "did you mean 'eval.every'?"),
        (["fedavg", "--out", ""], "save.out='': it is empty: name a folder, or leave it out\n"),
        (["fedavg", "--data-dir="], "data.dir='': it is empty"),
        (["fedavg", "--data="], "unknown data set ''"),
        (["fedavg", "--model", ":make"], "write package.module:factory"),
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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("strategies = ['fedavg'\n", ["e.toml is not TOML"]),
        (
            "strategies = ['fedavg']\n[train]\nlearning_rate = 3\nlr = 0\n",
            ["e.toml: ", "unknown key 'train.learning_rate'", "train.lr=0"],
        ),
        (
            "rounds = 3\n",
            ["strategies is missing", "unknown key 'rounds': did you mean 'train.rounds'?"],
        ),
        (
            "strategies = 'fedavg'\nseeds = [true]\ntrain.rounds = true\n",
            ["seeds=[True]: no key is true or false", "train.rounds=True: no key is true or false"],
        ),
    ],
)
def test_a_bad_experiment_file_is_one_line(text, parts, refused):
    Path("e.toml").write_text(text)
    said = refused("run", "e.toml")
    assert [part for part in parts if part not in said] == []


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


def test_words_about_folders_are_one_line(call, refused, tiny_npz):
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK, "--out"]
    Path("thesis").mkdir()
    Path("thesis", "chapter1.tex").write_text("")
    assert "no run folder" in refused(*words, "thesis")
    assert "thesis" in refused("table", "thesis")
    assert call(*words, "done").code == 0
    assert "--at" in refused("table", "done", "--at", "never")
    assert "--share" in refused("table", "done", "--share", "3")
    assert "unknown list 'strategy': did you mean 'strategies'" in refused("list", "strategy")
    assert "is no run folder" in refused("resume", "nowhere")
