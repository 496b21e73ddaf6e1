"""Several processes work off one search, or one sweep, in one folder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from fedmaba.errors import InputError
from fedmaba.experiment.parts import folders
from fedmaba.experiment.proposals import Proposals, Range
from run_folders import unlike

HOW = ["--rounds", "2", "--minibatch", "5", "--eval-every", "2", "--model", "softmax", "--seeds"]
HOW += ["1", "--device", "cpu", "--quiet", "--threads", "1"]
GRID = [0.001, 0.01, 0.1, 0.5]
# It notes who trains which learning rate, and waits a little, or with "hang" until it is killed.
WORKER = """
import os, sys, time
from fedmaba.simulation import engine
from fedmaba.__main__ import main
log, how, *words = sys.argv[1:]
real = engine.simulate
def noted(batch):
    with open(log, "a") as f:
        f.write(f"{os.getpid()} {batch.plan.lr:g}\\n")
    rounds = real(batch)
    yield next(rounds)
    time.sleep(600 if how == "hang" else 0.3)
    yield from rounds
engine.simulate = noted
sys.argv = ["fedmaba", *words]
main()
"""


@pytest.fixture
def work(tmp_path, tiny_npz):
    """Begins a process with a command, in a folder of its own for all of them."""
    begun = []

    def begin(*words, how="quick"):
        told = [str(tmp_path / "log"), how, *words, "--data", str(tiny_npz), *HOW]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        begun.append(
            subprocess.Popen(
                [sys.executable, "-c", WORKER, *told],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def ended_well(process):
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said


def noted(tmp_path):
    """Who trained which learning rate."""
    log = tmp_path / "log"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(int(who), float(lr)) for who, lr in map(str.split, lines)]


def search(out):
    tried = f"lr={GRID}".replace(" ", "")
    return ["tune", "fedavg", "--grid", tried, "--validation", "40%", "--search-seeds", "1",
            "--out", out]  # fmt: skip


def test_two_processes_share_the_trials_of_a_search(work, call, tmp_path, tiny_npz):
    pair = [work(*search("mine")) for _ in range(2)]
    for process in pair:
        ended_well(process)
    done = Counter(lr for _, lr in noted(tmp_path))
    (picked,) = (t for t in json.loads((tmp_path / "mine/tune.json").read_text())["trials"]
                 if t["picked"])  # fmt: skip
    assert done == Counter([*GRID, picked["values"]["train.lr"]])  # none twice, then the pick
    assert {who for who, _ in noted(tmp_path)} == {process.pid for process in pair}
    assert call(*search(tmp_path / "alone"), "--data", tiny_npz, *HOW).code == 0
    mine, alone = tmp_path / "mine", tmp_path / "alone"
    assert (mine / "tune.json").read_bytes() == (alone / "tune.json").read_bytes()
    assert [unlike(mine / name, alone / name) for name in ("clients", "models")] == [[], []]


def test_the_trial_of_a_killed_process_is_taken_over(work, tmp_path):
    first = work(*search("mine"), how="hang")
    wait_until(lambda: noted(tmp_path))
    second = work(*search("mine"))
    wait_until(lambda: len(noted(tmp_path)) == len(GRID))  # all that the first is not at
    assert second.poll() is None
    first.send_signal(signal.SIGKILL)
    ended_well(second)
    done = noted(tmp_path)
    assert done[0] == (first.pid, GRID[0])
    assert (second.pid, GRID[0]) in done
    mine = [lr for who, lr in done if who == second.pid]
    assert sorted(mine[: len(GRID)]) == GRID
    assert len(mine) == len(GRID) + 1


def test_two_processes_share_the_parts_of_a_sweep(work, tmp_path):
    sweep = ["compare", "fedavg", "--lr", str(GRID).replace(" ", ""), "--out", "mine"]
    pair = [work(*sweep) for _ in range(2)]
    for process in pair:
        ended_well(process)
    assert Counter(lr for _, lr in noted(tmp_path)) == Counter(GRID)
    assert {who for who, _ in noted(tmp_path)} == {process.pid for process in pair}
    assert len(folders(tmp_path / "mine")) == len(GRID)


@pytest.mark.slow
def test_two_processes_share_what_optuna_proposes(work, tmp_path):
    pytest.importorskip("optuna", reason="Optuna is not installed: pip install '.[tune]'")
    words = ["tune", "fedavg", "--grid", "lr=log:0.01..1", "--sampler", "tpe", "--trials", "4",
             "--validation", "40%", "--search-seeds", "1", "--out", "mine"]  # fmt: skip
    for process in [work(*words) for _ in range(2)]:
        ended_well(process)
    told = json.loads((tmp_path / "mine/tune.json").read_text())
    proposed = [entry["trial"] for entry in told["order"] if "values" in entry]
    valued = [entry["trial"] for entry in told["order"] if "value" in entry]
    assert proposed == [0, 1, 2, 3]
    assert sorted(valued) == proposed
    assert len(noted(tmp_path)) == 5  # and the pick
    assert [t["values"] for t in told["trials"]] == [
        entry["values"] for entry in told["order"] if "values" in entry
    ]


def wait_until(true, seconds=120):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


class Study:
    """Proposes the number of scores that it was told so far."""

    def __init__(self):
        self.told = []

    def ask(self):
        return SimpleNamespace(
            suggest_categorical=lambda name, values: values[0],
            suggest_float=lambda name, low, high, log: float(len(self.told)),
        )

    def tell(self, trial, value=None, state=None):
        self.told.append(value)


def test_all_processes_propose_the_same_next_trial(monkeypatch):
    fake = SimpleNamespace(
        samplers=SimpleNamespace(TPESampler=lambda seed: seed),
        create_study=lambda sampler, direction: Study(),
        logging=SimpleNamespace(set_verbosity=lambda level: None, WARNING=30),
        trial=SimpleNamespace(TrialState=SimpleNamespace(FAIL="fail")),
    )
    monkeypatch.setitem(sys.modules, "optuna", fake)
    space = {"train.lr": Range(0.0, 9.0, log=False, whole=False)}
    one, other = (Proposals(0, "fedavg", ["fedavg"], space) for _ in range(2))
    order = [one.ask(), {"strategy": "afl", "trial": 0, "row": "afl", "values": {}}]
    other.follow(order)
    order.append(other.ask())  # while the first is not scored yet
    order.append({"strategy": "fedavg", "trial": 1, "value": 0.5})
    order.append({"strategy": "fedavg", "trial": 0, "value": None})  # it diverged
    for proposals in (one, other):
        proposals.follow(order)
        assert proposals.without_score() == []
        assert proposals.study.told == [0.5, None]
    assert one.ask() == other.ask() == {
        "strategy": "fedavg", "trial": 2, "row": "fedavg", "values": {"train.lr": 2.0}
    }  # fmt: skip
    order[0] = {**order[0], "values": {"train.lr": 7.0}}
    with pytest.raises(InputError, match="go on with the version of Optuna that began"):
        Proposals(0, "fedavg", ["fedavg"], space).follow(order)
