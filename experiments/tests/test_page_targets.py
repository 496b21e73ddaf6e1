"""The page of a reproduced target, drawn from its archives."""

import json
import sys

import pytest
from reproduction_cases import fill

from fedmaba import cli
from fedmaba.report import page_data
from laboratory import target_sources, targets
from report_cases import Elements, call


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives") / "results"
    fill(folder, "figure2-alpha", "attacks")
    return folder


def test_a_target_has_its_page(results, tmp_path, monkeypatch, capsys):
    out = tmp_path / "r.html"
    call(monkeypatch, capsys, "report", results / "figure2-alpha", "-o", out)
    seen = Elements(out.read_text())
    tree = json.loads(seen.content["script"][0])
    (job,) = targets.load_target("figure2-alpha").every_job()
    assert [s["label"] for s in tree["strategies"]] == [*job.strategies]
    rows = tree["tables"]["deployed.last"]["rows"]
    assert [row["seeds"] for row in rows] == [
        len({key.seed for key in job.runs if key.label == row["label"]}) for row in rows
    ]
    assert all(value is not None for row in rows for value in row["values"])
    assert tree["folders"][0]["name"] == "figure2-alpha"
    assert "fedmaba reproduce figure2-alpha" in out.read_text()
    assert tree["live"] == []
    assert "clients · 60 rounds</p>" in out.read_text()  # as far as it was evaluated


def test_a_target_of_several_experiments_keeps_them_apart(results):
    sources = target_sources.of_target(results, "attacks")
    assert len(sources) == len(targets.load_target("attacks").every_job())
    assert all(source.name.startswith("attacks: ") for source in sources)
    assert len({source.name for source in sources}) == len(sources)
    assert len(page_data.tree(sources[:2])["folders"]) == 2


def test_what_is_neither_a_run_nor_a_target_is_said_in_one_line(
    results, tmp_path, monkeypatch, capsys
):
    def refused(*words) -> str:
        monkeypatch.setattr(sys, "argv", ["fedmaba", "report", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "holds no run of table1-grid: run `fedmaba reproduce" in refused(results / "table1-grid")
    assert "is no run folder" in refused(results / "table9")
    assert "is no run folder" in refused(tmp_path / "none" / "table1-grid")
    twice = results / "figure2-alpha"
    assert "is named twice" in refused(twice, twice)
