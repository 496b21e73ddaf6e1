"""Several processes at one simulation: gloo, on this machine; the slow tests use torchrun."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from fedmaba import load_history
from fedmaba.cli import main
from forked import Command

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
MODEL = """
import os, time
from torch import nn
from fedmaba.strategies import FedMABA

if "SLOW" in os.environ:
    weigh = FedMABA.weigh

    def slowly(self, state, replies):
        time.sleep(0.05)
        return weigh(self, state, replies)

    FedMABA.weigh = slowly

def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Tanh(), nn.Linear(16, classes))
"""
# weights known early; norms; inner products, also of past rounds; losses met and after training
RUNS = ["fedmaba", "qffl", "fedmgda", "fedfv", "fedmaba:loss_at=mean", "fedmaba:loss_at=end"]
WORDS = ["compare", *RUNS, "--participants", "7", "--rounds", "12", "--seeds", "1"]
WORDS += ["--eval-every", "2", "--checkpoint-every", "3", "--model", "ranks_model:make"]
WORDS += ["--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Where all jobs of this file work."""
    path = tmp_path_factory.mktemp("ranks")
    (path / "ranks_model.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield path


def begin(count, words, *options, **env):
    """A job of so many ranks."""
    return subprocess.Popen(
        [*TORCHRUN, str(count), *options, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def end(job, seen=""):
    """What a job printed, after it ended by itself."""
    try:
        out, err = job.communicate(timeout=120)
    finally:
        job.kill()
    return out, seen + err


def until(job, pattern):
    """Read a job's messages until one matches."""
    seen = ""
    while not re.search(pattern, seen, re.MULTILINE):
        line = job.stderr.readline()
        assert line, seen
        seen += line
    return seen


def alone(monkeypatch, *words):
    """The command in this process."""
    monkeypatch.setattr(sys, "argv", ["fedmaba", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code


def said(err):
    return [line for line in err.splitlines() if line.startswith("fedmaba: ")]


@pytest.fixture(scope="module")
def pair(folder):
    """The experiment on two ranks, undisturbed: two processes with what torchrun tells them."""
    with socket.socket() as free, ExitStack() as ends:
        free.bind(("127.0.0.1", 0))
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        told |= {"TORCHELASTIC_RUN_ID": "pair", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        free.close()
        ranks = [
            ends.enter_context(
                Command(
                    [*WORDS, "--out", "pair"], folder, log=f"rank{n}", RANK=n, LOCAL_RANK=n, **told
                )
            )
            for n in "01"
        ]
        codes = [rank.wait(120) for rank in ranks]
        out, err = map("".join, zip(*(rank.printed() for rank in ranks), strict=True))
    assert codes == [0, 0], err
    assert out.count("results: pair") == 1
    assert err.count("model: fast rows") == err.count("ranks: 2") == err.count("round 12/12") == 1
    return folder / "pair"


@pytest.mark.slow
def test_all_ranks_share_a_folder_that_is_named_for_them(folder):
    job = begin(2, ["-m", "fedmaba", "compare", "fedavg", "--rounds", "2", *WORDS[-6:]])
    out, err = end(job)
    assert job.returncode == 0, err
    assert [path.name for path in (folder / "runs").iterdir()] == ["sample-001"]
    assert "results: runs/sample-001" in out


def close(a, b):
    """The same clients, weights to 1e-6, and the same metrics."""
    for x, y in zip(load_history(a).runs, load_history(b).runs, strict=True):
        assert x.label == y.label
        assert set(x.tables) == set(y.tables)
        for name in x.tables:
            one, two = x.column(name), y.column(name)
            if one.dtype.kind != "f" or name.endswith("accuracy"):
                assert np.array_equal(one, two, equal_nan=True), (x.label, name)
            else:
                np.testing.assert_allclose(one, two, atol=1e-6, rtol=1e-5, err_msg=name)
        for name in ("weight", "client"):
            assert np.abs(np.subtract(x.column(name), y.column(name))).max() <= 1e-6


@pytest.mark.slow
def test_two_ranks_give_what_one_gives(pair, monkeypatch, capsys):
    alone(monkeypatch, *WORDS, "--out", "one", "--quiet")
    table = capsys.readouterr().out
    close("one", pair)
    alone(monkeypatch, "table", str(pair))
    assert capsys.readouterr().out in table


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds its victim in /proc")
@pytest.mark.slow
def test_a_death_costs_an_attempt_a_stop_is_agreed_on_and_one_rank_goes_on(pair, monkeypatch):
    words = ["-m", "fedmaba", *WORDS, "--out", "broken"]
    job = begin(2, words, "--max-restarts", "1", SLOW="yes")
    seen = until(job, r"^round 4/12")
    (victim,) = [pid for pid in children(job.pid) if environ(pid)["RANK"] == "1"]
    os.kill(victim, signal.SIGKILL)
    # torchrun starts the same command again
    seen += until(job, r"^resumed after round [36]$")
    assert said(seen) == [
        "fedmaba: lost rank 1 of 2: what was saved is whole, go on with `fedmaba resume`"
    ]
    until(job, r"^round [68]/12")
    job.send_signal(signal.SIGTERM)
    out, err = end(job)
    assert out == ""
    assert not said(err)
    done = re.findall(r"^stopped after round (\d+); resume with: fedmaba resume", err, re.MULTILINE)
    assert len(done) == 1
    assert 6 <= int(done[0]) < 12

    lines = Path("broken/rounds.jsonl").read_text().splitlines()
    assert len(lines) == len(RUNS) * int(done[0])
    assert lines == (pair / "rounds.jsonl").read_text().splitlines()[: len(lines)]  # to the bit
    alone(monkeypatch, "resume", "broken", "--trust", "--quiet")
    close("broken", pair)


def children(pid):
    return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def environ(pid):
    items = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(item.split("=", 1) for item in items if "=" in item)


SCRIPT = """
import json, sys, warnings
from pathlib import Path
import torch
from fedmaba import compare
from fedmaba.simulation import distributed as ranks, engine
from fedmaba.cli import main
from fedmaba.errors import InputError
from fedmaba.rows.stack import LayerRows

us = ranks.join()
assert us is ranks.join() and us.count == 3
assert us.least(10 - us.rank) == 8
assert us.any(us.rank == 1) and not us.any(False)
assert us.tell(b"ab" * us.rank + b"c") == b"c" and us.tell(b"") == b""
assert torch.equal(us.sum(torch.full((2, 2), us.rank + 1.0)), torch.full((2, 2), 6.0))
assert us.first(torch.tensor([us.rank])) == 0
whole = list(range(7))
assert whole[us.mine] == whole[us.rank :: 3]

# fewer rows than ranks
few = dict(rounds=2, participants=1, seeds=1, clients=4, device="cpu", model=sys.argv[1])
history = compare(["fedmaba", "fedmgda"], out="few", **few)
assert [run.column("round")[-1] for run in history.runs] == [2, 2]
told = json.loads(Path("few/about.json").read_text())["chunk"]

# one rank runs out of memory: all go on with its chunk
add_gradients = LayerRows.add_gradients

def small(self, read, sink, step):
    if us.rank == 1 and len(read) > 2:
        raise torch.OutOfMemoryError("device full")
    return add_gradients(self, read, sink, step)

LayerRows.add_gradients = small
batches = []
start = engine.start
engine.start = lambda *args: batches.append(start(*args)) or batches[-1]
few |= dict(participants=18, clients=20)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    compare(["fedmaba"], out="full", **few)
assert batches[0].progress.chunk == 1, batches[0].progress.chunk
assert [str(w.message) for w in caught] == ["out of memory: the chunk is 1 from now on"]

# a run begun before has the chunk of its folder on every rank
Path("begun").mkdir(exist_ok=True)
if not us.rank:
    for name in ("experiment.toml", "about.json"):
        Path("begun", name).write_bytes(Path("few", name).read_bytes())
us.tell()
one = dict(few, participants=1, clients=4)
engine._chunk, found = lambda *args: 7 + us.rank, engine._chunk
compare(["fedmaba", "fedmgda"], out="begun", **one)
engine._chunk = found
assert batches[-1].progress.chunk == told, (batches[-1].progress.chunk, told)

# not all were told the same
try:
    compare(["fedmaba"], rounds=1, lr=0.1 if us.rank < 2 else 0.2)
except InputError as error:
    assert str(error).startswith("rank 2 has other data, options or versions than rank 0"), error
    print("refused", flush=True)

# what every rank finds wrong is said once
sys.argv = ["fedmaba", "compare", "fedmabba", "--out", "never"]
main()
"""


@pytest.mark.slow
def test_three_ranks_agree_on_everything(folder):
    (folder / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    job = begin(3, ["script.py", "ranks_model:make"], PYTHONPATH=path)
    out, err = end(job)
    assert out.count("refused") == 3, err
    assert not out.replace("refused", "").strip()
    assert job.returncode == 1  # torchrun's own
    assert said(err) == ["fedmaba: unknown strategy 'fedmabba': did you mean 'fedmaba'?"]
    assert not (folder / "never").exists()
