"""What the page and the terminal say in few words: names, signs, weights that add up to less."""

from functools import partial
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from fedmaba.report import (
    client_figures,
    data,
    document,
    html,
    page_data,
    row_styles,
    terminal,
    verdict,
)
from fedmaba.report import table as tables
from fedmaba.results.history import History, Row
from fedmaba.results.metrics import PERCENT, Fairness
from fedmaba.strategies import BUILT_IN
from report_cases import history, one


def test_no_two_of_45_rows_share_colour_and_marker():
    labels = [f"{BUILT_IN[i % 10]}:x={i}" for i in range(45)]
    found = [(hue, variant % 5) for hue, variant in row_styles.hues(labels)]
    assert len({*found}) == 45


def test_what_all_names_begin_with_is_said_once():
    def sources(*names):
        runs = [one("afl", [0.1, 0.9])]
        return [data.Source(name, History(runs), about={"partition": {"0": "x"}}) for name in names]

    both = sources("fair: no decay", "fair: decay 0.1")
    assert data.short_names(both) == ["no decay", "decay 0.1"]
    assert [run.label for run in data.combine(both).runs] == ["afl (no decay)", "afl (decay 0.1)"]
    assert html.title(both) == "fair: no decay, decay 0.1"
    assert [folder["name"] for folder in page_data.tree(both)["folders"]] == data.short_names(both)
    for alone in (sources("fair: a", "other: a"), sources("fair: a"), sources("fair: ", "fair: b")):
        assert data.short_names(alone) == [source.name for source in alone]


def score(variance: float, mean: float) -> Fairness:
    values = dict.fromkeys(Fairness._fields, 1.0)
    return Fairness(**(values | {"variance": variance, "accuracy": mean}))


def test_a_headline_is_short_whatever_the_names():
    names = ["fedavg", *(f"fedmaba ({word} federation, weight decay 0.01)" for word in "abcd")]
    spread = {"fedavg": (90.0, 91.0, 92.0)}
    found = {
        name: {
            seed: score(spread.get(name, (20.0, 21.0 + i, 22.0 - i))[seed], 70.0 - i)
            for seed in range(3)
        }
        for i, name in enumerate(names)
    }
    said = verdict.judge(found, 0.05, PERCENT)
    assert said.headline.startswith("4 strategies share the lowest variance of 5")
    assert said.sentence.endswith(f"Also fairer: {names[2]}, {names[3]} and {names[4]}.")


def test_negative_numbers_have_one_sign():
    for text, want in {
        "-1.53 [-2.17, -0.90]": "−1.53 [−2.17, −0.90]",
        "qffl:q=-1, 1e-3, 2024-05-06, a-1": "qffl:q=-1, 1e-3, 2024-05-06, a-1",
    }.items():
        assert document.minus_sign(text) == want
    grid = document.Grid("x", "t", ["row", "a"], [[document.Cell("a:b=-1"), document.number(-2.0)]])
    stream = StringIO()
    Console(file=stream, width=80).print(terminal.table_of(grid))
    assert "a:b=-1" in stream.getvalue()
    assert "−2.00" in stream.getvalue()
    assert ",-2,,,," in document.written(document.Document("", grids=[grid]), "csv")  # a number


def test_weights_are_shares_of_their_sum():
    table = np.array([[0.2, 0.2, np.nan], [0.1, 0.3, 0.2], [0.5, 0.25, 0.25]])
    want = [[1, 1, np.nan], [0.5, 1.5, 1], [1.5, 0.75, 0.75]]
    assert np.allclose(client_figures.relative_weights(table), want, equal_nan=True)
    none = np.array([[1.0, -1.0]])  # of nothing there are no shares
    assert client_figures.relative_weights(none).tolist() == [[2.0, -2.0]]


def test_the_page_knows_who_does_not_add_up_to_one():
    found = history(labels=("fedavg", "qffl:q=0.1"), seeds=1, clients=5, rounds=4)
    found.runs[1].tables["weight"] = [0.5 * w for w in found.runs[1].tables["weight"]]
    usual, short = page_data.tree([data.source_of(found)])["runs"]
    assert "total" not in usual
    assert short["total"] == pytest.approx([0.5] * 4)


def test_a_note_names_few_rows_one_by_one():
    def note(count):
        rows = [
            Row(f"afl:x={i}", 1, score(50.0 + i, 70.0), score(0, 0), "", 30.0, 20.0 + i)
            for i in range(count)
        ]
        return tables.noise_note(rows, [])

    assert "without it: afl:x=0 20.00, afl:x=1 21.00, afl:x=2 22.00" in note(3)
    assert note(20).count("afl:x=") == 2
    assert "without it: 20.00 (afl:x=0) to 39.00 (afl:x=19)" in note(20)
    assert note(20).endswith("too small to compare clients under 10 rows")


def test_a_list_fits_into_80_columns_and_loses_no_word(monkeypatch):
    real = Console
    for what in ("strategies", "datasets", "models", "partitions", "attacks", "figures"):
        stream = StringIO()
        how = {"file": stream, "width": 80, "force_terminal": True, "color_system": None}
        monkeypatch.setattr(terminal, "Console", partial(real, **how))
        terminal.listing(what)
        rows, shown = terminal.rows_of(what), stream.getvalue()
        assert max(map(len, shown.splitlines())) <= 80
        assert "".join(shown.split()) == "".join("".join(" ".join(row).split()) for row in rows)
        assert all(f"\n{name} " in f"\n{shown}" for name, *_ in rows)
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = StringIO()
    monkeypatch.setattr(terminal, "Console", lambda **how: real(file=stream, width=80))
    terminal.listing("strategies")  # a file has one line for each
    assert len(stream.getvalue().splitlines()) == len(BUILT_IN)
