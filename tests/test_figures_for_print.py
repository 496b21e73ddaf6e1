"""Figures that go into a paper unchanged: widths, fonts, captions, names, axes."""

import re

import numpy as np
import pytest

import report_cases
from fedmaba.errors import InputError
from fedmaba.report import data, figures
from fedmaba.report.row_styles import printed_name
from fedmaba.results.history import History
from report_cases import call, one

pytest.importorskip("matplotlib")
KINDS = ("distribution", "tradeoff", "rounds", "variance", "weights", "gains", "constraint")


@pytest.fixture(scope="module")
def history():
    labels = ("fedavg", "qffl:q=0.1", "term:t=2.0", "afl:lam=0.5", "fedmaba:alpha=0.8,eta_b=0.5")
    return report_cases.history(labels, seeds=2, clients=12, rounds=8, every=2)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("qffl:q=0.1", "q-FFL, q = 0.1"),
        ("fedmaba:alpha=0.8,eta_b=0.5", "FedMABA, α = 0.8, η_b = 0.5"),
        ("fedavg (run #2)", "FedAvg (run #2)"),
        ("afl:lam=0.5 (run)", "AFL, λ = 0.5 (run)"),
        ("q-FFL, q=0.005", "q-FFL, q=0.005"),
        ("mine:x=1", "mine:x=1"),
        ("fedavg:odd", "fedavg:odd"),
    ],
)
def test_names_are_those_that_a_paper_prints(label, name):
    assert printed_name(label) == name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "width", "inches"),
    [place for kind in KINDS for place in ((kind, "column", 3.3), (kind, "page", 6.75))],
)
def test_a_figure_has_the_width_of_a_column_or_a_page_and_nothing_sticks_out(
    kind, width, inches, history
):
    figure = figures.draw([data.source_of(history)], kind, width=width)
    with figures.style():
        figure.draw_without_rendering()
        seen = figure.get_tightbbox()
    assert figure.get_figwidth() == inches
    assert seen.x0 > -0.02
    assert seen.x1 < inches + 0.02
    said = [t.get_text() for t in figure.findobj(lambda a: hasattr(a, "get_text"))]
    assert not any(re.search(r"qffl|fedmaba", text) for text in said)
    panels = [a for a in figure.axes if a.get_label() != "<colorbar>"]
    if len(panels) > 1 and kind not in ("tradeoff", "weights", "gains"):
        places = {round(a.get_position().x0, 2) for a in panels}
        assert (len(places) == 1) == (width == "column")  # below one another, or side by side


@pytest.fixture(scope="module")
def fifteen():
    labels = [f"fedmaba:alpha=0.{i},eta_b=0.1" for i in range(1, 8)]
    labels += [f"qffl:q=0.0{i}" for i in range(1, 8)]
    rng = np.random.default_rng(0)
    level = rng.uniform(0.55, 0.75, 15)
    rows = zip(("fedavg", *labels), level, strict=True)
    return History([one(x, rng.normal(at, 0.1, 12), seed) for x, at in rows for seed in range(2)])


@pytest.mark.parametrize(
    ("width", "inches"), [("column", 3.3), pytest.param("page", 6.75, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", ["tradeoff", "ranks", "accuracy"])
def test_fifteen_rows_fit_and_nothing_covers_another(kind, width, inches, fifteen):
    with figures.style("serif"):
        figure = figures.draw([data.source_of(fifteen)], kind, width=width, font="serif")
        figure.draw_without_rendering()
        seen, dots = figure.get_tightbbox(), figure.canvas.get_renderer()
        labels = [*(a.xaxis.label for a in figure.axes), *figure.texts[-1:]]
        below = [x.get_window_extent(dots) for x in labels if x.get_text()]
        legends = [legend.get_window_extent(dots) for legend in figure.legends]
        sizes = [axes.get_window_extent(dots) for axes in figure.axes]
    assert figure.get_figwidth() == inches
    assert seen.x0 > -0.02
    assert seen.x1 < inches + 0.02
    assert not any(box.overlaps(legend) for box in below for legend in legends)
    assert all(box.width > 72 and box.height > 72 for box in sizes)  # an inch at the least
    if kind == "tradeoff":
        assert bool(legends) == (width == "column")  # names beside points where there is room
        words = [t for axes in figure.axes for t in axes.texts if t.get_text()]
        boxes = [word.get_window_extent(dots) for word in words]
        assert len({word.get_text() for word in words}) == (15 if width == "page" else 0)
        assert not any(box.count_overlaps(boxes[:i]) for i, box in enumerate(boxes))


def test_panels_of_a_line_have_one_range(history):
    rows: dict[float, set] = {}
    for axes in figures.figure_of(history, "gains").axes:
        rows.setdefault(round(axes.get_position().y0, 2), set()).add(axes.get_ylim())
    assert all(len(limits) == 1 for limits in rows.values())
    *_, worst, best = figures.figure_of(history, "rounds").axes
    assert worst.get_ylim() == best.get_ylim()


def test_weights_diverge_around_an_equal_share(history):
    figure = figures.figure_of(history, "weights")
    image = figure.axes[0].images[0]
    low, high = image.get_clim()
    assert low == -high
    middle, below, above = (image.cmap(image.norm(v))[:3] for v in (0.0, low, high))
    assert min(middle) > 0.95  # paper
    assert below[0] > below[2]  # orange
    assert above[2] > above[0]  # blue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("font", "name"),
    [("serif", b"STIXGeneral"), pytest.param("sans", b"DejaVuSans", marks=pytest.mark.slow)],
)
def test_a_file_carries_its_font_and_its_caption(font, name, folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "t.pdf"
    words = ("figure", "tradeoff", folder, "-o", out, "--width", "column", "--font", font)
    told = call(monkeypatch, capsys, *words).split()
    assert told == [str(out), str(tmp_path / "t.caption.txt")]
    pdf = out.read_bytes()
    assert name in pdf
    assert b"/FontFile2" in pdf  # embedded
    caption = (tmp_path / "t.caption.txt").read_text()
    assert caption.startswith("Mean accuracy against variance, ± sd over seeds, and the Pareto")
    assert "Deployed model (average, poly:8) on " in caption
    assert caption.endswith("5 clients, 6 rounds, 2 seeds. FedAvg; AFL; FedMABA.\n")
    call(monkeypatch, capsys, *words[:4], tmp_path / "t.svg")
    assert "<text" not in (tmp_path / "t.svg").read_text()  # letters are drawn


def test_fonts_and_widths_are_checked(history, tmp_path, folder):
    with pytest.raises(InputError, match="unknown font 'comic'"):
        figures.write_figure("tradeoff", [folder], tmp_path / "x.pdf", font="comic")
    assert list(tmp_path.iterdir()) == []


def test_a_client_without_weight_is_drawn(tmp_path):
    run = one("afl", [0.5, 0.7])
    run.tables |= {
        "round": [np.asarray(1)],
        "client": [np.arange(2)],
        "weight": [np.array([0.0, 1])],
    }
    assert figures.encode(figures.figure_of(History([run]), "weights"), ".png")
