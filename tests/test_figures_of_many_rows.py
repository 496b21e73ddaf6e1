"""Figures with a panel for each row fit on a page however many rows there are."""

import itertools

import numpy as np
import pytest

from fedmaba.report import data, figures
from fedmaba.report.plot_data import PlotData
from fedmaba.results.history import GrowingArray, History
from report_cases import one

pytest.importorskip("matplotlib")


def rows(labels, clients=12, even=()):
    """One run of each label, with weights of three rounds: equal ones of those in `even`."""
    rng, runs = np.random.default_rng(0), []
    for label in labels:
        run = one(label, rng.uniform(0.3, 0.9, clients))
        weight = np.full((3, clients), 1 / clients)
        if label not in even:
            weight = rng.dirichlet(np.ones(clients), 3)
        found = {
            "round": np.arange(1, 4), "client": np.tile(np.arange(clients), (3, 1)),
            "weight": weight,
        }  # fmt: skip
        run.tables |= {name: GrowingArray(table) for name, table in found.items()}
        runs.append(run)
    return History(runs)


def many(count):
    labels = [f"fedmaba:alpha=0.{i},eta_b=0.1" for i in range(1, count)]
    return rows(["fedavg", "local", *labels][:count])


def drawn(history, kind, width):
    with figures.style():
        figure = figures.draw([data.source_of(history)], kind, width=width)
        figure.draw_without_rendering()
    return figure, [a for a in figure.axes if a.get_label() != "<colorbar>"]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "inches"), [("column", 3.3), ("page", 6.75)])
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *(("weights", 5), ("gains", 15), ("incentive", 25)),
        *(
            pytest.param(kind, count, marks=pytest.mark.slow)
            for kind, count in (("weights", 15), ("weights", 25), ("gains", 5), ("gains", 25))
        ),
    ],
)
def test_panels_of_many_rows_fit_on_a_page(kind, count, width, inches):
    figure, panels = drawn(many(count), kind, width)
    seen, dots = figure.get_tightbbox(), figure.canvas.get_renderer()
    assert figure.get_figwidth() == inches
    assert figure.get_figheight() <= {5: 3.6, 15: 6.7, 25: 8.6}[count]
    assert seen.x0 > -0.02
    assert seen.x1 < inches + 0.02
    assert all(a.get_window_extent(dots).width > 0.6 * figure.dpi for a in panels)
    assert all(a.get_window_extent(dots).height > 0.3 * figure.dpi for a in panels)
    titles = [a._left_title.get_window_extent(dots) for a in panels]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(titles, 2))
    words = [t.get_window_extent(dots) for a in panels for t in a.texts]
    assert not any(word.overlaps(title) for word in words for title in titles)


def test_words_stand_above_the_bars_of_every_line_of_panels():
    """Where all clients lose, too: the bars then hang from the top of the panel."""
    labels = ["fedavg", *(f"qffl:q={i}" for i in range(1, 8))]
    clients = np.linspace(0.5, 0.9, 10)
    runs = [one(label, clients - 0.3 * (label != "fedavg")) for label in labels]
    figure, panels = drawn(History(runs), "gains", "column")
    dots = figure.canvas.get_renderer()
    for axes in panels:
        (word,) = axes.texts
        zero = axes.transData.transform((0, 0))[1]
        assert word.get_window_extent(dots).y0 > zero
    assert {tuple(axes.get_ylim()) for axes in panels[:3]} == {panels[0].get_ylim()}


def test_rows_of_equal_weights_are_a_line_of_text():
    labels = ["fedavg", "afl", "fedprox", "fedmaba:eta_b=0.1"]
    figure, panels = drawn(rows(labels, even=("fedavg", "fedprox")), "weights", "page")
    assert [a.get_title("left") for a in panels] == ["AFL", "FedMABA, $\\eta_b$ = 0.1"]
    assert "equal weights throughout, not shown: FedAvg, FedProx" in figure._supxlabel.get_text()
    _, panels = drawn(rows(labels[:2], even=labels), "weights", "page")
    assert len(panels) == 2  # of equal weights only, they are what there is to see


def test_a_figure_of_incentives_speaks_of_clients_alone():
    figure, panels = drawn(rows(["local", "fedavg", "afl"]), "incentive", "page")
    assert figure._supxlabel.get_text() == "clients of all seeds, those worst off alone first, %"
    assert figure._supylabel.get_text() == "accuracy less that alone, points"
    assert all(a.texts[0].get_text().endswith("% better off") for a in panels)


def test_clients_alone_are_not_on_the_front_of_shared_models():
    spread = {"fedavg": 0.2, "afl": 0.1, "term": 0.15, "local": 0.01}
    history = History(
        [
            one(x, [0.6 - d, 0.6 + d] if x != "local" else [0.95 - d, 0.95], seed)
            for x, d in spread.items()
            for seed in range(2)
        ]
    )
    for run in history.runs:
        for name in ("accuracy", "loss"):
            run.tables[f"personal.{name}"] = run.tables[f"deployed.{name}"]
    assert PlotData([data.source_of(history)], "deployed", None).front() == ["afl"]
    assert PlotData([data.source_of(history)], "personal", None).front() == ["local"]
    alone = History([run for run in history.runs if run.label == "local"])
    assert PlotData([data.source_of(alone)], "deployed", None).front() == ["local"]


@pytest.mark.parametrize(("far", "panels"), [(0.95, 2), (0.62, 1)])
def test_clients_alone_far_above_the_others_squash_no_other(far, panels):
    labels = ["fedavg", *(f"qffl:q={i}" for i in range(1, 7)), "local"]
    means = [*(0.6 + 0.003 * i for i in range(7)), far]
    spread = np.linspace(-0.1, 0.1, 10)
    runs = [
        one(x, np.clip(m + spread, 0, 1), seed)
        for x, m in zip(labels, means, strict=True)
        for seed in range(2)
    ]
    _, found = drawn(History(runs), "tradeoff", "page")
    assert len(found) == panels
    if panels == 2:
        assert found[1].get_ylim()[1] < 70  # %: the frame holds the others only
