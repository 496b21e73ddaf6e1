"""The part of the variance over clients that finite test sets alone make."""

import csv
import io

import numpy as np
import pytest

from fedmaba.report import data, export, page_data, table, terminal
from fedmaba.results.history import History
from fedmaba.results.metrics import Metric, sampling_noise, variance
from report_cases import evaluated


def run_of(label, right, size, **more):
    return evaluated(label, 0, np.array(right) / np.array(size), sizes=size, **more)


def test_both_are_without_bias():
    rng = np.random.default_rng(0)
    true, size = np.array([0.5, 0.6, 0.9, 0.7]), np.array([4, 9, 20, 12])
    seen = rng.binomial(size, true, size=(200_000, 4)) / size
    noise = sampling_noise(seen, size)
    want = 0.75 * 1e4 * np.mean(true * (1 - true) / size)  # of four clients
    assert noise.mean() == pytest.approx(want, rel=0.005)
    alike = rng.binomial(size, 0.7, size=(200_000, 4)) / size
    assert sampling_noise(alike, size).mean() == pytest.approx(variance(alike).mean(), rel=0.01)
    left = variance(seen) - noise
    assert left.mean() == pytest.approx(variance(true), rel=0.01)


def test_it_is_unknown_where_scores_are_no_counts():
    assert np.isnan(sampling_noise(np.array([0.5, 0.123]), np.array([10, 10])))
    assert np.isnan(sampling_noise(np.array([0.5, 1.0]), np.array([10, 1])))
    some = sampling_noise(np.array([0.5, np.nan]), np.array([10, 0]))
    assert some == 0  # of one client
    other = run_of("fedavg", [5, 6], [10, 10], metric=Metric("AUC", False, True))
    assert np.isnan(other.test_noise()).all()
    assert table.noise_note(History([other]).summary(), [other]) == ""


def test_table_page_and_csv_say_it(capsys):
    noisy = run_of("fedavg", [5, 6, 4, 5], [10] * 4)
    clear = run_of("afl", [100, 900, 500, 300], [1000] * 4)
    history = History([noisy, clear])
    first, second = history.summary()
    assert first.test_noise == pytest.approx(0.75e4 * np.mean([0.25, 0.24, 0.24, 0.25]) / 9)
    assert first.corrected == pytest.approx(50 - first.test_noise)  # the amount that is printed
    note = table.noise_note([first, second], history.runs)
    assert f"{second.test_noise:.2f} to {first.test_noise:.2f} %²" in note
    assert f"fedavg {first.corrected:.2f}, afl {second.corrected:.2f}" in note
    small = "warning: the test sets are too small to compare clients under fedavg"
    assert note.endswith(small)
    assert "warning" not in table.noise_note([second], [clear])
    assert history.table("markdown").endswith(f"\n\nT{note[1:]}.\n")
    assert "noise of finite test sets" in history.table("latex")
    terminal.show(history, "deployed", "last")
    assert "noise of finite test sets" in " ".join(capsys.readouterr().out.split())
    tree = page_data.tree([data.source_of(history)])
    assert any("noise of finite test sets" in text for text in tree["notes"])
    head, row, *_ = export.summary(history)
    told = dict(zip(head, row, strict=True))
    assert told["test_noise"] == first.test_noise
    assert told["corrected_variance"] == first.corrected
    assert list(csv.reader(io.StringIO(history.table("csv"))))


def test_a_client_with_one_test_example_is_said():
    """Its accuracy is 0 or 100 %: that makes much of the variance, and how much is not known."""
    tiny = run_of("fedavg", [5, 6, 1], [10, 10, 1])
    history = History([tiny])
    note = table.noise_note(history.summary(), history.runs)
    assert note.startswith("warning: 1 of 3 clients have a single test example")
    assert note.endswith("--min-examples leaves small clients out")
    assert note[1:] in " ".join(history.table("markdown").split())
    assert any(note[1:] in text for text in page_data.tree([data.source_of(history)])["notes"])


def test_more_noise_than_variance_is_said_with_both_numbers():
    flat = run_of("fedavg", [5, 5, 5, 6], [10] * 4)
    (row,) = History([flat]).summary()
    assert row.test_noise > 10 * row.mean.variance
    note = table.noise_note([row], [flat])
    assert note.startswith("warning: the test sets are too small to compare these clients")
    assert note.endswith(f"{row.test_noise:.2f} %², and {row.mean.variance:.2f} %² was measured")
    over = row._replace(label="term", mean=row.mean._replace(variance=300.0))
    assert f"{100 * row.test_noise / row.mean.variance:.0f} % of what is shown" in (
        table.noise_note([over, row], [flat])
    )
