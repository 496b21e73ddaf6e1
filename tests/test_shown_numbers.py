"""Which numbers that strategies report of themselves people see."""

import pytest

import fedmaba
import report_cases
from fedmaba import strategies, user_code
from fedmaba.report import (
    data,
    figures,
    numbers,
    page_data,
)


def test_the_page_shows_the_numbers_that_a_strategy_declares():
    history = report_cases.history(("fedavg", "fedmaba:rho=0.3"), 1, clients=5, rounds=4)
    history.runs[1].tables |= {"info.lambda": [0.0, 0.0, 0.5, 2.0], "info.kl": [0.1, 0.2, 0.3, 0.3]}
    history.runs[1].tables["info.effective"] = history.runs[1].tables["info.doubted"] = [1.0] * 4
    tree = page_data.tree([data.source_of(history)])
    assert [number["title"] for number in tree["numbers"]] == [
        "Pull of the weight limit, λ*", "Unevenness of weights, KL",
    ]  # fmt: skip
    average, fair = (run["info"] for run in tree["runs"])
    assert average["numbers"] == [None, None]
    assert len(average["effective"]) == 4
    multiplier, kl = fair["numbers"]
    assert multiplier["values"] == [0.0, 0.0, 0.5, 2.0]
    assert multiplier["above"][:3] == [2, 4, "the limit on uneven weights, ρ = 0.3, was reached"]
    assert (kl["values"], kl["limit"], multiplier["limit"]) == ([0.1, 0.2, 0.3, 0.3], 0.3, None)
    history.runs[1].label = "fedmaba:rho=0.3,ball=global"  # rho bounds another divergence
    assert (
        page_data.tree([data.source_of(history)])["runs"][1]["info"]["numbers"][1]["limit"] is None
    )


def test_of_a_strategy_that_is_not_known_here_all_that_was_recorded_is_shown(monkeypatch):
    """And its code is not imported, whatever the label says."""
    monkeypatch.setattr(user_code, "import_attribute", lambda *_: pytest.fail("imported"))
    label = "package.module.Mine:step=1"
    history = report_cases.history(("fedavg", label), 1, clients=5, rounds=4)
    tables = {"info.strongest": [1.0, 2.0, 3.0, 4.0], "info.effective": [5.0] * 4}
    history.runs[1].tables |= tables
    tree = page_data.tree([data.source_of(history)])
    assert [number["title"] for number in tree["numbers"]] == ["Strongest"]
    average, own = (run["info"]["numbers"] for run in tree["runs"])
    assert average == [None]
    assert own[0]["values"] == [1.0, 2.0, 3.0, 4.0]
    assert len(figures.figure_of(history, "constraint").axes) == 2
    assert numbers.of_runs(history.runs)[0].short == "strongest"  # on the terminal too


def test_a_strategy_may_declare_what_is_shown_of_it():
    class Declares(strategies.REGISTRY["fedavg"]):
        name = "declares"

        def shown(self):
            return (fedmaba.Shown("b", title="the second"),)

    strategies.register(Declares)
    try:
        history = report_cases.history(("fedavg", "declares"), 1, clients=5, rounds=2)
        history.runs[1].tables |= {"info.a": [1.0, 2.0], "info.b": [3.0, 4.0]}
        assert [n.title for n in numbers.of_runs(history.runs)] == ["the second"]
    finally:
        del strategies.REGISTRY["declares"]
