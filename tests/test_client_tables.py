"""Each client by itself: who is served worst, and how much each strategy helps it."""

import csv
import json
from dataclasses import replace
from functools import partial
from io import StringIO

import numpy as np
import pytest

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.report import client_tables, data, document, paired
from fedmaba.results.history import History, RunHistory
from fedmaba.results.metrics import ACCURACY, OF_TASK
from report_cases import evaluated

NAMES = ("Ames", "Boone", "Cody")


run_of = partial(evaluated, sizes=(10, 20, 30))


def source(*runs, names=NAMES, **about):
    return data.Source("run", History([*runs]), {"data": {"clients": names}, **about})


SEEDS = {  # by strategy, of each seed
    "fedavg": [(0.9, 0.5, 0.7), (0.8, 0.6, 0.7), (0.7, 0.4, 0.7)],
    "fedmaba": [(0.8, 0.6, 0.7), (0.8, 0.8, 0.7), (0.6, 0.7, 0.7)],
}


def hospitals(**options):
    found = [run_of(x, s, v, **options) for x, every in SEEDS.items() for s, v in enumerate(every)]
    return source(*found)


def test_each_client_has_its_mean_and_its_paired_difference_worst_served_first():
    found = client_tables.table([hospitals()])
    assert found.base == "fedavg"
    assert [client.name for client in found.clients] == ["Boone", "Cody", "Ames"]
    worst = found.clients[0]
    assert worst.examples == 20
    assert worst.mean == {"fedavg": pytest.approx(50), "fedmaba": pytest.approx(70)}
    want = paired.interval([10, 20, 30])
    assert worst.minus["fedmaba"] == pytest.approx(want)
    (grid,) = client_tables.document(found).grids
    assert grid.head == [
        "client", "test examples", "fedavg %", "fedmaba %", "fedmaba minus fedavg",
    ]  # fmt: skip
    assert [cell.text for cell in grid.rows[0]] == [
        "Boone", "20", "50.00", "70.00", "+20.00 [-4.84, +44.84]",
    ]  # fmt: skip
    assert grid.rows[0][4].span == pytest.approx((want.low, want.high))
    assert grid.rows[1][4].text == "+0.00 in every seed"
    assert client_tables.document(found).foot == [
        "fedavg serves Boone worst: accuracy 50.00 %. With fedmaba: +20.00 points [-4.84, +44.84], "
        "so no difference is shown."
    ]


def test_another_row_can_be_the_reference():
    found = client_tables.table([hospitals()], against="fedmaba")
    assert [client.name for client in found.clients] == ["Boone", "Cody", "Ames"]
    assert found.clients[0].minus["fedavg"].mean == pytest.approx(-20)
    with pytest.raises(InputError, match="row 'afl'"):
        client_tables.table([hospitals()], against="afl")
    alone = source(run_of("fedavg", 0, (0.1, 0.2, 0.3)))
    with pytest.raises(InputError, match="there is no other row"):
        client_tables.table([alone], against="fedavg")
    page = client_tables.document(client_tables.table([alone]))
    assert page.grids[0].head == ["client", "test examples", "fedavg %"]


def test_where_a_lower_score_is_better_the_highest_is_served_worst():
    found = client_tables.table([hospitals(metric=OF_TASK["regress"])])
    assert [client.name for client in found.clients] == ["Ames", "Cody", "Boone"]
    page = client_tables.document(found)
    assert page.grids[0].head[2] == "fedavg"
    assert page.grids[0].rows[0][2].text == "0.800"
    assert page.foot[0].startswith("fedavg serves Ames worst: mean squared error 0.800. With")


def test_a_difference_that_seeds_agree_on_is_called_better_or_worse():
    def said(metric):
        runs = [run_of("fedavg", s, (0.5, 0.6, 0.7), metric=metric) for s in range(3)]
        more = [run_of("afl", s, (0.6 + s / 99,) * 3, metric=metric) for s in range(3)]
        return client_tables.document(client_tables.table([source(*runs, *more)])).foot[0]

    assert said(ACCURACY).endswith("], better.")
    assert said(OF_TASK["regress"]).startswith("fedavg serves Cody worst")
    assert said(OF_TASK["regress"]).endswith("], better.")


def test_the_model_and_the_round_are_those_asked_for():
    own = {"personal__accuracy": [[0.2, 0.2, 0.1]] * 2}
    one = source(run_of("fedavg", 0, (0.1, 0.9, 0.5), (0.3, 0.5, 0.4), **own))
    mean = [c.mean["fedavg"] for c in client_tables.table([one], at="last5").clients]
    assert mean == pytest.approx([20, 45, 70])
    best = client_tables.table([one], at="best").clients
    assert best[0].mean["fedavg"] == pytest.approx(10)
    own = client_tables.table([one], model="personal").clients
    assert own[0].name == "Cody"


def test_only_seeds_of_both_are_subtracted_and_undefined_scores_are_left_out():
    nothing = float("nan")
    lost = replace(run_of("fedmaba", 2, (0, 0, 0)), diverged="fedmaba, seed 2, diverged in round 1")
    one = source(
        run_of("fedavg", 0, (0.5, 0.6, nothing)),
        run_of("fedavg", 1, (0.6, 0.7, nothing)),
        run_of("fedavg", 2, (0.9, nothing, nothing)),
        run_of("fedmaba", 0, (0.7, 0.7, nothing)),
        run_of("fedmaba", 1, (0.7, 0.8, nothing)),
        lost,
    )
    page = client_tables.document(found := client_tables.table([one]))
    boone, ames = found.clients
    assert (ames.name, ames.seeds) == ("Ames", {"fedavg": 3, "fedmaba": 2})
    assert ames.minus["fedmaba"].mean == pytest.approx(15)
    assert boone.seeds == {"fedavg": 2, "fedmaba": 2}
    assert "Left out of every mean: fedmaba, seed 2, diverged in round 1." in page.foot
    assert (
        page.foot[-1] == "Left out: 1 client without test examples or with an undefined accuracy."
    )
    untested = source(run_of("fedavg", 0, (0.5, 0.6, 0.7), sizes=(5, 0, 5)))
    assert [c.name for c in client_tables.table([untested]).clients] == ["Ames", "Cody"]


