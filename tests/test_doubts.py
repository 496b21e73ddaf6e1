"""What may be a mistake in labels and arrays gets one warning or refusal, and honest data none."""

import numpy as np
import pytest

import fedmaba
from fedmaba import Federation
from fedmaba.data import datasets
from fedmaba.data.tables import reading
from fedmaba.errors import InputError

RNG = np.random.default_rng(5)
N = 300
X = RNG.normal(size=(N, 4))
Y = (X[:, 0] > 0).astype(int)
OWNER = np.arange(N) % 3
BYTES = RNG.integers(0, 256, (N, 1, 8, 8))


def doubts(x=X, y=Y, **more):
    return Federation.from_arrays(x, y, OWNER, **more).data.doubts


DOUBTFUL = {
    "labels in capitals": (lambda: doubts(y=np.array(["Yes", "yes", "No"])[OWNER]), "look alike"),
    "one class": (lambda: doubts(y=np.zeros(N, int)), "y is '0' in each row: with one class"),
    "pixels as floats": (
        lambda: doubts(BYTES.astype("f4")),
        r"from 0 to 255, like pixels.*x / 255",
    ),
    "pixels as integers": (lambda: doubts(BYTES), "like pixels"),
    "pixels between": (lambda: doubts(BYTES * 0.99), "like pixels"),
    "flat pixels": (lambda: doubts(BYTES.reshape(N, 64).astype(float)), "like pixels"),
    "grey images": (lambda: doubts(BYTES[:, 0].astype(float)), "like pixels"),
    "a large offset": (lambda: doubts(X + 1e9), r"x, column 0 \(and 3 more\): .* lose their"),
    "one large column": (lambda: doubts(np.c_[X, X[:, :1] + 1e9]), "x, column 4: values from 1e"),
    "large integers": (lambda: doubts(np.c_[Y, 10**12 + OWNER]), "x, column 1: values from 1e"),
    "a named input": (lambda: doubts({"a": X, "b": X - 1e8}), "x.b, column 0"),
    "large targets": (lambda: doubts(y=X[:, 0] + 1e9), "y: values from 1e.* lose their"),
    "a column that counts": (
        lambda: doubts(np.c_[X, RNG.permutation(N) + 100]),
        "x, column 4: it only numbers the rows",
    ),
}


@pytest.mark.parametrize("what", DOUBTFUL)
def test_what_may_be_a_mistake_is_told_once(what):
    make, words = DOUBTFUL[what]
    (doubt,) = make()
    assert np.size(doubt) == 1
    with pytest.raises(InputError, match=words):
        raise InputError(doubt)


@pytest.mark.parametrize(
    "honest",
    [
        {},
        {"x": X.astype("f4") + 1000},
        {"x": 1.7e9 + 86_400 * X},  # times of some days
        {"x": np.c_[X, np.full(N, 1e9)]},  # a constant differs nowhere
        {"x": 1e-12 * X},
        {"x": np.exp(20 * X)},
        {"x": BYTES / 255},
        {"x": (BYTES - 128.0)},
        {"x": RNG.integers(0, 17, (N, 64)).astype(float)},  # digits of 16 grey values
        {"x": RNG.integers(0, 256, (N, 40))},  # tokens
        {"x": RNG.integers(0, 50_000, (N, 12))},
        {"x": RNG.integers(18, 250, (N, 5)).astype(float)},  # ages and weights
        {"y": np.arange(N) % 20},
        {"y": np.arange(N) % 60},  # many classes, without a gap
        {"y": 1 + np.arange(N) % 26},
        {"y": np.array([f"class {i % 100}" for i in range(N)])},
        {"y": 1000 * (np.arange(N) % 12)},
        {"y": np.zeros(N, int), "classes": ["ill", "well"]},
        {"y": np.arange(N) % 100, "task": "classify"},
    ],
)
def test_honest_data_cause_no_doubt(honest):
    assert doubts(**honest) == ()


@pytest.mark.parametrize(
    "y",
    [
        RNG.integers(25, 347, N),  # a score of diabetes
        RNG.integers(0, 149, N),
        np.rint(18 + 20 * RNG.random(N)) + 5,
        RNG.integers(0, 60, N) * 5,
        RNG.integers(0, 149, N).astype(float),
    ],
)
def test_whole_numbers_that_measure_are_asked_about(y, tmp_path):
    with pytest.raises(InputError, match=r"different (labels|whole numbers from) .*--task regress"):
        doubts(y=y)
    assert Federation.from_arrays(X, y, OWNER, task="classify").data.task == "classify"
    path = tmp_path / "t.csv"
    lines = [f"{a},{c},{label}" for a, c, label in zip(X[:, 0], OWNER, y, strict=True)]
    path.write_text("\n".join(["a,client,y", *lines]) + "\n")
    with pytest.raises(InputError, match=r"column y has .* --task regress"):
        datasets.load(str(path))
    assert datasets.load(str(path), task="regress").doubts == ()


def test_a_table_loses_nothing_unless_numbers_stay_as_they_are(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f"{a!r},{c},{label}" for a, c, label in zip(X[:, 0] + 1e9, OWNER, Y, strict=True)]
    path.write_text("\n".join(["a,client,y", *lines]).replace("np.float64(", "").replace("),", ","))
    kept = {}
    for standardise in (True, False):
        data = datasets.load(str(path), reading=reading(standardise="yes" if standardise else "no"))
        kept[standardise] = Federation.make(data, test="local").data
    assert kept[True].doubts == ()
    (doubt,) = kept[False].doubts
    assert "column a: values from 1e+09 to 1e+09 lose their differences" in doubt
    assert doubt.endswith("leave out --standardise no")
    assert len(np.unique(kept[True].x)) > 100 > len(np.unique(kept[False].x))


def test_a_call_in_python_hears_a_doubt_once(caplog):
    fed = Federation.from_arrays(X, np.array(["Yes", "yes", "No"])[OWNER], np.arange(N) % 5)
    more = {"model": "softmax", "rounds": 1, "seeds": 1, "lr": [0.1, 0.2], "progress": False}
    fedmaba.compare("fedavg", data=fed, **more)
    said = [record for record in caplog.records if "look alike" in record.message]
    assert [record.levelname for record in said] == ["WARNING"]
