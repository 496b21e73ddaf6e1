"""`fedmaba theory`: how uneven weights were, and what is said of a radius that limits nothing."""

import json

import numpy as np
import pytest

from fedmaba import strategies
from fedmaba.errors import InputError
from fedmaba.report import theory
from fedmaba.results.history import History
from fedmaba.results.run_history import GrowingArray, RunHistory
from fedmaba.strategies import FedMABA
from fedmaba.strategies.base import Replies


def run_of(label, *weights, clients=4):
    told = {"weight": np.array(weights), "round": np.arange(len(weights))}
    told |= {name: np.zeros(len(weights)) for name in ("info.kl", "info.lambda")}
    tables = {name: GrowingArray(table) for name, table in told.items()}
    return RunHistory(label, 0, "", np.ones(clients, int), tables=tables)


def replies_of(loss, round_=0):
    told = {"client": np.arange(n := len(loss)), "n_clients": n, "loss": np.array(loss)}
    return Replies(**told, size=np.full(n, 3), lr=0.1, round=round_)


def test_unevenness_is_that_of_shares_among_those_who_took_part():
    run = run_of("fedavg", [0.75, 0.25, np.nan], [1.0, 3.0, np.nan], [0.5, 0.5, np.nan])
    assert theory.unevenness(run) == (2, pytest.approx(0.5 / 3), pytest.approx(3.5 / 3))


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5, 1.0])
def test_no_weights_of_fedmaba_are_above_the_floor_that_is_shown(rho):
    """For two clients and a small radius they reach it."""
    rng, most = np.random.default_rng(0), 0.0
    for clients in (2, 3, 10, 50):
        for alpha in (0.3, 1.0):
            strategy = FedMABA(alpha=alpha, rho=rho, eta_b=1000)
            for _ in range(20):
                loss = rng.random(clients) * (rng.random(clients) < rng.random())
                coef = strategy.weigh(strategy.init(clients), replies_of(loss)).coef
                floor = theory.unevenness(run_of("fedmaba", coef)).floor
                most = max(most, floor / theory.floor_bound(alpha, rho))
    assert most <= 1 + 1e-6
    assert most > 0.9 or rho > 0.1  # so the bound cannot be ten per cent smaller


@pytest.mark.parametrize("ball", ["cohort", "global", "literal"])
@pytest.mark.parametrize("clients", [2, 3, 8])
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_a_radius_is_doubted_where_it_never_limits(ball, clients, share):
    strategy = FedMABA(rho=share * np.log(clients), ball=ball)
    state, limited = strategy.init(clients), False
    for t in range(200):
        made = strategy.weigh(state, replies_of([1.0] + [0.0] * (clients - 1), t))
        state, limited = made.state, limited or made.info["lambda"] > 0
    assert limited == (share < 1) == (not strategy.doubts(clients, clients))


def test_who_takes_part_decides_unless_the_ball_is_around_all():
    assert FedMABA().doubts(100, 2)
    assert not FedMABA(ball="global").doubts(100, 2)
    assert not FedMABA(alpha=0).doubts(2, 2)
    assert not strategies.FedAvg().doubts(2, 2)


def test_a_finished_run_has_its_table_and_advice(call):
    asked = ("--set", "data.clients=2", "--rounds", "2", "--seeds", "1", "--model", "softmax")
    made = call("compare", "fedavg", "fedmaba", *asked, "--out", "made")
    assert "warning: fedmaba: rho=1 never limits the weights of 2 clients" in made.err
    text = " ".join(call("theory", "made").out.split())
    assert "all 2 clients in 2 rounds of 60 local steps, an alpha of the order 0.25" in text
    assert "at least 4.4 (two models, 95 %); it is 0.25, less than that" in text
    even, fair = json.loads(call("theory", "made", "--to", "json").out)
    assert (even["floor"], even["noise"], even["KL"]) == (0, 1, None)
    assert 0 < fair["floor"] < fair["floor at most"] == 0.5
    assert fair["limit reached %"] == 0
    assert "| fedmaba | 2 |" in call("theory", "made", "--to", "markdown").out


def test_part_of_the_clients_have_another_order_and_own_classes_are_not_imported():
    rows = [0.7, 0.3], [0.4, 0.6]
    runs = [run_of("fedmaba:alpha=0.2", *rows), run_of("no_such.module.Class", *rows)]
    page = theory.document(History(runs), {}, "here")
    (advice,) = (line for line in page.foot if "order" in line)
    assert "2 of 4 clients in 2 rounds" in advice
    assert f"{4**-0.25:.2g}" in advice
    assert [row[0].text for row in page.grids[0].rows] == [run.label for run in runs]


def test_parts_that_differ_in_a_setting_are_rows_of_their_own():
    labels = "fedmaba:alpha=0.2, lr=0.1", "fedmaba, lr=0.2", "fedmaba:ball=global, lr=0.2"
    page = theory.document(History([run_of(label, [0.7, 0.3]) for label in labels]), {}, "here")
    assert [row[3].text for row in page.grids[0].rows] == ["0.080", "0.500", "–"]
    assert all(any(line.startswith(f"{label}: alpha=") for line in page.foot) for label in labels)


def test_steps_that_are_not_known_are_said_to_be_taken_as_one():
    page = theory.document(History([run_of("fedmaba", [0.7, 0.3], clients=2)]), {}, "here")
    assert any("local steps unknown, taken as one" in line for line in page.foot)


def test_results_without_weights_are_refused():
    with pytest.raises(InputError, match="no weights"):
        theory.document(History([RunHistory("fedavg", 0, "", np.ones(3, int))]), {}, "here")


def test_what_is_no_run_is_refused(call, tmp_path):
    seen = call("theory", tmp_path)
    assert (seen.code, "no run folder" in seen.err) == (2, True)
