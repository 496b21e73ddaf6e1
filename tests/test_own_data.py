"""Your own data mean what they say: labels of any numbers or words, images, a saved index."""

import json

import numpy as np
import pytest

import fedmaba
from command_line import QUICK
from fedmaba.data.datasets import from_arrays, load
from fedmaba.data.tables import reading
from fedmaba.errors import InputError

X = np.random.default_rng(0).normal(size=(12, 3))
OWNER = np.repeat(["a", "b"], 6)


# labels


@pytest.mark.parametrize(
    ("y", "numbers", "classes"),
    [
        ([1, 2, 1, 2], [0, 1, 0, 1], ("1", "2")),
        ([0, 1, 1, 0], [0, 1, 1, 0], ("0", "1")),
        ([-1, 1, -1, 1], [0, 1, 0, 1], ("-1", "1")),
        ([0, 5, 10, 5], [0, 1, 2, 1], ("0", "5", "10")),
        ([1.0, 2.0, 2.0, 1.0], [0, 1, 1, 0], ("1", "2")),
        ([7, 10**12, 7, 7], [0, 1, 0, 0], ("7", str(10**12))),
        ([True, False, True, True], [1, 0, 1, 1], ("False", "True")),
        (["no", "yes", "no", "no"], [0, 1, 0, 0], ("no", "yes")),
        (["9", "10", "9", "10"], [0, 1, 0, 1], ("9", "10")),
        (np.array([3, 4, 3, 4], np.uint8), [0, 1, 0, 1], ("3", "4")),
    ],
)
def test_the_classes_are_the_labels_that_there_are(y, numbers, classes):
    data = from_arrays(X[:4], y)
    assert data.y.tolist() == numbers
    assert data.y.dtype == np.int64
    assert data.classes == classes


def test_a_class_that_only_the_test_rows_have_counts():
    data = from_arrays(X[:4], [0, 2, 0, 2], x_test=X[:2], y_test=[1, 2])
    assert data.y.tolist() == [0, 2, 0, 2, 1, 2]
    assert data.classes == ("0", "1", "2")


def test_a_list_of_classes_says_which_is_which():
    names = ["cat", "dog", "eel"]
    assert from_arrays(X[:2], ["eel", "cat"], classes=names).y.tolist() == [2, 0]
    assert from_arrays(X[:2], [2, 0], classes=names).y.tolist() == [2, 0]
    assert from_arrays(X[:2], [2, 0], classes=names).classes == ("cat", "dog", "eel")
    for wrong in (["eel", "fox"], [0, 3], [0, -1]):
        with pytest.raises(InputError, match=f"label {wrong[1]}, but only 3 classes, cat, dog"):
            from_arrays(X[:2], wrong, classes=names)


def test_a_run_has_one_output_for_each_class_and_records_the_labels(tmp_path):
    mine, out = tmp_path / "mine.npz", tmp_path / "run"
    np.savez(mine, x=X, y=np.tile([1, 2], 6), client=OWNER)
    fedmaba.compare("fedavg", data=mine, model="softmax", rounds=1, seeds=1, out=out)
    about = json.loads((out / "about.json").read_text())
    assert about["data"]["classes"] == ["1", "2"]
    assert about["model"]["parameters"] == 2 * (3 + 1)


# images


def test_marks_of_0_and_1_are_no_image():
    marks = np.array([[0, 1], [1, 0]], np.uint8)
    assert from_arrays(marks, [0, 1]).x.tolist() == [[0, 1], [1, 0]]


def test_numbers_that_are_no_bytes_are_taken_as_they_are():
    assert from_arrays([[255, 0], [3, 1000]], [0, 1]).x.tolist() == [[255, 0], [3, 1000]]


# a saved index

ROWS = [(0.5, 1), (0.25, 2), (0.75, 1)]


def table(path, name, numbers):
    lines = [f"{k},{value},{label}" for k, (value, label) in zip(numbers, ROWS, strict=True)]
    path.write_text("\n".join([f"{name},height,label", *lines, ""]))
    return str(path)


def test_a_column_without_a_name_is_left_out_by_the_name_that_pandas_gives_it(tmp_path, call):
    file = table(tmp_path / "mine.csv", "", [7, 8, 9])
    with pytest.raises(InputError, match=r"column 1 has no name.*with --drop 'Unnamed: 0'"):
        load(file, reading=reading(drop=["1"]))
    without = load(file, reading=reading(drop=["Unnamed: 0"]))
    assert without.x.shape == (3, 1)
    assert "columns left out: Unnamed: 0" in without.steps
    (tmp_path / "mine.csv").write_text("height,label,,\n1,2,3,4\n2,3,5,6\n")
    with pytest.raises(InputError, match=r"column 4 has no name.*with --drop 'Unnamed: 3'"):
        load(file, reading=reading(drop=["Unnamed: 2"]))
    rows = [f"{i},{i % 7},{'ab'[i % 2]},{'yes' if i % 3 else 'no'}" for i in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join([",height,client,label", *rows, ""]))
    words = ("compare", "fedavg", "--data", file, *QUICK)
    assert "--drop 'Unnamed: 0'" in call(*words).err
    assert call(*words, "--drop", "Unnamed: 0").code == 0


@pytest.mark.parametrize("name", ["Unnamed: 0", "index", "INDEX", "id", "row", "row_id", "level_0"])
@pytest.mark.parametrize("numbers", [[0, 1, 2], [1, 2, 3], [2, 0, 1]])
def test_a_column_called_as_an_index_that_numbers_the_rows_is_refused(tmp_path, name, numbers):
    with pytest.raises(InputError, match=f"column '{name}' only numbers the rows: leave it out"):
        load(table(tmp_path / "mine.csv", name, numbers))


@pytest.mark.parametrize(
    ("name", "numbers"), [("age", [0, 1, 2]), ("index", [0, 5, 2]), ("id", [2, 3, 4])]
)
def test_other_columns_are_features(tmp_path, name, numbers):
    data = load(table(tmp_path / "mine.csv", name, numbers))
    assert data.x[:, 0].tolist() == numbers
    assert data.classes == ("1", "2")
