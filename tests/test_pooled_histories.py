"""Runs of different experiments are not averaged as seeds of one."""

import json

import numpy as np
import pytest

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


def test_different_strategies_may_be_put_side_by_side():
    whole = History(played(0).runs + played(0, "afl", lr=0.3).runs)
    assert [row.label for row in whole.summary()] == ["fedavg", "afl"]


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
