"""Helpers for tests of run folders: a cheap experiment, run to its end or stopped on the way."""

import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import nn

from fedmaba import strategies
from fedmaba.experiment import config, starting
from fedmaba.experiment import session as experiment
from fedmaba.strategies.base import Decision, Strategy

STRATEGIES = ["fedavg", "fedfv:tau=2", "fedmaba:loss_at=mean", "afl"]


def asked(npz, **changes):
    """An experiment of a few cheap rounds; keys as `train__lr`."""
    tree = {
        "strategies": STRATEGIES,
        "seeds": 2,
        "model": "softmax",
        "data": {"name": str(npz), "validation": 0.2},
        "train": {"rounds": 6, "participants": 3, "minibatch": 5},
        "server": {"momentum": 0.5},
        "eval": {"every": 2},
        "machine": {"device": "cpu"},
        "save": {"every": 3},
    }
    for name, value in changes.items():
        config.set_key(tree, name.replace("__", "."), value)
    return config.build(tree)


def play(session, stop_after=math.inf):
    """Run a session until it is done or some rounds have been."""
    at = session.batch.progress
    list(session.rounds(lambda: at.round >= stop_after))
    return session


def begun(experiment_, out):
    """A session that has taken its folder and is ready to run."""
    session = experiment.prepare(experiment_)
    starting.open_run_folder(session, out)
    return session


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a folder that must repeat, by name."""
    apart = {"about.json", "timing.jsonl", ".lock"}
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name not in apart
    }


def debris(folder: Path) -> list[Path]:
    """Temporary files that a write left behind."""
    return [p for p in folder.rglob("*") if ".tmp" in p.name]


def pairs():
    """Strategy and seed of every run, in the order of the folder."""
    return [(s, seed) for s in STRATEGIES for seed in (0, 1)]


def same_history(a, b):
    """Check that two histories hold the same runs and the same numbers."""
    assert len(a.runs) == len(b.runs)
    for x, y in zip(a.runs, b.runs, strict=True):
        assert (x.label, x.seed, x.deploy, x.diverged) == (y.label, y.seed, y.deploy, y.diverged)
        left, right = x.arrays(), y.arrays()
        assert set(left) == set(right)
        for name, value in left.items():
            assert right[name].dtype == value.dtype, name
            np.testing.assert_array_equal(right[name], value, name)
    assert str(a) == str(b)


def different_files(finished, out):
    """The names of files that a folder does not have as the finished run has them."""
    return unlike(finished[1], out)


def unlike(one, other):
    """The names of files that must repeat and that two folders do not have alike."""
    want, got = files(one), files(other)
    return [name for name in want.keys() | got.keys() if want.get(name) != got.get(name)]


def net(hidden, kind=nn.ReLU):
    """A model whose flat vector has the same width for 6 to 10 hidden units."""

    def make(shape, classes):
        return nn.Sequential(nn.Linear(*shape, hidden), kind(), nn.Linear(hidden, classes))

    return make


def brought(npz, out, rules=("fedavg",), **own):
    """A session in a folder, with objects of the caller's."""
    options = {"strategies": list(rules), "model": "make"}
    listed = [s for rule in rules for s in strategies.parse(rule)]
    given_ = experiment.UserObjects(**{"model": net(8), **own})
    session = experiment.prepare(asked(npz, **options), given_, listed)
    starting.open_run_folder(session, out)
    return session


class Full:
    """A file on a disk that is full after a few bytes."""

    def __init__(self, *args, **how):
        self.file = open(*args, **how)  # noqa: SIM115 - closed by the caller's `with`

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content):
        self.file.write(content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuse(*args, **kwargs):
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True)
class Hostile(Strategy):
    """a name that is a path"""

    name: ClassVar[str] = "../../outside/../x"

    def weigh(self, state, replies):
        m = len(replies.client)
        extra = {"late": float(replies.round)} if replies.round else {}
        return Decision(np.full(m, 1 / m), state, extra)


SMALL = {"rounds": 3, "seeds": 1, "minibatch": 5, "eval_every": 2, "device": "cpu"}


def softmax(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
