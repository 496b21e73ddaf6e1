"""Run folders: what is in them, that they survive stops, damage and full disks, and who may write.

An interrupted and resumed run must end in the same bytes as an unbroken one.
"""

import dataclasses
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

import fedmaba
from fedmaba import cli, strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.errors import Busy, InputError, SaveFailed
from fedmaba.experiment import config
from fedmaba.experiment import session as experiment
from fedmaba.report import data, html
from fedmaba.results import files as files_
from fedmaba.results import run_folder
from fedmaba.results.history import Column
from fedmaba.results.metrics import Fairness, fairness
from fedmaba.results.run_folder import (
    Folder,
    load_checkpoint,
    load_history,
    read_checkpoint,
    run_id,
)
from fedmaba.simulation import engine
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
        config.put(tree, name.replace("__", "."), value)
    return config.build(tree)


def play(session, stop_after=math.inf):
    """Run a session until it is done or some rounds have been."""
    at = session.batch.progress
    list(session.rounds(lambda: at.round >= stop_after))
    return session


def begun(experiment_, out):
    session = experiment.prepare(experiment_)
    experiment.begin(session, out)
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
    return [p for p in folder.rglob("*") if ".tmp" in p.name]


@pytest.fixture(scope="module")
def finished(tiny_npz, tmp_path_factory):
    """A session that ran to its end without a break, and its folder."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return play(begun(asked(tiny_npz), out)), out


@pytest.fixture
def stopped(tiny_npz, tmp_path):
    """A folder left after five of six rounds, with two checkpoints."""
    out = tmp_path / "stopped"
    play(begun(asked(tiny_npz), out), stop_after=5)
    assert [p.name for p in run_folder.checkpoints(out)] == ["00000005.ckpt", "00000003.ckpt"]
    return out


# --- what a folder holds -----------------------------------------------------------------------


def test_a_finished_folder_holds_everything_and_no_checkpoints(finished):
    session, out = finished
    names = set(files(out))
    runs = [f"{r:02d}-{s}-s{seed}" for r, (s, seed) in enumerate(pairs())]
    labels = {name.replace(":", "_") for name in runs}
    want = {"experiment.toml", "partition.npz", "rounds.jsonl", "runs.json"}
    want |= {f"clients/{name}.npz" for name in labels}
    kinds = ("last", "deployed", "best")
    want |= {f"models/{name}-{kind}.safetensors" for name in labels for kind in kinds}
    assert names == want
    assert (out / "timing.jsonl").read_text().count("\n") == 6
    about = json.loads((out / "about.json").read_text())
    data = session.batch.runs[0].federation.data
    assert about["data"]["sha256"] == data.sha256()
    assert about["seeds"] == [0, 1]
    assert about["versions"]["fedmaba"] == fedmaba.__version__
    assert about["model"]["parameters"] == 6 * 3 + 3


def pairs():
    return [(s, seed) for s in STRATEGIES for seed in (0, 1)]


def test_the_experiment_file_asks_for_the_same_run_again(finished, tiny_npz):
    _, out = finished
    again = config.build(config.load(out / "experiment.toml"))
    assert again == asked(tiny_npz)


def test_the_partition_file_says_who_owns_what(finished):
    session, out = finished
    with np.load(out / "partition.npz", allow_pickle=False) as z:
        for run in session.batch.runs:
            own = f"seed{run.seed}."
            arrays = {n.removeprefix(own): z[n] for n in z.files if n.startswith(own)}
            split = Split.from_arrays(arrays)
            assert split.sha256() == run.federation.split.sha256()


def test_a_saved_model_serves_each_client_as_the_history_says(finished):
    session, out = finished
    history = load_history(out)
    for r, (run, seen) in enumerate(zip(session.batch.runs, history.runs, strict=True)):
        federation = run.federation
        x = torch.from_numpy(federation.data.x)
        name = run_id(r, seen.label, seen.seed)
        for kind in ("last", "deployed"):
            saved = safetensors.numpy.load_file(out / "models" / f"{name}-{kind}.safetensors")
            model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
            model.load_state_dict({k: torch.from_numpy(v) for k, v in saved.items()})
            right = (model(x).argmax(1).numpy() == federation.data.y).astype(float)
            want = [right[rows].mean() for rows in federation.split.test]
            np.testing.assert_allclose(seen.accuracy(kind)[-1], want)


def test_the_best_model_is_that_of_the_best_validation_round(finished):
    session, out = finished
    at = session.batch.progress
    for r, run in enumerate(session.history.runs):
        judged = run.column("last_validation.accuracy").mean(1)
        assert at.best_round[r] + 1 == run.evaluated[int(np.argmax(judged))]
        saved = safetensors.numpy.load_file(
            out / "models" / f"{run_id(r, run.label, run.seed)}-best.safetensors"
        )
        layout = session.batch.rows.layout
        for name, value in layout.unpack(at.best[r]).items():
            assert np.array_equal(saved[name], value.numpy())


def test_there_is_a_line_for_each_run_and_round(finished):
    session, out = finished
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert sorted((x["run"], x["round"]) for x in lines) == [
        (r, t) for r in range(8) for t in range(1, 7)
    ]
    for line in lines:
        run = session.history.runs[line["run"]]
        assert (line["strategy"], line["seed"]) == (run.label, run.seed)
        assert ("deployed" in line) == (line["round"] % 2 == 0)
        if "deployed" in line:
            i = run.evaluated.tolist().index(line["round"])
            for model in ("deployed", "last"):
                assert line[model] == pytest.approx(run.fairness(model)[i]._asdict(), rel=1e-6)
    assert any("lambda" in line for line in lines)


def test_the_lines_use_the_experiments_own_share_of_worst_clients(tiny_npz, tmp_path):
    out = tmp_path / "share"
    session = play(begun(asked(tiny_npz, eval__share=0.6, seeds=1), out))
    run = session.history.runs[0]
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    (line,) = (line for line in lines if (line["run"], line["round"]) == (0, 2))
    five = run.fairness()[0].worst
    three = run.fairness(share=0.6)[0].worst
    assert five != three
    assert line["deployed"]["worst"] == pytest.approx(three)


# --- the history -------------------------------------------------------------------------------


def same_history(a, b):
    assert len(a.runs) == len(b.runs)
    for x, y in zip(a.runs, b.runs, strict=True):
        assert (x.label, x.seed, x.deploy, x.diverged) == (y.label, y.seed, y.deploy, y.diverged)
        left, right = x.arrays(), y.arrays()
        assert set(left) == set(right)
        for name, value in left.items():
            assert right[name].dtype == value.dtype, name
            np.testing.assert_array_equal(right[name], value, name)
    assert str(a) == str(b)


def test_a_loaded_history_equals_the_one_in_memory(finished):
    session, out = finished
    same_history(load_history(out), session.history)
    same_history(load_history(str(out)), session.history)


def test_an_unfinished_history_goes_as_far_as_its_checkpoint(stopped, finished):
    history = load_history(stopped)
    whole = finished[0].history
    for run, full in zip(history.runs, whole.runs, strict=True):
        assert run.column("round").tolist() == [1, 2, 3, 4, 5]
        assert np.array_equal(run.column("weight"), full.column("weight")[:5])
        assert np.array_equal(run.accuracy(), full.accuracy()[:2])


def test_the_tables_have_their_shapes(finished):
    for run in finished[0].history.runs:
        assert run.evaluated.tolist() == [2, 4, 6]
        assert run.accuracy().shape == run.loss("last").shape == (3, 5)
        weights = run.weights()
        assert weights.shape == (6, 5)
        assert (np.isfinite(weights).sum(1) == 3).all()
        for t, client in enumerate(run.column("client")):
            assert np.array_equal(np.flatnonzero(np.isfinite(weights[t])), client)
            assert np.array_equal(weights[t, client], run.column("weight")[t])
        with pytest.raises(InputError, match="no table 'nonsense'"):
            run.column("nonsense")


def test_a_summary_is_mean_and_deviation_over_seeds(finished):
    history = finished[0].history
    rows = history.summary("last", share=0.3)
    assert [row.label for row in rows] == STRATEGIES
    for row in rows:
        runs = [run for run in history.runs if run.label == row.label]
        figures = [
            fairness(run.accuracy("last")[-1], run.loss("last")[-1], run.test_size, 0.3)
            for run in runs
        ]
        assert row.seeds == 2
        np.testing.assert_allclose(row.mean, np.mean(figures, axis=0))
        np.testing.assert_allclose(row.sd, np.std(figures, axis=0, ddof=1))
    (row, *_) = history.summary(at="best")
    runs = history.runs[:2]
    best = [int(np.argmax(r.column("deployed_validation.accuracy").mean(1))) for r in runs]
    figures = [run.fairness()[i] for run, i in zip(runs, best, strict=True)]
    np.testing.assert_allclose(row.mean, np.mean(figures, axis=0))
    (row, *_) = history.summary(at="last5")
    figures = [np.mean(run.fairness(), axis=0) for run in runs]
    np.testing.assert_allclose(row.mean, np.mean(figures, axis=0))
    assert history.picked_on() == "validation data"


def test_a_summary_refuses_rounds_and_shares_that_there_are_not(finished):
    history = finished[0].history
    for at in ("first", "", None):
        with pytest.raises(InputError, match=f"at={at!r}: choose one of last, best, last5"):
            history.summary(at=at)
    with pytest.raises(InputError, match="model='best': choose one of deployed, last"):
        history.summary(model="best")
    for share in (5, 0, -0.1, math.nan):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            history.summary(share=share)
    assert history.summary(share=1)[0].seeds == 2


def test_the_long_table_has_a_line_per_run_evaluation_and_client(finished):
    history = finished[0].history
    table = history.to_pandas()
    assert len(table) == 8 * 3 * 5
    run = history.runs[5]
    part = table[(table.strategy == run.label) & (table.seed == run.seed)]
    grid = part.pivot(index="round", columns="client", values="deployed_accuracy")
    assert grid.index.tolist() == [2, 4, 6]
    assert np.array_equal(grid.to_numpy(), run.accuracy())
    last = part[part["round"] == 6].last_loss.to_numpy()
    assert np.array_equal(last, run.loss("last")[-1])


# --- stop and resume ---------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_a_stopped_and_resumed_run_ends_in_the_same_bytes(after, finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    session = play(begun(asked(tiny_npz), out), stop_after=after)
    assert session.stopped
    assert len(run_folder.checkpoints(out)) in (1, 2)
    resumed = experiment.resume(out)
    assert resumed.batch.progress.round == after
    play(resumed)
    assert not resumed.stopped
    want, got = files(finished[1]), files(out)
    assert set(want) == set(got)
    assert [name for name in want if want[name] != got[name]] == []
    same_history(load_history(out), finished[0].history)


@pytest.mark.parametrize("after", [1, 2, 4, 5])
def test_a_killed_run_goes_on_from_its_checkpoint_to_the_same_bytes(
    after, finished, tiny_npz, tmp_path
):
    out = tmp_path / "run"
    rounds = begun(asked(tiny_npz), out).rounds()
    for _ in range(after):
        next(rounds)
    rounds.close()  # as if the process had ended here: no last checkpoint
    play(experiment.resume(out))
    want, got = files(finished[1]), files(out)
    assert [name for name in want if want[name] != got.get(name)] == []


def test_many_stops_are_as_good_as_one(finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(asked(tiny_npz), out), stop_after=2)
    for after in (3, 4, 5):
        play(experiment.resume(out), stop_after=after)
    play(begun(asked(tiny_npz), out))  # the same experiment on its folder goes on, too
    want, got = files(finished[1]), files(out)
    assert [name for name in want if want[name] != got.get(name)] == []


def test_how_often_checkpoints_are_taken_does_not_show(finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(asked(tiny_npz, save__every=1, save__seconds=1e-9), out))
    want, got = files(finished[1]), files(out)
    del want["experiment.toml"]
    assert [name for name in want if want[name] != got.get(name)] == []


@pytest.mark.parametrize(
    ("every", "seconds", "want"), [(None, 60.0, []), (None, 1e-9, [2, 3, 4]), (2, 60.0, [2, 4])]
)
def test_checkpoints_are_due_by_the_clock_and_by_rounds_if_asked(
    every, seconds, want, tiny_npz, tmp_path, monkeypatch
):
    taken, save = [], Folder.save
    monkeypatch.setattr(Folder, "save", lambda *a: (taken.append(a[1]), save(*a)))
    changes = {"save__every": every, "save__seconds": seconds, "train__rounds": 4}
    play(begun(asked(tiny_npz, **changes), tmp_path / "run"))
    assert [done for done in taken if done > 1] == want


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_folder.write_file(tmp_path / "a", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_the_two_newest_checkpoints_stay(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(asked(tiny_npz, save__every=1), out), stop_after=5)
    assert [p.name for p in run_folder.checkpoints(out)] == ["00000005.ckpt", "00000004.ckpt"]


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
    resumed = experiment.resume(out)
    resumed.close()
    return resumed.batch.progress.round


def test_a_stop_in_the_last_round_is_the_end(tiny_npz, tmp_path):
    session = play(begun(asked(tiny_npz, seeds=1), tmp_path / "run"), stop_after=6)
    assert not session.stopped
    assert (tmp_path / "run" / "runs.json").exists()


def test_threads_may_change_between_stop_and_resume(finished, stopped, tiny_npz):
    play(begun(asked(tiny_npz, machine__threads=1), stopped))
    want, got = files(finished[1]), files(stopped)
    assert [name for name in want if want[name] != got.get(name)] == []


def test_a_folder_of_another_experiment_is_left_alone(finished, stopped, tiny_npz, tmp_path):
    before = files(stopped)
    with pytest.raises(InputError, match=r"holds another experiment, in train\.lr: choose another"):
        begun(asked(tiny_npz, train__lr=0.3), stopped)
    assert files(stopped) == before
    with pytest.raises(InputError, match="finished: see `fedmaba table"):
        begun(asked(tiny_npz), finished[1])
    with pytest.raises(InputError, match="is finished"):
        experiment.resume(finished[1])
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is no run folder"):
        begun(asked(tiny_npz), other)
    assert [p.name for p in other.iterdir()] == ["thesis.txt"]
    with pytest.raises(InputError, match="is no run folder"):
        experiment.resume(other)
    with pytest.raises(InputError, match="is no run folder"):
        load_history(other / "none")


def test_an_output_that_is_a_file_is_refused(tiny_npz, tmp_path):
    (tmp_path / "notes").write_text("kept")
    with pytest.raises((InputError, SaveFailed), match="notes"):
        begun(asked(tiny_npz), tmp_path / "notes")
    with pytest.raises((InputError, SaveFailed), match="notes"):
        begun(asked(tiny_npz), tmp_path / "notes" / "below")
    assert (tmp_path / "notes").read_text() == "kept"


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
        experiment.resume(out)
    assert files(out) == before
    mine.write_bytes(Path(tiny_npz).read_bytes())
    play(experiment.resume(out))  # nobody holds the folder


def test_a_federation_that_is_divided_otherwise_is_noticed(tiny_npz, tmp_path):
    out, examples = tmp_path / "run", datasets.load(str(tiny_npz))

    def session(seed):
        federation = Federation.make(examples, "iid", 5, seed, test="local")
        given_ = experiment.Own(data=federation)
        found = experiment.prepare(asked("own", data__validation="0%"), given_)
        experiment.begin(found, out)
        return found

    play(session(0), stop_after=3)
    before = files(out)
    with pytest.raises(InputError, match=r"divided otherwise than when .* was begun: restore"):
        session(1)
    assert files(out) == before
    play(session(0))
    assert (out / "runs.json").exists()


# --- the body of a checkpoint ------------------------------------------------------------------


def test_a_checkpoint_is_safetensors_made_without_a_copy():
    model = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {
        "odd": np.zeros(3, bool),  # sorted behind: every array begins where its numbers may
        "model": model,
        "turned": model.T,
        "foreign": np.arange(3, dtype=">i4"),
        "half": np.array([1.5], np.float16),
        "none": np.zeros((2, 0, 3), np.uint8),
        "single": np.array(7, np.int64),
        "state": np.float64(0.5),
    }
    pieces = run_folder.pack(arrays, {"word": "é", "number": 3})
    assert any(np.shares_memory(np.asarray(piece), model) for piece in pieces[2:])
    body = b"".join(pieces)
    own = safetensors.numpy.load(body)  # the library's own reader
    found, meta = run_folder.unpack(body)
    assert meta == {"word": "é", "number": 3}
    assert list(found) == list(arrays)  # a strategy may take its state apart by place
    for name, value in arrays.items():
        assert found[name].shape == value.shape
        assert found[name].dtype == own[name].dtype == value.dtype.newbyteorder("=")
        np.testing.assert_array_equal(own[name], value, name)
        np.testing.assert_array_equal(found[name], value, name)
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    begins = {name: place["data_offsets"][0] for name, place in header.items() if "shape" in place}
    assert all(begins[name] % arrays[name].itemsize == 0 for name in arrays)
    assert len(b"".join(pieces[:2])) % 8 == 0
    for odd in (np.zeros(1, np.longdouble), np.zeros(1, complex), np.array(["a"]), np.array([{}])):
        with pytest.raises(InputError, match=r"odd: an array of .* cannot be saved"):
            run_folder.pack({"odd": odd}, {})


# --- damage ------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_always_refused(stopped):
    newest = run_folder.checkpoints(stopped)[0]
    good = newest.read_bytes()
    rng = np.random.default_rng(0)
    flips = {*range(60), *rng.integers(len(good), size=150).tolist(), len(good) - 1}
    for at in flips:
        bad = bytearray(good)
        bad[at] ^= 1 << int(rng.integers(8))
        newest.write_bytes(bad)
        with pytest.raises(InputError, match="is damaged: its checksum is wrong"):
            read_checkpoint(newest)
    cuts = {0, 1, 8, 39, 40, 41, *rng.integers(len(good), size=60).tolist(), len(good) - 1}
    for length in cuts:
        newest.write_bytes(good[:length])
        with pytest.raises(InputError, match="is damaged"):
            read_checkpoint(newest)
    newest.write_bytes(good + b"\0")
    with pytest.raises(InputError, match="is damaged"):
        read_checkpoint(newest)
    newest.write_bytes(good)
    assert read_checkpoint(newest)[1]["round"] == 5


def test_a_checkpoint_without_a_state_or_runs_is_refused_or_shown(stopped, monkeypatch, capsys):
    newest, older = run_folder.checkpoints(stopped)
    older.unlink()
    arrays, meta = read_checkpoint(newest)

    def forge(arrays, meta):
        body = b"".join(run_folder.pack(arrays, meta))
        newest.write_bytes(run_folder.MAGIC + hashlib.sha256(body).digest() + body)

    name = next(name for name in arrays if name.startswith("state/") and name.endswith("/p"))
    forge({n: a for n, a in arrays.items() if n != name}, meta)
    with pytest.raises(InputError, match=rf"not of this experiment \(array {name}\)"):
        experiment.resume(stopped)
    forge(arrays, {**meta, "runs": []})
    monkeypatch.setattr(sys, "argv", ["fedmaba", "table", str(stopped)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "Traceback" not in capsys.readouterr().err


def test_the_older_checkpoint_takes_the_place_of_a_damaged_one(stopped, finished):
    newest = run_folder.checkpoints(stopped)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    _, meta, damaged = load_checkpoint(stopped)
    assert meta["round"] == 3
    assert len(damaged) == 1
    assert newest.name in damaged[0]
    session = experiment.resume(stopped)
    assert session.batch.progress.round == 3
    assert any("damaged" in note for note in session.faults)
    play(session)
    want, got = files(finished[1]), files(stopped)
    assert [name for name in want if want[name] != got.get(name)] == []


def test_without_a_whole_checkpoint_there_is_one_line_that_names_them(stopped):
    for file in run_folder.checkpoints(stopped):
        file.write_bytes(b"FEDMABA1" + bytes(100))
    before = files(stopped)
    for attempt in (experiment.resume, load_history):
        with pytest.raises(InputError) as found:
            attempt(stopped)
        assert str(found.value).count("is damaged") == 2
        assert str(found.value).endswith("to begin anew, or choose another --out")
        assert "\n" not in str(found.value)
    assert files(stopped) == before
    Folder(stopped).close()  # nobody holds it


@pytest.mark.parametrize("name", ["about.json", "runs.json", "clients"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage"])
def test_any_other_damaged_file_is_an_error_of_one_line(name, damage, finished, stopped, tmp_path):
    if name == "about.json":
        target, attempt = stopped / name, lambda: experiment.resume(stopped)
    else:
        copy = tmp_path / "copy"
        shutil.copytree(finished[1], copy)
        target = copy / name if name == "runs.json" else next((copy / "clients").iterdir())
        attempt = lambda: load_history(copy)  # noqa: E731
    if damage == "missing":
        target.unlink()
    else:
        target.write_bytes(b"" if damage == "empty" else b"\xff{[garbage")
    with pytest.raises(InputError) as found:
        attempt()
    assert "\n" not in str(found.value)


# --- found by the fault campaigns --------------------------------------------------------------


def same_bytes(finished, out):
    want, got = files(finished[1]), files(out)
    return [name for name in want.keys() | got.keys() if want.get(name) != got.get(name)]


def test_a_start_killed_in_its_first_write_can_be_repeated(finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").write_text("process 1")
    (out / ".experiment.toml.tmp").write_text("strateg")
    play(begun(asked(tiny_npz), out))
    assert same_bytes(finished, out) == []


def test_what_a_killed_process_left_is_tidied_up(finished, stopped, tiny_npz):
    for name in (".about.json.tmp", "checkpoint/.00000006.ckpt.tmp"):
        (stopped / name).write_bytes(b"half of it")
    spare = run_folder.checkpoints(stopped)[0].read_bytes()
    play(experiment.resume(stopped))
    assert same_bytes(finished, stopped) == []
    (stopped / "checkpoint" / "00000006.ckpt").write_bytes(spare)  # killed before its last step
    with pytest.raises(InputError, match="is finished"):
        experiment.resume(stopped)
    assert same_bytes(finished, stopped) == []


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "longer"])
def test_damaged_lines_are_written_anew_from_the_checkpoint(damage, finished, stopped):
    file = stopped / "rounds.jsonl"
    good = file.read_bytes()
    bad = {"short": good[:50], "flipped": b"x" + good[1:], "longer": good + b'{"round": 6'}
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(bad[damage])
    session = experiment.resume(stopped)
    assert any("written anew" in note for note in session.faults) == (damage != "longer")
    play(session)
    assert same_bytes(finished, stopped) == []


@pytest.mark.parametrize("content", [None, b"junk"])
def test_a_damaged_partition_is_written_anew(content, finished, stopped):
    file = stopped / "partition.npz"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    session = experiment.resume(stopped)
    assert session.faults == [f"{file} was damaged: written anew"]
    play(session)
    assert same_bytes(finished, stopped) == []


@pytest.mark.parametrize("content", [None, "[]", "{"])
def test_what_was_begun_is_known_from_about_json_or_it_is_named(content, stopped):
    file = stopped / "about.json"
    file.write_text(content) if content else file.unlink()
    with pytest.raises(
        InputError, match=r"about\.json (cannot be read|is not there).*: restore it"
    ):
        experiment.resume(stopped)


def test_a_table_of_another_kind_is_named(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished[1], copy)
    file = next((copy / "clients").iterdir())
    file.write_bytes(run_folder.npz({"x": np.arange(3)}))
    with pytest.raises(InputError, match=rf"{file.name} cannot be read \(it lacks 'test_size'\)"):
        load_history(copy)


def test_what_was_made_good_is_said_even_to_the_quiet(stopped, monkeypatch, capsys):
    newest = run_folder.checkpoints(stopped)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    monkeypatch.setattr("sys.argv", ["fedmaba", "resume", str(stopped), "--quiet"])
    with pytest.raises(SystemExit):
        cli.main()
    assert re.fullmatch(rf".*{newest.name} is damaged: .*\n", capsys.readouterr().err)


def test_the_lines_do_not_depend_on_when_they_were_written(tiny_npz, tmp_path):
    """What a strategy tells of some rounds only; as checkpoints by the clock may fall anywhere."""
    for every in (1, 3):
        fedmaba.compare(
            [Hostile()], data=str(tiny_npz), model="softmax", out=tmp_path / f"run{every}",
            checkpoint_every=every, **{**SMALL, "eval_every": 3},
        )  # fmt: skip
    one, three = ((tmp_path / f"run{every}" / "rounds.jsonl").read_bytes() for every in (1, 3))
    assert one == three


def test_a_full_disk_at_the_lock_is_one_line(tmp_path, monkeypatch):
    class FullLock(Full):
        def write(self, content):
            refuse()

    monkeypatch.setattr(files_, "open", FullLock, raising=False)
    with pytest.raises(SaveFailed, match="No space left"):
        Folder(tmp_path / "run")
    monkeypatch.undo()
    Folder(tmp_path / "run").close()  # nobody holds it


def test_a_checkpoint_that_cannot_be_removed_ends_nothing(
    finished, tiny_npz, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        play(begun(asked(tiny_npz, save__every=1), out))
    assert (out / "runs.json").exists()
    assert len(run_folder.checkpoints(out)) == 6
    with pytest.raises(InputError, match="is finished"):
        experiment.resume(out)
    assert run_folder.checkpoints(out) == []


def test_a_folder_finished_by_another_process_meanwhile_is_left_alone(
    finished, tiny_npz, tmp_path, monkeypatch
):
    """Between the first look and the lock, another process ran and ended."""
    out = tmp_path / "run"
    real = run_folder.Folder

    def late(path):
        monkeypatch.setattr(run_folder, "Folder", real)
        play(begun(asked(tiny_npz), out))
        return real(path)

    for changes in ({}, {"train__lr": 0.3}):
        shutil.rmtree(out, ignore_errors=True)
        session = experiment.prepare(asked(tiny_npz, **changes))
        monkeypatch.setattr(run_folder, "Folder", late)
        with pytest.raises(InputError, match=r"finished|another experiment"):
            experiment.begin(session, out)
        assert same_bytes(finished, out) == []


def test_a_damaged_checkpoint_takes_no_place_from_good_ones(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(asked(tiny_npz, save__every=1), out), stop_after=5)
    newest = run_folder.checkpoints(out)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    rounds = experiment.resume(out).rounds()
    next(rounds)
    rounds.close()
    assert [p.name for p in run_folder.checkpoints(out)] == ["00000005.ckpt", "00000004.ckpt"]
    assert load_checkpoint(out)[2] == []
    (out / "checkpoint" / "00000009.ckpt").write_bytes(b"from nowhere")
    rounds = experiment.resume(out).rounds()
    next(rounds)
    rounds.close()
    assert [p.name for p in run_folder.checkpoints(out)] == ["00000006.ckpt", "00000005.ckpt"]


def test_a_checkpoint_of_another_experiment_is_refused(stopped, tiny_npz, tmp_path):
    other = tmp_path / "other"
    play(begun(asked(tiny_npz, strategies=["fedavg", "afl"]), other), stop_after=4)
    shutil.copy(run_folder.checkpoints(other)[0], stopped / "checkpoint" / "00000009.ckpt")
    with pytest.raises(InputError, match="is not of this experiment"):
        experiment.resume(stopped)
    (stopped / "checkpoint" / "00000009.ckpt").unlink()
    experiment.resume(stopped).close()


def net(hidden, kind=nn.ReLU):
    """A model whose flat vector has the same width for 6 to 10 hidden units."""

    def make(shape, classes):
        return nn.Sequential(nn.Linear(*shape, hidden), kind(), nn.Linear(hidden, classes))

    return make


def without_bias(shape, classes):
    last = nn.Linear(8, classes, bias=False)
    return nn.Sequential(nn.Linear(*shape, 8), nn.ReLU(), last)


def brought(npz, out, rules=("fedavg",), **own):
    """A session in a folder, with objects of the caller's."""
    options = {"strategies": list(rules), "model": "make"}
    listed = [s for rule in rules for s in strategies.parse(rule)]
    given_ = experiment.Own(**{"model": net(8), **own})
    session = experiment.prepare(asked(npz, **options), given_, listed)
    experiment.begin(session, out)
    return session


