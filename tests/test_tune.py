"""A search: the same trials for every strategy, picked on validation data, then fresh seeds."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fedmaba
from fedmaba.errors import InputError
from fedmaba.experiment.trials import load_trials
from fedmaba.experiment.tune import Search, Trial, Tuning, _mark_pick, with_grid
from fedmaba.results.metrics import PERCENT
from fedmaba.simulation import engine

HOW = ["--rounds", "2", "--minibatch", "5", "--eval-every", "2", "--model", "softmax"]
HOW += ["--device", "cpu", "--quiet", "--seeds", "2", "--search-seeds", "1"]
GRID = ["--grid", "lr=[0.001,0.5]"]


@pytest.fixture
def words(tiny_npz):
    how = ["--data", tiny_npz, *HOW, "--validation", "40%", "--out", "mine"]
    return ["tune", "fedavg", "fedmaba:alpha=0.8", *GRID, *how]


def test_one_command_searches_picks_and_runs_fresh_seeds(call, words, monkeypatch):
    answer = call(*words)
    assert answer.code == 0, answer.err
    told = json.loads(Path("mine/tune.json").read_text())
    trials = told["trials"]
    assert [(t["strategy"], t["values"]) for t in trials] == [
        (s, {"train.lr": lr}) for lr in (0.001, 0.5) for s in ("fedavg", "fedmaba:alpha=0.8")
    ]
    search = fedmaba.load_history("mine/search").judged_on("validation")
    means = {row.label: row.mean.accuracy for row in search.summary()}
    for spec in ("fedavg", "fedmaba:alpha=0.8"):
        mine = [t for t in trials if t["strategy"] == spec]
        (picked,) = (t for t in mine if t["picked"])
        assert picked["score"] == max(t["score"] for t in mine)
        label = f"{spec}, lr={picked['values']['train.lr']:g}"
        assert picked["score"] == pytest.approx(means[label])
    final = fedmaba.load_history("mine")
    assert {run.seed for run in final.runs} == {1, 2}  # 0 was the trials'
    assert len(final.runs) == 4
    for shown in (answer.out, call("table", "mine").out):
        assert "Trials, on validation data" in shown
        assert "fedavg, lr=0.001" in shown
    as_json = json.loads(call("table", "mine", "--json").out)
    assert as_json["trials"] == trials
    assert call("report", "mine", "-o", "mine.html").code == 0
    page = Path("mine.html").read_text().partition('id="search"')[2].partition("</section>")[0]
    picked, _, everything = page.partition("All 4 trials")
    rows = ("fedavg, lr=0.001", "fedavg, lr=0.5", "fedmaba:alpha=0.8, lr=0.5")
    kept = {t["strategy"] + f", lr={t['values']['train.lr']:g}" for t in trials if t["picked"]}
    for row in rows:
        assert (f">{row}<" in picked) == (row in kept)
        assert f">{row}<" in everything
    monkeypatch.setattr(engine, "simulate", None)  # nothing is trained again
    again = call(*words)
    assert again.code == 0, again.err
    assert again.out.partition("Look at it")[0] == answer.out.partition("It took")[0]
    other = call(*(w if w != GRID[1] else "lr=[0.001,0.1]" for w in words))
    assert other.code == 2
    assert "mine holds another search, in grid: choose another --out" in other.err


def test_a_killed_search_goes_on_and_finished_trials_are_not_trained_again(
    call, words, monkeypatch
):
    whole = [w if w != "mine" else "whole" for w in words]
    assert call(*whole).code == 0
    real, seen = engine.simulate, []

    def killed(batch):
        seen.append(batch.plan.lr)
        if len(seen) == 2:
            raise InputError("killed")
        yield from real(batch)

    monkeypatch.setattr(engine, "simulate", killed)
    assert call(*words).code == 2
    for command in ("table", "report", "export", "resume"):
        answer = call(command, "mine")
        assert answer.code == 2
        assert "mine holds a search that has not picked yet: repeat its command" in answer.err
    assert call("table", "mine/search").code == 0
    assert call(*words).code == 0
    assert seen[:3] == [0.001, 0.5, 0.5]  # the first is not trained again
    assert Path("mine/tune.json").read_text() == Path("whole/tune.json").read_text()


def test_altered_test_labels_do_not_change_the_pick(tiny_npz, tmp_path):
    with np.load(tiny_npz) as z:
        arrays = dict(z)
    x, y, client = arrays["x"], arrays["y"], arrays["client"]
    rng = np.random.default_rng(0)
    split = rng.choice(["train", "validation", "test"], len(y), p=[0.5, 0.25, 0.25])
    wrong = np.where(split == "test", y.max() - y, y)
    picks, scores = [], []
    for labels in (y, wrong):
        fed = federation(x, labels, client, split)
        found = fedmaba.tune(
            "fedavg",
            {"lr": [0.001, 0.05, 0.5]},
            data=fed,
            model="softmax",
            rounds=2,
            eval_every=2,
            seeds=1,
            search_seeds=1,
            out=tmp_path / f"run{len(picks)}",
        )
        picks.append([(t.values, t.score, t.picked) for t in found.trials])
        scores.append(found.history.summary()[0].mean.accuracy)
    assert picks[0] == picks[1]
    assert scores[0] != scores[1]


def federation(x, y, client, split):
    parts = {name: split == name for name in ("train", "validation", "test")}
    held = {
        f"{what}_{name}": values[parts[name]]
        for name in ("validation", "test")
        for what, values in (("x", x), ("y", y), ("client", client))
    }
    some = parts["train"]
    return fedmaba.Federation.from_arrays(x[some], y[some], client[some], **held)


@pytest.mark.parametrize(("rule", "picked"), [("best:accuracy", 1), ("best:fair", 2)])
def test_the_rule_says_which_trial_is_picked(rule, picked):
    figures = [(60.0, 1.0), (70.0, 50.0), (69.5, 20.0), (68.9, 1.0), (float("nan"), 0.0)]
    trials = [Trial("s", "s", {}, 1, score, 0.0, variance) for score, variance in figures]
    _mark_pick(trials, Search(("s",), {}, rule=rule), PERCENT)
    assert [trial.picked for trial in trials] == [i == picked for i in range(5)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"specs": ("fedavg", "qffl:q=[0.1,1]")}, "different numbers of trials (fedavg 2, qffl"),
        ({"sampler": "random", "trials": 3}, "trials=3, but the grids have fedavg 2"),
        ({"sampler": "best"}, "sampler='best': choose one of grid, random, tpe"),
        ({"sampler": "random"}, "say how many trials"),
        ({"trials": 1}, "a grid is tried whole"),
        ({"rule": "best"}, "pick='best': choose one of best:accuracy, best:fair"),
        ({"seeds": "0-3"}, "seed 0 is one of the trials' (0 to 2)"),
        ({"lr": "log:0.01..1"}, "train.lr has a range, which --sampler grid cannot try"),
        ({"validation": "0%"}, "tune picks on validation data, but none are held back"),
    ],
)
def test_searches_that_make_no_sense_are_refused(change, said, tiny_npz, tmp_path):
    data = {"name": str(tiny_npz), "validation": change.pop("validation", "20%")}
    tree = {"data": data, "model": "softmax", "seeds": change.pop("seeds", 2)}
    tree = with_grid(tree, {"lr": change.pop("lr", [0.1, 0.2])})
    specs = change.pop("specs", ("fedavg",))
    with pytest.raises(InputError) as found:
        list(Tuning(Search(specs, tree, **change), tmp_path / "run").sessions())
    assert said in str(found.value)
    assert not (tmp_path / "run").exists()


def test_a_range_that_ends_before_it_begins_is_refused(tmp_path):
    search = Search(("fedavg",), with_grid({}, {"lr": "5..1"}))
    with pytest.raises(InputError, match=r"5\.\.1"):
        Tuning(search, tmp_path)


def test_lists_of_a_strategy_are_a_grid_by_themselves(call, words):
    how = words[words.index("--data") :]
    assert call("tune", "fedavg", *how).code == 2  # there is nothing to try
    answer = call("tune", "qffl:q=[0.1,1]", *how)
    assert answer.code == 0, answer.err
    assert len(load_trials(Path("mine"))) == 2


def test_random_draws_the_same_number_for_every_strategy(tiny_npz, tmp_path):
    found = fedmaba.tune(
        ["fedavg", "qffl:q=[0.1,1]"],
        {"lr": [0.01, 0.1, 0.5]},
        sampler="random",
        trials=2,
        data=str(tiny_npz),
        validation="40%",
        model="softmax",
        rounds=1,
        seeds=1,
        search_seeds=1,
        out=tmp_path / "run",
    )
    assert [t.strategy for t in found.trials].count("fedavg") == 2
    assert len(found.trials) == 4
    assert sum(t.picked for t in found.trials) == 2
    assert {run.seed for run in found.history.runs} == {1}


class FakeTrial:
    def __init__(self, values):
        self.values = values

    def suggest_categorical(self, name, values):
        return values[0]

    def suggest_float(self, name, low, high, log=False):
        assert (name, low, high, log) == ("train.lr", 0.01, 1.0, True)
        return self.values.pop(0)

    def suggest_int(self, name, low, high, log=False):
        assert (name, low, high, log) == ("train.epochs", 1, 3, False)
        return 2


def test_optuna_proposes_each_trial_after_the_scores_before(tiny_npz, tmp_path, monkeypatch):
    told, proposals = [], [0.01, 0.3]
    study = SimpleNamespace(
        ask=lambda: FakeTrial(proposals), tell=lambda trial, value: told.append(value)
    )
    fake = SimpleNamespace(
        samplers=SimpleNamespace(TPESampler=lambda seed: seed),
        create_study=lambda sampler, direction: study,
        logging=SimpleNamespace(set_verbosity=lambda level: None, WARNING=30),
    )
    how = {"data": str(tiny_npz), "validation": "40%", "model": "softmax", "rounds": 1}
    how |= {"seeds": 1, "search_seeds": 1, "sampler": "tpe", "trials": 2, "out": tmp_path / "run"}
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match="needs Optuna: pip install"):
        fedmaba.tune("fedavg", {"lr": "log:0.01..1"}, **how)
    monkeypatch.setitem(sys.modules, "optuna", fake)
    found = fedmaba.tune("fedavg", {"lr": "log:0.01..1", "epochs": "1..3"}, **how)
    assert [(*t.values.values(),) for t in found.trials] == [(2, 0.01), (2, 0.3)]
    assert told == [t.score for t in found.trials]


def test_the_real_optuna_proposes_the_same_trials_again(tiny_npz, tmp_path, monkeypatch):
    pytest.importorskip("optuna", reason="Optuna is not installed: pip install '.[tune]'")
    how = {"data": str(tiny_npz), "validation": "40%", "model": "softmax", "rounds": 1}
    how |= {"seeds": 1, "search_seeds": 1, "sampler": "tpe", "trials": 3, "progress": False}
    space = {"lr": "log:0.01..1", "epochs": "1..3", "momentum": [0.0, 0.5]}
    first = fedmaba.tune(["fedavg", "afl"], space, out=tmp_path / "run", **how)
    assert [trial.strategy for trial in first.trials] == ["fedavg"] * 3 + ["afl"] * 3
    for trial in first.trials:
        assert 0.01 <= trial.values["train.lr"] <= 1
        assert trial.values["train.epochs"] in (1, 2, 3)
        assert trial.values["train.momentum"] in (0.0, 0.5)
    monkeypatch.setattr(engine, "simulate", None)  # nothing is trained again
    again = fedmaba.tune(["fedavg", "afl"], space, out=tmp_path / "run", **how)
    tried = [[(t.row, t.values, t.score, t.picked) for t in x.trials] for x in (first, again)]
    assert tried[0] == tried[1]
