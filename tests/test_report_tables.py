"""The table of a history: captions, ranks, every form, and the verdict in words."""

import csv
from io import StringIO

import numpy as np
import pytest

from fedmaba import load_history
from fedmaba.errors import InputError
from fedmaba.report import (
    data,
    plot_data,
    table,
)
from fedmaba.results.history import History
from report_cases import PAYLOADS, one


def test_a_caption_says_which_model_which_round_and_how_many_clients():
    runs = [one("fedavg", [0.4, 0.8]), one("afl", [0.5, 0.6]), one("afl", [0.5, 0.6], seed=1)]
    runs[0].deploy, runs[1].deploy, runs[2].deploy = "poly:8", "average", "average"
    history = History(runs)
    tail = "; mean ± sd over seeds"
    assert table.caption(History(runs[:2]), "last", "last").endswith("; one seed")
    for model, at, said in (
        ("deployed", "last", "deployed model (average, poly:8), at the last round"),
        ("last", "last", "last server model, at the last round"),
        ("last", "best", "last server model, at its best round, picked on test data"),
        ("last", "last5", "last server model, mean of the last five evaluations"),
    ):
        assert table.caption(history, model, at) == said + tail
    runs[0].tables["deployed_validation.accuracy"] = runs[0].tables["deployed.accuracy"]
    assert "picked on validation data" in table.caption(history, "last", "best")
    runs[0].test_size = np.array([10, 0])
    assert table.caption(history, "last", "last").endswith(f"{tail}; 1 of 2 clients")


def test_two_rows_are_not_ranked_and_three_of_one_seed_are():
    rows = History([one(name, [0.4, a]) for name, a in (("a", 0.8), ("b", 0.6), ("c", 0.4))])
    first = table.columns(0.05)[0]
    assert table.ranks(rows.summary(), first) == [2, 1, 0]
    assert table.ranks(rows.summary()[:2], first) == [2, 2]


def test_a_history_in_memory_gives_the_tables_for_a_paper():
    seeds = {"fedavg": (0.4, 0.6), "afl": (0.5, 0.9), "ideal": (0.9, 0.9)}
    runs = [one(name, [a, 0.8], s) for name, pair in seeds.items() for s, a in enumerate(pair)]
    history = History([*runs, one("afl", [0.1, 0.1], 2, diverged="afl, seed 2, diverged")])
    text = history.table(against="fedavg", model="last")
    with pytest.raises(InputError, match="against 'fedavg': there is no other row"):
        History([run for run in history.runs if run.label == "fedavg"]).table(against="fedavg")
    assert text.startswith("Left out of every mean: afl, seed 2, diverged.\n\n**Last server model")
    half = 12.706 * np.std([5, 15], ddof=1) / np.sqrt(2)  # of mean accuracy, seed by seed
    line = next(x for x in text.splitlines()[8:] if x.startswith("| afl | 2 | "))
    assert f" | +10.00 [{10 - half:+.2f}, {10 + half:+.2f}], p = " in line
    lines = list(csv.DictReader(StringIO(history.table("csv", "last", against="fedavg"))))
    assert list(lines[0]) == ["table", "row", "column", "value", "sd", "low", "high", "p", "text"]
    pair = {
        x["row"]: x for x in lines if (x["table"], x["column"]) == ("differences", "accuracy %")
    }
    found = [float(pair["afl"][name]) for name in ("value", "low", "high")]
    assert found == pytest.approx([10, 10 - half, 10 + half], abs=1e-3)
    assert {x["low"] for x in lines if x["table"] == "levels"} == {""}
    assert r"\toprule" in history.table("latex")
    with pytest.raises(InputError, match="unknown form 'pdf': choose one of csv, latex, markdown"):
        history.table("pdf")


def test_rows_that_look_equal_share_a_rank():
    names = zip("abcd", (0.9, 0.9 + 1e-9, 0.8, 0.7), strict=True)
    rows = History([one(name, [0.9, a]) for name, a in names]).summary()
    mean = table.columns(0.05)[1]
    assert table.ranks(rows, mean) == [0, 0, 1, 2]
    assert table.ranks([rows[0]] * 3, mean) == [2, 2, 2]


def test_a_history_shows_itself_in_a_notebook(folder):
    history = load_history(folder)
    text = history._repr_html_()
    assert text.startswith("<table>")
    row = history.summary()[0]
    assert f"{row.mean.variance:.2f} ± {row.sd.variance:.2f}" in text
    evil = History([one(PAYLOADS[0], [0.1, 0.2])])
    assert "<script" not in evil._repr_html_()


@pytest.mark.parametrize(("seeds", "judged"), [(1, False), (2, True)])
def test_a_row_of_one_seed_beside_rows_of_more_is_neither_ranked_nor_on_the_front(seeds, judged):
    several = [
        one(name, [a, b], s)
        for s in (0, 1)
        for name, a, b in (("fedavg", 0.4, 0.79), ("afl", 0.5, 0.8))
    ]
    history = History([*several, *(one("ideal", [0.9, 0.9], s) for s in range(seeds))])
    rows = history.summary("last")
    ranks = [table.ranks(rows, column) for column in table.columns(0.05)]
    assert [[r[-1] == 0 for r in ranks]] == [[judged] * 4]
    assert all(sorted(r)[:2] == [0, 1] for r in ranks)
    front = plot_data.PlotData([data.source_of(history)], "last", 0.05).front()
    assert front == (["ideal"] if judged else ["afl"])
