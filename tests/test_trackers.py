"""Experiment trackers see every round of every run, and a tracker that fails stops no training."""

import json
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

import fedmaba
from fedmaba.errors import InputError
from fedmaba.experiment import starting
from fedmaba.report import trackers
from run_folders import asked, begun

HOW = {"model": "softmax", "rounds": 4, "seeds": 1, "eval_every": 2, "device": "cpu"}


class FakeRun:
    def __init__(self, words):
        self.words, self.id = words, words["id"] or f"id{len(words['made'])}"
        self.logged, self.ended, self.fails = {}, None, 99
        self.step = words["has"] + 1 if words["id"] else 0  # as a server counts

    def log(self, values, step):
        if step > self.fails:
            raise OSError(28, "No space left on device")
        self.logged[step] = values

    def finish(self, exit_code):
        self.ended = exit_code


@pytest.fixture
def made(monkeypatch):
    """The runs that a stand-in for Weights & Biases was asked for."""
    runs = []

    def init(**words):
        runs.append(
            FakeRun({**words, "made": runs, "has": max([0, *(s for r in runs for s in r.logged)])})
        )
        return runs[-1]

    fake = SimpleNamespace(
        init=init,
        Settings=lambda **words: words,
        Histogram=lambda np_histogram: np_histogram,
        Error=RuntimeError,
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return runs


def test_every_round_of_every_run_is_shown_to_the_tracker(made, tiny_npz, tmp_path):
    out = tmp_path / "mine"
    found = fedmaba.compare(
        ["fedavg", "fedmaba"], data=str(tiny_npz), out=out, track="wandb", progress=False, **HOW
    )
    assert [run.words["name"] for run in made] == ["fedavg, seed 0", "fedmaba, seed 0"]
    assert {run.words["group"] for run in made} == {"mine"}
    assert {run.words["mode"] for run in made} == {"offline"}  # nothing is sent unasked
    assert made[1].words["config"]["strategy"] == "fedmaba"
    assert made[1].words["config"]["train.rounds"] == 4
    for run, table in zip(made, found.runs, strict=True):
        figures = table.fairness()
        assert run.logged[4]["deployed/variance"] == pytest.approx(figures[-1].variance)
        assert run.logged[2]["last/accuracy"] == pytest.approx(table.fairness("last")[0].accuracy)
        counts, edges = run.logged[4]["clients/accuracy"]
        assert (counts.sum(), edges[-1]) == (5, pytest.approx(100 * table.accuracy()[-1].max()))
        assert run.ended == 0
    lambdas = [made[1].logged[step]["strategy/lambda"] for step in (1, 2, 3, 4)]
    np.testing.assert_allclose(lambdas, found.runs[1].column("info.lambda"))
    told = json.loads((out / "trackers.json").read_text())
    assert told == {"wandb": {"00-fedavg-s0": made[0].id, "01-fedmaba-s0": made[1].id}}


def test_a_resumed_run_goes_on_under_its_name_there(made, tiny_npz, tmp_path, monkeypatch):
    out, few = tmp_path / "run", asked(tiny_npz, strategies=["fedmaba"], seeds=1)
    session = begun(few, out)
    with trackers.tracking(["wandb"], session, print) as take:
        for snapshot in session.rounds(lambda: session.batch.progress.round >= 3):
            take(snapshot)
    assert list(made[0].logged) == [1, 2, 3]
    assert made[0].ended == 1  # stopped, not finished
    monkeypatch.setenv("WANDB_MODE", "online")
    session = starting.resume(out)
    with trackers.tracking(["wandb"], session, print) as take:
        for snapshot in session.rounds():
            take(snapshot)
    assert made[1].words["id"] == made[0].id
    assert made[1].words["resume"] == "allow"
    assert list(made[1].logged) == [4, 5, 6]
    assert made[1].ended == 0
    (out / "trackers.json").write_text('{"wandb": {"00-fedmaba-s0": "../x"}}')
    with (
        pytest.raises(InputError, match=r"trackers\.json") as found,
        trackers.tracking(["wandb"], session, print),
    ):
        pass
    assert "\n" not in str(found.value)


class Killed(BaseException):
    """The process ends."""


def steps_of_tensorboard(folder):
    """Every step of every tag in the files of a folder."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    found: dict[str, list[int]] = {}
    for file in folder.iterdir():
        reader = PyRecordReader_New(str(file))
        with suppress(OutOfRangeError):
            while True:
                reader.GetNext()
                event = Event.FromString(reader.record())
                for value in event.summary.value:
                    found.setdefault(value.tag, []).append(event.step)
    return {tag: sorted(steps) for tag, steps in found.items()}


@pytest.mark.parametrize("at", ["after a checkpoint", "two rounds after it", "before any tracker"])
def test_a_killed_process_loses_no_step_and_shows_none_twice(at, made, tiny_npz, tmp_path):
    pytest.importorskip("tensorboard")
    out, few = tmp_path / "run", asked(tiny_npz, strategies=["fedmaba"], seeds=1)
    session, used = begun(few, out), ["tensorboard", "wandb"]
    save = session.folder.save

    def saved(*args):
        save(*args)
        if at == "after a checkpoint":
            raise Killed

    session.folder.save = saved
    first = [] if at == "before any tracker" else used
    with suppress(Killed), trackers.tracking(first, session, pytest.fail) as take:
        for snapshot in session.rounds():
            take(snapshot)
            if snapshot.round + 1 == 5:
                raise Killed
    session.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "online")
        session = starting.resume(out)
        with trackers.tracking(used, session, pytest.fail) as take:
            for snapshot in session.rounds():
                take(snapshot)
    found = steps_of_tensorboard(out / "tensorboard/00-fedmaba-s0")
    assert found["strategy/lambda"] == [1, 2, 3, 4, 5, 6]
    assert found["deployed/variance"] == found["clients/accuracy"] == [2, 4, 6]
    assert sorted(step for run in made for step in run.logged) == [1, 2, 3, 4, 5, 6]


def test_a_tracker_that_fails_is_told_and_the_training_goes_on(made, tiny_npz, tmp_path):
    session, said = begun(asked(tiny_npz, strategies=["fedavg"], seeds=1), tmp_path / "run"), []
    with trackers.tracking(["wandb"], session, said.append) as take:
        made[0].fails = 3
        for snapshot in session.rounds():
            take(snapshot)
    assert said == ["wandb failed, so later rounds are not tracked there: No space left on device"]
    assert len(fedmaba.load_history(tmp_path / "run").runs[0].tables["evaluated"]) == 3


def test_a_tracker_that_cannot_start_is_refused_in_one_line(made, tiny_npz, tmp_path, monkeypatch):
    def init(**words):
        raise RuntimeError("no api key\nconfigured")

    monkeypatch.setattr(sys.modules["wandb"], "init", init)
    session = begun(asked(tiny_npz, strategies=["fedavg"], seeds=1), tmp_path / "run")
    with (
        pytest.raises(InputError, match="wandb cannot be used: no api key configured: fix that"),
        trackers.tracking(["wandb"], session, print),
    ):
        pass
    session.close()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_what_to_install_is_said_before_anything_is_written(name, call, tiny_npz, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    answer = call("compare", "fedavg", "--data", tiny_npz, "--out", "mine", "--track", name)
    assert answer.code == 2
    assert f"pip install '.[{name}]'" in answer.err
    assert not (tiny_npz.parent / "mine").exists()


def test_other_trackers_and_no_folder_are_refused(tiny_npz, tmp_path, made):
    how = {"data": str(tiny_npz), "progress": False, **HOW}
    with pytest.raises(InputError, match="unknown tracker 'comet'"):
        fedmaba.compare("fedavg", out=tmp_path / "run", track="comet", **how)
    with pytest.raises(InputError, match="track='wandb' needs a run folder: name one"):
        fedmaba.compare("fedavg", track="wandb", **how)
    assert not (tmp_path / "run").exists()


# --- the real packages, where they are installed --------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own, of SQLAlchemy
def test_mlflow_keeps_every_round_in_the_run_folder(tiny_npz, tmp_path, monkeypatch):
    mlflow = pytest.importorskip(
        "mlflow", reason="MLflow is not installed: pip install '.[mlflow]'"
    )
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out, few = tmp_path / "run", asked(tiny_npz, strategies=["fedmaba"], seeds=1)
    session = begun(few, out)
    with trackers.tracking(["mlflow"], session, pytest.fail) as take:
        for snapshot in session.rounds(lambda: session.batch.progress.round >= 3):
            take(snapshot)
    session = starting.resume(out)
    with trackers.tracking(["mlflow"], session, pytest.fail) as take:
        for snapshot in session.rounds():
            take(snapshot)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{out}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("fedmaba")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "fedmaba, seed 0"
    assert run.data.params["train.rounds"] == "6"
    points = client.get_metric_history(run.info.run_id, "deployed/variance")
    figures = fedmaba.load_history(out).runs[0].fairness()
    assert [point.step for point in points] == [2, 4, 6]
    np.testing.assert_allclose([p.value for p in points], [f.variance for f in figures])
    assert len(client.get_metric_history(run.info.run_id, "strategy/lambda")) == 6


def test_weights_and_biases_keep_every_round_in_the_run_folder(tiny_npz, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="W&B is not installed: pip install '.[wandb]'")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    out = tmp_path / "run"
    session = begun(asked(tiny_npz, strategies=["fedavg", "fedmaba"], seeds=1), out)
    with trackers.tracking(["wandb"], session, pytest.fail) as take:
        for snapshot in session.rounds():
            take(snapshot)
    folders = sorted((out / "wandb").glob("offline-run-*"))
    ids = json.loads((out / "trackers.json").read_text())["wandb"]
    assert {folder.name.rpartition("-")[2] for folder in folders} == set(ids.values())
    (file,) = (out / "wandb").glob(f"offline-run-*-{ids['01-fedmaba-s0']}/*.wandb")
    words = (b"deployed/variance", b"strategy/lambda", b"clients/accuracy", b"train.rounds")
    until = time.monotonic() + 60  # another process writes the file
    while not all(word in file.read_bytes() for word in words) and time.monotonic() < until:
        time.sleep(0.1)
    assert [word for word in words if word not in file.read_bytes()] == []
