"""The page of a reproduced target, drawn from its archives."""

import json

import pytest
from reproduction_cases import fill

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
