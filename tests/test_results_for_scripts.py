"""Results that other programs read: JSON and Parquet."""

import json
from pathlib import Path

import pytest

from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.report import export


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
        "format", "model", "at", "on", "share", "metric", "notes", "rows", "against", "differences",
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
    found = only(call, "data", "check", "heart", "--json")
    assert {tuple(entry["about"]) for entry in found["entries"]} == {("ok",)}


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