def test_a_model_of_other_shapes_does_not_take_over_the_weights(tiny_npz, tmp_path):
    out = tmp_path / "run"
    wide, was = play(brought(tiny_npz, out), stop_after=3), files(out)
    said = r"begun with another model \(0\.weight \(8, 6\); now 0\.weight \(9, 6\)\): restore it"
    with pytest.raises(InputError, match=said):
        brought(tiny_npz, out, model=net(9))
    assert files(out) == was
    other = experiment.prepare(asked(tiny_npz), experiment.Own(model=net(9)))
    assert other.batch.rows.layout.size == wide.batch.rows.layout.size  # or the test shows nothing
    with pytest.raises(InputError, match=r"\(2\.bias \(3,\); now nothing\)"):
        brought(tiny_npz, out, model=without_bias)
    play(brought(tiny_npz, out))
    assert (out / "runs.json").exists()


def test_weights_that_a_device_keeps_in_another_order_are_not_mixed_up(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(brought(tiny_npz, out), stop_after=3)
    session = experiment.prepare(asked(tiny_npz), experiment.Own(model=net(8)))
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
from fedmaba.strategies.base import Decision, Strategy

@dataclass(frozen=True)
class Rule(Strategy):
    name: ClassVar[str] = "rule"

    def weigh(self, state, replies):
        return Decision(np.full(len(replies.client), SHARE / len(replies.client)), state)
"""


def test_a_strategy_of_ones_own_that_was_edited_is_noticed(tiny_npz, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    out, file = tmp_path / "run", tmp_path / "some_rule.py"

    def edit(share):
        file.write_text(RULE.replace("SHARE", share))
        monkeypatch.delitem(sys.modules, "some_rule", raising=False)

    edit("1")
    play(begun(asked(tiny_npz, strategies=["some_rule.Rule"]), out), stop_after=3)
    edit("2")
    with pytest.raises(InputError, match="begun with another strategy rule"):
        experiment.resume(out, trust=True)
    edit("1 ")
    play(experiment.resume(out, trust=True))
    assert (out / "runs.json").exists()


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
    assert run_folder.to_go_on(out) == again
    with pytest.raises(InputError, match=f"was begun in Python, with more than names: {again}"):
        experiment.resume(out)
    assert "fedmaba" not in run_folder.load_about(out)["repeat"]
    page = html.page([data.load(out)])
    assert "the Python call that began it" in page
    assert "fedmaba run" not in page


def test_a_run_of_names_alone_says_its_command_wherever_it_was_begun(tiny_npz, tmp_path):
    out = tmp_path / "run"
    options = {**SMALL, "data": tiny_npz, "model": "softmax", "out": out}
    fedmaba.compare([fedmaba.FedMABA(alpha=0.5)], **options)
    assert run_folder.load_about(out)["repeat"] == "fedmaba run experiment.toml --out NEW"
    assert run_folder.to_go_on(out) == f"fedmaba resume {out}"
    other = tmp_path / "hostile"
    fedmaba.compare(Hostile(), **{**options, "out": other})
    assert "Python call" in run_folder.to_go_on(other)


def test_a_folder_without_checkpoints_says_what_it_is(tiny_npz, tmp_path):
    out = tmp_path / "runs" / "first"
    begun(asked(tiny_npz), out).close()
    with pytest.raises(InputError, match=f"holds no checkpoint yet: wait, or fedmaba resume {out}"):
        load_history(out)
    experiment.resume(out).close()  # as it says
    with pytest.raises(InputError, match=r"runs is no run folder: name one that fedmaba wrote"):
        load_history(tmp_path / "runs")


def test_a_name_inside_a_foreign_folder_cannot_lead_outside(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished[1], copy)
    about = json.loads((copy / "runs.json").read_text())
    for key, value in (("seed", "0/../../../x"), ("label", 3), ("seed", True)):
        runs = [{**about["runs"][0], key: value}, *about["runs"][1:]]
        (copy / "runs.json").write_text(json.dumps({**about, "runs": runs}))
        with pytest.raises(InputError, match=r"runs\.json cannot be read"):
            load_history(copy)


def test_a_file_that_is_no_npz_is_called_that(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"garbage")
    with pytest.raises(InputError, match=r"a\.npz cannot be read \(no NPZ file\): restore it"):
        run_folder.read_npz(tmp_path / "a.npz")


def test_another_torch_is_told(stopped):
    file = stopped / "about.json"
    about = json.loads(file.read_text())
    about["versions"]["torch"] = "1.0"
    file.write_text(json.dumps(about))
    session = experiment.resume(stopped)
    session.close()
    assert "begun with torch 1.0: bits may differ from here on" in session.faults


def test_a_run_begun_anew_keeps_its_chunks(tiny_npz, tmp_path):
    """On a GPU they depend on free memory, and sums on them."""
    out = tmp_path / "run"
    begun(asked(tiny_npz), out).close()
    about = json.loads((out / "about.json").read_text())
    (out / "about.json").write_text(json.dumps({**about, "chunk": 7}))
    session = begun(asked(tiny_npz), out)
    session.close()
    assert session.batch.progress.chunk == 7


def test_folders_without_a_name_are_never_shared(tmp_path):
    taken = [run_folder.claim(tmp_path / "runs", "sample") for _ in range(3)]
    assert [p.name for p in taken] == ["sample-001", "sample-002", "sample-003"]


# --- full disks --------------------------------------------------------------------------------


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
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FAULTS = {
    "fsync": lambda patch: patch.setattr(os, "fsync", refuse),
    "replace": lambda patch: patch.setattr(os, "replace", refuse),
    "write": lambda patch: patch.setattr(files_, "open", Full, raising=False),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("when", [4, 6])  # at a checkpoint; at the end
def test_a_full_disk_costs_nothing_that_was_saved(fault, when, finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    session = begun(asked(tiny_npz), out)
    at = session.batch.progress
    with pytest.MonkeyPatch.context() as patch:
        rounds = session.rounds(lambda: at.round == 4 == when)  # a stop asks for a checkpoint
        for _ in range(when - 1):
            next(rounds)
        FAULTS[fault](patch)
        with pytest.raises(SaveFailed, match=r"could not be written: No space left.*free some"):
            list(rounds)
    assert debris(out) == []
    assert not (out / "runs.json").exists()
    assert load_checkpoint(out)[1]["round"] == 3
    assert SaveFailed.exit_code == 74
    resumed = experiment.resume(out)  # with space again, and nobody holds the folder
    assert resumed.batch.progress.round == 3
    play(resumed)
    want, got = files(finished[1]), files(out)
    assert [name for name in want if want[name] != got.get(name)] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_write_leaves_the_file_as_it_was(fault, tmp_path):
    folder = Folder(tmp_path / "run")
    folder.write("a.json", b"old")
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[fault](patch)
        with pytest.raises(SaveFailed):
            folder.write("a.json", b"new and longer than ten bytes")
        with pytest.raises(SaveFailed):
            folder.write("sub/b.json", b"new and longer than ten bytes")
    assert (folder.path / "a.json").read_bytes() == b"old"
    assert not (folder.path / "sub" / "b.json").exists()
    assert debris(folder.path) == []
    folder.close()


def test_a_file_is_written_before_it_gets_its_name(tmp_path, monkeypatch):
    """Data first, then the name, then the folder."""
    order = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(handle):
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "data")
        real_fsync(handle)

    def replace(a, b):
        order.append("name")
        real_replace(a, b)

    folder = Folder(tmp_path / "run")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    folder.write("a", b"content")
    folder.close()
    assert order == ["data", "name", "folder"]


def test_a_run_ends_in_the_same_bytes_where_the_system_is_as_windows_is(
    finished, tiny_npz, tmp_path, monkeypatch
):
    """There no folder can be opened, only a file open for writing be synced, and none be locked."""
    held, real_open, real_fsync, real_close = {}, os.open, os.fsync, os.close

    def opened(path, flags, *rest, **more):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        handle = real_open(path, flags, *rest, **more)
        held[handle] = flags
        return handle

    def fsync(handle):
        if handle in held and not held[handle] & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(handle)

    def closed(handle):
        held.pop(handle, None)
        real_close(handle)

    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.setattr(files_, "fcntl", None)
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "close", closed)
    out = tmp_path / "run"
    play(begun(asked(tiny_npz), out), stop_after=4)
    play(experiment.resume(out))
    assert files(out) == files(finished[1])


# --- one owner ---------------------------------------------------------------------------------


def test_a_folder_has_one_owner(tmp_path, tiny_npz):
    out = tmp_path / "run"
    code = (
        "import sys, pathlib; from fedmaba.results.run_folder import Folder;"
        "f = Folder(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Busy, match=rf"is in use by process {other.pid}: wait, or choose"):
            Folder(out)
        session = experiment.prepare(asked(tiny_npz, seeds=1))
        with pytest.raises(Busy):
            experiment.begin(session, out)
        session.close()
        assert Busy.exit_code == 75
    finally:
        other.communicate()
    folder = Folder(out)  # the other is gone, and so is its hold
    with pytest.raises(Busy, match=str(os.getpid())):
        Folder(out)
    folder.close()
    Folder(out).close()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveFailed, match="choose another folder"):  # resume has no --out
        Folder(tmp_path / "file" / "run")


# --- names -------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None, database=None)
@given(some.text(max_size=200), some.integers(0, 10**9))
def test_a_label_cannot_leave_the_folder(label, seed):
    name = run_id(3, label, seed)
    assert Path(name).name == name
    assert name.startswith("03-")
    assert len(name.encode()) < 120
    assert not set(name) & set('/\\:*?"<>|\0\n')


@dataclass(frozen=True)
class Hostile(Strategy):
    """a name that is a path"""

    name: ClassVar[str] = "../../outside/../x"

    def weigh(self, state, replies):
        m = len(replies.client)
        extra = {"late": float(replies.round)} if replies.round else {}
        return Decision(np.full(m, 1 / m), state, extra)


SMALL = {"rounds": 3, "seeds": 1, "minibatch": 5, "eval_every": 2, "device": "cpu"}


def test_hostile_names_stay_inside(tiny_npz, tmp_path):
    """Also: what a strategy tells about a round may differ from round to round."""
    out = tmp_path / "a" / "b" / "run"
    out.parent.mkdir(parents=True)
    history = fedmaba.compare([Hostile()], data=str(tiny_npz), model="softmax", out=out, **SMALL)
    everything = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert all(out in p.parents for p in everything)
    same_history(load_history(out), history)
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [line.get("late") for line in lines] == [None, 1.0, 2.0]


# --- from the experiment to the engine ---------------------------------------------------------


def test_every_option_reaches_the_engine(tiny_npz):
    plan = {
        "train": {
            "rounds": 7, "participants": 2, "epochs": 3, "minibatch": 6, "lr": 0.03,
            "lr_decay": 0.98, "momentum": 0.4, "weight_decay": 0.01,
        },
        "server": {"lr": 0.7, "momentum": 0.2},
        "eval": {"every": 5},
        "machine": {"dtype": "float64", "device": "cpu", "chunk": 3, "threads": 1},
    }  # fmt: skip
    flat = {f"{part}.{name}": value for part, keys in plan.items() for name, value in keys.items()}
    other = {"server.lr": "server_lr", "server.momentum": "server_momentum"}
    other["eval.every"] = "eval_every"
    want = {other.get(name, name.partition(".")[2]): value for name, value in flat.items()}
    changes = {name.replace(".", "__"): value for name, value in flat.items()}
    session = experiment.prepare(asked(tiny_npz, **changes))
    session.close()
    assert dataclasses.asdict(session.batch.plan) == want | {"steps": None}
    steps = experiment.prepare(asked(tiny_npz, train__steps=4))  # instead of epochs
    steps.close()
    assert steps.batch.plan.steps == 4
    defaults = {f.name: f.default for f in dataclasses.fields(engine.Plan)}
    assert [n for n, v in want.items() if v == defaults[n]] == ["device"]
    assert session.batch.pool.x.dtype == torch.float64
    assert session.batch.progress.chunk == 3


def test_the_options_of_data_and_runs_reach_the_engine(tiny_npz):
    changes = {"data__partition": "iid", "data__clients": 4, "data__test": "local"}
    changes |= {"data__validation": "25%", "seeds": [5, 3], "server__deploy": "ema:0.7"}
    session = experiment.prepare(asked(tiny_npz, strategies=["fedavg", "afl"], **changes))
    session.close()
    runs = session.batch.runs
    assert [(run.strategy.name, run.seed) for run in runs] == [
        ("fedavg", 5), ("fedavg", 3), ("afl", 5), ("afl", 3),
    ]  # fmt: skip
    assert {run.average for run in runs} == {"ema:0.7"}
    assert {run.federation.n_clients for run in runs} == {4}
    federation = runs[0].federation
    assert federation.validation.size.sum() == pytest.approx(0.25 * 80, abs=3)
    assert federation.test.size.sum() == pytest.approx(20, abs=3)
    assert federation is runs[2].federation  # a seed's clients are the same for all strategies
    assert federation.split.sha256() != runs[1].federation.split.sha256()
    plain = experiment.prepare(asked(tiny_npz))
    plain.close()
    assert {run.average for run in plain.batch.runs} == {"poly:8", "average"}  # each its own
    assert plain.batch.runs[0].federation.n_clients == 5  # the file's own clients


# --- fedmaba.compare ---------------------------------------------------------------------------


def test_compare_without_a_folder_writes_nothing(tiny_npz, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history = fedmaba.compare("fedavg", data=str(tiny_npz), model="softmax", **SMALL)
    assert [run.label for run in history.runs] == ["fedavg"]
    assert list(tmp_path.iterdir()) == []
    assert "fedavg" in str(history)


def test_compare_takes_objects_and_grids(fed):
    given_ = ["fedmaba:alpha=[0,1]", fedmaba.FedProx(mu=0.3)]
    history = fedmaba.compare(given_, data=fed, model=softmax, **SMALL)
    labels = [run.label for run in history.runs]
    assert labels == ["fedmaba:alpha=0", "fedmaba:alpha=1", "fedprox:mu=0.3"]
    assert isinstance(fed, Federation)
    assert history.runs[0].n_clients == fed.n_clients
    with pytest.raises(InputError, match="unknown option 'round': did you mean 'rounds'"):
        fedmaba.compare("fedavg", data=fed, round=3)
    with pytest.raises(InputError, match="listed twice"):
        fedmaba.compare(["fedavg", "fedavg"], data=fed, **SMALL)
    with pytest.raises(InputError, match=r"participants=9, .* 5 clients"):
        fedmaba.compare(["fedavg"], data=fed, participants=9, **SMALL)


def softmax(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def test_the_saved_strategies_are_those_that_ran(tiny_npz, tmp_path):
    """To the last digit: a resumed run must be the same run."""
    listed = [fedmaba.FedMABA(eta_b=1 / 3, rho=0.123456789), fedmaba.FedMABA(eta_b=0.3333333)]
    out = tmp_path / "run"
    fedmaba.compare(listed, data=str(tiny_npz), model="softmax", out=out, **SMALL)
    specs = config.load(out / "experiment.toml")["strategies"]
    assert [s for spec in specs for s in strategies.parse(spec)] == listed


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", "1e30"), ("float64", "1e20"), ("float64", "1e100")]
)
def test_runs_that_diverge_are_recorded_without_noise(dtype, size, tiny_npz, tmp_path):
    """Not a single warning, valid JSON, a table that says so, and nothing to trip over."""
    out = tmp_path / "run"
    listed = ["fedavg", f"fedmaba:eta_s={size}"]
    options = {**SMALL, "rounds": 20, "eval_every": 1, "dtype": dtype}
    history = fedmaba.compare(listed, data=str(tiny_npz), model=two_layers, out=out, **options)
    assert "diverged in round" in history.runs[1].diverged
    assert history.runs[0].diverged == ""
    for line in (out / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    good, bad = history.summary()
    assert good.note == ""
    assert bad.note == "diverged: seed 0"
    assert np.isnan(bad.mean).all()
    assert "diverged: seed 0" in str(history)
    same_history(load_history(out), history)
    assert set(history.to_pandas().strategy) >= {"fedavg"}


def two_layers(shape, classes):
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, classes))


def test_a_history_of_nothing_but_divergence_can_be_looked_at(tiny_npz):
    history = fedmaba.compare(
        "fedavg", data=str(tiny_npz), model=two_layers, lr=1e30, **{**SMALL, "eval_every": 3}
    )
    assert "diverged in round" in history.runs[0].diverged
    assert "diverged: seed 0" in str(history)
    assert len(history.to_pandas()) == 0


def test_figures_of_a_table_are_named(finished):
    text = str(finished[0].history)
    for word in ("strategy", "variance", "accuracy", "worst 5 %", "best 5 %", *STRATEGIES):
        assert word in text
    assert len(Fairness._fields) == 10


@pytest.mark.parametrize(
    "option", [{"clients": 3}, {"partition": "iid"}, {"validation": 0.2}, {"validation": 10}]
)
def test_a_split_federation_takes_no_partition(option, fed):
    with pytest.raises(ValueError, match="split already"):
        fedmaba.compare("fedavg", data=fed, rounds=1, seeds=1, **option)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            {"data": (np.zeros((4, 2)), np.zeros(4))},
            r"data of type tuple: give .*from_arrays\(x, y",
        ),
        ({"data": None}, "data of type NoneType"),
        ({"strategies": [fedmaba.FedMABA]}, r"FedMABA is a class: write FedMABA\(\)"),
        ({"strategies": fedmaba.FedMABA}, r"FedMABA is a class: write FedMABA\(\)"),
        ({"strategies": ["fedavg", 3]}, "3 is no strategy: give a name"),
        ({"strategies": None}, "None is no list of strategies: name them"),
        ({"model": nn.Linear(6, 3)}, r"the model is a Linear already: give a function of \(shape"),
        ({"model": 3}, r"it must take \(shape, classes\)"),
    ],
)
def test_an_object_of_the_wrong_kind_is_one_line(words, said, tiny_npz):
    with pytest.raises(InputError, match=said) as error:
        fedmaba.compare(**{"strategies": "fedavg", "data": str(tiny_npz), **SMALL, **words})
    assert "\n" not in str(error.value)


def test_compare_takes_a_path_and_a_single_object(tiny_npz):
    history = fedmaba.compare(fedmaba.FedProx(), data=tiny_npz, model="softmax", **SMALL)
    assert [run.label for run in history.runs] == ["fedprox"]


def test_a_table_shows_the_share_the_run_asked_for(fed, tmp_path):
    options = {"model": "softmax", "rounds": 1, "seeds": 1, "share": 0.6}
    history = fedmaba.compare("fedavg", data=fed, out=tmp_path / "run", **options)
    assert "worst 60 %" in str(history)
    assert "worst 60 %" in str(load_history(tmp_path / "run"))


def test_a_table_in_memory_is_hardly_larger_than_its_numbers():
    column = Column()
    for i in range(1000):
        column.append(np.asarray([i, 2 * i]))
    column.append(np.asarray([0.5, 1.5]))  # a wider kind takes the others along
    assert len(column) == 1001
    assert column[-1].tolist() == [0.5, 1.5]
    assert [int(row[1]) for row in column][:3] == [0, 2, 4]
    assert np.asarray(column).shape == (1001, 2)
    assert column._rows.nbytes <= 2.1 * column.array().nbytes
    with pytest.raises(ValueError, match="a row of shape"):
        column.append(np.zeros(3))


def test_a_folder_that_is_let_go_is_nobody_elses(tmp_path, monkeypatch):
    """Who takes it while its lock file is removed finds it held, or makes it anew."""
    first, close, seen = Folder(tmp_path / "run"), Folder.close, []

    def closing(self):
        close(self)
        if not seen:
            seen.append(Folder(tmp_path / "run"))  # as another process may, at this very moment

    monkeypatch.setattr(Folder, "close", closing)
    first.discard()
    with pytest.raises(Busy):
        Folder(tmp_path / "run")
    seen[0].write("runs.json", b"{}")
    seen[0].close()


def test_label_counts_that_are_none_are_named(tmp_path):
    good = np.ones((2, 3), int)
    np.savez(tmp_path / "partition.npz", **{"seed1.labels": good})
    assert run_folder.load_labels(tmp_path)[1].tolist() == good.tolist()
    for odd in (np.array(["a"]), good[0], good - 2, good.astype(float)):
        np.savez(tmp_path / "partition.npz", **{"seed0.labels": odd, "seed1.labels": good})
        with pytest.raises(InputError, match=r"partition\.npz cannot be read \(seed0\.labels"):
            run_folder.load_labels(tmp_path)


def test_lines_of_odd_content_are_named(tmp_path):
    good = '{"strategy": "fedavg", "seed": 0, "round": 2}'
    file = tmp_path / "rounds.jsonl"
    file.write_text(f'{good}\n{good}\n{{"round": 3')
    assert run_folder.read_lines(tmp_path) == [json.loads(good)] * 2
    assert len(run_folder.read_lines(tmp_path, len(good) + 1)) == 1
    for odd in (good.replace("2", '"3"'), "[3]", good.replace("2", "null"), "{", "\0"):
        file.write_text(f"{good}\n{odd}\n")
        with pytest.raises(InputError, match=r"rounds\.jsonl cannot be read \(line 2: .*resume"):
            run_folder.read_lines(tmp_path)
    file.unlink()
    assert run_folder.read_lines(tmp_path) == []


def test_a_run_resumed_before_its_first_checkpoint_keeps_its_command(tiny_npz, tmp_path):
    session = experiment.prepare(asked(tiny_npz))
    experiment.begin(session, tmp_path / "run", ["fedmaba", "compare", "fedavg"])
    session.close()
    again = experiment.resume(tmp_path / "run")
    again.close()
    assert run_folder.load_about(tmp_path / "run")["command"] == ["fedmaba", "compare", "fedavg"]
