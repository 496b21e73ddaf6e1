"""`fedmaba privacy`: the noise that a promise takes, before anything runs."""

import json
import sys

import pytest

from fedmaba.privacy import accounting
from fedmaba.strategies import FedMABA

ASKED = ["privacy", "--clients", "20", "--participants", "5", "--rounds", "12"]


@pytest.fixture
def counted(monkeypatch):
    """In place of the accountant: the noise is the root of the rounds over epsilon."""
    monkeypatch.setattr(
        accounting, "noise_multiplier", lambda epsilon, delta, shares, rounds: rounds**0.5 / epsilon
    )
    monkeypatch.setattr(accounting, "accountant_in_words", lambda: "by hand")


@pytest.mark.usefixtures("counted")
def test_the_noise_is_shown_by_epsilon_and_by_radius(call):
    seen = call(*ASKED, "--rho", "1", "--alpha", "0.5", "--epsilon", "6", "--to", "csv")
    assert seen.code == 0
    lines = [line.split(",") for line in seen.out.splitlines()]
    found = {(table, row, column): value for table, row, column, value, *_ in lines}
    weight = FedMABA(rho=1.0, alpha=0.5).max_weight(5)
    assert float(found["noise", "6", "largest weight"]) == pytest.approx(weight)
    noise = float(found["noise", "6", "noise multiplier"])
    assert float(found["noise", "6", "noise on the sum"]) == pytest.approx(
        2 * weight * noise / 0.9**0.5
    )
    assert float(found["noise", "6", "noise on a loss"]) == pytest.approx(3 * noise / 0.1**0.5)
    assert found["rho", "1", "noise on the sum"] == found["noise", "6", "noise on the sum"]
    by_radius = [float(found["rho", r, "noise on the sum"]) for r in ("0", "0.1", "0.3", "1", "2")]
    assert by_radius == sorted(by_radius)
    assert by_radius[0] < by_radius[-1]


@pytest.mark.usefixtures("counted")
def test_text_says_what_is_counted_and_json_has_the_numbers(call):
    text = call(*ASKED, "--strategy", "fedavg:weights=uniform").out
    for words in ("5 of 20 clients of equal size", "no losses are sent", "no amplification"):
        assert words in " ".join(text.split())
    rows = json.loads(call(*ASKED, "--to", "json").out)
    assert [row["epsilon"] for row in rows] == ["1", "2", "4", "8", "16"]
    assert rows[0]["noise on the sum"] == pytest.approx(8 * rows[3]["noise on the sum"])


@pytest.mark.usefixtures("counted")
def test_the_figure_is_a_file_and_says_where_it_is(call, tmp_path):
    pytest.importorskip("matplotlib")
    seen = call(*ASKED, "-o", str(tmp_path / "noise.svg"))
    assert seen.out.rstrip().endswith("noise.svg")
    assert (tmp_path / "noise.svg").read_bytes().lstrip().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epsilon", "-1"], "dp.epsilon=-1.0: it should be greater than 0"),
        (["--epsilon", "inf"], "epsilon=inf: nothing is promised"),
        (["--delta", "2"], "dp.delta=2.0: it should be less than 1"),
        (["--participants", "21"], "participants=21, but clients=20: lower it"),
        (["--strategy", "qffl"], "dp: qffl is refused: it weighs by norms"),
        (["--strategy", "fedavg", "--rho", "1"], "hyper-parameter of fedavg 'rho'"),
        (["--strategy", "fedmaba:rho=[1,2]"], "this is a grid: name one strategy"),
        (["--out", "noise.gif"], "noise.gif: the name says the form"),
    ],
)
@pytest.mark.usefixtures("counted")
def test_mistakes_are_one_line(words, said, refused):
    assert said in refused(*ASKED, *words)


def test_without_the_accountant_it_says_what_to_install(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    accounting.noise_multiplier.cache_clear()
    assert "pip install 'fedmaba[privacy]'" in refused(*ASKED)
    assert "pip install 'fedmaba[privacy]'" in refused(
        "compare", "fedavg", "--dp", "epsilon=8", "--rounds", "1", "--model", "softmax"
    )
