"""Runs judged by a metric of all predictions of a client: named ones, and functions of your own."""

import json

import numpy as np
import pytest
from torch import nn

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.experiment import session as experiment
from fedmaba.experiment import starting
from fedmaba.report import data, export
from fedmaba.report import html as page
from fedmaba.report.current_figures import CurrentFigures
from fedmaba.results import client_metrics, run_folder
from fedmaba.results.metrics import every
from fedmaba.simulation import client_scores
from run_folders import asked, begun, play, same_history

SMALL = {"rounds": 4, "eval_every": 2, "minibatch": 5, "seeds": 2, "device": "cpu", "lr": 0.2}


def patients(task="classify", one_class=()):
    """Five clients with two classes, or a number each; some have a single class."""
    rng = np.random.default_rng(1)
    client = np.repeat(np.arange(5), 100)
    x = rng.normal(size=(500, 4)).astype(np.float32)
    told = x[:, 0] + 0.4 * client * x[:, 1] + rng.normal(size=500)
    y = told.astype(np.float32) if task == "regress" else (told > 0).astype(np.int64)
    y[np.isin(client, one_class)] = 0
    return fedmaba.Federation.from_arrays(x, y, client, validation=0.2, task=task)


def scores(history, name="deployed.accuracy"):
    return [run.column(name) for run in history.runs]


def compare(strategies=("fedavg", "fedmaba"), given=None, **options):
    given = patients() if given is None else given
    return fedmaba.compare(list(strategies), data=given, model="softmax", **SMALL | options)


@pytest.mark.parametrize("name", ["auc", "f1", "balanced-accuracy", "average-precision"])
def test_a_clients_score_is_that_of_its_own_predictions(name):
    sk = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")

    def theirs(outputs, y):
        p = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        return {
            "auc": lambda: sk.roc_auc_score(y, p[:, 1]),
            "f1": lambda: sk.f1_score(y, p.argmax(1), average="macro"),
            "balanced-accuracy": lambda: sk.balanced_accuracy_score(y, p.argmax(1)),
            "average-precision": lambda: sk.average_precision_score(y, p[:, 1]),
        }[name]()

    few = {"strategies": ["fedavg"], "seeds": 1, "rounds": 2}
    ours, own = compare(**few, metric=name), compare(**few, client_metric=theirs)
    for table in ("deployed.accuracy", "last.accuracy", "deployed_validation.accuracy"):
        for a, b in zip(scores(ours, table), scores(own, table), strict=True):
            assert a.shape[1] == 5
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    assert f"{client_metrics.METRICS[name].title} %" in str(ours)
    assert "theirs" in str(own)
    assert "%²" not in str(own)


def test_a_function_sees_all_outputs_and_targets_of_one_client():
    fed, seen = patients(), []

    def size(outputs, y):
        seen.append((outputs.shape, outputs.dtype, tuple(y)))
        return len(y)

    history = compare(["fedavg"], fed, client_metric=size, seeds=1, rounds=1)
    assert history.runs[0].accuracy()[-1].tolist() == fed.test.size.tolist()
    of_clients = [tuple(fed.data.y[fed.test.of(c)]) for c in range(5)]
    assert seen[0][-1] == of_clients[0]  # tried with the examples of a client
    assert [y for *_, y in seen[1:6]] == of_clients
    assert {(shape[1:], kind) for shape, kind, _ in seen} == {((2,), np.dtype(float))}


def test_training_and_losses_are_as_without_the_metric():
    plain, judged, named = compare(), compare(metric="auc"), compare(metric="accuracy")
    for a, b, c in zip(plain.runs, judged.runs, named.runs, strict=True):
        np.testing.assert_array_equal(a.weights(), b.weights())
        np.testing.assert_allclose(a.loss(), b.loss(), rtol=1e-6)
        np.testing.assert_array_equal(a.accuracy(), c.accuracy())
        assert not np.allclose(a.accuracy(), b.accuracy())


def test_a_run_alone_has_the_same_bits_as_in_a_batch():
    together, alone = compare(metric="auc"), compare(["fedmaba"], metric="auc")
    for a, b in zip(together.runs[2:], alone.runs, strict=True):
        assert a.label == b.label
        np.testing.assert_array_equal(a.accuracy(), b.accuracy())
        np.testing.assert_array_equal(a.loss(), b.loss())


