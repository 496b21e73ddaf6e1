"""Scores on validation examples: in tables, pandas, CSV files and the report, each headed so."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.results import metrics, run_folder
from run_folders import asked, begun, play


@pytest.fixture
def held(call, tiny_npz):
    """A run folder with validation data."""
    words = ["compare", "fedavg", "fedmaba", "--data", tiny_npz, *QUICK, "--validation", "40%"]
    assert call(*words, "--out", "held").code == 0
    return fedmaba.load_history("held")


def test_a_table_on_validation_data_says_so_and_differs(held, call):
    run = held.runs[0]
    assert run.validation_size.sum() > 0
    judged = held.judged_on("validation")
    want = run.column("deployed_validation.accuracy")[-1]
    np.testing.assert_array_equal(judged.runs[0].accuracy()[-1], want)
    figures = metrics.every(
        want[None].astype(float),
        run.column("deployed_validation.loss")[-1:].astype(float),
        run.validation_size,
        0.05,
        held.unit,
    )[0]
    assert judged.runs[0].fairness()[-1] == figures
    mean = judged.summary()[0].mean.accuracy
    assert mean != held.summary()[0].mean.accuracy
    answer = call("table", "held", "--on", "validation")
    assert answer.code == 0, answer.err
    assert "on validation data, at the last round" in answer.out
    assert f"{mean:.2f}" in answer.out
    assert "the validation sets are too small to compare these clients" in " ".join(
        answer.out.split()
    )
    assert "on validation data" not in call("table", "held").out
    best = call("table", "held", "--on", "validation", "--at", "best", "--to", "markdown")
    assert "on validation data, at its best round, picked on validation data" in best.out
    assert "on validation data" in held.table(on="validation")


def test_csv_files_of_validation_scores_have_their_own_folder_and_a_column(held, call):
    answer = call("export", "held", "--on", "validation")
    assert answer.code == 0, answer.err
    with Path("held/csv-validation/summary.csv").open() as file:
        row = next(csv.DictReader(file))
    assert row["on"] == "validation"
    mean = held.judged_on("validation").summary()[0].mean.accuracy
    assert float(row["accuracy"]) == pytest.approx(mean)
    call("export", "held")
    assert "validation" not in Path("held/csv/summary.csv").read_text()


def test_a_report_on_validation_data_says_so(held, call):
    assert call("report", "held", "-o", "page.html", "--on", "validation").code == 0
    page = Path("page.html").read_text()
    assert "Every score and loss of a client on this page is on its validation examples." in page
    mean = held.judged_on("validation").summary()[0].mean.accuracy
    assert re.search(rf"\b{mean:.2f}\b", page)
    assert "on validation data, at the last round" in page


def test_runs_without_validation_data_are_refused(call, tiny_npz):
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK, "--out", "none"]
    assert call(*words).code == 0
    refused = call("table", "none", "--on", "validation")
    assert refused.code == 2
    assert "has no scores on validation data: run it with --validation 10%" in refused.err


def test_a_folder_without_the_sizes_is_refused_not_guessed(tiny_npz, tmp_path):
    out = tmp_path / "run"
    history = play(begun(asked(tiny_npz, seeds=1), out)).history
    for run in history.runs:
        run.validation_size = None
    with pytest.raises(InputError, match="did not note how many validation examples"):
        history.judged_on("validation")
    assert run_folder.load_history(out).runs[0].validation_size is not None
