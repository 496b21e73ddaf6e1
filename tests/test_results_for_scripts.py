"""Results that other programs read: JSON, Parquet, and the files of `fedmaba reproduce`."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.report import export
from fedmaba.reproduction import target_sources
from reproduction_cases import ROOT, fill

TARGET = "natural-heart"


@pytest.fixture(scope="module")
def archive_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    fill(folder, TARGET, "attacks")
    return folder


def only(call, *words):
    """The JSON document of a command, which has nothing else on standard output."""
    answer = call(*words)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_a_table_is_one_json_document(call, finished):
    history, folder = finished[0].history, str(finished[1])
    found = only(call, "table", folder, "--json", "--against", "fedavg")
    assert found == only(call, "table", folder, "--to", "json", "--against", "fedavg")
    assert found == json.loads(history.table("json", against="fedavg"))
    assert list(found) == [
        "format", "model", "at", "on", "share", "metric", "rows", "against", "differences",
    ]  # fmt: skip
    assert found["metric"] == {"name": "accuracy", "lower_is_better": False, "percent": True}
    rows = {row.label: row for row in history.summary()}
    assert [row["strategy"] for row in found["rows"]] == list(rows)
    for row in found["rows"]:
        assert row["mean"]["variance"] == rows[row["strategy"]].mean.variance
        assert row["seeds"] == 2
        assert set(row) == {
            "strategy", "seeds", "mean", "sd", "test_noise", "corrected_variance", "note",
        }  # fmt: skip
    assert [row["strategy"] for row in found["differences"]] == list(rows)[1:]
    first = found["differences"][0]["figures"]["accuracy"]
    gap = found["rows"][1]["mean"]["accuracy"] - found["rows"][0]["mean"]["accuracy"]
    assert first["mean"] == pytest.approx(gap)
    assert first["low"] <= first["mean"] <= first["high"]


def test_lists_are_json_documents(call):
    found = only(call, "list", "strategies", "--json")
    assert (found["format"], found["list"]) == (1, "strategies")
    assert "fedmaba" in {entry["name"] for entry in found["entries"]}
    found = only(call, "list", "targets", "--json")
    (entry,) = (e for e in found["entries"] if e["name"] == TARGET)
    assert entry["about"][1:] == ["50", "0", str(50 * 4 * 50)]
    found = only(call, "data", "check", "heart", "--json")
    assert {tuple(entry["about"]) for entry in found["entries"]} == {("ok",)}


def test_results_of_reproduce_open_like_run_folders(call, archive_folder, tmp_path):
    path = archive_folder / TARGET
    history = fedmaba.load_history(path)
    assert len(history.runs) == 50
    (row, *_) = only(call, "table", str(path), "--json")["rows"]
    assert row["mean"]["accuracy"] == history.summary()[0].mean.accuracy
    text = call("table", str(path))
    assert text.code == 0
    assert "qffl:q=0.1" in text.out
    assert text.err == ""
    frame = history.to_pandas()
    assert len(frame) == 50 * 6 * 20
    assert frame["deployed_accuracy"].between(0, 1).all()
    for form in ("csv", "parquet"):
        pytest.importorskip("pyarrow")
        answer = call("export", str(path), "--to", form, "-o", str(tmp_path / form))
        assert answer.code == 0, answer.err
        assert (tmp_path / form / f"clients.{form}").is_file()


def test_one_file_of_reproduce_opens_by_itself(call, archive_folder):
    (file,) = (
        path
        for path in archive_folder.glob("*.npz")
        if any("qffl:q=0.1" in run.label for run in fedmaba.load_history(path).runs)
    )
    assert len(fedmaba.load_history(str(file)).runs) == 50
    assert call("table", str(file)).code == 0
    assert call("export", str(file)).code == 0
    assert (file.with_suffix("") / "csv" / "summary.csv").is_file()


def test_a_target_of_several_experiments_keeps_them_apart(archive_folder):
    history = fedmaba.load_history(archive_folder / "attacks")
    labels = {run.label for run in history.runs}
    assert "fedavg (nobody is hostile)" in labels
    assert len(labels) == 8 * 4


def test_a_folder_that_reproduce_drew_into_is_still_a_target(archive_folder):
    (archive_folder / TARGET).mkdir(exist_ok=True)  # where reproduce writes table.md
    (source,) = target_sources.load_runs_and_targets([archive_folder / TARGET])
    assert len(source.history.runs) == 50


def test_the_results_of_the_repository_open():
    history = fedmaba.load_history(ROOT / "results" / TARGET)
    assert {run.label for run in history.runs} == {
        "fedavg", "qffl:q=0.1", "afl", "term", "fedmaba",
    }  # fmt: skip
    assert all(np.isfinite(run.accuracy()[-1]).all() for run in history.runs)


def test_what_is_no_result_is_refused(call, tmp_path):
    (tmp_path / "a.npz").write_bytes(b"no zip")
    for words in (["table", "a.npz"], ["export", "a.npz"]):
        answer = call(*words[:1], str(tmp_path / words[1]))
        assert answer.code == 2
        assert "is no file of `fedmaba reproduce`" in answer.err
    (tmp_path / "empty").mkdir()
    answer = call("table", str(tmp_path / "empty" / "table2-cifar10"))
    assert answer.code == 2
    assert "holds no run of table2-cifar10" in answer.err


def test_parquet_has_the_numbers_of_the_run(finished, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    written = export.write_export(finished[1], tmp_path / "out", "parquet")
    assert [path.name for path in written] == [
        "summary.parquet", "rounds.parquet", "clients.parquet", "weights.parquet",
    ]  # fmt: skip
    table = parquet.read_table(tmp_path / "out" / "clients.parquet").to_pydict()
    rows = export.clients(export.data.load_run_folder(finished[1]))
    assert list(table) == rows[0]
    assert table["deployed_accuracy"] == [
        row[rows[0].index("deployed_accuracy")] for row in rows[1:]
    ]
    assert {type(value) for value in table["round"]} == {int}


def test_parquet_without_pyarrow_names_the_extra(finished, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"wants pyarrow: .*'\.\[parquet\]'"):
        export.write_export(finished[1], tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()


def test_the_folder_that_one_stands_in_is_exported_into_itself(call, tiny_npz, monkeypatch):
    assert call("compare", "fedavg", "--data", tiny_npz, *QUICK, "--out", "run").code == 0
    monkeypatch.chdir("run")
    assert call("export", ".").code == 0
    assert Path("csv/summary.csv").exists()


@pytest.mark.parametrize("by", ["strategy", "client"])
def test_results_of_reproduce_have_no_validation_scores_and_no_option_for_them(
    by, refused, archive_folder
):
    said = refused("table", archive_folder / TARGET, "--on", "validation", "--by", by)
    assert said.endswith(
        "seed 0: these results of reproduce keep no scores of the deployed model on validation "
        "data: leave out --on validation\n"
    )
