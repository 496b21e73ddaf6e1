"""Where a lower score is better, everything that ranks, picks or colours knows it."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import fedmaba
from fedmaba.report import client_figures, data, figures, page_data, table, verdict
from fedmaba.report import html as page
from fedmaba.report.plot_data import PlotData
from fedmaba.results.history import History
from fedmaba.results.metrics import OF_TASK, PERCENT, Metric, every
from report_cases import evaluated

ERROR = OF_TASK["regress"]
SIZES = np.array([5, 5, 5, 5])
run_of = partial(evaluated, sizes=SIZES, metric=ERROR)


GOOD, MIDDLE, POOR = [0.1, 0.2, 0.2, 0.3], [0.2, 0.2, 0.3, 0.4], [0.5, 0.9, 0.4, 2.0]


@pytest.fixture
def history():
    labels = {"fedavg": MIDDLE, "fedmaba": GOOD, "afl": POOR}
    return History([run_of(name, s, POOR, v) for name, v in labels.items() for s in (0, 1)], 0.25)


def test_the_worst_clients_are_those_with_the_highest_error():
    unit = ERROR.unit(True)
    (found,) = every(np.array([POOR]), np.array([POOR]), SIZES, 0.25, unit)
    assert (found.worst, found.best, found.accuracy) == (2.0, 0.4, pytest.approx(0.95))
    (share,) = every(np.array([POOR]), np.array([POOR]), SIZES, 0.25, PERCENT)
    assert (share.worst, share.best) == (40.0, 200.0)


def test_errors_below_one_are_no_percent():
    assert run_of("fedavg", 0, GOOD).unit.mark == ""
    assert run_of("fedavg", 0, GOOD, metric=Metric()).unit is PERCENT
    assert run_of("fedavg", 0, GOOD, metric=OF_TASK["multilabel"]).unit.mark == " %"


def test_the_best_round_has_the_lowest_error():
    run = run_of("fedavg", 0, POOR, GOOD, MIDDLE)
    assert run.chosen("best").tolist() == [1]
    assert replace(run, metric=Metric()).chosen("best").tolist() == [0]
    held = {"deployed_validation__accuracy": [MIDDLE, POOR, GOOD]}
    judged = run_of("fedavg", 0, POOR, GOOD, MIDDLE, **held)
    assert judged.chosen("best").tolist() == [2]


def test_a_table_ranks_the_lowest_first_and_names_the_metric(history):
    grid = table.summary(history)
    assert grid.head == [
        "row",
        "seeds",
        "variance",
        "mean squared error",
        "worst 25 %",
        "best 25 %",
    ]
    assert "lower is better" in grid.title
    rank = {row[0].text: [cell.rank for cell in row[2:]] for row in grid.rows}
    assert rank["fedmaba"] == [0, 0, 0, 0]
    assert rank["afl"] == [2, 2, 2, 2]
    assert [row[3].text for row in grid.rows] == ["0.275 ± 0.000", "0.200 ± 0.000", "0.950 ± 0.000"]
    text = history.table("csv", against="fedavg")
    assert "%²" not in text
    assert "accuracy" not in text
    assert "%" not in str(history).replace("25 %", "")


def test_the_verdict_looks_among_those_with_the_lowest_errors(history):
    (said,) = verdict.verdicts_of_sources([data.source_of(history)], 0.25)
    assert said.named == "fedmaba"
    tile = {t.name: t for t in said.tiles}["worst 25 % of clients"]
    assert (tile.now, tile.then) == ("0.30", "0.40")
    assert "The mean is 0.075 lower" in said.sentence
    even = [1.0, 1.0, 1.0, 1.0]  # fair, but a bad one
    more = History(
        [*history.runs, run_of("term", 0, POOR, even), run_of("term", 1, POOR, even)], 0.25
    )
    (said,) = verdict.verdicts_of_sources([data.source_of(more)], 0.25)
    assert said.named == "fedmaba"
    assert said.headline.startswith("term looks fairest of all, fedmaba at nearly the best mean")
    assert "above the best" in said.sentence


@pytest.mark.slow
def test_figures_know_the_good_corner_and_who_gains(history):
    plot = PlotData([data.source_of(history)], "deployed", 0.25)
    assert plot.front() == ["fedmaba"]
    for kind in ("tradeoff", "distribution", "gains", "accuracy"):
        drawn = figures.figure_of(history, kind, "deployed")
        words = " ".join(
            t.get_text() for t in drawn.findobj(match=lambda a: hasattr(a, "get_text"))
        )
        assert "accuracy" not in words, kind
        if kind == "gains":
            said = [(a.get_title("left"), a.texts[0].get_text()) for a in drawn.axes]
            assert said == [("FedMABA", "75 % gain"), ("AFL", "0 % gain")]
    assert client_figures.GAIN != client_figures.LOSS


def test_the_page_is_told(history):
    tree = page_data.tree([data.source_of(history)])
    assert tree["unit"] == {
        "scale": 1.0, "mark": "", "square": "", "name": "mean squared error", "lower": True,
    }  # fmt: skip
    text = page.page([data.source_of(history)])
    assert "How mean squared error is spread over clients" in text
    assert "further left is better" in text
    assert "mean squared error" in text.split("<h2")[1]


def test_runs_of_different_metrics_are_not_put_into_one_table(history):
    mixed = History([*history.runs, run_of("term", 0, GOOD, GOOD, metric=Metric())])
    with pytest.raises(
        fedmaba.InputError, match=r"different metrics \(mean squared error, accuracy"
    ):
        str(mixed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("lower") / "run"
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(120, 3)), np.repeat(np.arange(4), 30)
    mine = fedmaba.Federation.from_arrays(x, x @ [1.0, -2.0, 0.5] + 0.2 * owner, owner)
    fedmaba.compare(
        ["fedavg", "fedmaba"], data=mine, model="softmax", rounds=4, eval_every=1, lr=0.05,
        seeds=2, out=out, device="cpu",
    )  # fmt: skip
    return out


def test_a_folder_keeps_the_metric(folder):
    kept = json.loads((folder / "runs.json").read_text())["runs"][0]["metric"]
    assert kept == {"name": "mean squared error", "lower": True, "shares": False}
    read = fedmaba.load_history(folder)
    assert read.unit == ERROR.unit(False)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    first = read.runs[0].fairness("last", 0.05)[0]
    assert lines[0]["last"]["accuracy"] == pytest.approx(first.accuracy)
    assert lines[0]["last"]["worst"] == pytest.approx(first.worst)
    assert lines[0]["last"]["worst"] >= lines[0]["last"]["best"]


def test_there_are_no_classes_to_show(folder):
    with pytest.raises(fedmaba.InputError, match=r"these runs have none \(task regress\): choose"):
        figures.draw([data.load_run_folder(folder)], "heterogeneity")
    assert "labels" not in np.load(folder / "partition.npz").files


def test_the_best_model_is_that_of_the_lowest_error(folder, fed):
    from fedmaba.data import datasets
    from plain_loop import PLAN, played

    rng = np.random.default_rng(1)
    n = len(fed.data.y)
    mine = replace(fed, data=datasets.from_arrays(rng.normal(size=(n, 4)), rng.normal(size=n)))
    plan = replace(PLAN, rounds=5, lr=0.3)
    batch, shots = played(["fedavg"], mine, plan, "softmax")
    means = [float(np.mean(s.evaluations[0]["last"].accuracy)) for s in shots]
    assert batch.progress.best_round[0] == int(np.argmin(means))
    assert len(set(means)) > 1


def test_the_round_handed_out_is_picked_by_the_lowest_error(held_fed):
    from fedmaba.data import datasets
    from fedmaba.simulation.engine import Run
    from plain_loop import PLAN, one, played

    rng, n = np.random.default_rng(1), len(held_fed.data.y)
    noise = datasets.from_arrays(rng.normal(size=(n, 4)), rng.normal(size=n))
    mine, plan = replace(held_fed, data=noise), replace(PLAN, rounds=5, lr=0.3)
    _, shots = played([Run(one("fedavg"), 3, mine, "best:accuracy")], mine, plan, "softmax")
    means = [float(np.mean(s.evaluations[0]["last_validation"].accuracy)) for s in shots]
    handed_out = shots[-1].evaluations[0]["deployed_validation"].accuracy
    assert float(np.mean(handed_out)) == pytest.approx(min(means))
    assert min(means) < means[-1] or np.argmin(means) == len(means) - 1
    with pytest.raises(fedmaba.InputError, match=r"best:fair.* say best:accuracy"):
        played([Run(one("fedavg"), 3, mine, "best:fair")], mine, plan, "softmax")


def test_a_metric_of_your_own_says_which_way_is_better(tmp_path):
    def absolute_error(outputs, targets):
        return (outputs - targets).abs().mean(1)

    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(60, 3)), np.repeat(np.arange(3), 20)
    mine = fedmaba.Federation.from_arrays(x, x.sum(1), owner)
    how = {"data": mine, "model": "softmax", "rounds": 2, "seeds": 1, "lr": 0.05}
    higher = fedmaba.compare("fedavg", metric=absolute_error, **how)
    assert (higher.unit.name, higher.unit.lower, higher.unit.mark) == ("absolute error", False, "")
    absolute_error.lower_is_better = True
    lower = fedmaba.compare("fedavg", metric=absolute_error, **how)
    assert lower.unit.lower
    a, b = (h.runs[0].fairness(share=0.3)[-1] for h in (higher, lower))
    assert (a.worst, a.best) == (b.best, b.worst)
