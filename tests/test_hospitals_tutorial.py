"""The tutorial on hospitals as a reader follows it: every command in order, and what it shows."""

import re
import shlex
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial-hospitals.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def test_the_commands_of_the_page_run_in_order(call):
    shell = "\n".join(body for kind, body in BLOCK.findall(PAGE) if kind == "sh")
    lines = shell.replace("\\\n", " ").split("\n")
    lines = [line for line in lines if line]
    assert [line.split()[1] for line in lines] == ["data", "compare", "report"]
    said = ""
    for line in lines:
        answer = call(*shlex.split(line)[1:])
        assert answer.code == 0, (line, answer.err)
        said += answer.err
    assert Path("heart.csv").read_text().count("\n") == 921
    assert "Switzerland" in Path("hospitals.html").read_text()
    (shown,) = [body for kind, body in BLOCK.findall(PAGE) if kind == "text"]
    for line in shown.splitlines():
        assert line in said, line


def test_the_changes_that_the_page_names_are_understood(call):
    start = ["compare", "fedavg", "--data", "heart", "--model", "softmax", "--rounds", "1"]
    named = re.findall(r"`(--[^`]+)`", PAGE.partition("## 4.")[2].partition("## 5.")[0])
    assert len(named) == 3
    for number, words in enumerate(named):
        answer = call(*start, *words.split(), "--seeds", "1", "--out", f"r{number}")
        assert answer.code == 0, answer.err
        if "--min-examples" in words:
            assert "1 of 4 left out, with fewer than 150 examples" in answer.err
