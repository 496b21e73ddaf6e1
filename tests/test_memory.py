"""Out of memory: the chunk is halved, the run goes on to the same model, and says so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedmaba import cli, strategies
from fedmaba.errors import NoRoom
from fedmaba.experiment import session as experiment
from fedmaba.experiment import starting
from fedmaba.experiment.config import build
from fedmaba.results import run_folder
from fedmaba.rows.stack import LayerRows
from fedmaba.simulation.engine import Plan, Run, simulate, start

SPECS = ["fedmaba", "fedavg", "fedprox:mu=1", "qffl", "fedfv", "fedmaba:loss_at=mean"]
PLAN = Plan(rounds=3, minibatch=4, lr=0.2, dtype="float64", threads=1)


def softmax(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def gpu_error():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nand more")


def cpu_error():
    torch.empty(1 << 48, dtype=torch.uint8)


@pytest.fixture
def room(monkeypatch):
    """Give the training of more rows than `most` no memory."""

    def limit(most, fail=gpu_error):
        def add_gradients(self, read, sink, step):
            if len(read) > most:
                fail()
            return whole(self, read, sink, step)

        whole = LayerRows.add_gradients
        monkeypatch.setattr(LayerRows, "add_gradients", add_gradients)

    return limit


def started(fed, plan=PLAN, specs=SPECS):
    (listed,) = zip(*(strategies.parse(spec) for spec in specs), strict=True)
    return start([Run(s, 3, fed) for s in listed], plan, softmax)


@pytest.mark.parametrize(
    ("fail", "threads"),
    [
        (gpu_error, 1),
        (cpu_error, 2),
        pytest.param(gpu_error, 2, marks=pytest.mark.slow),
        pytest.param(cpu_error, 1, marks=pytest.mark.slow),
    ],
)
def test_the_chunk_is_halved_until_it_fits(fail, threads, fed, room):
    plan = replace(PLAN, threads=threads)
    easy = started(fed, plan)
    list(simulate(easy))
    assert easy.progress.chunk > 30
    hard = started(fed, plan)
    room(4, fail)
    with pytest.warns(UserWarning, match="out of memory: the chunk is 3 from now on") as caught:
        shots = list(simulate(hard))
    assert len(caught) == 1
    assert hard.progress.chunk == 3  # 25 rows of one kind: 12, 6, 3
    assert len(shots) == 3
    assert (hard.progress.model - easy.progress.model).abs().max() < 1e-12
    for a, b in zip(hard.progress.states, easy.progress.states, strict=True):
        for name in a:
            np.testing.assert_allclose(a[name], b[name], atol=1e-12)


def test_a_round_in_one_chunk_is_not_added_twice(fed, room):
    """The round that fits is summed at once; its halves are not."""
    easy, hard = started(fed, specs=["fedavg"]), started(fed, specs=["fedavg"])
    list(simulate(easy))
    room(2)
    with pytest.warns(UserWarning, match="the chunk is 2"):
        list(simulate(hard))
    assert (hard.progress.model - easy.progress.model).abs().max() < 1e-12


def test_the_chunk_that_fits_is_saved_and_taken_up_again(tiny_npz, tmp_path, room):
    asked = build(
        {
            "strategies": ["fedmaba"],
            "seeds": 1,
            "model": "softmax",
            "data": {"name": str(tiny_npz)},
            "train": {"rounds": 4},
            "machine": {"device": "cpu"},
            "save": {"every": 2},
        }
    )
    session = experiment.prepare(asked)
    starting.open_run_folder(session, tmp_path / "run")
    room(2)
    at = session.batch.progress
    with pytest.warns(UserWarning, match="out of memory"):
        list(session.rounds(lambda: at.round == 2))
    _, meta, _ = run_folder.load_checkpoint(tmp_path / "run")
    assert meta["chunk"] == 2
    again = starting.resume(tmp_path / "run")
    assert again.batch.progress.chunk == 2
    list(again.rounds())  # a warning would be an error here
    assert (tmp_path / "run" / "runs.json").exists()


def test_one_client_that_does_not_fit_is_one_line(
    fed, room, tiny_npz, tmp_path, monkeypatch, capsys
):
    room(0)
    with pytest.raises(NoRoom, match="cpu has no memory for the training of one client"):
        list(simulate(started(fed)))
    monkeypatch.chdir(tmp_path)
    words = ["compare", "fedavg", "--data", str(tiny_npz), "--model", "softmax", "--rounds", "2"]
    monkeypatch.setattr("sys.argv", ["fedmaba", *words, "--device", "cpu", "--out", "mine"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 71
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fedmaba: cpu has no memory")
    assert Path("mine/experiment.toml").exists()


def test_memory_that_no_chunk_can_save_is_one_line(fed, monkeypatch):
    batch = started(fed)
    monkeypatch.setattr(LayerRows, "outputs", lambda *args: gpu_error())
    with pytest.raises(NoRoom, match=r"^round 1: CUDA out of memory\. [^\n]*: take fewer runs"):
        list(simulate(batch))


def test_another_error_is_no_lack_of_memory(fed, room):
    def wrong():
        raise RuntimeError("no such operation")

    room(0, wrong)
    with pytest.raises(RuntimeError, match="no such operation"):
        list(simulate(started(fed)))
