"""What the README says of `make demo` is what that prints."""

import re
import shlex
from pathlib import Path

import pytest

import fedmaba

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEAR = 12.0  # %² of a variance, and points: processors round differently


def command():
    """The words of the demo in the Makefile, without the program."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^demo:.*\n\t\$\(BIN\)/fedmaba (.*)$", makefile, re.MULTILINE)
    return shlex.split(line)


def told():
    """Variance, accuracy, worst and best of each strategy in the README's table."""
    rows = re.findall(r"^\| ([\w:=.]+) \|((?: \S+ ± \S+ \|){4})$", README, re.MULTILINE)
    return {
        name: [float(x.strip("*")) for x in re.findall(r"(\S+) ±", cells)] for name, cells in rows
    }


def test_the_readme_has_a_row_for_each_strategy_of_the_demo():
    words = command()
    assert list(told()) == words[1 : words.index("--data")]
    assert words[words.index("--seeds") + 1] == "5"
    assert "over five seeds" in README


@pytest.mark.slow
def test_the_table_of_the_readme_is_that_of_the_demo(call, tmp_path):
    answer = call(*command(), "--out", str(tmp_path / "demo"))
    assert answer.code == 0, answer.err
    rows = fedmaba.load_history(tmp_path / "demo").summary("deployed")
    for row in rows:
        mean = row.mean
        figures = [mean.variance, mean.accuracy, mean.worst, mean.best]
        assert told()[row.label] == pytest.approx(figures, abs=NEAR), row.label
    verdict = " ".join(answer.out.split())
    assert "fedmaba is fairer than fedavg" in verdict
    assert "lso fairer" in verdict
    assert "afl" in verdict.partition("lso fairer")[2]