def test_groups_of_clients_do_not_change_a_score(monkeypatch):
    whole = compare(["fedavg"], metric="brier", dtype="float64")
    monkeypatch.setattr(client_scores, "MOST_OUTPUTS", 20)
    apart = compare(["fedavg"], metric="brier", dtype="float64")
    for a, b in zip(scores(whole), scores(apart), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_clients_that_keep_a_part_of_the_model_are_judged_with_it():
    def normed(shape, classes):
        return nn.Sequential(nn.Linear(*shape, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

    options = SMALL | {"batchnorm": "local", "minibatch": 6, "steps": 3, "data": patients()}

    def right(outputs, y):
        return float((outputs.argmax(1) == y).mean())

    usual, own = (
        fedmaba.compare("fedavg", model=normed, **options | more)
        for more in ({}, {"client_metric": right})
    )
    for a, b in zip(scores(usual), scores(own), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_errors_are_lower_is_better_and_not_in_per_cent():
    rmse, mean = (
        compare(given=patients("regress"), metric="rmse"),
        compare(given=patients("regress")),
    )
    for a, b in zip(scores(rmse), scores(mean), strict=True):
        np.testing.assert_allclose(a**2, b, rtol=1e-5)
    assert rmse.unit.lower
    assert "RMSE, not in per cent: lower is better" in str(rmse)
    r2 = compare(given=patients("regress"), metric="r2")
    assert "R², not in per cent: higher is better" in str(r2)


def test_perplexity_of_positions():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, size=(60, 5))
    given = fedmaba.Federation.from_arrays(x, (x + 1) % 6, np.repeat(np.arange(3), 20))

    def next_one(shape, classes):
        return nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, classes))

    history = fedmaba.compare("fedavg", data=given, model=next_one, metric="perplexity", **SMALL)
    run = history.runs[0]
    np.testing.assert_allclose(run.accuracy(), np.exp(run.loss()), rtol=1e-5)
    assert client_metrics.perplexity(np.array([[0.0, 1e4]]), np.array([0])) == 1e100


def test_clients_without_a_score_are_left_out_and_counted(tmp_path):
    given = patients(one_class=[1, 3])
    history = compare(given=given, metric="auc", out=tmp_path / "run")
    run = history.runs[0]
    assert np.isnan(run.accuracy()[:, [1, 3]]).all()
    kept = run.accuracy()[-1:, [0, 2, 4]]
    (want,) = every(kept, run.loss()[-1:, [0, 2, 4]], run.test_size[[0, 2, 4]], 0.05)
    assert run.fairness()[-1] == want
    assert "3 of 5 clients" in str(history)
    same_history(run_folder.load_history(tmp_path / "run"), history)
    frame = history.to_pandas()
    assert frame.deployed_accuracy.isna().mean() == pytest.approx(0.4)
    assert "Clients whose AUC is undefined" in page.page([data.load_run_folder(tmp_path / "run")])
    rows = export.clients(data.load_run_folder(tmp_path / "run"))
    assert sum(np.isnan(row[-2]) for row in rows[1:]) == 2 * len(rows[1:]) // 5
    session = experiment.prepare(
        asked("own", eval__metric="auc", model="softmax", data={"name": "own"}),
        experiment.UserObjects(data=given),
    )
    assert any("AUC is undefined for 2 of 5 clients" in note for note in session.notes)
    session.close()


def test_a_broken_model_is_not_left_out():
    accuracy, loss = np.array([[np.nan, 0.5]]), np.array([[np.nan, 1.0]])
    (found,) = every(accuracy, loss, np.array([5, 5]), 0.05)
    assert np.isnan(found.accuracy)
    (found,) = every(accuracy, np.array([[2.0, 1.0]]), np.array([5, 5]), 0.05)
    assert found.accuracy == 50


def test_a_stopped_run_goes_on_with_the_same_metric(tiny_npz, tmp_path):
    wanted = asked(tiny_npz, eval__metric="f1", strategies=["fedavg", "fedmaba"])
    whole = play(begun(wanted, tmp_path / "whole"))
    play(begun(wanted, tmp_path / "run"), stop_after=3)
    resumed = play(starting.resume(tmp_path / "run"))
    same_history(resumed.history, whole.history)
    assert resumed.history.unit.name == "F1 (macro)"
    other = experiment.prepare(
        asked(tiny_npz, eval__metric="ece", strategies=["fedavg", "fedmaba"])
    )
    with pytest.raises(InputError, match=r"another experiment, in eval\.metric"):
        starting.open_run_folder(other, tmp_path / "run")
    other.close()


def test_figures_of_a_run_in_progress_are_in_the_metrics_own_unit(tiny_npz, tmp_path):
    play(begun(asked(tiny_npz, eval__metric="brier", save__every=None), tmp_path / "run"), 4)
    source = data.load_run_folder(tmp_path / "run")
    figures = CurrentFigures([source], 0.05)
    line = next(
        json.loads(text)
        for text in (tmp_path / "run/rounds.jsonl").read_text().splitlines()
        if "last" in text
    )
    told = figures.line(line, "last", source)
    assert told.accuracy == line["last"]["accuracy"]
    assert told.variance == line["last"]["variance"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metric": "rmse"}, "does not fit the task classify: choose accuracy, balanced-accuracy"),
        ({"metric": "acc"}, "eval.metric='acc'"),
        ({"metric": "auc", "client_metric": len}, "a client has one score: give one"),
        ({"client_metric": "auc"}, "client_metric='auc': give a function"),
        ({"client_metric": lambda o, y: o}, "gave an array of shape"),
        ({"client_metric": lambda o, y: np.inf}, "gave inf for client"),
        ({"client_metric": lambda o, y: "good"}, "gave 'good' for client"),
        ({"client_metric": lambda o, y: np.nan}, "gave nan for every client"),
        ({"client_metric": lambda o, y: o[len(y)]}, "IndexError"),
        ({"client_metric": lambda o: 1.0}, "TypeError"),
    ],
)
def test_what_cannot_be_a_score_is_refused(given, said):
    with pytest.raises(InputError, match=said.replace(".", r"\.")) as error:
        compare(**given)
    assert "\n" not in str(error.value)


def test_a_metric_that_no_client_has_is_refused_before_training():
    with pytest.raises(InputError, match="'auc' is undefined for every client"):
        fedmaba.compare("fedavg", clients=10, partition="shards:1", metric="auc", rounds=1, seeds=1)
    with pytest.raises(InputError, match="does not fit the task regress: choose rmse, mae, r2"):
        compare(given=patients("regress"), metric="auc")


def test_on_the_command_line(call, tiny_npz, tmp_path):
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK]
    done = call(*words, "--metric", "f1", "--out", tmp_path / "run")
    assert done.code == 0
    assert 'metric = "f1"' in (tmp_path / "run/experiment.toml").read_text(encoding="utf-8")
    shown = call("table", tmp_path / "run", "--to", "markdown")
    assert "F1 (macro) %" in shown.out
    wrong = call(*words, "--metric", "rmse", "--out", tmp_path / "wrong")
    assert wrong.code == 2
    assert "does not fit the task classify" in wrong.err
    assert not (tmp_path / "wrong").exists()