def test_without_names_a_client_is_followed_only_through_seeds_with_the_same_division():
    runs = [run_of(x, s, v) for x, every in SEEDS.items() for s, v in enumerate(every[:2])]
    same = client_tables.table([source(*runs, names=(), partition={"0": "a", "1": "a"})])
    assert [c.name for c in same.clients] == ["client 1", "client 2", "client 0"]
    found = client_tables.table([source(*runs, names=(), partition={"0": "a", "1": "b"})])
    assert [c.name for c in found.clients][:2] == ["client 1, seed 0", "client 1, seed 1"]
    assert len(found.clients) == 6
    assert not found.clients[0].minus["fedmaba"].bounded
    assert "each row is a client of one seed" in " ".join(client_tables.document(found).foot)


def test_clients_of_different_data_or_divisions_are_not_compared():
    def one(label, digest, sha="s"):
        found = source(run_of(label, 0, (0.1, 0.2, 0.3)), names=(), partition={"0": digest})
        found.about["data"]["sha256"] = sha
        return found

    client_tables.table([one("fedavg", "a"), one("afl", "a")])
    with pytest.raises(InputError, match="seed 0 have different clients, which have no names"):
        client_tables.table([one("fedavg", "a"), one("afl", "b")])
    with pytest.raises(InputError, match="different data"):
        client_tables.table([one("fedavg", "a"), one("afl", "a", "t")])


def test_a_terminal_shows_the_worst_twenty_and_files_all():
    scores = np.linspace(0.2, 0.9, 25)
    runs = [
        run_of(x, s, scores + 0.01 * s * i, sizes=[9] * 25)
        for i, x in enumerate(("fedavg", "afl", "term"))
        for s in (0, 1)
    ]
    found = client_tables.table([source(*runs, names=[f"site {i}" for i in range(25)])])
    page = client_tables.document(found)
    shown = client_tables.for_terminal(page, found)
    levels, apart = shown.grids
    assert [len(grid.rows) for grid in (*page.grids, *shown.grids)] == [25, 20, 20]
    assert levels.head == ["client", "test examples", "fedavg %", "afl %", "term %"]
    assert "differences" not in levels.title
    assert apart.head == ["client", "afl", "term"]
    assert apart.rows[3] == [page.grids[0].rows[3][0], *page.grids[0].rows[3][5:]]
    assert shown.foot[0] == (
        "5 more clients are served better with fedavg: --to csv, json or markdown has all."
    )
    assert len(document.markdown_table(page.grids[0]).splitlines()) == 25 + 4


def test_the_command_in_every_form(call, tiny_npz):
    words = ["compare", "fedavg", "fedmaba", "--data", tiny_npz, *QUICK, "--validation", "40%"]
    assert call(*words, "--out", "run").code == 0
    history = fedmaba.load_history("run")
    shown = call("table", "run", "--by", "client")
    assert shown.code == 0, shown.err
    assert "fedmaba minus fedavg" in shown.out
    found = json.loads(call("table", "run", "--by", "client", "--json").out)
    assert list(found) == ["format", "model", "at", "on", "metric", "against", "clients"]
    assert len(found["clients"]) == 5
    first = found["clients"][0]
    runs = [run for run in history.runs if run.label == "fedavg"]
    mine = 100 * np.mean([run.accuracy()[-1] for run in runs], axis=0)
    assert first["client"] == str(int(np.argmin(mine)))
    assert first["strategies"][0]["mean"] == pytest.approx(mine.min())
    rows = [*csv.DictReader(StringIO(call("table", "run", "--by", "client", "--to", "csv").out))]
    assert rows[1]["column"] == "fedavg %"
    assert float(rows[1]["value"]) == pytest.approx(mine.min())
    held = json.loads(call("table", "run", "--by", "client", "--json", "--on", "validation").out)
    assert held["on"] == "validation"
    judged = history.judged_on("validation").runs
    own = 100 * np.mean([run.accuracy()[-1] for run in judged if run.label == "fedavg"], axis=0)
    assert held["clients"][0]["strategies"][0]["mean"] == pytest.approx(own.min())
    text = call("table", "run", "--by", "client", "--on", "validation").out
    assert "on validation data" in text
    assert "validation examples" in text
    same = call("table", "run", "--by", "strategy").out
    assert same == call("table", "run").out
    assert "strategy" in same


def test_a_share_of_clients_does_not_go_with_one_row_per_client_or_group(refused, finished):
    for by in ("client", "group"):
        said = refused("table", finished[1], "--by", by, "--share", "10%")
        assert said == f"fedmaba: --by {by} has no worst share of clients: leave out --share\n"


def test_runs_without_any_score_are_refused():
    run = RunHistory("fedavg", 0, "last", np.array([3, 3]))
    with pytest.raises(InputError, match="no client has a score yet: wait"):
        client_tables.table([source(run)])
    run.diverged = "fedavg, seed 0, diverged in round 1"
    with pytest.raises(InputError, match="no client has a score: fedavg, seed 0, diverged"):
        client_tables.table([source(run)])
