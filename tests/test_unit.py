"""Scores outside 0 to 1 are shown as they are, never in per cent, in every output alike."""

import csv
import json
import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

import fedmaba
from escape_cases import history
from fedmaba.experiment import config
from fedmaba.experiment import session as experiment
from fedmaba.report import (
    data,
    export,
    figures,
    page_data,
    tensorboard,
    terminal,
    tracked,
    verdict,
)
from fedmaba.report import html as page
from fedmaba.results import run_folder
from fedmaba.results.history import GrowingArray, History, RunHistory
from fedmaba.results.metrics import PERCENT, PLAIN_UNIT, are_shares, every, variance
from report_cases import call

SAID = "scores as the metric gives them, not in per cent"


def sevens(outputs, targets):
    """Seven for a right answer."""
    return 7.0 * (outputs.argmax(-1) == targets)


def shares(outputs, targets):
    return 1.0 * (outputs.argmax(-1) == targets)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_npz):
    """The same runs, scored by a metric up to seven, by shares, and by accuracy."""
    out, found = tmp_path_factory.mktemp("unit"), {}
    for name, metric in (("sevens", sevens), ("shares", shares), ("accuracy", None)):
        fedmaba.compare(
            ["fedavg", "afl", "fedmaba"], data=tiny_npz, model="softmax", rounds=4, eval_every=2,
            seeds=2, minibatch=5, metric=metric, out=out / name, device="cpu",
        )  # fmt: skip
        found[name] = out / name
    return found


def test_scores_are_shares_or_not():
    assert are_shares(np.array([0.0, 1.0, np.nan, 1 + 1e-9]))
    assert are_shares(np.array([]))
    assert not are_shares(np.array([0.5, 7.0]))
    assert not are_shares(np.array([-0.5]))
    assert not are_shares(np.array([np.inf]))


def test_figures_follow_the_unit():
    accuracy, size = np.array([[1.0, 7.0]]), np.array([3, 3])
    (plain,) = every(accuracy, accuracy, size, 0.5, PLAIN_UNIT)
    (percent,) = every(accuracy, accuracy, size, 0.5)
    assert (plain.variance, plain.accuracy, plain.worst, plain.best, plain.gap) == (9, 4, 1, 7, 6)
    assert (percent.variance, percent.accuracy, percent.gap) == (90_000, 400, 600)
    assert variance(accuracy[0], PLAIN_UNIT) == 9


def test_one_score_of_one_run_decides_for_all_and_a_growing_table_is_looked_at_once():
    first, second = (RunHistory(name, 0, "", np.array([1])) for name in "ab")
    both = History([first, second])
    assert both.unit is PERCENT
    looked = []

    class Watched(GrowingArray):
        def __getitem__(self, index):
            looked.append(index)
            return super().__getitem__(index)

    first.tables["last.accuracy"] = column = Watched()
    for value in (0.1, 0.9):
        column.append(np.array([value]))
        assert both.unit is PERCENT
    assert looked == [slice(0, None), slice(1, None)]
    column.append(np.array([7.0]))
    assert first.unit is both.unit is PLAIN_UNIT
    assert second.unit is PERCENT
    column.append(np.array([0.2]))
    assert both.unit is PLAIN_UNIT
    first.tables["last.accuracy"] = GrowingArray(np.array([[0.5]]))
    assert both.unit is PERCENT


def test_a_metric_of_shares_is_shown_as_accuracy_is(runs):
    kept, own = (run_folder.load_history(runs[name]) for name in ("accuracy", "shares"))
    assert own.unit is PERCENT
    assert str(own) == str(kept)
    assert "accuracy %" in str(kept)
    assert SAID not in str(kept) + page.page([data.load_run_folder(runs["accuracy"])])


def marks(text: str) -> set[str]:
    """What stands before a per cent sign, but for shares of clients and of confidence."""
    text = re.sub(r"\b(worst|best|Worst|Best) 5.\\?%|95.\\?%", "", text)
    return set(re.findall(r"\w+.?\\?%", text))


@pytest.mark.parametrize("to", ["text", "markdown", "latex", "csv"])
def test_no_table_shows_per_cent(to, runs, monkeypatch, capsys):
    shown = call(monkeypatch, capsys, "table", runs["sevens"], "--to", to, "--against", "fedavg")
    assert not marks(shown)
    assert "accuracy" in shown
    if to != "csv":
        assert SAID in " ".join(shown.split())
    else:
        cells = list(csv.DictReader(StringIO(shown)))
        found = [float(c["value"]) for c in cells if c["column"] == "accuracy"]
        assert all(-7 <= v <= 7 for v in found)
        assert found


