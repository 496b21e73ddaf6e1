"""How data are divided: nothing lost, nothing twice, the same for the same seed."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedmaba.data import datasets, partition
from fedmaba.data.federation import Federation
from fedmaba.data.partition import parse_share, split
from fedmaba.errors import InputError

EQUAL = np.concatenate([np.tile(np.arange(10), 600), np.tile(np.arange(10), 200)])
SPECS = ("shards", "shards:1", "shards:5", "dirichlet", "dirichlet:0.05", "iid", "sizes", "sizes:2")


def labels(seed: int, n_train: int, n_test: int, classes: int, skew: float) -> np.ndarray:
    """Labels (n_train + n_test,) with unequal class counts."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, classes + 1) ** -skew
    return rng.choice(classes, n_train + n_test, p=share / share.sum())


def whole(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """All indices of one part, sorted."""
    return np.sort(np.concatenate(parts))


@settings(max_examples=120, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    seed=st.integers(0, 1000),
    clients=st.integers(1, 25),
    classes=st.integers(1, 12),
    skew=st.sampled_from([0.0, 1.0]),
    test=st.sampled_from(["official", "local"]),
    validation=st.sampled_from([0.0, 0.1]),
)
def test_every_example_is_used_once(spec, seed, clients, classes, skew, test, validation):
    n_train, n_test = 400, 200
    y = labels(seed, n_train, n_test, classes, skew)
    try:
        s = split(y, n_train, None, spec, clients, seed, test, validation)
    except InputError:  # such as: a class without test examples, and a client with no other class
        assume(False)
    assert len(s.train) == len(s.validation) == len(s.test) == clients
    for k in range(clients):
        assert len(s.train[k]) > 0
        assert len(s.test[k]) > 0
        assert (len(s.validation[k]) > 0) == (validation > 0)
        for rows in (s.train[k], s.validation[k], s.test[k]):
            assert rows.dtype == np.int64
            assert (np.diff(rows) > 0).all()
    used = whole(s.train + s.validation + s.test)
    if test == "local":
        np.testing.assert_array_equal(used, np.arange(n_train))
    else:
        trained = np.isin(y, y[:n_train])  # nobody's: test examples of classes nobody trains on
        trained[:n_train] = True
        expected = (
            np.arange(len(y)) if spec.startswith(("iid", "sizes")) else np.flatnonzero(trained)
        )
        np.testing.assert_array_equal(used, expected)
        assert whole(s.test).min() >= n_train
    if spec.startswith(("shards", "dirichlet")):
        for k in range(clients):
            mine = np.concatenate([s.train[k], s.validation[k]])
            if test == "official":
                assert set(y[s.test[k]]) <= set(y[mine])
    if spec.startswith("shards"):
        per_client = int(spec.partition(":")[2] or 2)
        if clients * per_client >= len(np.unique(y[:n_train])):
            for k in range(clients):
                mine = np.concatenate([s.train[k], s.validation[k]])
                assert len(np.unique(y[mine])) <= per_client


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("test", ["official", "local"])
def test_the_seed_alone_decides(spec, test):
    def digest(seed: int) -> str:
        return split(EQUAL, 6000, None, spec, 20, seed, test, 0.1).sha256()

    first = digest(1)
    np.random.seed(5)  # noqa: NPY002 - the global state must not matter
    assert digest(1) == first
    assert len({digest(seed) for seed in range(5)}) == 5


def test_a_split_is_the_same_on_every_machine_and_version():
    s = split(EQUAL, 6000, None, "shards", 100, 0)
    assert s.sha256() == "d36c6045365e0f178657034f12a1375c36bdb59f21fb4530fc8dd102b32db5f9"
    assert (
        split(EQUAL, 6000, None, "iid", 100, 0).sha256()
        == "647829a383757aee4fecdb436df0c76aa5046801233539e7aec76c71e89d162c"
    )


def test_shards_of_equal_classes_are_the_papers():
    """100 clients, two shards of 30 each: 60 examples of two labels; test shards of 10 follow."""
    s = split(EQUAL, 6000, None, "shards:2", 100, 0)
    shard = np.empty(8000, np.int64)
    shard[np.argsort(EQUAL[:6000], kind="stable")] = np.arange(6000) // 30
    shard[6000 + np.argsort(EQUAL[6000:], kind="stable")] = np.arange(2000) // 10
    for train, test in zip(s.train, s.test, strict=True):
        assert (len(train), len(test), len(np.unique(EQUAL[train]))) == (60, 20, 2)
        assert len(np.unique(shard[train])) == 2
        np.testing.assert_array_equal(np.unique(shard[test]), np.unique(shard[train]))


@pytest.mark.parametrize("clients", [1, 5, 30])
def test_test_labels_come_in_the_proportions_of_training(clients):
    y = labels(3, 3000, 1000, 6, 1.0)
    s = split(y, 3000, None, "dirichlet:0.3", clients, 7)
    train = np.array([np.bincount(y[rows], minlength=6) for rows in s.train])  # (N, C)
    test = np.array([np.bincount(y[rows], minlength=6) for rows in s.test])
    wanted = train / train.sum(0) * test.sum(0)
    # two cuts, each rounded, and at most one example given away to a client without any
    assert np.abs(test - wanted).max() <= 2
    np.testing.assert_array_equal(test.sum(0), np.bincount(y[3000:], minlength=6))


def test_unequal_classes_get_shards_in_proportion():
    y = np.repeat([0, 1, 2, 0, 1, 2], [500, 300, 205, 50, 30, 20])  # 5, 3 and 2 of 10 shards
    s = split(y, 1005, None, "shards:2", 5, 0)
    assert all(200 <= len(rows) <= 203 for rows in s.train)
    assert [len(rows) for rows in s.test] == [20] * 5


def test_more_classes_than_shards_are_cut_evenly():
    s = split(EQUAL, 6000, None, "shards:2", 3, 0)
    assert [len(rows) for rows in s.train] == [2000] * 3


@pytest.mark.parametrize("a", [0.001, 0.01, 0.1])
def test_dirichlet_leaves_no_client_behind(a):
    s = split(EQUAL, 6000, None, f"dirichlet:{a}", 100, 0)
    assert min(len(rows) for rows in s.train) >= partition.FEW_EXAMPLES
    assert min(len(rows) for rows in s.test) >= 1
    tight = split(EQUAL, 6000, None, f"dirichlet:{a}", 600, 0)  # no more than the least for anyone
    assert {len(rows) for rows in tight.train} == {partition.FEW_EXAMPLES}
    assert min(len(rows) for rows in tight.test) >= 1


def test_small_alpha_means_fewer_labels():
    def distinct(a: float) -> float:
        s = split(EQUAL, 6000, None, f"dirichlet:{a}", 50, 0)
        return float(np.mean([len(np.unique(EQUAL[rows])) for rows in s.train]))

    assert distinct(0.05) < 4 < 8 < distinct(10)


def test_sizes_grow_apart_with_sigma():
    def ratio(spec: str) -> float:
        sizes = [len(rows) for rows in split(EQUAL, 6000, None, spec, 50, 0).train]
        return max(sizes) / min(sizes)

    assert ratio("iid") == ratio("sizes:0") == 1
    assert 1 < ratio("sizes:0.5") < ratio("sizes:2")


def test_local_test_is_a_fifth_and_validation_a_share_of_the_rest():
    s = split(EQUAL, 6000, None, "iid", 10, 0, "local", 0.1)
    assert {len(rows) for rows in s.test} == {120}
    assert {len(rows) for rows in s.validation} == {48}
    assert {len(rows) for rows in s.train} == {432}
    plain = split(EQUAL, 6000, None, "iid", 10, 0, "local")
    for k in range(10):  # validation is cut from training and changes nothing else
        np.testing.assert_array_equal(plain.test[k], s.test[k])
        np.testing.assert_array_equal(
            plain.train[k], np.sort(np.concatenate([s.train[k], s.validation[k]]))
        )


def test_given_follows_the_column():
    client = np.array([0, 1, 1, 2, 0, 2, 2, 1, 0])
    y = np.zeros(9, np.int64)
    s = split(y, 6, client, "given", None, 0)
    assert [rows.tolist() for rows in s.train] == [[0, 4], [1, 2], [3, 5]]
    assert [rows.tolist() for rows in s.test] == [[8], [7], [6]]
    local = split(y, 9, client, "given", 3, 0, "local")
    assert whole(local.train + local.test).tolist() == list(range(9))
    drawn = {split(y, 9, client, "given", 3, seed, "local").sha256() for seed in range(20)}
    assert len(drawn) > 10  # which examples are for testing is drawn at random


def test_saved_as_flat_arrays():
    s = split(EQUAL, 6000, None, "dirichlet", 30, 0, validation=0.2)
    arrays = s.to_arrays()
    assert set(arrays) == {p + e for p in partition.PARTS for e in ("", "_offsets")}
    ends = arrays["test_offsets"]
    np.testing.assert_array_equal(arrays["test"][ends[7] : ends[8]], s.test[7])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": "shard"}, "did you mean 'shards'"),
        ({"spec": "shards:0"}, "an integer from 1"),
        ({"spec": "shards:2.5"}, "an integer from 1"),
        ({"spec": "shards:100"}, "makes 10000 shards of 6000"),
        ({"spec": "dirichlet:nan"}, "a number from 0.001"),
        ({"spec": "dirichlet:-1"}, "a number from 0.001"),
        ({"spec": "sizes:x"}, "'x' is no S"),
        ({"spec": "iid:3"}, "has no parameter"),
        ({"spec": "given"}, "no client column"),
        ({"clients": None}, "clients=None"),
        ({"clients": 0}, "clients=0"),
        ({"clients": 2001}, "from 1 to 2000"),
        ({"clients": 3001, "test": "local"}, "from 1 to 3000"),
        ({"test": "locale"}, "did you mean 'local'"),
        ({"validation": 1.0}, "validation=1.0"),
        ({"validation": float("nan")}, "validation=nan"),
        ({"n_train": 8000}, "--test local"),
        ({"spec": "given", "client": np.zeros(8000, int), "clients": 7}, "the data name 1 clients"),
        ({"spec": "given", "client": np.arange(8000) % 2 - 1, "clients": None}, "client_test"),
        (
            {"spec": "given", "client": np.arange(8000) // 6000, "clients": None},
            "client 1 has no train example left (partition given, test official, validation 0): "
            "give it more data, or leave it out",
        ),
        ({"clients": 3000, "test": "local", "validation": 0.1}, "or leave out --validation"),
        ({"validation": 0.999}, "client 0 (and 99 more) has no train example left"),
        ({"validation": 0.999}, "give it more data, or lower --validation"),
    ],
)
def test_impossible_requests_say_why(change, message):
    ask = {"y": EQUAL, "n_train": 6000, "client": None, "spec": "iid", "clients": 100, "seed": 0}
    with pytest.raises(InputError) as caught:
        split(**{**ask, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_client_with_one_example_trains_on_it():
    x, y, owner = np.zeros((9, 2)), np.arange(9) % 2, np.array(["a"] * 4 + ["b"] * 4 + ["solo"])
    data = datasets.from_arrays(x, y, owner)
    made = Federation.make(data, "given", test="local", validation=0.9)
    assert made.train.size.tolist() == [1, 1, 1]
    assert made.test.size.tolist() == [1, 1, 0]
    assert made.validation.size.tolist() == [2, 2, 0]
    data = datasets.from_arrays(x, y, owner, x[:4], y[:4], owner[2:6])
    assert Federation.make(data, "given").test.size.tolist() == [2, 2, 0]
    only = datasets.from_arrays(x[:2], y[:2], owner[[0, 4]])
    with pytest.raises(InputError, match=r"client 'a' .and 1 more. has no test example left"):
        Federation.make(only, "given", test="local")


def test_too_few_test_examples_of_a_class_are_refused():
    y = np.array([0] * 50 + [1] * 50 + [0] * 10)  # class 1 has no test example
    with pytest.raises(InputError, match="gets no test example"):
        split(y, 100, None, "shards:1", 4, 0)


@pytest.mark.parametrize(("value", "share"), [("10%", 0.1), ("0.1", 0.1), (0.1, 0.1), ("100 %", 1)])
def test_shares(value, share):
    assert parse_share(value) == pytest.approx(share)


@pytest.mark.parametrize("value", ["10", "-1%", "x", "", "nan", "101%", True, None, 1.5])
def test_wrong_shares(value):
    with pytest.raises(InputError, match="10%"):
        parse_share(value)


def test_a_hundred_thousand_clients_are_quick():
    y = np.tile(np.arange(10), 30_000)
    start = time.perf_counter()
    s = split(y, 200_000, None, "iid", 100_000, 0)
    assert {len(rows) for rows in s.train} == {2}
    assert {len(rows) for rows in s.test} == {1}
    assert time.perf_counter() - start < 10
