"""What rounds cost, and who was asked and heard: tables against numbers computed by hand."""

import csv
import json
import math

import numpy as np
import pytest

from fedmaba.errors import InputError
from fedmaba.report import cost_tables, data, figures, page_data
from fedmaba.report.html import page
from fedmaba.results.costs import Goal, Reached, costs, goals, score_per_heard, turn_counts
from fedmaba.results.history import GrowingArray, History
from fedmaba.results.metrics import PERCENT, Metric
from report_cases import Elements, call, evaluated

CLIENT = [[0, 1], [0, 2], [1, 2]]
ANSWER = [[2, 2], [2, 0], [1, -1]]  # 0: heard twice; 1: heard, late; 2: lost, only its loss told
DOWN = np.array([[4, 4], [4, 4], [4, 1]]) * 10**8
UP = np.array([[2, 2], [2, 0], [2, 1]]) * 10**8
CLOCK = [3600, 5400, 9000]


def run(label="fedavg", seed=0, scores=((0.2, 0.4, 0.0), (0.6, 0.9, 0.3)), **changes):
    """Three rounds of three clients, evaluated after the first and the third."""
    one = evaluated(label, seed, *scores, **changes)
    one.tables["evaluated"] = GrowingArray(np.array([1, 3]))
    one.tables |= {
        name: GrowingArray(np.array(table))
        for name, table in {
            "round": [1, 2, 3], "client": CLIENT, "weight": [[0.5, 0.5]] * 3,
            "turnout.answer": ANSWER, "turnout.down": DOWN, "turnout.up": UP,
            "turnout.clock": CLOCK,
        }.items()
    }  # fmt: skip
    return one


def plain(label="afl"):
    return evaluated(label, 0, (0.2, 0.4, 0.0), (0.6, 0.9, 0.3))


def test_the_numbers_are_those_computed_by_hand():
    asked, heard = turn_counts(run())
    assert (asked.tolist(), heard.tolist()) == ([2, 2, 1], [2, 1, 0])
    # 60 % in two rounds of three, 90 % in one; the third client was never heard
    each = score_per_heard(run(), "deployed", "last", PERCENT)
    np.testing.assert_allclose(each, [90, 270, np.nan])
    (row,) = costs(History([run()]))
    assert row[:2] == ("fedavg", 1)
    assert row[2:5] == pytest.approx((2.1, 0.9, 2.5))
    assert row[5:9] == pytest.approx((1, 5 / 3, 2, 0))
    assert row[9:13] == pytest.approx((0, 1, 2, 1))
    assert row[13:15] == pytest.approx((180, 90**2))


def test_what_was_spent_until_a_goal_is_that_of_the_first_evaluation_that_reached_it():
    # The first round costs 0.8 GB down and 0.4 GB up. The means are 20 % and 60 %, the variances
    # 800/3 and 600, the worst third has 0 % and 30 %.
    late, never = (3.0, 2.5), (math.nan, math.nan)
    wanted = {
        "accuracy=20%": (1.2, 1.0), "accuracy=0.21": late, "accuracy=61%": never,
        "variance=270": (1.2, 1.0), "variance=266": never, "worst=30%": late,
    }  # fmt: skip
    (row,) = costs(History([run()], share=1 / 3), until=goals(wanted))
    for text, found, told in zip(wanted, row.until, wanted.values(), strict=True):
        assert found[1:] == pytest.approx(told, nan_ok=True), text
        assert found.seeds == (told is not never), text


def test_rows_are_means_over_seeds_and_say_how_many_reached_a_goal():
    other = run(seed=1, scores=((0.1, 0.1, 0.1), (0.4, 0.4, 0.4)))
    other.tables["turnout.down"] = GrowingArray(3 * DOWN)
    lost = run(seed=2)
    lost.diverged = "fedavg, seed 2, diverged"
    history = History([run(), other, lost, plain()])
    (row,) = costs(history, until=[Goal("accuracy", 0.6)])
    assert (row.label, row.seeds, row.gigabytes_down) == ("fedavg", 2, pytest.approx(4.2))
    assert row.until == (Reached(1, pytest.approx(3.0), 2.5),)
    bill, turns = cost_tables.grids(history, until=[Goal("accuracy", 0.6)])
    assert bill.head == [
        *("row", "seeds", "GB down", "GB up", "hours"),
        *("GB until accuracy ≥ 60 %", "hours until accuracy ≥ 60 %"),
    ]
    texts = ["fedavg", "2", "4.20", "0.900", "2.50", "3.00 (1 of 2 seeds)", "2.50 (1 of 2 seeds)"]
    assert [cell.text for cell in bill.rows[0]] == texts
    # the second seed's 40 % give 60 and 120: a mean of 90 and a variance of 30 squared
    texts = ["fedavg", "2", "1", "1.67", "2", "0", "0", "1", "2", "1", "135.00", "4500.00"]
    assert [cell.text for cell in turns.rows[0]] == texts


def test_without_a_clock_there_are_no_hours():
    quiet = run()
    del quiet.tables["turnout.clock"]
    bill, _ = cost_tables.grids(History([quiet]), until=[Goal("variance", 700)])
    assert bill.head[2:] == ["GB down", "GB up", "GB until variance ≤ 700 %²"]
    found = json.loads(History([quiet]).table("json"))["costs"][0]
    assert found["hours"] is None
    assert found["heard"] == {"least": 0, "mean": 1, "most": 2, "never": 1}


