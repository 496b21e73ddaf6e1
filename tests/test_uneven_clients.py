"""Clients of very different size: one example, none to test on, too few, or thousands."""

import json

import numpy as np
import pytest

import fedmaba
from fedmaba import Federation
from fedmaba.data import datasets
from fedmaba.errors import InputError
from fedmaba.experiment import config, session

SIZES = {"solo": 1, "pair": 2, "few": 7, "many": 400, "most": 5000}
OWNER = np.repeat(list(SIZES), list(SIZES.values()))
RNG = np.random.default_rng(1)
X = RNG.normal(size=(len(OWNER), 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
SHORT = {"model": "softmax", "rounds": 2, "seeds": 1}


def test_one_to_five_thousand_examples_train_together():
    fed = Federation.from_arrays(X, Y, OWNER)
    sizes = dict(zip(fed.client_names(), fed.train.size.tolist(), strict=True))
    assert sizes == {"solo": 1, "pair": 1, "few": 6, "many": 320, "most": 4000}
    tests = dict(zip(fed.client_names(), fed.test.size.tolist(), strict=True))
    assert tests == {"solo": 0, "pair": 1, "few": 1, "many": 80, "most": 1000}
    history = fedmaba.compare(["fedavg", "fedmaba"], data=fed, **SHORT)
    for one in history.runs:
        accuracy = dict(zip(fed.client_names(), one.accuracy()[-1], strict=True))
        assert np.isnan(accuracy.pop("solo"))
        assert np.isfinite(list(accuracy.values())).all()
    assert "nan" not in str(history)


def test_small_clients_are_left_out_and_counted(tmp_path, call):
    np.savez(tmp_path / "t.npz", x=X, y=Y, client=OWNER)
    words = ["compare", "fedavg", "--data", tmp_path / "t.npz", "--model", "softmax"]
    words += ["--rounds", 1, "--seeds", 1, "--out", tmp_path / "run", "--min-examples", 5]
    told = call(*words)
    assert told.code == 0
    about = json.loads((tmp_path / "run" / "about.json").read_text())
    assert about["data"]["clients"] == ["few", "many", "most"]
    assert about["data"]["steps"] == [
        "clients: 2 of 5 left out, with fewer than 5 examples: 3 examples"
    ]
    assert "2 of 5 left out, with fewer than 5 examples" in " ".join((told.out + told.err).split())
    fed = Federation.from_arrays(X, Y, OWNER, min_examples=5)
    keep = np.isin(OWNER, ["few", "many", "most"])
    alone = Federation.from_arrays(X[keep], Y[keep], OWNER[keep])
    assert fed.split.sha256() == alone.split.sha256()
    np.testing.assert_array_equal(fed.data.x, alone.data.x)


def test_clients_without_tests_are_named_on_the_first_lines(tmp_path, call):
    np.savez(tmp_path / "t.npz", x=X, y=Y, client=OWNER)
    words = ["compare", "fedavg", "--data", tmp_path / "t.npz", "--model", "softmax"]
    told = call(*words, "--rounds", 1, "--seeds", 1, "--out", tmp_path / "run")
    assert told.code == 0
    shown = " ".join((told.out + told.err).split())
    assert "1 of 5 have no test example: they train, and figures are of the others" in shown


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"min_examples": 9999}, r"no client of 5 has as many .* the largest has 5000: lower it"),
        ({"spec": "iid", "clients": 3, "min_examples": 2}, "it is for the data's own clients"),
    ],
)
def test_what_cannot_be_left_out_is_refused(more, words):
    data = datasets.from_arrays(X, Y, OWNER)
    with pytest.raises(InputError, match=words):
        Federation.make(data, **({"spec": "given", "test": "local"} | more))
    nobody = datasets.from_arrays(X, Y)
    with pytest.raises(InputError, match="the data have no client column"):
        Federation.make(nobody, "given", test="local", min_examples=3)


def test_a_client_that_only_tests_is_left_out_and_told():
    owner = np.array(["a", "a", "b", "b"])
    fed = Federation.from_arrays(
        X[:4], Y[:4], owner, x_test=X[4:7], y_test=Y[4:7], client_test=np.array(["a", "b", "c"])
    )
    assert fed.client_names() == ("a", "b")
    assert fed.test.size.tolist() == [1, 1]
    told = "clients: 1 of 3 left out, without training examples: 1 examples"
    assert fed.data.steps == (told,)


def test_parts_and_groups_of_arrays():
    owner, group = np.array(["a", "b"] * 3), np.array([1, 0, 1, 0, 1, 1])
    fed = Federation.from_arrays(
        X[:6], Y[:6], owner,
        x_validation=X[6:8], y_validation=Y[6:8], client_validation=owner[:2],
        x_test=X[8:12], y_test=Y[8:12], client_test=owner[:4],
        group=group, group_validation=group[:2], group_test=group[:4],
    )  # fmt: skip
    assert fed.train.index.tolist() == [0, 2, 4, 1, 3, 5]
    assert fed.validation.index.tolist() == [6, 7]
    assert fed.test.index.tolist() == [8, 10, 9, 11]
    assert fed.data.group.tolist() == [1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0]
    assert fed.data.group_names == ("0", "1")
    deployed = fedmaba.compare("fedavg", data=fed, deploy="best:accuracy", **SHORT)
    assert len(deployed.runs) == 1
    with pytest.raises(InputError, match="x_validation and y_validation belong together"):
        Federation.from_arrays(X[:6], Y[:6], owner, x_validation=X[:2])
    with pytest.raises(InputError, match="group_test without group"):
        Federation.from_arrays(
            X[:6], Y[:6], owner, x_test=X[:1], y_test=Y[:1], client_test=["a"], group_test=[1]
        )
    with pytest.raises(InputError, match="unknown argument of from_arrays 'xtest'"):
        Federation.from_arrays(X[:6], Y[:6], owner, xtest=X[:2])


def splits(data, **more):
    asked = {"name": data if isinstance(data, str) else "own", **more}
    made = config.build({"strategies": "fedavg", "seeds": 3, "model": "softmax", "data": asked})
    own = session.UserObjects(data=None if isinstance(data, str) else data)
    runs = session.prepare(made, own).batch.runs
    return [run.federation.split.sha256() for run in runs]


def test_one_option_says_whether_seeds_split_anew(tmp_path):
    np.savez(tmp_path / "t.npz", x=X, y=Y, client=OWNER)
    file, fed = str(tmp_path / "t.npz"), Federation.from_arrays(X, Y, OWNER)
    assert len(set(splits(file))) == 3
    assert splits(file, resplit="yes") == splits(file) == splits(fed, resplit="yes")
    assert splits(file, resplit="no") == splits(fed) == splits(fed, resplit="no")
    assert len(set(splits(fed))) == 1
    by_hand = Federation(fed.data, fed.split)
    with pytest.raises(InputError, match="this Federation was split by hand"):
        splits(by_hand, resplit="yes")
