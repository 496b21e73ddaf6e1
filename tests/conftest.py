"""Fixtures of many tests: tiny federations, a finished and a stopped run, the command line.

The federation is small enough to follow by hand: five clients of unequal size, 8x8 images.
"""

import os
import re
import shutil
import sys
import urllib.error
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from command_line import Answer
from dataset_standins import World
from fedmaba.data import downloads, published, published_files
from fedmaba.data.datasets import Dataset
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.rows import kernels as triton
from fedmaba.rows import layers, stack
from kernels import Kernels

# `make test` tries new cases each time. What decides on a submission tries the same ones, so that
# it fails for what was submitted alone.
settings.register_profile("default", deadline=None)  # other work on the machine is no failure
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SIZES = (5, 9, 6, 3, 8)  # of the training parts
TESTED = (4, 3, 6, 2, 5)
HELD = (2, 3, 2, 1, 4)


def pytest_configure():
    """Give each process of the tests one thread: there is a process for each core already.

    Torch's own threads only get in the way of models as small as these. The environment is for
    the processes that tests start.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def options_read_once():
    """Keep what typer made of the commands: to read all options takes longer than most calls."""
    try:
        import typer.main
    except ImportError:  # as where only the GPU's tests run
        return
    typer.main.get_command = cache(typer.main.get_command)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """No file of a test need outlive a power cut; tests of what is waited for look at the calls."""
    real = os.fsync

    def not_waited_for(file):
        os.fstat(file if isinstance(file, int) else file.fileno())  # it must be open

    os.fsync = not_waited_for
    yield
    os.fsync = real


@pytest.fixture
def few_threads():
    """One thread for torch, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_federation():
    """A maker of federations: examples of a class scatter around its own pattern."""

    def make(sizes=SIZES, tested=TESTED, held=None, shape=(1, 8, 8), classes=4, seed=0):
        rng = np.random.default_rng(seed)
        held = [0] * len(sizes) if held is None else held
        n = sum(sizes) + sum(tested) + sum(held)
        y = rng.integers(classes, size=n)
        y[:classes] = np.arange(classes)
        x = rng.standard_normal((classes, *shape))[y] + rng.standard_normal((n, *shape))
        # a client's examples lie scattered over the pool
        order, ends = rng.permutation(n), np.cumsum([*sizes, *held, *tested])[:-1]
        lists = [np.sort(rows) for rows in np.split(order, ends)]
        c = len(sizes)
        split = Split(tuple(lists[:c]), tuple(lists[c : 2 * c]), tuple(lists[2 * c :]))
        names = tuple(map(str, range(classes)))
        data = Dataset("tiny", x.astype(np.float32), y.astype(np.int64), n, names)
        return Federation(data, split)

    return make


@pytest.fixture(scope="session")
def fed(make_federation) -> Federation:
    return make_federation()


@pytest.fixture(scope="session")
def held_fed(make_federation) -> Federation:
    """The same with validation examples."""
    return make_federation(held=HELD)


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory) -> Path:
    """A data file with a client column: 5 clients, 6 features, 3 classes, a few examples each."""
    rng = np.random.default_rng(1)
    client = np.repeat(np.arange(5), (10, 15, 20, 25, 30))
    y = rng.integers(3, size=len(client))
    y[:3] = [0, 1, 2]
    x = rng.standard_normal((3, 6))[y] + rng.standard_normal((len(y), 6))
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, x=x.astype(np.float32), y=y, client=client)
    return path


SOME_IMAGES: dict = {}


@pytest.fixture
def small_sample(monkeypatch):
    """Every fifth image of the embedded sample, where its numbers do not matter."""
    real = published_files.read_arrays

    def read(spec, found, inputs):
        if spec.name != "sample":
            return real(spec, found, inputs)
        if inputs not in SOME_IMAGES:
            x, y, n_train = real(spec, found, inputs)
            SOME_IMAGES[inputs] = x[::5].copy(), y[::5].copy(), len(range(0, n_train, 5))
        x, y, n_train = SOME_IMAGES[inputs]
        return x.copy(), y.copy(), n_train

    monkeypatch.setattr(published_files, "read_arrays", read)


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    """Tiny sets under the published names, without environment variables and network."""
    world = World(tmp_path)
    monkeypatch.setattr(published, "PUBLISHED", world.specs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(world.cache))
    monkeypatch.delenv("FEDMABA_DATA", raising=False)

    def no_network(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", no_network)
    return world


@pytest.fixture
def kernels(monkeypatch) -> None:
    """Plan and train as on a GPU whose kernels are plain operations."""
    forward = layers.Conv2d.forward

    def beside(*args):  # rows as groups of channels
        y, saved = forward(*args)
        return y.transpose(0, 1).contiguous().transpose(0, 1), saved

    monkeypatch.setattr(layers.Conv2d, "forward", beside)
    monkeypatch.setattr(triton, "dense", Kernels)
    monkeypatch.setattr(triton, "can_run", lambda x: True)
    monkeypatch.setattr(stack, "_plan_conv_stages", lambda *_: 0)


@pytest.fixture(scope="session")
def finished(tiny_npz, tmp_path_factory):
    """A session that ran to its end without a break, and its folder: to be looked at only."""
    from run_folders import asked, begun, play  # here: the GPU tests do without pydantic

    out = tmp_path_factory.mktemp("runs") / "whole"
    return play(begun(asked(tiny_npz), out)), out


@pytest.fixture(scope="session")
def stopped_once(tiny_npz, tmp_path_factory):
    """A folder left after five of six rounds, with two checkpoints: to be copied only."""
    from fedmaba.results import run_folder
    from run_folders import asked, begun, play

    out = tmp_path_factory.mktemp("runs") / "stopped"
    play(begun(asked(tiny_npz), out), stop_after=5)
    assert [p.name for p in run_folder.checkpoints(out)] == ["00000005.ckpt", "00000003.ckpt"]
    return out


@pytest.fixture
def done(finished, tmp_path):
    """A copy of the folder of a run that has ended."""
    return shutil.copytree(finished[1], tmp_path / "done")


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A folder left after five of six rounds, with two checkpoints."""
    return shutil.copytree(stopped_once, tmp_path / "stopped")


@pytest.fixture(scope="session")
def folder(tiny_npz, tmp_path_factory) -> Path:
    """A finished run of three strategies and two seeds: to be looked at only."""
    from report_cases import finished_run

    return finished_run(tmp_path_factory.mktemp("report") / "run", tiny_npz)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command line here, in an empty folder."""
    from fedmaba import cli  # here: typer may warn at import, which Flower's tests do not need

    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("sys.path", [*sys.path])  # a command that names a module adds to it
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["fedmaba", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Answer(ended.value.code or 0, captured.out, captured.err)

    return run


@pytest.fixture
def refused(call):
    """Run a command that must end in one line on stderr, exit code 2 and nothing written."""

    def run(*words, code=2):
        before = sorted(Path().rglob("*"))
        answer = call(*words)
        assert answer.out == ""
        assert re.fullmatch(r"fedmaba: [^\n]+\n", answer.err), answer.err
        assert "Traceback" not in answer.err
        assert answer.code == code
        assert sorted(Path().rglob("*")) == before
        return answer.err

    return run
