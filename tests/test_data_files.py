"""Your own data, as arrays, an .npz file or a CSV file."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from dataset_cases import mutations, refusal, says
from fedmaba.data.datasets import from_arrays, load

X = np.arange(12.0).reshape(6, 2)
Y = [0, 1, 2, 0, 1, 2]


def test_from_arrays_puts_test_rows_last():
    data = from_arrays(X, Y, ["b", "a", "a", "b", "c", "a"], X[:2], Y[:2], ["c", "a"])
    assert data.x.shape == (8, 2)
    assert data.x.dtype == np.float32
    assert (data.n_train, data.classes) == (6, ("0", "1", "2"))
    assert data.client is not None
    assert data.client.tolist() == [1, 0, 0, 1, 2, 0, 2, 0]
    assert data.client_names == ("a", "b", "c")
    unknown_owner = from_arrays(X, Y, np.array([7, 3, 3, 7, 7, 3]), X[:2], Y[:2])
    assert unknown_owner.client is not None
    assert unknown_owner.client.tolist() == [1, 0, 0, 1, 1, 0, -1, -1]
    assert unknown_owner.client_names == ("3", "7")
    assert from_arrays(X, Y, classes=["p", "q", "r", "s"]).classes == ("p", "q", "r", "s")
    image = from_arrays(np.zeros((6, 3, 8, 8), np.float16), np.array(Y, float))
    assert image.x.shape == (6, 3, 8, 8)


def test_digest_depends_on_everything_a_run_depends_on():
    base = {"x": X, "y": Y, "client": [0, 0, 0, 1, 1, 1], "x_test": X[:2], "y_test": [0, 1]}
    changed = [
        base,
        base | {"x": X + 1},
        base | {"y": Y[::-1]},
        base | {"client": [0, 0, 1, 1, 1, 1]},
        {"x": X, "y": Y, "client": base["client"]},
        {"x": X, "y": Y},
        {"x": np.vstack([X, X[:2]]), "y": [*Y, 0, 1], "client": [0, 0, 0, 1, 1, 1, 2, 2]},
        base | {"x": X[:, :, None], "x_test": X[:2, :, None]},
    ]
    assert len({from_arrays(**arrays).sha256() for arrays in changed}) == len(changed)
    assert from_arrays(**base).sha256() == from_arrays(**base, name="other").sha256()
    assert from_arrays([[1.0, 2.0]], [0]).sha256() == (
        "b86d8424b98245fa335c4b3442030a3131ed9b97e6089cd25b11e4332b2a445e"
    )


def spoiled(*cells: tuple[int, int]) -> np.ndarray:
    out = np.zeros((20, 3))
    for row, column in cells:
        out[row, column] = np.nan
    return out


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": spoiled((17, 0), (18, 1), (18, 2)), "y": [0] * 20},
            "x has 3 non-finite values, first at row 17",
        ),
        ({"x": np.full((6, 2), 1e300), "y": Y}, "12 huge values, first at row 0: scale them"),
        ({"x": [1.0, 2.0], "y": [0, 1]}, "shape (2,)"),
        ({"x": np.zeros((0, 3)), "y": []}, "shape (0, 3)"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "x has dtype <U1"),
        ({"x": X * 1j, "y": Y}, "complex"),
        ({"x": X, "y": [0, 1, np.nan, 0, 1, 2]}, "y is nan at row 2"),
        ({"x": X, "y": ["a", "b", " ", "a", "b", "c"]}, "y is empty at row 2"),
        ({"x": X, "y": Y, "x_test": X, "y_test": list("abcabc")}, "y_test <U1: give both alike"),
        ({"x": X, "y": Y, "client_test": [0] * 5}, "client_test without client"),
        (
            {"x": X, "y": Y, "client": Y, "x_test": X, "y_test": Y, "client_test": list("abcabc")},
            "client_test",
        ),
    ],
)
def test_from_arrays_refuses(arrays, message):
    says(lambda: from_arrays(**arrays), message)


def test_npz(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(
        path, x=X, y=Y, client=list("aabbcc"), x_test=X, y_test=Y, client_test=list("abcabc")
    )
    data = load(str(path))
    assert data.name == "mine.npz"
    assert (data.n_train, len(data.y), data.client_names) == (6, 12, ("a", "b", "c"))
    assert load("mine.npz", tmp_path).sha256() == data.sha256()
    np.savez(path, x=X, y=Y, labels=Y)
    says(lambda: load(str(path)), str(path), "unknown array 'labels'")
    np.savez(path, x=X)
    says(lambda: load(str(path)), "at least x and y")
    np.savez(path, x=spoiled((3, 1))[:6], y=Y)
    says(lambda: load(str(path)), str(path), "first at row 3")
    with path.open("wb") as handle:
        np.save(handle, X)
    says(lambda: load(str(path)), "not an .npz file")


def test_npz_with_words_as_objects_names_the_remedy(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=X, y=Y, client=np.array(list("aabbcc"), object))
    says(lambda: load(str(path)), f"{path}: client has dtype object", "use .astype(str)")


@pytest.mark.parametrize("name", ["mine.npz", "mine.csv"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_text("")

    def refuse(*args, **how):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    says(lambda: load(str(path)), f"{path}: Permission denied: make it readable")


def test_npz_with_objects_is_not_unpickled(tmp_path):
    proof, path = tmp_path / "executed", tmp_path / "mine.npz"

    class Gadget:
        def __reduce__(self):
            return os.system, (f"touch {proof}",)

    np.savez(path, x=np.array([Gadget()], object), y=[0])
    says(lambda: load(str(path)), f"{path}: x has dtype object: save numbers")
    path.write_bytes(pickle.dumps(Gadget()))
    says(lambda: load(str(path)), "not an .npz file of plain arrays")
    assert not proof.exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_mutated_npz(tmp_path, save):
    path = tmp_path / "mine.npz"
    save(path, x=X, y=Y, client=Y)
    lines = []
    for mutant in mutations(path.read_bytes(), 300, 3):
        path.write_bytes(mutant)
        lines.append(refusal(lambda: load(str(path))))
    assert sum(map(bool, lines)) > 150
    assert not [line for line in lines if "\n" in line]


CSV = """label,height,client,split,width
cat,1,anna,train,2.5
dog,-3e2,bert,test,4
cat,5,bert,train,6

eel,7,anna,test,8
"""


def test_csv(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(CSV)
    data = load(str(path))
    assert data.x.tolist() == [[1, 2.5], [5, 6], [-300, 4], [7, 8]]
    assert data.y.tolist() == [0, 0, 1, 2]
    assert data.classes == ("cat", "dog", "eel")
    assert data.n_train == 2
    assert data.client is not None
    assert data.client.tolist() == [0, 1, 1, 0]
    assert data.client_names == ("anna", "bert")
    path.write_text("\ufeffa,y\n1,10\n2,9\n3,10\n", encoding="utf-8")
    plain = load(str(path))
    assert (plain.classes, plain.y.tolist(), plain.n_train) == (("9", "10"), [1, 0, 1], 3)
    assert plain.client is None


def test_mutated_csv(tmp_path):
    path = tmp_path / "mine.csv"
    lines = []
    for mutant in mutations(CSV.encode(), 300, 4):
        path.write_bytes(mutant)
        lines.append(refusal(lambda: load(str(path))))
    assert sum(map(bool, lines)) > 150
    assert not [line for line in lines if "\n" in line]
