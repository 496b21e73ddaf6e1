"""80 columns are enough for tables and differences: nothing is cut, no number is broken."""

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
    [[], ["--model", "personal"], ["--against", "fedavg"], ["--by", "group"]],
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
