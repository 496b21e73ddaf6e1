"""What a user's code reads belongs to it: a change of it is noticed, and nothing else is."""

import functools
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedmaba.experiment.fingerprint import fingerprint, fingerprints
from run_folders import brought, play

HELPER = """
LIMIT = 1.0
def scale(x):
    return x * LIMIT
class Base:
    power = 1.0
    def half(self):
        return 0.5
"""
MINE = """
import functools
import numpy as np
import torch
from torch import nn
import helper
from helper import scale as rescale

POWER = 1.0
TABLE = {"a": [1.0, {"deep": 2.0}]}
ARRAY = np.arange(6.0)
WORDS = {"red", "green", "blue"}

class Net(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.linear = nn.Linear(width, outputs)
    def forward(self, x):
        return self.linear(torch.relu(x.flatten(1)))

def make(shape, outputs):
    return Net(shape[0], outputs)

class Rule(helper.Base):
    table = TABLE
    def weigh(self, x):
        return self.half() * x ** POWER

class Loss:
    def __init__(self):
        self.settings = {"margin": 0.1}
    def __call__(self, outputs, targets):
        return outputs * self.settings["margin"]

def closed(values):
    def loss(outputs, targets):
        return outputs * values[0]
    return loss

def default(x, scales=[1.0]):
    return x * scales[0]

def by_helper(x):
    return helper.scale(x)

def by_import(x):
    from helper import LIMIT
    return x * LIMIT

def by_name(x):
    return getattr(helper, "LIMIT") * x

def by_array(x):
    return x * ARRAY[2] * len(WORDS)

@torch.no_grad()
def wrapped(x):
    return rescale(x)

@functools.lru_cache
def cached(x):
    return rescale(x)

def table(x):
    return TABLE["a"][1]["deep"]

built = Loss()
listed = closed([1.0])
bound = Rule().weigh
part = functools.partial(by_helper, POWER)
"""
THINGS = (
    *("make", "Rule", "built", "listed", "default", "by_helper", "by_import", "by_name"),
    *("by_array", "wrapped", "cached", "table", "bound", "part"),
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write `mine.py` and `helper.py` with some words exchanged, and import them anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(before="", after=""):
        for name, text in (("helper", HELPER), ("mine", MINE)):
            (tmp_path / f"{name}.py").write_text(text.replace(before, after) if before else text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        __import__("mine")
        return sys.modules["mine"]

    return load


def texts(module):
    return {name: fingerprint(getattr(module, name)).text for name in THINGS}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("POWER = 1.0", "POWER = 9.0", {"Rule", "bound", "part"}),
        ('"deep": 2.0', '"deep": 3.0', {"Rule", "bound", "table"}),
        ("torch.relu", "torch.sin", {"make"}),
        ('"margin": 0.1', '"margin": 0.2', {"built"}),
        ("closed([1.0])", "closed([2.0])", {"listed"}),
        ("scales=[1.0]", "scales=[2.0]", {"default"}),
        (
            "LIMIT = 1.0",
            "LIMIT = 2.0",
            {"by_helper", "by_import", "by_name", "wrapped", "cached", "part"},
        ),
        ("np.arange(6.0)", "np.arange(6.0) * 2", {"by_array"}),
        ('"blue"', '"pink"', {"by_array"}),
        ("return 0.5", "return 0.6", {"Rule", "bound"}),
        ("    power = 1.0", "    power = 2.0", {"Rule", "bound"}),
        ("ARRAY[2]", "ARRAY[3]", {"by_array"}),
        ("", "", set()),
    ],
)
def test_what_code_reads_is_part_of_it(before, after, changed, module):
    was, now = texts(module()), texts(module(before, after))
    assert {name for name in THINGS if was[name] != now[name]} == changed


def test_fingerprints_are_the_same_in_every_process(module, tmp_path):
    expected = sorted(texts(module()).values())
    code = (
        "import mine\nfrom fedmaba.experiment.fingerprint import fingerprint\n"
        f"print(*sorted(fingerprint(getattr(mine, n)).text for n in {THINGS!r}), sep='\\n')"
    )
    for seed in ("1", "2"):  # once compiled here, once read from a .pyc
        told = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.split("\n")[:-1] == expected


class Hostile:
    """An object that fails wherever it is looked at."""

    def __getattr__(self, name):
        raise RuntimeError("no")

    def __reduce_ex__(self, version):
        raise RuntimeError("no")


def endless():
    found = []
    found.append({"self": found, "ring": (found,)})
    return found


@pytest.mark.parametrize(
    ("thing", "seen"),
    [
        (threading.Lock(), False),
        (open, True),
        ((i for i in range(3)), False),
        (Hostile(), False),
        (np.random.default_rng(0), False),
        (torch.Generator(), False),
        (endless(), True),
        (functools.reduce(lambda inner, _: [inner], range(100_000), []), True),
        (10**5000, True),
        ("\udc80", True),
        (np.array([{"a"}, None], object), True),
        (np.ma.masked_array([1.0, 2.0], [True, False]), True),
        (torch.ones(3, dtype=torch.bfloat16), True),
        (torch.eye(3).to_sparse(), True),
        (nn.Linear(2, 3), True),
        (Path("data"), True),
        (re.compile("a+"), True),
        (sys.modules, True),
        (np, True),
        (np.add, True),
        (torch.relu, True),
        (float("nan"), True),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_things_of_any_kind_are_looked_at(thing, seen):
    def loss(outputs, targets):
        return thing

    one, other = fingerprint(loss), fingerprint(loss)
    assert one == other
    assert (not one.unseen) == seen
    if not seen:
        _, note = fingerprints({"loss": loss})
        assert "thing, a " in note
        assert "(loss)" in note
        assert "say --fresh, or choose another --out" in note


def test_a_large_array_is_compared_by_its_bytes():
    values = np.zeros(3_000_000)

    def loss(outputs, targets):
        return values

    before = fingerprint(loss)
    assert fingerprint(loss) == before
    values[2_999_999] = 1e-300
    assert fingerprint(loss) != before


class Net(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.linear = nn.Linear(width, outputs)

    def forward(self, x):
        return self.linear(self.bent(x))

    def bent(self, x):
        return torch.relu(x)


def test_a_folder_of_an_earlier_version_says_what_it_cannot_tell(tiny_npz, tmp_path):
    out = tmp_path / "run"
    session = play(brought(tiny_npz, out, loss=nn.CrossEntropyLoss(reduction="none")), 3)
    about, text = out / "about.json", session.fingerprints["loss"]
    about.write_text(about.read_text().replace(text, text[:-4]))
    again = brought(tiny_npz, out, loss=nn.CrossEntropyLoss(reduction="none"))
    assert any("did not note all that loss reads" in said for said in again.warnings)
    again.close()
