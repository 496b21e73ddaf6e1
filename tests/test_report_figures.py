"""Figures in print quality: what they draw, how rows look, what they refuse."""

from pathlib import Path

import numpy as np
import pytest

import report_cases
from fedmaba import load_history
from fedmaba.errors import InputError
from fedmaba.report import (
    data,
    figures,
    plot_data,
    row_styles,
)
from fedmaba.results.history import History, RunHistory
from report_cases import call, one


def test_a_history_plots(folder):
    pytest.importorskip("matplotlib")
    figure = load_history(folder).plot("variance")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [line.get_label() for line in figure.axes[0].lines] == ["fedavg", "afl", "fedmaba"]


@pytest.mark.slow
def test_every_figure_is_drawn_and_the_same_twice(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    for kind, about in figures.describe():
        assert about
        if kind in (
            "incentive",
            "turns",
            "bytes",
            "hours",
        ):  # see test_personal_figures and test_costs
            continue
        out = tmp_path / f"{kind}.svg"
        figures.write_figure(kind, [folder], out)
        assert b"<svg" in out.read_bytes()
    listed = call(monkeypatch, capsys, "list", "figures")
    assert {line.split()[0] for line in listed.splitlines()} == set(figures.KINDS)
    for name in ("a", "b"):
        call(monkeypatch, capsys, "figure", "variance", folder, "-o", tmp_path / f"{name}.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


ROWS = [
    *("FedAvg", "FedSGD", "q-FFL, q=0.005", "FedMGDA+, η=1.0, ε=0.1", "FedMGDA+, η=0.1, ε=0.1"),
    *("TERM, T=0.1", "TERM, T=0.1 (code)", "AFL, λ=0.05", "AFL, λ=0.5", "PropFair, M=5, ε=0.2"),
    *("PropFair, M=5, ε=0.2 (code)", "FedProx, μ=0.1", "FedMABA, α=0.5", "FedMABA, α=0.8"),
    "FedFV, α=0.1, τ=1",
]


@pytest.mark.parametrize(
    "labels",
    [
        [*ROWS, "mine", "yours", "fedmaba:alpha=0.1", "fedmaba:alpha=0.2", "fedavg (b)"],
        [f"fedmaba:alpha={i}" for i in range(20)],
        [f"own{i}" for i in range(20)],
    ],
)
def test_every_row_has_a_look_of_its_own(labels):
    looks = plot_data.styles(labels).values()
    assert len(labels) == 20
    assert len({(s.color, s.marker, s.fill) for s in looks}) == 20
    assert len({(s.color, s.dash) for s in looks}) == 20


def test_an_algorithm_has_the_same_colour_in_every_figure():
    few, many = plot_data.styles(["fedmaba", "fedavg"]), plot_data.styles(ROWS)
    assert few["fedmaba"] == many["FedMABA, α=0.5"]
    assert few["fedavg"] == many["FedAvg"]
    assert many["FedMABA, α=0.8"].color == few["fedmaba"].color
    assert len({s.color for s in many.values()}) == 10
    own = plot_data.styles(["mine:step=1 (a)", "fedavg (a)", "mine:step=1 (b)", "fedavg (b)"])
    assert own["mine:step=1 (a)"].color == own["mine:step=1 (b)"].color
    style = (Path(data.__file__).parent / "page" / "style.css").read_text()
    for hue, color in enumerate(plot_data.COLORS):  # and in the page
        assert f"--s{hue}: {color};" in style
    script = (Path(data.__file__).parent / "page" / "script" / "base.js").read_text()
    assert "radius of 1: " + " ".join(plot_data.MARKERS) in script
    assert len(row_styles.HUES) == len(plot_data.MARKERS) == len(plot_data.COLORS)


def test_rounds_have_whole_ticks():
    few = report_cases.history(seeds=1, rounds=3, clients=5)
    ticks = figures.figure_of(few, "variance").axes[0].get_xticks()
    assert len(ticks) >= 3
    assert (ticks == ticks.round()).all()
    ticks = figures.figure_of(History([one("fedavg", [0.1, 0.9])]), "variance").axes[0].get_xticks()
    assert (ticks == ticks.round()).all()


def test_a_figure_of_runs_that_diverged_at_once_does_not_tell_to_wait():
    lost = RunHistory("afl", 0, "last", np.zeros(3, int), "afl, seed 0, diverged in round 1: x")
    with pytest.raises(InputError, match="every run diverged"):
        figures.figure_of(History([lost]), "variance")
    with pytest.raises(InputError, match="wait for the first evaluation"):
        figures.figure_of(History([RunHistory("afl", 0, "last", np.zeros(3, int))]), "variance")


def test_the_frame_of_a_tradeoff_holds_no_row_that_it_does_not_show():
    pytest.importorskip("matplotlib")
    level = [80, 79, 78, 77, 76, 75.1, 74.9]  # the last is more than five points below the first
    runs = [one(f"own{i}", (v + np.array([-9 - i, 9 + i])) / 100) for i, v in enumerate(level)]
    _, right = figures.figure_of(History(runs), "tradeoff").axes
    assert 74.9 < right.get_ylim()[0] < 75.1


@pytest.mark.parametrize(("asked", "used"), [(1, 1), (3, 3), (9, 5)])
def test_lines_are_means_of_the_last_evaluations_and_say_of_how_many(asked, used):
    pytest.importorskip("matplotlib")
    level = np.array([0.2, 0.5, 0.3, 0.9, 0.6])
    run = one("fedavg", [0.1, 0.2])
    run.tables["evaluated"] = [np.asarray(10 * t) for t in range(1, 6)]
    for name in run.tables.keys() - {"evaluated"}:
        run.tables[name] = [np.full(2, share) for share in level]
    (axes,) = figures.figure_of(History([run]), "accuracy", smooth=asked).axes
    want = [100 * level[a : a + used].mean() for a in range(6 - used)]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), want)
    assert axes.lines[0].get_xdata().tolist() == [10, 20, 30, 40, 50][used - 1 :]
    assert (f"mean of {used} evaluations" in axes.get_ylabel()) == (used > 1)


def test_figures_say_what_they_cannot_show():
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="run at least two"):
        figures.figure_of(History([one("fedavg", [0.1, 0.9])]), "gains")
    with pytest.raises(InputError, match=r"in memory holds no label counts: compare\(.*out=FOLDER"):
        figures.figure_of(History([one("fedavg", [0.1, 0.9])]), "heterogeneity")
    for kind in ("weights", "constraint"):
        with pytest.raises(InputError, match="no weights in these histories"):
            figures.figure_of(History([one("fedavg", [0.1, 0.9])]), kind)
    plain = one("fedavg", [0.1, 0.9])
    plain.tables |= {"round": [np.asarray(1)], "weight": [np.array([0.5, 0.5])]}
    with pytest.raises(InputError, match="no strategy of these runs reports a number"):
        figures.figure_of(History([plain]), "constraint")
    with pytest.raises(InputError, match="been evaluated yet"):
        figures.figure_of(History([RunHistory("fedavg", 0, "last", np.zeros(2))]))
