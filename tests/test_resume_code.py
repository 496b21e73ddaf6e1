"""A run resumes only with the model, loss, metric and strategy that it was begun with."""

import json
import sys
from pathlib import Path

import pytest
from torch import nn

from fedmaba.errors import InputError
from fedmaba.experiment import session as experiment
from fedmaba.experiment import starting
from fedmaba.results.run_folder import (
    load_checkpoint,
)
from run_folders import asked, begun, brought, files, net, play


def without_bias(shape, classes):
    last = nn.Linear(8, classes, bias=False)
    return nn.Sequential(nn.Linear(*shape, 8), nn.ReLU(), last)


def test_a_model_of_other_shapes_does_not_take_over_the_weights(tiny_npz, tmp_path):
    out = tmp_path / "run"
    wide, was = play(brought(tiny_npz, out), stop_after=3), files(out)
    said = r"begun with another model \(0\.weight \(8, 6\); now 0\.weight \(9, 6\)\): restore it"
    with pytest.raises(InputError, match=said):
        brought(tiny_npz, out, model=net(9))
    assert files(out) == was
    other = experiment.prepare(asked(tiny_npz), experiment.UserObjects(model=net(9)))
    assert other.batch.rows.layout.size == wide.batch.rows.layout.size  # or the test shows nothing
    with pytest.raises(InputError, match=r"\(2\.bias \(3,\); now nothing\)"):
        brought(tiny_npz, out, model=without_bias)
    play(brought(tiny_npz, out))
    assert (out / "runs.json").exists()


def test_weights_that_a_device_keeps_in_another_order_are_not_mixed_up(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(brought(tiny_npz, out), stop_after=3)
    session = experiment.prepare(asked(tiny_npz), experiment.UserObjects(model=net(8)))
    session.batch.rows.layout.forms.clear()
    with pytest.raises(InputError, match="keeps weights in another order: go on there"):
        session.restore(*load_checkpoint(out)[:2], out)


def scaled(scale):
    def loss(outputs, targets):
        return scale * nn.functional.cross_entropy(outputs, targets, reduction="none")

    return loss


def hits(outputs, targets):
    return (outputs.argmax(1) == targets).float()


def misses(outputs, targets):
    return (outputs.argmax(1) != targets).float()


def margin(least, *, computed=False):
    """A metric as an object whose class holds the constant, or says it when asked."""

    class Margin:
        limit = property(lambda self: least) if computed else least

        def __call__(self, outputs, targets):
            return (outputs.softmax(1).gather(1, targets[:, None])[:, 0] > self.limit).float()

    return Margin()


@pytest.mark.parametrize(
    ("what", "before", "after"),
    [
        ("loss", scaled(1), scaled(2)),
        ("loss", None, scaled(1)),
        ("loss", scaled(1), None),
        ("loss", nn.CrossEntropyLoss(reduction="none"),
         nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)),
        ("metric", hits, misses),
        ("model", net(8), net(8, nn.Tanh)),
        ("metric", margin(0.1), margin(0.2)),
        ("metric", margin(0.1, computed=True), margin(0.2, computed=True)),
    ],
)  # fmt: skip
def test_a_run_goes_on_with_the_code_it_was_begun_with(what, before, after, tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(brought(tiny_npz, out, **{what: before}), stop_after=3)
    with pytest.raises(InputError, match=f"begun with another {what} .*: restore it, or choose"):
        brought(tiny_npz, out, **{what: after})
    play(brought(tiny_npz, out, **{what: before}))
    assert (out / "runs.json").exists()


def test_another_python_compares_names_only(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(brought(tiny_npz, out, loss=scaled(1), metric=hits), stop_after=3)
    about = json.loads((out / "about.json").read_text())
    about["versions"]["python"] = "3.1.4"
    about["own"]["loss"] = "scaled.<locals>.loss 0123456789ab"
    (out / "about.json").write_text(json.dumps(about))
    brought(tiny_npz, out, loss=scaled(1), metric=hits).close()
    with pytest.raises(InputError, match=r"another metric \(hits \w+; now misses \w+\)"):
        brought(tiny_npz, out, loss=scaled(1), metric=misses)


RULE = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from fedmaba.strategies.base import Decision, Local, Objective, Strategy

def bent(loss, numbers):
    return loss * 0 + FACTOR

@dataclass(frozen=True)
class Rule(Strategy):
    name: ClassVar[str] = "rule"

    def local(self):
        return Local(objective=Objective("some_rule:bent"))

    def weigh(self, state, replies):
        return Decision(np.full(len(replies.client), SHARE / len(replies.client)), state)
"""


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Write a module `some_rule` with one of its numbers, to be imported anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(number, edited="SHARE"):
        text = RULE.replace(edited, number).replace("SHARE", "1").replace("FACTOR", "1")
        (tmp_path / "some_rule.py").write_text(text)
        monkeypatch.delitem(sys.modules, "some_rule", raising=False)

    return write


@pytest.mark.parametrize("edited", ["SHARE", "FACTOR"])
def test_a_strategy_of_ones_own_that_was_edited_is_noticed(edited, edit, tiny_npz, tmp_path):
    out = tmp_path / "run"
    edit("1", edited)
    play(begun(asked(tiny_npz, strategies=["some_rule.Rule"]), out), stop_after=3)
    edit("2", edited)
    with pytest.raises(InputError, match="begun with another strategy rule"):
        starting.resume(out, trust=True)
    edit("1 ", edited)
    play(starting.resume(out, trust=True))
    assert (out / "runs.json").exists()


def test_a_changed_constant_does_not_bring_an_old_result_back(edit, tiny_npz, tmp_path):
    edit("1")
    experiment_ = asked(tiny_npz, strategies=["some_rule.Rule"])
    play(begun(experiment_, tmp_path / "run"))
    edit("9")
    with pytest.raises(InputError, match=r"begun with another strategy rule .*--fresh makes one"):
        begun(experiment_, tmp_path / "run")
    more = asked(tiny_npz, strategies=["some_rule.Rule"], seeds=3)
    whole = starting.RunGroup([more], {"rule": "some_rule.Rule"}, out=tmp_path / "run")
    with pytest.raises(InputError, match="begun with another strategy rule"):
        next(whole.sessions())


@pytest.mark.parametrize("command", ["compare some_rule.Rule", "run x.toml", "tune some_rule.Rule"])
def test_fresh_begins_anew_in_a_folder_beside(command, edit, call, tiny_npz):
    edit("1")
    Path("x.toml").write_text('strategies = ["some_rule.Rule"]\n')
    words = [*command.split(), f"--data={tiny_npz}", "--rounds=2", "--quiet", "--model=softmax"]
    words += ["--out=runs/mine", "--validation=30%", "--eval-every=1"]
    words += ["--grid=lr=[0.01,0.1]", "--search-seeds=1"] if command[0] == "t" else []
    for folder in ("runs/mine", "runs/mine-001", "runs/mine-002"):
        answer = call(*words, *["--fresh"] * (folder != "runs/mine"))
        assert answer.code == 0, answer.err
        assert folder in answer.out + answer.err
        assert any(Path(folder).rglob("runs.json"))
