"""The tutorial on hospitals as a reader follows it: every command in order, and what it shows."""

import json
import re
import runpy
from pathlib import Path

import pytest

import tutorial_page
from tutorial_page import numbers

PAGE = tutorial_page.read("tutorial-hospitals.md")
NEAR = 3.0  # points, or %²: processors round differently


def blocks(*kinds):
    return tutorial_page.blocks(PAGE, *kinds)


def require_shown(body, out):
    tutorial_page.require_shown(body, out, NEAR)


def test_the_commands_of_the_page_run_in_order(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = tutorial_page.commands(PAGE)
    kinds = ["data", "compare", "table", "compare", "table", "report"]
    assert [line[1] for line in lines] == kinds
    answers = []
    for line in lines:
        answers.append(call(*line[1:]))
        assert answers[-1].code == 0, (line, answers[-1].err)
    assert Path("heart.csv").read_text().count("\n") == 921
    assert "Switzerland" in Path("hospitals.html").read_text()
    _, compared, by_client, extended, later, _ = answers
    said, table, verdict, clients = blocks("text")
    for line in said.splitlines():
        assert line in compared.err, line
    require_shown(table, compared.out)
    require_shown(verdict, compared.out)
    require_shown(clients, by_client.out)
    noise = re.search(r"a variance of about ([\d.]+) to ([\d.]+) %²", compared.out)
    (told,) = re.findall(r"variance of about (\d+) %²,\nmore than the 14 to 21 %²", PAGE)
    assert float(noise[1]) - NEAR < float(told) < float(noise[2]) + NEAR
    # ten seeds
    assert "No strategy is measurably fairer than fedavg" in extended.out
    row = next(line for line in later.out.splitlines() if "Long Beach" in line)
    told = re.findall(r"gains ([\d.]+) points, with an interval from (\S+) to (\S+):", PAGE)
    assert numbers(" ".join(told[0])) == pytest.approx(numbers(row)[-3:], abs=NEAR)
    assert len(json.loads(Path("runs/hospitals/runs.json").read_text())["runs"]) == 10
    assert Path("runs/hospitals/parts/001").is_dir()  # the five new seeds, and nothing again


@pytest.mark.slow
def test_the_changes_that_the_page_names_are_understood(call, refused):
    start = ["compare", "fedavg", "--data", "heart", "--model", "softmax", "--rounds", "1"]
    part = PAGE.partition("## 7.")[2].partition("## 8.")[0]
    *_, folder = re.findall(r"`--out ([^`]+)`", part)
    named = [x for x in re.findall(r"`(--[^`]+)`", part) if not x.startswith("--out")]
    assert len(named) == 3
    for number, more in enumerate(named):
        answer = call(*start, *more.split(), "--seeds", "1", "--out", f"{folder}{number}")
        assert answer.code == 0, answer.err
        if "--min-examples" in more:
            assert "1 of 4 left out, with fewer than 150 examples" in answer.err
    said = refused(*start, "--missing", "median", "--seeds", "1", "--out", f"{folder}0")
    assert "holds another experiment, in data.missing: choose another --out" in said


def test_the_python_of_the_page_gives_the_table_of_the_page(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks("py")))
    there = runpy.run_path(str(script))
    require_shown(blocks("text")[1], capsys.readouterr().out)
    assert str(there["again"]) == str(there["history"])
