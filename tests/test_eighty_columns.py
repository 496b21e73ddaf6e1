"""80 columns are enough for all that is printed: nothing is cut, no number is broken."""

import re

import pytest

import fedmaba
from fedmaba.report import table
from fedmaba.report.document import minus_sign
from group_cases import compare, people

NAMES = ["fedavg", "ditto", "local", "fedmaba:alpha=0.25,eta_b=0.125,loss_at=mean"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("narrow") / "run"
    compare(NAMES, people(), out=out, seeds=2, finetune=2)
    return out


@pytest.mark.parametrize(
    "more",
    [[], ["--model", "personal"], ["--against", "fedavg"], ["--by", "group"], ["--by", "client"]],
    ids=lambda more: " ".join(more) or "plain",
)
def test_a_table_fits(folder, more, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = call("table", folder, *more)
    lines = shown.out.splitlines()
    assert shown.code == 0
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert "…" not in shown.out
    if "--by" in more:
        return
    history = fedmaba.load_history(folder)
    model = "personal" if "personal" in more else "deployed"
    against = "fedavg" if "--against" in more else None
    for grid in table.document(history, model, against=against).grids:
        numbers = [c.text for row in grid.rows for c in row[2:] if re.search(r"\d", c.text)]
        assert numbers
        told = " ".join(map(minus_sign, numbers)).split()
        for number in (word for word in told if re.match(r"[−+\[]*\d", word)):
            assert any(number in line for line in lines), number


def fits(text: str) -> None:
    """No line is wider than 80 columns or cut; a path or a command is one word, and stays whole."""
    told = [x for x in text.splitlines() if not x.startswith(("Look at it:", "results:", "/"))]
    assert told
    assert max(map(len, told)) <= 80, max(told, key=len)
    assert "…" not in text


def test_compare_fits(call, monkeypatch, tiny_npz):
    monkeypatch.setenv("COLUMNS", "80")
    words = ("compare", *NAMES, "--data", tiny_npz, "--rounds", 2, "--seeds", 2, "--out", "run")
    shown = call(*words, "--minibatch", 5, "--eval-every", 1)
    assert shown.code == 0
    fits(shown.out)
    fits(shown.err)
    together = " ".join(shown.err.split())
    assert re.search(r"fedmaba:alpha=0.25\S*: variance [\d.]+ %², mean [\d.]+ %, worst", together)
    assert "It took" in shown.out
