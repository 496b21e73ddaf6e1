"""What a run folder holds, and what its names cannot do."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

import fedmaba
from fedmaba import strategies
from fedmaba.errors import InputError, SaveFailed
from fedmaba.experiment import experiment_file, starting
from fedmaba.results.run_folder import (
    load_history,
    run_file_stem,
)
from run_folders import SMALL, Hostile, asked, begun, files, pairs, play, same_history


def test_a_finished_folder_holds_everything_and_its_last_checkpoint(finished):
    session, out = finished
    names = set(files(out))
    runs = [f"{r:02d}-{s}-s{seed}" for r, (s, seed) in enumerate(pairs())]
    labels = {name.replace(":", "_") for name in runs}
    want = {"experiment.toml", "partition.npz", "rounds.jsonl", "runs.json"}
    want |= {f"clients/{name}.npz" for name in labels}
    kinds = ("last", "deployed", "best")
    want |= {f"models/{name}-{kind}.safetensors" for name in labels for kind in kinds}
    assert names == {*want, "checkpoint/00000006.ckpt"}
    assert (out / "timing.jsonl").read_text().count("\n") == 6
    about = json.loads((out / "about.json").read_text())
    data = session.batch.runs[0].federation.data
    assert about["data"]["sha256"] == data.sha256()
    assert about["seeds"] == [0, 1]
    assert about["versions"]["fedmaba"] == fedmaba.__version__
    assert about["model"]["parameters"] == 6 * 3 + 3


def test_the_partition_file_says_who_owns_what(finished):
    session, out = finished
    with np.load(out / "partition.npz", allow_pickle=False) as z:
        for run in session.batch.runs:
            own = f"seed{run.seed}."
            arrays = {n.removeprefix(own): z[n] for n in z.files if n.startswith(own)}
            for name, value in run.federation.split.to_arrays().items():
                np.testing.assert_array_equal(arrays[name], value)


def test_a_saved_model_serves_each_client_as_the_history_says(finished):
    session, out = finished
    history = load_history(out)
    for r, (run, seen) in enumerate(zip(session.batch.runs, history.runs, strict=True)):
        federation = run.federation
        x = torch.from_numpy(federation.data.x)
        name = run_file_stem(r, seen.label, seen.seed)
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
            out / "models" / f"{run_file_stem(r, run.label, run.seed)}-best.safetensors"
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


def test_a_folder_of_another_experiment_is_left_alone(finished, stopped, tiny_npz, tmp_path):
    before = files(stopped)
    with pytest.raises(InputError, match=r"holds another experiment, in train\.lr: choose another"):
        begun(asked(tiny_npz, train__lr=0.3), stopped)
    assert files(stopped) == before
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is no run folder"):
        begun(asked(tiny_npz), other)
    assert [p.name for p in other.iterdir()] == ["thesis.txt"]
    with pytest.raises(InputError, match="is no run folder"):
        starting.resume(other)
    with pytest.raises(InputError, match="is no run folder"):
        load_history(other / "none")


def test_an_output_that_is_a_file_is_refused(tiny_npz, tmp_path):
    (tmp_path / "notes").write_text("kept")
    with pytest.raises((InputError, SaveFailed), match="notes"):
        begun(asked(tiny_npz), tmp_path / "notes")
    with pytest.raises((InputError, SaveFailed), match="notes"):
        begun(asked(tiny_npz), tmp_path / "notes" / "below")
    assert (tmp_path / "notes").read_text() == "kept"


def test_the_lines_do_not_depend_on_when_they_were_written(tiny_npz, tmp_path):
    """What a strategy tells of some rounds only; as checkpoints by the clock may fall anywhere."""
    for every in (1, 3):
        fedmaba.compare(
            [Hostile()], data=str(tiny_npz), model="softmax", out=tmp_path / f"run{every}",
            checkpoint_every=every, **{**SMALL, "eval_every": 3},
        )  # fmt: skip
    one, three = ((tmp_path / f"run{every}" / "rounds.jsonl").read_bytes() for every in (1, 3))
    assert one == three


def test_a_folder_without_checkpoints_says_what_it_is(tiny_npz, tmp_path):
    out = tmp_path / "runs" / "first"
    begun(asked(tiny_npz), out).close()
    with pytest.raises(InputError, match=f"holds no checkpoint yet: wait, or fedmaba resume {out}"):
        load_history(out)
    starting.resume(out).close()  # as it says
    with pytest.raises(InputError, match=r"runs is no run folder: name one that fedmaba wrote"):
        load_history(tmp_path / "runs")


def test_a_name_inside_a_foreign_folder_cannot_lead_outside(done):
    about = json.loads((done / "runs.json").read_text())
    for key, value in (("seed", "0/../../../x"), ("label", 3), ("seed", True)):
        runs = [{**about["runs"][0], key: value}, *about["runs"][1:]]
        (done / "runs.json").write_text(json.dumps({**about, "runs": runs}))
        with pytest.raises(InputError, match=r"runs\.json cannot be read"):
            load_history(done)


@settings(max_examples=100, deadline=None, database=None)
@given(some.text(max_size=200), some.integers(0, 10**9))
def test_a_label_cannot_leave_the_folder(label, seed):
    name = run_file_stem(3, label, seed)
    assert Path(name).name == name
    assert name.startswith("03-")
    assert len(name.encode()) < 120
    assert not set(name) & set('/\\:*?"<>|\0\n')


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


def test_the_saved_strategies_are_those_that_ran(tiny_npz, tmp_path):
    """To the last digit: a resumed run must be the same run."""
    listed = [fedmaba.FedMABA(eta_b=1 / 3, rho=0.123456789), fedmaba.FedMABA(eta_b=0.3333333)]
    out = tmp_path / "run"
    fedmaba.compare(listed, data=str(tiny_npz), model="softmax", out=out, **SMALL)
    specs = experiment_file.read_toml(out / "experiment.toml")["strategies"]
    assert [s for spec in specs for s in strategies.parse(spec)] == listed
