"""An interrupted and resumed run must end in the same bytes as an unbroken one."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import fedmaba
from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.errors import InputError
from fedmaba.experiment import session as experiment
from fedmaba.experiment import starting
from fedmaba.report import data, html
from fedmaba.results import run_folder
from fedmaba.results.run_folder import (
    load_history,
)
from fedmaba.strategies.base import Decision, Strategy
from run_folders import (
    SMALL,
    Hostile,
    asked,
    begun,
    brought,
    different_files,
    files,
    play,
    same_history,
)


def slow(after):
    return pytest.param(after, marks=pytest.mark.slow)


@pytest.mark.parametrize("after", [1, slow(2), 3, slow(4), 5])
def test_a_stopped_and_resumed_run_ends_in_the_different_files(after, finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    session = play(begun(asked(tiny_npz), out), stop_after=after)
    assert session.stopped
    assert len(run_folder.checkpoints(out)) in (1, 2)
    resumed = starting.resume(out)
    assert resumed.batch.progress.round == after
    play(resumed)
    assert not resumed.stopped
    assert different_files(finished, out) == []
    same_history(load_history(out), finished[0].history)


@pytest.mark.parametrize("after", [slow(1), 2, 4, slow(5)])  # before a checkpoint; after it
def test_a_killed_run_goes_on_from_its_checkpoint_to_the_different_files(
    after, finished, tiny_npz, tmp_path
):
    out = tmp_path / "run"
    rounds = begun(asked(tiny_npz), out).rounds()
    for _ in range(after):
        next(rounds)
    rounds.close()  # as if the process had ended here: no last checkpoint
    play(starting.resume(out))
    assert different_files(finished, out) == []


def test_how_often_checkpoints_are_taken_does_not_show(finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(asked(tiny_npz, save__every=1, save__seconds=1e-9), out))
    assert different_files(finished, out) == ["experiment.toml"]


def test_a_stop_asked_for_while_the_caller_looks_at_a_round_loses_nothing(tiny_npz, tmp_path):
    out = tmp_path / "run"
    session = begun(asked(tiny_npz, save__every=50), out)
    wanted = []
    for snapshot in session.rounds(lambda: bool(wanted)):
        if snapshot.round == 3:
            wanted.append(True)
    assert session.stopped
    assert experiment_round(out) == session.batch.progress.round


def experiment_round(out):
    resumed = starting.resume(out)
    resumed.close()
    return resumed.batch.progress.round


def test_other_data_under_the_same_name_are_noticed(tiny_npz, tmp_path):
    mine = tmp_path / "mine.npz"
    mine.write_bytes(Path(tiny_npz).read_bytes())
    out = tmp_path / "run"
    play(begun(asked(mine, seeds=1), out), stop_after=3)
    with np.load(mine) as z:
        arrays = dict(z)
    arrays["x"][0, 0] += 1
    np.savez(mine, **arrays)
    before = files(out)
    with pytest.raises(InputError, match="the data differ"):
        starting.resume(out)
    assert files(out) == before
    mine.write_bytes(Path(tiny_npz).read_bytes())
    play(starting.resume(out))  # nobody holds the folder


def test_a_federation_that_is_divided_otherwise_is_noticed(tiny_npz, tmp_path):
    out, examples = tmp_path / "run", datasets.load(str(tiny_npz))

    def session(seed):
        federation = Federation.make(examples, "iid", 5, seed, test="local")
        given_ = experiment.UserObjects(data=federation)
        found = experiment.prepare(asked("own", data__validation="0%"), given_)
        starting.open_run_folder(found, out)
        return found

    play(session(0), stop_after=3)
    before = files(out)
    with pytest.raises(InputError, match=r"divided otherwise than when .* was begun: restore"):
        session(1)
    assert files(out) == before
    play(session(0))
    assert (out / "runs.json").exists()


def test_a_start_killed_in_its_first_write_can_be_repeated(finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").write_text("process 1")
    (out / ".experiment.toml.tmp").write_text("strateg")
    play(begun(asked(tiny_npz), out))
    assert different_files(finished, out) == []


@dataclass(frozen=True)
class Counts(Strategy):
    """keeps a number, not a vector"""

    name: ClassVar[str] = "counts"

    def init(self, n_clients):
        return {"rounds": np.array(0.0)}

    def weigh(self, state, replies):
        m = len(replies.client)
        return Decision(np.full(m, 1 / m), {"rounds": state["rounds"] + 1})


def test_a_single_number_in_a_state_comes_back_as_one(tiny_npz, tmp_path, monkeypatch):
    monkeypatch.setitem(strategies.REGISTRY, "counts", Counts)
    out = tmp_path / "run"
    play(brought(tiny_npz, out, ["counts"]), stop_after=3)
    session = brought(tiny_npz, out, ["counts"])
    session.close()
    assert {s["rounds"].shape for s in session.batch.progress.states} == {()}
    assert {float(s["rounds"]) for s in session.batch.progress.states} == {3.0}


def test_a_run_of_objects_names_the_python_call_and_no_command(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(brought(tiny_npz, out), stop_after=3)
    again = f"repeat the Python call that began it, with out='{out}'"
    assert run_folder.resume_hint(out) == again
    with pytest.raises(InputError, match=f"was begun in Python, with more than names: {again}"):
        starting.resume(out)
    assert "fedmaba" not in run_folder.load_about(out)["repeat"]
    page = html.page([data.load_run_folder(out)])
    assert "the Python call that began it" in page
    assert "fedmaba run" not in page


def test_a_run_of_names_alone_says_its_command_wherever_it_was_begun(tiny_npz, tmp_path):
    out = tmp_path / "run"
    options = {**SMALL, "data": tiny_npz, "model": "softmax", "out": out}
    fedmaba.compare([fedmaba.FedMABA(alpha=0.5)], **options)
    assert run_folder.load_about(out)["repeat"] == "fedmaba run experiment.toml --out NEW"
    assert run_folder.resume_hint(out) == f"fedmaba resume {out}"
    other = tmp_path / "hostile"
    fedmaba.compare(Hostile(), **{**options, "out": other})
    assert "Python call" in run_folder.resume_hint(other)


def test_another_torch_is_told(stopped):
    file = stopped / "about.json"
    about = json.loads(file.read_text())
    about["versions"]["torch"] = "1.0"
    file.write_text(json.dumps(about))
    session = starting.resume(stopped)
    session.close()
    assert "begun with torch 1.0: bits may differ from here on" in session.warnings


def test_a_run_begun_anew_keeps_its_chunks(tiny_npz, tmp_path):
    """On a GPU they depend on free memory, and sums on them."""
    out = tmp_path / "run"
    begun(asked(tiny_npz), out).close()
    about = json.loads((out / "about.json").read_text())
    (out / "about.json").write_text(json.dumps({**about, "chunk": 7}))
    session = begun(asked(tiny_npz), out)
    session.close()
    assert session.batch.progress.chunk == 7


def test_a_run_resumed_before_its_first_checkpoint_keeps_its_command(tiny_npz, tmp_path):
    session = experiment.prepare(asked(tiny_npz))
    starting.open_run_folder(session, tmp_path / "run", ["fedmaba", "compare", "fedavg"])
    session.close()
    again = starting.resume(tmp_path / "run")
    again.close()
    assert run_folder.load_about(tmp_path / "run")["command"] == ["fedmaba", "compare", "fedavg"]
