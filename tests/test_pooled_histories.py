"""Runs of different experiments are not averaged as seeds of one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmaba
from fedmaba.errors import InputError
from fedmaba.results import run_folder
from fedmaba.results.history import GrowingArray, History, RunHistory

pytestmark = pytest.mark.usefixtures("small_sample")
SMALL = {"clients": 4, "rounds": 4, "eval_every": 2, "model": "softmax", "minibatch": 200}


def played(seed: int = 0, strategy: str = "fedavg", out=None, **options) -> History:
    return fedmaba.compare(strategy, seeds=f"{seed},", out=out, **(SMALL | options))


def test_seeds_of_one_experiment_may_come_from_several_calls(tmp_path):
    parts = [played(0), played(1, out=tmp_path / "saved"), played(2, share=0.5)]
    parts[1] = run_folder.load_history(tmp_path / "saved")
    whole = History([run for part in parts for run in part.runs])
    assert [row.seeds for row in whole.summary()] == [3]
    together = fedmaba.compare("fedavg", seeds=3, **SMALL)
    assert whole.summary()[0].mean == pytest.approx(together.summary()[0].mean, rel=1e-4)


def said_first(text: str) -> str:
    """What a table says before its first number."""
    return text.partition("variance")[0]


def test_runs_of_other_settings_stand_side_by_side_and_their_table_says_so_first(tmp_path, call):
    one = played(0, out=tmp_path / "one")
    two = played(0, "afl", out=tmp_path / "two", lr=0.3, rounds=6)
    note = "these runs differ in train.rounds (4: fedavg; 6: afl), train.lr (0.1: fedavg; 0.3: afl)"
    saved = [fedmaba.load_history(tmp_path / name) for name in ("one", "two")]
    for a, b in ((one, two), saved, (one, saved[1])):
        whole = History(a.runs + b.runs)
        assert [row.label for row in whole.summary()] == ["fedavg", "afl"]
        assert json.loads(whole.table("json"))["notes"] == [note]
        for text in (str(whole), whole.table(against="fedavg")):
            assert note in said_first(text)
        assert note in whole.table("latex").partition("toprule")[0]
    assert "differ" not in str(one) + str(saved[1])
    both = [tmp_path / "one", tmp_path / "two"]
    shown = call("table", *both)
    assert note in " ".join(said_first(shown.out).split())
    assert call("table", *both, "--by", "client").code == 0
    rows = json.loads(call("table", *both, "--json", "--against", "fedavg").out)
    assert [row["strategy"] for row in rows["rows"]] == ["fedavg", "afl"]
    assert len(rows["differences"]) == 1
    assert call("table", both[0], both[0]).code == 2
    assert call("report", *both).code == 0
    assert "train.rounds (4: fedavg; 6: afl)" in Path("report.html").read_text()


def test_own_code_that_differs_is_said():
    def wide(shape, classes):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, classes))

    runs = played(0).runs + played(0, "afl", model=wide).runs
    assert "model (softmax: fedavg; wide: afl), their own code" in said_first(str(History(runs)))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"clients": 5}, "4 and 5 clients"),
        ({"partition": "iid"}, "clients that have other examples under seed 0"),
        ({"validation": "20%"}, "clients that have other examples under seed 0"),
    ],
    ids=str,
)
def test_runs_of_other_people_are_not_put_side_by_side(other, why, tmp_path, call):
    one = played(0, out=tmp_path / "one")
    two = played(0, "afl", out=tmp_path / "two", **other)
    saved = [fedmaba.load_history(tmp_path / name) for name in ("one", "two")]
    for a, b in ((one, two), saved, (one, saved[1])):
        with pytest.raises(InputError, match=f"^fedavg and afl are of {why}"):
            History(a.runs + b.runs)
    answer = call("report", tmp_path / "one", tmp_path / "two")
    assert (answer.code, why in answer.err, [*Path().iterdir()]) == (2, True, [])


def test_what_a_folder_of_before_does_not_say_is_told_where_it_is_joined(tmp_path):
    for name, strategy in (("one", "fedavg"), ("two", "afl")):
        played(0, strategy, out=tmp_path / name)
    file = tmp_path / "two" / "runs.json"
    told = json.loads(file.read_text())
    del told["runs"][0]["origin"]  # As 0.1 wrote it, it also lacks `made`.
    note = "whether the data and clients of afl are those of the others is not known"
    for _ in range(2):
        file.write_text(json.dumps(told))
        one, two = (fedmaba.load_history(tmp_path / name) for name in ("one", "two"))
        assert "not known" not in str(one) + str(two)
        joined = said_first(str(History(one.runs + two.runs)))
        assert (note in joined, "differ" in joined) == (True, False)
        told.pop("made", None)


def test_the_labels_of_one_folder_say_how_its_runs_differ(tmp_path):
    for out in (None, tmp_path / "run"):
        swept = fedmaba.compare("fedavg", seeds=1, out=out, **SMALL | {"clients": [4, 5]})
        assert [run.n_clients for run in swept.runs] == [4, 5]
        assert "differ" not in str(swept)
    with pytest.raises(InputError, match="5 and 4 clients"):
        History(swept.runs + played(0, "afl").runs)


OTHERS = [
    ({"clients": 5}, r"4 and 5 clients"),
    ({"rounds": 6}, r"evaluated in other rounds, last 4 and 6"),
    ({"lr": 0.3}, r"with other data, model or options"),
    ({"eval_every": 1}, r"evaluated in other rounds"),
    ({"partition": "iid"}, r"with other data, model or options"),
    ({"model": "mlp"}, r"with other data, model or options"),
    ({"attack": "loss=x3", "hostile": "25%"}, r"with other data, model or options"),
]
CASES = [(saved, *other) for other in OTHERS for saved in (False, True)]


@pytest.mark.parametrize(
    ("saved", "other", "why"),
    [
        pytest.param(*c, marks=() if c in CASES[:1] + CASES[2:6] else pytest.mark.slow)
        for c in CASES
    ],
    ids=str,
)
def test_different_experiments_are_refused_by_name(saved, other, why, tmp_path):
    one, two = played(0, out=tmp_path / "one"), played(1, out=tmp_path / "two", **other)
    if saved:
        one, two = (run_folder.load_history(tmp_path / name) for name in ("one", "two"))
    line = rf"^fedavg: seeds 0 and 1 are of different experiments \({why}.*\): keep them apart"
    with pytest.raises(InputError, match=line):
        History(one.runs + two.runs)
    one.runs += two.runs
    with pytest.raises(InputError, match=line):
        one.summary()


def test_other_data_of_the_same_shape_are_other_data():
    rng = np.random.default_rng(0)
    y, owner = np.tile([0, 1], 30), np.repeat([0, 1, 2], 20)
    runs = []
    for seed in range(2):
        mine = fedmaba.Federation.from_arrays(rng.normal(size=(60, 3)), y, owner)
        runs += fedmaba.compare("fedavg", data=mine, seeds=f"{seed},", rounds=2).runs
    with pytest.raises(InputError, match="with other data, model or options"):
        History(runs)
    other = replace(runs[1], label="afl", seed=0)
    with pytest.raises(InputError, match="afl are of different data"):
        History([runs[0], other])


def test_the_same_run_does_not_count_twice():
    one = played()
    with pytest.raises(InputError, match=r"^fedavg, seed 0, is there twice: leave one of the two"):
        History(one.runs + played(lr=0.3).runs)
    with pytest.raises(InputError, match="is there twice"):
        History(one.runs * 2)


def run(seed: int, clients: int = 3, evaluated: tuple[int, ...] = (1, 2), **more) -> RunHistory:
    tables = {"evaluated": GrowingArray(np.array(evaluated))}
    for model in ("deployed", "last"):
        for what in ("accuracy", "loss"):
            tables[f"{model}.{what}"] = GrowingArray(np.full((len(evaluated), clients), 0.5))
    return RunHistory("fedavg", seed, "last", np.full(clients, 9), tables=tables, **more)


def test_runs_that_nobody_told_of_are_judged_by_their_tables():
    assert len(History([run(0), run(1, of="a"), run(2, of="")]).runs) == 3
    with pytest.raises(InputError, match="3 and 4 clients"):
        History([run(0), run(1, clients=4)])
    with pytest.raises(InputError, match="last 2 and 3"):
        History([run(0), run(1, evaluated=(1, 3))])


def test_a_run_that_diverged_or_has_not_begun_may_be_shorter():
    empty = RunHistory("fedavg", 2, "last", np.full(3, 9))
    assert History([run(0), run(1, evaluated=(1,), diverged="lost"), empty]).summary()[0].seeds == 1


def test_folders_of_before_are_read(tmp_path):
    played(out=tmp_path / "run")
    file = tmp_path / "run" / "runs.json"
    told = json.loads(file.read_text())
    assert len(told["runs"][0].pop("of")) == 16
    file.write_text(json.dumps(told))
    assert run_folder.load_history(tmp_path / "run").runs[0].of == ""
