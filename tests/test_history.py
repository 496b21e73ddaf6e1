"""The history of runs: in memory, read back from a folder, as tables."""

import json
import math

import numpy as np
import pytest
from torch import nn

import fedmaba
from fedmaba.errors import InputError
from fedmaba.results.history import GrowingArray
from fedmaba.results.metrics import fairness
from fedmaba.results.run_folder import (
    load_history,
)
from run_folders import SMALL, STRATEGIES, same_history


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


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", "1e30"),
        pytest.param("float64", "1e20", marks=pytest.mark.slow),
        ("float64", "1e100"),
    ],
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


def test_a_table_shows_the_share_the_run_asked_for(fed, tmp_path):
    options = {"model": "softmax", "rounds": 1, "seeds": 1, "share": 0.6}
    history = fedmaba.compare("fedavg", data=fed, out=tmp_path / "run", **options)
    assert "worst 60 %" in str(history)
    assert "worst 60 %" in str(load_history(tmp_path / "run"))


def test_a_table_in_memory_is_hardly_larger_than_its_numbers():
    column = GrowingArray()
    for i in range(1000):
        column.append(np.asarray([i, 2 * i]))
    column.append(np.asarray([0.5, 1.5]))  # a wider kind takes the others along
    assert len(column) == 1001
    assert column[-1].tolist() == [0.5, 1.5]
    assert [int(row[1]) for row in column][:3] == [0, 2, 4]
    assert np.asarray(column).shape == (1001, 2)
    assert column.array().base.nbytes <= 2.1 * column.array().nbytes
    with pytest.raises(ValueError, match="a row of shape"):
        column.append(np.zeros(3))
