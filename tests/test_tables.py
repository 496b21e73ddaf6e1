"""Tables of your own: roles of columns, words and gaps as numbers, mistakes by their place."""

import io
from pathlib import Path

import numpy as np
import pytest

from fedmaba.data import csv_tables, frames
from fedmaba.data.features import features
from fedmaba.data.tables import Reading

GOOD = """age,sex,site,weight,outcome
63,f,north,70.5,yes
41,m,north,,no
58,,south,81,yes
35,f,south,64,no
"""
ROLES = Reading(label="outcome", client="site")


def read(text, reading=ROLES):
    return csv_tables.read_csv(Path("t.csv"), io.StringIO(text), reading)


def test_words_gaps_and_numbers_become_columns():
    x, prepared = features(read(GOOD))
    assert prepared.names() == (
        "age", "sex=f", "sex=m", "weight", "sex is missing", "weight is missing"
    )  # fmt: skip
    nan = np.nan
    want = [
        [63, 1, 0, 70.5, 0, 0],
        [41, 0, 1, nan, 0, 1],
        [58, 0, 0, 81, 1, 0],
        [35, 1, 0, 64, 0, 0],
    ]
    np.testing.assert_array_equal(x, want)
    assert [line.split()[0] for line in prepared.in_words()] == ["one", "gaps", "numbers"]


def test_only_training_examples_fill_gaps_and_standardise():
    x, prepared = features(read(GOOD))
    train, owner = np.array([0, 2]), np.array([0, 0, 1, 1])
    z = prepared.apply(x, train, owner)
    age = np.array([63.0, 41, 58, 35])
    np.testing.assert_allclose(z[:, 0], (age - 60.5) / 2.5, rtol=1e-6)
    assert z[1, 3] == 0  # the median of the two training values is their mean
    own = prepared.__class__(prepared.features, prepared.flags, "client-median", False)
    assert own.apply(x, train, owner)[1, 3] == 70.5  # of the client's own training example
    assert prepared.apply(x, train, owner)[:, 1:3].tolist() == x[:, 1:3].tolist()


def test_a_frame_and_columns_by_name_read_like_the_file():
    pd = pytest.importorskip("pandas")
    want, prepared = features(read(GOOD))
    frame = pd.read_csv(io.StringIO(GOOD))
    lists = {name: [None if v != v else v for v in frame[name]] for name in frame}
    for form in (frame, frame.convert_dtypes(), frame.astype({"sex": "category"}), lists):
        table = frames.read_frame(form, ROLES)
        x, again = features(table)
        np.testing.assert_array_equal(x, want)
        assert again == prepared
        assert table.columns["outcome"].words == ("no", "yes")


@pytest.mark.parametrize("form", ["pyarrow", "datasets", "polars"])
def test_other_tables_read_alike(form):
    module = pytest.importorskip(form)
    pd = pytest.importorskip("pandas")
    frame = pd.read_csv(io.StringIO(GOOD))
    made = {
        "pyarrow": lambda: module.Table.from_pandas(frame),
        "datasets": lambda: module.Dataset.from_pandas(frame),
        "polars": lambda: module.read_csv(io.StringIO(GOOD)),
    }[form]()
    x, _ = features(frames.read_frame(made, ROLES))
    np.testing.assert_array_equal(x, features(read(GOOD))[0])


def test_large_tables_keep_their_words_once(tmp_path):
    lines = "".join(f"{i % 7},w{i % 3},{i % 2}\n" for i in range(25_000))
    table = read("a,b,y\n" + lines, Reading())
    assert table.columns["b"].words == ("w0", "w1", "w2")
    assert np.bincount(table.columns["b"].code).tolist() == [8334, 8333, 8333]
    np.testing.assert_array_equal(table.columns["a"], np.arange(25_000) % 7)
