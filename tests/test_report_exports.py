"""CSV files and TensorBoard events of a run."""

import contextlib
import math

import numpy as np
import pytest

import fedmaba
from fedmaba import load_history
from fedmaba.errors import Diverged, InputError
from fedmaba.report import (
    data,
    export,
    tensorboard,
    tracked,
)
from fedmaba.results.metrics import PERCENT
from report_cases import call


def test_export_writes_what_the_history_holds(folder, tmp_path, monkeypatch, capsys):
    pandas = pytest.importorskip("pandas")
    printed = call(monkeypatch, capsys, "export", folder, "--to", "csv", "-o", tmp_path / "csv")
    assert len(printed.splitlines()) == 4
    history = load_history(folder)
    table = {p.stem: pandas.read_csv(p) for p in (tmp_path / "csv").iterdir()}
    run = history.runs[-1]
    own = table["clients"].query("strategy == 'fedmaba' and seed == 1 and round == 6")
    for model in data.MODELS:
        np.testing.assert_allclose(own[f"{model}_accuracy"], run.accuracy(model)[-1])
        np.testing.assert_allclose(own[f"{model}_loss"], run.loss(model)[-1])
    assert (own["deployed_loss"] != own["last_loss"]).any()
    own = table["weights"].query("strategy == 'fedmaba' and seed == 1 and round == 3")
    np.testing.assert_allclose(own["weight"], run.weights()[2])
    np.testing.assert_allclose(own["reported_loss"], run.column("reported_loss")[2])
    row = table["summary"].query("strategy == 'afl' and model == 'last'").iloc[0]
    assert row["variance"] == pytest.approx(history.summary("last")[1].mean.variance)
    assert len(table["rounds"]) == 6 * 3 * 2
    own = table["rounds"].query("strategy == 'fedmaba' and seed == 1 and model == 'last'")
    for name in ("variance", "worst", "gini"):
        want = [getattr(found, name) for found in run.fairness("last")]
        np.testing.assert_allclose(own[name], want)


def test_export_names_clients_that_have_names(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    owner = np.repeat(["=ward", "icu"], 20)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(40, 4)), y=np.arange(40) % 2, client=owner)
    words = {"data": str(tmp_path / "mine.npz"), "seeds": 1, "device": "cpu", "model": "softmax"}
    for name, options in {"own": {}, "cut": {"partition": "iid", "clients": 2}}.items():
        fedmaba.compare("fedavg", out=tmp_path / name, rounds=2, eval_every=1, **words, **options)
        export.write_export(tmp_path / name, tmp_path / name / "csv")
        for kind in ("clients", "weights"):
            found = pandas.read_csv(tmp_path / name / "csv" / f"{kind}.csv", keep_default_na=False)
            assert found["client"].tolist() == [0, 1] * 2
            assert found["name"].tolist() == (["'=ward", "icu"] if name == "own" else ["", ""]) * 2


def test_export_marks_clients_that_were_hostile(tiny_npz, tmp_path):
    pandas = pytest.importorskip("pandas")
    words = {"data": str(tiny_npz), "seeds": 2, "device": "cpu", "model": "softmax"}
    lies = {"attack": "loss=1e6", "hostile": "40%"}
    fedmaba.compare("fedmaba", out=tmp_path / "run", rounds=2, eval_every=1, **words, **lies)
    export.write_export(tmp_path / "run", tmp_path / "csv")
    found = pandas.read_csv(tmp_path / "csv" / "weights.csv", keep_default_na=False)
    assert ((found["hostile"] == "yes") == (found["reported_loss"] == 1e6)).all()
    assert (found["hostile"] == "yes").sum() == 2 * 2 * 2  # clients, rounds, seeds
    found = pandas.read_csv(tmp_path / "csv" / "clients.csv", keep_default_na=False)
    assert ((found["hostile"] == "yes") == (found["last_accuracy"] == "")).all()
    (tmp_path / "run" / "about.json").unlink()
    with pytest.raises(InputError, match=r"about\.json, which says who is hostile, is not there"):
        export.write_export(tmp_path / "run", tmp_path / "csv")


def test_a_finished_run_is_exported_even_if_all_of_it_diverged(tiny_npz, tmp_path):
    out = tmp_path / "run"
    options = {"data": tiny_npz, "model": "softmax", "rounds": 2, "seeds": [0], "out": out}
    with contextlib.suppress(Diverged):
        fedmaba.compare("fedavg", server_lr=1e39, **options)
    assert (out / "runs.json").exists()
    files = {path.name: path.read_text() for path in export.write_export(out, tmp_path / "csv")}
    assert "diverged: seed 0" in files["summary.csv"]


def test_tensorboard_events_can_be_read_back(tiny_npz, tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    out = tmp_path / "run"
    words = f"compare fedavg fedmaba --data {tiny_npz} --model softmax --rounds 4 --eval-every 2"
    call(monkeypatch, capsys, *words.split(), "--seeds", "1", "-q", "--tensorboard", "--out", out)
    folders = sorted((out / "tensorboard").iterdir())
    assert [f.name for f in folders] == ["00-fedavg-s0", "01-fedmaba-s0"]
    (file,) = folders[1].iterdir()
    reader, seen = PyRecordReader_New(str(file)), {}
    while True:
        try:
            reader.GetNext()
        except Exception:  # its own way to say the end
            break
        event = Event.FromString(reader.record())
        for value in event.summary.value:
            seen[event.step, value.tag] = value.simple_value
    run = load_history(out).runs[1]
    assert seen[4, "deployed/variance"] == pytest.approx(run.fairness()[-1].variance)
    assert seen[3, "strategy/lambda"] == pytest.approx(run.column("info.lambda")[2])
    assert (4, "clients/accuracy") in seen
    some = tracked.known_scores(np.array([0.5, math.nan, 0.25]), PERCENT)  # a score that is none
    assert tensorboard.event_of(3, {}, some).summary.value[0].histo.num == 2
    none = tracked.known_scores(np.full(2, math.nan), PERCENT)
    assert not tensorboard.event_of(3, {}, none).summary.value
