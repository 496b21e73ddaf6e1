"""Keys with several values: a part of the folder each, told apart in every table, never pooled."""

import csv
from pathlib import Path

import pytest

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.experiment import sweep
from fedmaba.report import data
from fedmaba.simulation import engine
from run_folders import same_history


def swept(**tree):
    return sweep.combinations({"strategies": ["fedavg"], **tree})


def test_every_combination_is_an_experiment():
    found = swept(train={"lr": "[0.01,0.1]", "minibatch": [10, 50]}, model="mlp")
    assert found.keys == ("train.minibatch", "train.lr")
    chosen = [(t["train"]["minibatch"], t["train"]["lr"]) for t in found.trees]
    assert chosen == [(10, 0.01), (10, 0.1), (50, 0.01), (50, 0.1)]
    assert swept(train={"lr": 0.1}).keys == ()
    assert swept(seeds=[0, 2]).trees == [{"strategies": ["fedavg"], "seeds": [0, 2]}]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[0.01, 0.1]", [0.01, 0.1]),
        ("[shards:2,dirichlet:0.3]", ["shards:2", "dirichlet:0.3"]),
        ('["flip", "flip,crop:4"]', ["flip", "flip,crop:4"]),
        ("[10%,20%]", ["10%", "20%"]),
        ("[]", []),
        ("flip,crop:4", None),
        ("[1", None),
    ],
)
def test_lists_are_read_from_the_command_line(text, values):
    assert sweep.list_of(text) == values


def test_a_list_of_columns_is_one_value_and_a_list_of_lists_is_several():
    assert swept(data={"drop": ["a", "b"]}).keys == ()
    assert swept(data={"drop": [["a"], ["b"]]}).keys == ("data.drop",)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"train": {"lr": [i / 999 for i in range(1, 202)]}}, "201 combinations: at most 200 fit"),
        ({"train": {"lr": "[]"}}, "train.lr=[]: the list is empty"),
        ({"train": {"lr": [0.1, 0.1]}}, "train.lr: 0.1 is listed twice"),
        ({"save": {"out": ["a", "b"]}}, "all runs go into one folder: give one value"),
        ({"eval": {"metric": "[f1,auc]"}}, "one table has one metric: give one value"),
        ({"machine": {"threads": [1, 2]}}, "it does not change the results: give one value"),
    ],
)
def test_what_cannot_be_swept_is_refused(tree, said):
    with pytest.raises(InputError) as found:
        swept(**tree)
    assert said in str(found.value)


@pytest.fixture
def folder(call, tiny_npz):
    words = ["compare", "fedavg", "fedmaba", "--data", tiny_npz, *QUICK, "--lr", "[0.01,0.1]"]
    words += ["--set", "train.minibatch=[3,5]", "--out", "mine"]
    words = [w for i, w in enumerate(words) if "--minibatch" not in words[max(0, i - 1) : i + 1]]
    answer = call(*words)
    assert answer.code == 0, answer.err
    return words, answer


ROWS = [
    f"{s}, minibatch={b}, lr={lr}"
    for s in ("fedavg", "fedmaba")
    for b in (3, 5)
    for lr in (0.01, 0.1)
]


@pytest.mark.slow
def test_a_sweep_is_one_folder_for_every_command(folder, call, tiny_npz, monkeypatch):
    words, answer = folder
    history = fedmaba.load_history("mine")
    assert {run.label for run in history.runs} == set(ROWS)
    assert len(history.runs) == 16
    for row in ROWS:
        assert row in answer.out
    for number, (b, lr) in enumerate(((3, 0.01), (3, 0.1), (5, 0.01), (5, 0.1)), 1):
        alone = fedmaba.compare(
            ["fedavg", "fedmaba"],
            data=str(tiny_npz),
            model="softmax",
            rounds=4,
            seeds=2,
            eval_every=2,
            device="cpu",
            minibatch=b,
            lr=lr,
        )
        same_history(fedmaba.load_history(f"mine/parts/{number:03d}"), alone)
    monkeypatch.setattr(engine, "simulate", None)  # nothing is trained again
    again = call(*words)
    assert again.code == 0, again.err
    assert answer.out.partition("It took")[0] == again.out.partition("Look at it")[0]
    assert call("table", "mine", "--against", ROWS[0]).code == 0
    assert call("resume", "mine").out == again.out
    assert call("report", "mine", "-o", "page.html").code == 0
    assert all(row in Path("page.html").read_text() for row in ROWS)
    assert call("export", "mine").code == 0
    with Path("mine/csv/clients.csv").open() as file:
        assert {row["strategy"] for row in csv.DictReader(file)} == set(ROWS)
    assert len(data.load_parts(Path("mine"))) == 4
    other = call(*(w if w != "[0.01,0.1]" else "0.3" for w in words))
    assert (other.code, "holds another experiment, in train.lr" in other.err) == (2, True)


@pytest.mark.slow
def test_a_stopped_sweep_is_resumed(folder, call, tmp_path):
    want = fedmaba.load_history("mine")
    for part in ("mine/parts/003", "mine/parts/004"):
        for file in sorted(Path(part).rglob("*"), reverse=True):
            if file.is_file() and file.name != "experiment.toml":  # as if it was not begun
                file.unlink()
    half = call("table", "mine")
    assert half.code == 0
    assert half.err == "unfinished, 2 of 4 parts are done: fedmaba resume mine\n"
    assert call("resume", "mine", "--quiet").code == 0
    same_history(fedmaba.load_history("mine"), want)


def test_a_part_of_another_experiment_is_refused(folder, call, tiny_npz):
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK, "--lr", "0.7", "--out", "other"]
    assert call(*words).code == 0
    file = Path("mine/parts/002/runs.json")
    file.write_bytes(Path("other/runs.json").read_bytes())
    assert call(*folder[0]).code == 2
    assert call("report", "mine", "-o", "page.html").code == 2
