"""A refused command leaves a folder as it was, and a part without files counts for nothing."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.results import schema


@dataclass(frozen=True)
class Refuses(fedmaba.Strategy):
    """a state that cannot be made"""

    name: ClassVar[str] = "refuses"

    def init(self, n_clients):
        raise InputError("this state cannot be made: choose another strategy")

    def weigh(self, state, replies):
        return fedmaba.Decision(replies.size / replies.size.sum(), state)


def everything(folder=Path()):
    """Every name below a folder, and the content of each file."""
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if path.name != ".lock"
    }


@pytest.fixture
def how(call, tiny_npz):
    """The options of a finished folder `mine`, of one strategy with two seeds."""
    shutil.copy(tiny_npz, "data.npz")
    options = ["--data", "data.npz", *QUICK]
    assert call("compare", "fedavg", *options, "--out", "mine").code == 0
    return options


def change_data():
    with np.load("data.npz") as z:
        arrays = dict(z)
    np.savez("data.npz", **{**arrays, "x": arrays["x"] + 1})


@pytest.mark.parametrize(
    ("strategies", "options", "said"),
    [
        ("fedavg", "--seeds 3 --out mine", "the data differ from those"),
        ("fedavg fairfed", "--out mine", "no group column"),
        ("fedavg fairfed", "--rounds 8 --out mine", "no group column"),
        ("fedavg", "--participants [all,99] --out mine", "participants=99"),
        ("fedavg", "--participants [all,99]", "participants=99"),  # and no runs/data-001
        ("fedavg afl fedprox", "--out mine", "a folder holds at most 3 runs"),
    ],
)
def test_a_refused_command_writes_nothing(strategies, options, said, how, call, monkeypatch):
    monkeypatch.setattr(schema, "MAX_RUNS", 3)
    if "differ" in said:
        change_data()
    before = everything()
    answer = call("compare", *strategies.split(), *how, *options.split())
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert everything() == before
    assert "nothing is trained again" in call("resume", "mine").err


def test_a_strategy_that_cannot_begin_leaves_no_part(how, call):
    keywords = {"data": "data.npz", "model": "softmax", "rounds": 4, "seeds": 2, "minibatch": 5}
    keywords |= {"eval_every": 2, "device": "cpu", "progress": False, "out": "mine"}
    before = everything()
    for listed in (["fedavg", Refuses()], [Refuses()]):
        with pytest.raises(InputError, match="this state cannot be made"):
            fedmaba.compare(listed, **keywords)
        assert everything() == before


@pytest.mark.parametrize("left", [None, ".experiment.toml.0123456789abcdef.tmp", ".lock"])
def test_a_part_without_its_file_is_nothing(left, how, call):
    table = call("table", "mine").out
    part = Path("mine/parts/001")
    part.mkdir(parents=True)
    if left:
        (part / left).touch()
    assert fedmaba.load_history("mine").runs
    for words in ("table mine", "report mine", "export mine", "resume mine"):
        answer = call(*words.split())
        assert (answer.code, answer.err.count("unfinished")) == (0, 0), answer.err
    assert call("table", "mine").out == table
    answer = call("compare", "fedavg", *how, "--out", "mine", "--seeds", 3)
    assert answer.code == 0, answer.err
    assert len(fedmaba.load_history("mine").runs) == 3
    (part / "experiment.toml").unlink()  # A part that lost its file is something.
    assert re.search("parts/001.*cannot be read|parts/001.*No such", call("table", "mine").err)


def test_a_reserved_part_that_cannot_begin_says_how_to_go_on_without_it(how, call):
    """As an earlier version could leave it."""
    part = Path("mine/parts/001")
    part.mkdir(parents=True)
    text = Path("mine/experiment.toml").read_text()
    (part / "experiment.toml").write_text(text.replace('"fedavg"', '"fairfed"'))
    answer = call("resume", "mine")
    assert answer.code == 2
    assert f"nothing of {part} is trained yet, so you may delete it" in answer.err
    shutil.rmtree(part)
    assert call("resume", "mine").code == 0
