"""What a batch of runs refuses, before any work or in its first round."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmaba.errors import InputError
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies.base import Decision
from plain_loop import PLAN, Odd, mlp, one

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.mark.parametrize("answer", [np.ones(4), np.ones((5, 1)), [[1], [1, 2]], None])
def test_a_strategy_that_gives_too_few_weights_is_told(answer, fed, monkeypatch):
    given = None if answer is None else Decision(answer, {})
    monkeypatch.setattr(Odd, "weigh", lambda *_: given)
    batch = start([Run(Odd(), 3, fed)], PLAN, mlp)
    with pytest.raises(InputError, match=r"odd: weigh\(\) gave .* for 5 clients: return Decision"):
        list(simulate(batch))


@pytest.mark.parametrize("kind", [list, tuple, np.longdouble, np.float32])
def test_weights_of_any_kind_of_number_count(kind, fed, monkeypatch):
    coef = [0.25, 0.125, 0.5, 0.0, 0.125]
    given = kind(coef) if kind in (list, tuple) else np.array(coef, kind)
    models = []
    for answer in (np.array(coef), given):
        monkeypatch.setattr(Odd, "weigh", lambda *_, a=answer: Decision(a, {}))
        batch = start([Run(Odd(), 3, fed)], replace(PLAN, chunk=2), mlp)
        (seen,) = [shot.rounds[0].weight for shot in simulate(batch)][-1:]
        assert seen.dtype == np.float64
        models.append(batch.progress.model)
    assert torch.equal(*models)


@pytest.mark.parametrize("answer", [np.ones(5, complex), ["a"] * 5, [None] * 5])
def test_weights_that_are_no_numbers_are_refused(answer, fed, monkeypatch):
    monkeypatch.setattr(Odd, "weigh", lambda *_: Decision(answer, {}))
    with pytest.raises(InputError, match=r"odd: weigh\(\) gave coefficients of .*: give floats"):
        list(simulate(start([Run(Odd(), 3, fed)], PLAN, mlp)))


@pytest.mark.parametrize(
    ("state", "info", "said"),
    [
        ({"seen": {1, 2}}, {}, "state 'seen' is of type set, which cannot be saved: keep arrays"),
        ({"seen": [1.0]}, {}, "state 'seen' is of type list"),
        ({"seen": np.array(["a"])}, {}, r"state 'seen' is an array of <U1, shape \(1,\)"),
        ({"seen": np.zeros(2, np.complex128)}, {}, "state 'seen' is an array of complex128"),
        ({3: np.zeros(2)}, {}, "its state is .*: give a dict by names"),
        (None, {}, "its state is None: give a dict by names"),
        ({}, {"each": np.zeros(6)}, r"info 'each' is an array of float64, shape \(6,\): a round"),
        ({}, {"each": "many"}, "info 'each' is of type str"),
        ({"\udc80": np.zeros(2)}, {}, "its state is .*: give a dict by names"),
        ({}, {"round": 0.5}, "info 'round' would stand for the round of the run: choose another"),
        ({}, {"big": 10**400}, r"info 'big' is no number below 1e\+300"),
        ({}, [1], r"its info is \[1\]: give a dict by names"),
    ],
)
def test_what_a_strategy_keeps_and_tells_is_looked_at_in_its_first_round(
    state, info, said, fed, monkeypatch
):
    monkeypatch.setattr(Odd, "weigh", lambda *_: Decision(np.ones(5), state, info))
    with pytest.raises(InputError, match=f"odd: {said}"):
        next(simulate(start([Run(Odd(), 3, fed)], PLAN, mlp)))
    if state:
        monkeypatch.setattr(Odd, "init", lambda *_: state)
        with pytest.raises(InputError, match=f"odd: {said}"):
            start([Run(Odd(), 3, fed)], PLAN, mlp)


def test_numbers_of_every_kind_are_kept_and_told(fed, monkeypatch):
    kinds = [1, True, 0.5, np.float32(1), np.int64(2), np.array(3.0), np.bool_(True)]
    told = {str(i): value for i, value in enumerate(kinds)}
    kept = {"a": np.zeros((2, 3), np.float32), "b": np.float64(1), "c": np.zeros(2, bool)}
    monkeypatch.setattr(Odd, "weigh", lambda *_: Decision(np.full(5, 0.2), kept, told))
    (seen, *_) = next(simulate(start([Run(Odd(), 3, fed)], PLAN, mlp))).rounds
    assert seen.info == told


def test_a_plan_that_does_not_fit_is_refused_before_any_work(fed, make_federation):
    run = Run(one("fedavg"), 0, fed)
    with pytest.raises(ValueError, match="participants=6, but the federation has 5 clients"):
        start([run], replace(PLAN, participants=6), mlp)
    with pytest.raises(ValueError, match="participants=0"):
        start([run], replace(PLAN, participants=0), mlp)
    with pytest.raises(ValueError, match="no runs"):
        start([], PLAN, mlp)
    with pytest.raises(ValueError, match="share one data set"):
        start([run, Run(one("fedavg"), 0, make_federation())], PLAN, mlp)
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        start([run], PLAN, "sotfmax")
    with pytest.raises(ValueError, match=r"sides of at least 16.*\(1, 8, 8\)"):
        start([run], PLAN, "cnn")


NONE = np.zeros(0, np.int64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: {"train": (*s.train[:4], NONE)}, "client 4 has no training examples: leave"),
        (lambda s: {"test": (NONE,) * 5}, "no client has a test example"),
        (lambda s: {"test": (NONE,) * 5, "validation": s.test}, "no client has a test example"),
        (lambda s: {"test": s.test[:4]}, "the split has 5 clients, but 4 in test"),
        (
            lambda s: {"train": (s.train[0] + 99, *s.train[1:])},
            r"train names .* outside 0\.\.\d+: name rows of x$",
        ),
        (lambda s: {"test": (-s.test[0] - 1, *s.test[1:])}, r"test names examples outside 0\.\."),
        (
            lambda s: {"test": (s.train[1][:2], *s.test[1:])},
            r"test names example \d+, which .*: put it into one part$",
        ),
        (lambda s: dict.fromkeys(("train", "test", "validation"), ()), "there are no clients"),
    ],
)
def test_a_split_made_by_hand_that_no_run_can_use_is_refused(change, said, fed):
    odd = replace(fed, split=replace(fed.split, **change(fed.split)))
    with pytest.raises(InputError, match=said):
        start([Run(one("fedavg"), 0, odd)], PLAN, mlp)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", "cpu:x", ""])
def test_a_device_that_is_not_there_is_refused(device, fed):
    with pytest.raises(ValueError, match="device="):
        start([Run(one("fedavg"), 0, fed)], replace(PLAN, device=device), mlp)