def test_nor_do_a_notebook_a_page_and_an_export(runs, tmp_path):
    source = data.load_run_folder(runs["sevens"])
    for text in (source.history._repr_html_(), str(source.history)):
        assert not marks(text)
        assert SAID in text
    text = page.page([source])
    words, block = text.split('<script type="application/json" id="data">')
    words = re.sub(r"(?s)<style>.*?</style>|<head>.*?</head>", "", words).replace("\u00a0", " ")
    words = re.sub(r"varies \d+ % (less|more)|than 5 %", "", words)  # of another score
    words = words.partition('<section id="setup">')[0]
    assert not marks(words)
    assert SAID in words
    assert "%²" not in words
    tree = json.loads(block.partition("</script>")[0])
    assert tree["unit"] == PLAIN_UNIT._asdict()
    assert max(x for run in tree["runs"] for x in run["fair"]["deployed"]["accuracy"]) <= 7
    rows = export.summary(source.history)
    assert max(row[rows[0].index("accuracy")] for row in rows[1:]) <= 7
    rows = export.rounds(source.history)
    assert max(row[rows[0].index("best")] for row in rows[1:]) <= 7


@pytest.mark.parametrize(
    "kind",
    [
        *("tradeoff", "accuracy"),
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("distribution", "rounds", "gains")),
    ],
)
def test_nor_does_a_figure(kind, runs):
    pytest.importorskip("matplotlib")
    history = run_folder.load_history(runs["sevens"])
    figure = figures.figure_of(history, kind)
    said = [text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))]
    said = [re.sub("clients.*, %|% gain", "", text) for text in said]
    assert not marks("\n".join(said))
    assert not any("%²" in text or "points" in text for text in said)
    if kind == "accuracy":
        low, high = figure.axes[0].get_ylim()
        assert -1 < low < high < 8
    if kind == "distribution":
        assert figure.axes[0].get_xlim()[1] < 8
    figure = figures.figure_of(run_folder.load_history(runs["accuracy"]), kind)
    said = [text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))]
    assert any("%" in text or "points" in text for text in said)


@pytest.mark.slow
def test_scores_that_are_all_the_same_can_be_drawn():
    pytest.importorskip("matplotlib")
    assert figures.encode(figures.figure_of(history(["a", "b"], score=7.0), "distribution"), ".svg")
    assert page_data.tree([data.source_of(history(["a", "b"], score=7.0))])["unit"]["mark"] == ""


def session(tiny_npz, metric):
    tree = {"strategies": ["fedavg", "fedmaba"], "seeds": 1, "model": "softmax"}
    tree["data"], tree["train"] = {"name": str(tiny_npz)}, {"rounds": 2, "minibatch": 5}
    tree["eval"] = {"every": 1}
    return experiment.prepare(config.build(tree), experiment.UserObjects(metric=metric))


@pytest.mark.parametrize(("metric", "mark"), [(sevens, ""), (None, " %")])
def test_the_display_and_tensorboard_agree(metric, mark, tiny_npz, tmp_path):
    going, lines, event = session(tiny_npz, metric), StringIO(), None
    console = Console(file=lines, width=200)
    show = terminal.progress_lines(going, lambda line: console.print(line))
    for snapshot in going.rounds():
        show(snapshot)
        if snapshot.evaluations:
            scores = snapshot.evaluations[0]["deployed"].accuracy
            unit = going.history.unit
            event = tensorboard.event_of(1, {}, tracked.known_scores(scores, unit))
    assert bool(marks(lines.getvalue())) == bool(mark)
    screen = StringIO()
    Console(file=screen, width=120).print(terminal.dashboard(going, terminal.Pace(going.batch)))
    head = next(line for line in screen.getvalue().splitlines() if "strategy" in line)
    assert ("accuracy %" in head) == bool(mark)
    assert event.summary.value[0].histo.max == pytest.approx(unit.scale * scores.max(), rel=1e-5)


def test_a_verdict_speaks_of_scores():
    said = verdict.verdicts_of_sources([data.source_of(history(["fedavg", "afl"], score=7.0))])[
        0
    ].text
    assert "The mean is the same" in said
    assert not re.search(r"7\.0 %|700", said)


def test_the_lines_of_a_run_without_a_checkpoint_are_brought_to_the_same_unit():
    figures = {"variance": 40_000.0, "accuracy": 500.0, "worst": 300.0, "best": 700.0}
    line = {"strategy": "fedavg", "seed": 0, "round": 1, "deployed": figures, "last": figures}
    run = RunHistory("fedavg", 0, "", np.zeros(0, np.int64))
    source = data.Source("x", History([run]), lines=[line], finished=False)
    tree = page_data.tree([source])
    assert tree["unit"]["scale"] == 1
    assert tree["runs"][0]["fair"]["deployed"]["accuracy"] == [5]
    assert tree["tables"]["deployed.last"]["rows"][0]["values"] == [4, 5, 3, 7]
    assert SAID in page.page([source])
    line["deployed"] = line["last"] = dict.fromkeys(figures, 50.0)
    (row,) = page_data.tree([source])["tables"]["deployed.last"]["rows"]
    assert row["values"] == [50] * 4
