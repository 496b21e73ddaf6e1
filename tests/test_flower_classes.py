"""A label means the same class at every site, whatever labels a site's own file has."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")
pytest.importorskip("torch")

from flwr.app import ConfigRecord

from fedmaba.data import datasets
from fedmaba.data.datasets import Dataset
from fedmaba.deploy.client import LocalClient
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app, initial_arrays
from flower_grid import LocalGrid

RNG = np.random.default_rng(0)
MIDDLE = RNG.normal(size=(4, 6)) * 3  # where the examples of a class lie
WORDS = ["rash", "cough", "fever", "none"]  # not in the order of the alphabet


def examples(classes, each=30):
    y = np.repeat(classes, each)
    return (MIDDLE[y] + RNG.normal(size=(len(y), 6))).astype(np.float32), y


def csv_file(path, classes, names):
    """A site's file with some of the classes, by name."""
    x, y = examples(classes)
    rows = [f"{names[k]}," + ",".join(map(str, row)) for row, k in zip(x, y, strict=True)]
    path.write_text("\n".join(["label,a,b,c,d,e,f", *rows]) + "\n")
    return datasets.load(str(path))


PARTS = ([0, 1], [1, 2], [2, 3], [3, 1])  # which classes a site has


def trained(data, classes, **options):
    """A model that all these sites made together, as a function of examples."""
    apps = {
        c + 1: client_app("softmax", one, site=f"s{c}", classes=classes, **options)
        for c, one in enumerate(data)
    }
    strategy = FlowerStrategy("fedmaba", min_available_nodes=len(apps), evaluate=False, lr=0.3)
    result = strategy.start(
        LocalGrid(apps), initial_arrays("softmax", (6,), 4), 8, train_config=ConfigRecord({})
    )
    weight, bias = (a.numpy() for a in result.arrays.values())
    return lambda x: (x @ weight.T + bias).argmax(1), strategy.reports


@pytest.mark.parametrize("names", [WORDS, ["0", "1", "2", "3"], ["1", "2", "3", "9"]])
def test_csv_files_with_some_of_the_classes_learn_the_right_ones(names, tmp_path):
    data = [csv_file(tmp_path / f"{c}.csv", part, names) for c, part in enumerate(PARTS)]
    assert any(one.classes != tuple(names) for one in data)
    predict, _ = trained(data, names)
    x, y = examples([0, 1, 2, 3])
    assert (predict(x) == y).mean() > 0.9


def site(y, own, classes) -> LocalClient:
    x = np.zeros((len(y), 2), np.float32)
    return LocalClient("softmax", Dataset("own", x, np.array(y), len(y), tuple(own)), classes)


def test_numbers_by_hand():
    assert site([0, 1, 1], ["1", "2"], 4).targets.labels().tolist() == [1, 2, 2]
    assert site([0, 1, 1], ["1", "2"], ["2", "1"]).targets.labels().tolist() == [1, 0, 0]
    assert site([2, 1], ["0", "1", "2"], ["1", "2"]).targets.labels().tolist() == [
        1,
        0,
    ]  # 0 is not used
    assert site([0, 2], ["0", "1", "2"], None).targets.labels().tolist() == [0, 2]


@pytest.mark.parametrize(
    ("y", "own", "classes", "said"),
    [
        ([0, 1], ["cough", "flu"], WORDS, "label flu of this site is not among the federation's"),
        ([0, 1], ["1", "4"], 4, "label 4 of this site.*classes, 0, 1, 2, 3: correct"),
        ([0, 1], ["a", "b"], 2, "label a, b of this site"),
        ([0, 1], ["1", "2"], None, r"labels are 1, 2, and nothing says.*classes=\[...\]"),
        ([0, 1], ["no", "yes"], None, "labels are no, yes, and nothing says"),
        ([0, 5], ["0", "1"], 2, "label 5 of this site"),
        ([0, -1], ["0", "1"], 2, "label -1 of this site"),
        ([0, 1], ["0", "1"], ["0", "1", "0"], "each once"),
        ([0, 1], ["0", "1"], "01", "give a list of names"),
        ([0, 1], ["0", "1"], [], "give a list of names"),
    ],
)
def test_a_label_outside_the_list_is_refused_by_name(y, own, classes, said):
    with pytest.raises(InputError, match=said):
        site(y, own, classes).targets.labels()


def test_the_server_is_told_and_the_others_go_on(tmp_path):
    names = ["1", "2", "3", "9"]
    data = [csv_file(tmp_path / f"{c}.csv", part, names) for c, part in enumerate(PARTS)]
    odd = csv_file(tmp_path / "odd.csv", [0, 1], ["1", "two", "", ""])
    _, reports = trained([*data, odd], names)
    for report in reports:
        assert list(report["sites"]) == ["s0", "s1", "s2", "s3"]
        (why,) = report["refused"]
        assert "(s4): it failed: label two of this site is not among" in why