def test_a_score_of_which_less_is_better_is_reached_from_above():
    error = Metric("error", lower=True, shares=False)
    one = run(scores=((9.0, 6.0, 3.0), (3.0, 2.0, 1.0)), metric=error)
    (row,) = costs(History([one]), until=goals(["accuracy=2", "accuracy=1.9"]))
    assert [reached.seeds for reached in row.until] == [1, 0]
    assert "error ≤ 2" in cost_tables.grids(History([one]), until=[Goal("accuracy", 2)])[0].head[-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "write a figure and a value") for text in ("accuracy", "gini=1", "worst=x", "=1")),
        ("variance=nan", "write a figure and a value"),
        ("variance=3%", "write a figure and a value"),
        ("accuracy=80", "write it as 0.8 or 80%"),
        ("worst=-1", "write it as 0.8 or 80%"),
    ],
)
def test_goals_that_are_wrong_are_one_line(text, words):
    with pytest.raises(InputError, match=words):
        costs(History([run()]), until=goals([text]))


def test_runs_without_these_tables_show_nothing_of_them():
    history = History([plain()])
    assert cost_tables.grids(history) == []
    assert "costs" not in json.loads(history.table("json"))
    assert "cost" not in history.table("csv")
    tree = page_data.tree([data.source_of(history)])
    assert tree["costs"] == {}
    assert "heard" not in tree["runs"][0]
    text = page([data.source_of(history)])
    assert not {"cost", "costs-shown", "fig-turns"} & {
        attributes.get("id") for _, attributes in Elements(text).elements
    }
    with pytest.raises(InputError, match="run with --available always"):
        costs(history, until=[Goal("variance", 1)])
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="run with --available always"):
        figures.figure_of(history, "turns")


def test_the_page_has_both_tables_and_the_figure():
    source = data.source_of(History([run(), plain()]))
    text = page([source], until=[Goal("accuracy", 0.6)])
    ids = {attributes.get("id") for _, attributes in Elements(text).elements}
    assert {"cost", "costs-shown", "fig-turns"} <= ids
    tree = json.loads(Elements(text).content["script"][0])
    bill, turns = tree["costs"]["deployed.last"]
    assert bill["rows"] == [
        {"label": "fedavg", "cells": ["fedavg", "2.10", "0.900", "2.50", "3.00", "2.50"]}
    ]
    assert turns["rows"][0]["cells"][-2:] == ["180.00", "8100.00"]
    assert [(one.get("heard"), one.get("of")) for one in tree["runs"]] == [
        ([2, 1, 0], 3),
        (None, None),
    ]


def test_the_figure_has_a_point_for_each_client_of_runs_that_record_it():
    pytest.importorskip("matplotlib")
    (axes,) = figures.figure_of(History([run(), run(seed=1), plain()]), "turns").axes
    x, y = axes.lines[0].get_data()
    np.testing.assert_allclose(x, [200 / 3, 100 / 3, 0] * 2)
    np.testing.assert_allclose(y, [60, 90, 30] * 2)


def test_figures_over_bytes_and_hours_have_a_point_for_each_evaluation():
    pytest.importorskip("matplotlib")
    other = run(seed=1)
    other.tables["turnout.down"] = GrowingArray(3 * DOWN)
    history = History([run(), other, plain()])
    for kind, along in (("bytes", [2.0, 5.1]), ("hours", [1.0, 2.5])):
        accuracy, variance = figures.figure_of(history, kind).axes
        for axes, values in ((accuracy, [20, 60]), (variance, [800 / 3, 600])):
            (line,) = axes.lines
            np.testing.assert_allclose(line.get_xdata(), along)
            np.testing.assert_allclose(line.get_ydata(), values)
    del history.runs[0].tables["turnout.clock"]
    with pytest.raises(InputError, match="for hours also --speed"):
        figures.figure_of(History([history.runs[0]]), "hours")


def test_the_commands_show_them(tiny_npz, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    call(
        monkeypatch, capsys, "compare", "fedavg", "--data", tiny_npz, "--model", "softmax",
        "--rounds", "3", "--minibatch", "5", "--participants", "2", "--available", "p=0.6",
        "--speed", "lognormal:1", "--device", "cpu", "-q", "--out", out,
    )  # fmt: skip
    told = call(monkeypatch, capsys, "table", out, "--until", "accuracy=0%")
    assert "GB until accuracy ≥ 0 %" in told
    assert "never heard" in told
    page_file = tmp_path / "a.html"
    call(monkeypatch, capsys, "report", out, "-o", page_file, "--until", "variance=10000")
    assert "GB until variance ≤ 10000" in page_file.read_text()
    (found,) = json.loads(call(monkeypatch, capsys, "table", out, "--json"))["costs"]
    call(monkeypatch, capsys, "export", out)
    with (out / "csv" / "costs.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["gigabytes_down"]) == pytest.approx(found["gigabytes_down"])
    with (out / "csv" / "turnout.csv").open() as file:
        down = sum(int(line["down"]) for line in csv.DictReader(file))
    assert found["gigabytes_down"] == pytest.approx(down / 1e9 / found["seeds"])
