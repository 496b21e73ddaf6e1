"""Load data sets by name: the embedded sample, published sets, synthetic data, your own files.

No torch here. How the data are divided over clients is the business of `partition`.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmaba.data import published, targets, trees
from fedmaba.data.published import FloatArray, IntArray, Progress, check, export, fetch
from fedmaba.data.targets import TargetKind, Task
from fedmaba.data.trees import Tree
from fedmaba.errors import InputError, unknown
from fedmaba.rng import generator

Inputs: TypeAlias = Tree[NDArray[Any]]

__all__ = ["Dataset", "check", "describe_datasets", "export", "fetch", "from_arrays", "load"]


@dataclass(frozen=True)
class Dataset:
    """Examples ready for a model, training ones first, then the official test ones."""

    name: str
    x: Inputs  # (n, *shape), or a tuple or dict of such arrays
    y: NDArray[Any]  # (n,) 0..C-1; for other tasks see `targets`
    n_train: int  # rows from here on are the official test set; n where there is none
    classes: tuple[str, ...]  # (C,) or the labels' names; () where targets are numbers
    client: IntArray | None = None  # (n,) owner 0..N-1 where the data say so; -1: test row, unknown
    client_names: tuple[str, ...] = ()  # (N,)
    inputs: str = ""  # how published pixels became x, in words; "": values as they were given
    task: Task = "classify"
    task_given: bool = False  # the user said it; else it was inferred

    @cached_property
    def shape(self) -> Tree[trees.Shape]:
        """The shape of one example's inputs, as a model's factory gets it."""
        return trees.mapped(trees.shape_of, self.x)

    @property
    def target(self) -> TargetKind:
        """What a model is to predict."""
        shape = tuple(self.y.shape[1:])
        outputs = math.prod(shape) if self.task == "regress" else len(self.classes)
        return TargetKind(self.task, shape, outputs)

    def sha256(self) -> str:
        """The digest of all that a run depends on: x, y, n_train, client and task."""
        shapes = [values.shape for values in trees.leaves(self.x)]
        head = f"{shapes[0]} {self.n_train} {len(self.classes)}"
        if isinstance(self.x, tuple | dict) or self.task != "classify":
            head += f" {self.task} {self.y.shape} {trees.leaf_names(self.x, 'x')} {shapes}"
        digest = hashlib.sha256(head.encode())
        for values in (*trees.leaves(self.x), self.y, self.client):
            if values is not None:
                floats = values.dtype.kind == "f" or _as_floats(values, self.x)
                digest.update(np.ascontiguousarray(values, "<f4" if floats else "<i8").data)
        return digest.hexdigest()


def _as_floats(values: NDArray[Any], x: Inputs) -> bool:
    """Whether integer inputs are digested as float32, as versions did that knew no integers.

    Where all are below 2**24 this loses nothing.
    """
    return values is x and int(np.abs(values).max(initial=0)) < 2**24


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    normalise: str | None = None,
    download: bool = True,
    progress: Progress | None = None,
    task: str | None = None,
) -> Dataset:
    """The data set of this name, file or specification; `describe_datasets` lists what there is.

    `normalise` says how the pixels of a published set become inputs; None: as is usual for it.
    `task` is what a model is to predict; None: as the targets of a file say.
    """
    check_normalise(name, normalise)
    asked = targets.check_task(task)
    if asked not in (None, "classify") and not name.endswith((".npz", ".csv")):
        raise InputError(f"task={asked}, but {name} has class labels: leave it out")
    if name.endswith((".npz", ".csv")):
        path = next(
            (p for p in (Path(name), Path(data_dir or "", name)) if published.is_file(p)), None
        )
        if path is None:
            raise InputError(f"{name}: no such file: correct the path or --data-dir")
        return _npz(path, asked) if name.endswith(".npz") else _csv(path, asked)
    if name.partition(":")[0] == "synthetic":
        return _synthetic(name)
    spec, why = published.spec_of(name), ""
    found = published.locate_files(spec, data_dir, None)
    if not found and download:
        try:
            found = published.find_files(spec, fetch(name, None, progress))
        except InputError as err:
            why = f"; {str(err).rpartition(': ')[0]}"
    inputs = published.normalisation(spec, normalise)
    x, y, n_train = published.read_arrays(
        spec, found or published.locate_files(spec, data_dir, why), inputs
    )
    return Dataset(spec.name, x, y, n_train, spec.classes, inputs=inputs.in_words())


def check_normalise(name: str, how: str | None) -> None:
    """Refuse a way of normalising that a data set cannot have."""
    if how is None:
        return
    if name.endswith((".npz", ".csv")) or name.partition(":")[0] == "synthetic":
        raise InputError(
            f"normalise={how!r}: {name} is used as it is: leave it out, and scale your own data "
            "yourself"
        )
    published.normalisation(published.spec_of(name), how)


def check_name(name: str) -> None:
    """Refuse a name that no data set has, or a wrong specification."""
    if name.partition(":")[0] == "synthetic":
        _options(name)
    elif name.endswith((".npz", ".csv")):
        return
    elif "." in name or "/" in name:
        raise InputError(f"data {name!r}: your own file must end in .npz or .csv")
    else:
        published.spec_of(name)


def describe_datasets() -> list[tuple[str, str]]:
    """Name and one-line description of every data set."""
    return [(spec.name, spec.about) for spec in published.PUBLISHED.values()] + [
        ("synthetic", f"a softmax model per client, Li et al. 2020; synthetic:{_DEFAULT}"),
        ("FILE.npz", "arrays x (or x.ids, x.mask, ...), y; also client, x_test, y_test ..."),
        ("FILE.csv", "a header; columns label (or y), optionally client and split; rest numbers"),
    ]


# --- your own data -----------------------------------------------------------------------------


def _column(word: str, values: ArrayLike, kinds: str, rule: str, n: int | None) -> NDArray[Any]:
    """An array of an allowed kind of dtype, of shape (n,) where n is given."""
    try:
        out = np.asarray(values)
    except ValueError:
        raise InputError(f"{word} is ragged: {rule}") from None
    if out.dtype.kind not in kinds:
        raise InputError(f"{word} has dtype {out.dtype}: {rule}")
    if n is not None and out.shape != (n,):
        raise InputError(f"{word} has shape {out.shape}, but there are {n} examples: give ({n},)")
    return out


def _inputs(word: str, values: Any, targets: Any) -> Inputs:
    """The inputs of all examples: one array, or several as a dict or a tuple of arrays.

    A tuple with an entry for each target is one array, written as a tuple of its rows.
    """
    if isinstance(values, dict) and values:
        for name in values:
            if not (isinstance(name, str) and name.isidentifier()):
                raise InputError(f"{word} has the key {name!r}: name an argument of the model")
    elif not isinstance(values, tuple) or not values or len(values) == _length(targets):
        return _features(word, values)
    keys = trees.leaf_names(values, word)
    read = iter([_features(k, v, True) for k, v in zip(keys, trees.leaves(values), strict=True)])
    out: Inputs = trees.mapped(lambda _: next(read), values)
    n = len(trees.leaves(out)[0])
    for key, values in zip(keys, trees.leaves(out), strict=True):
        if len(values) != n:
            raise InputError(
                f"{key} has {len(values)} rows, {keys[0]} {n}: give each one row per example"
            )
    return out


def _length(values: Any) -> int:
    """How many entries there are; -1 for what has no length."""
    return len(values) if hasattr(values, "__len__") else -1


def _features(word: str, values: ArrayLike, several: bool = False) -> NDArray[Any]:
    """Features of shape (n, *shape): finite float32, or integers or truth values as they are."""
    wide = _column(word, values, "buif", "give numbers, one row per example", None)
    if wide.ndim < 2 - several or wide.size == 0:
        raise InputError(f"{word} has shape {wide.shape}: give at least one example and feature")
    if wide.dtype == np.uint8 and wide.max() > 1:
        raise InputError(
            f"{word} has dtype uint8 and values up to {wide.max()}: if these are images, give "
            f"({word} / 255).astype('float32'); to train on the values as they are, "
            f"{word}.astype('float32')"
        )
    if wide.dtype.kind in "bui":
        if wide.dtype == np.uint64 and int(wide.max()) >= 2**63:
            raise InputError(f"{word} has values of 2**63 and more: give int64 or float32")
        return np.ascontiguousarray(wide, np.bool_ if wide.dtype.kind == "b" else np.int64)
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(wide, np.float32)
    finite = np.isfinite(out.reshape(len(out), -1))  # (n, features)
    if not finite.all():
        count, row = finite.size - int(finite.sum()), int(np.argmin(finite.all(1)))
        kind, remedy = "non-finite", "drop these rows or fill the gaps"
        if np.isfinite(wide[row]).all():
            kind, remedy = "huge", "scale them, float32 ends at 3e38"
        raise InputError(f"{word} has {count} {kind} values, first at row {row}: {remedy}")
    return out


_LABELS = "labels are whole numbers or words: for words use .astype(str)"


def _labels(word: str, values: ArrayLike, n: int) -> NDArray[Any]:
    """Labels as words, truth values or integers."""
    wide = _column(word, values, "buifU", _LABELS, n)
    if wide.dtype.kind == "U" and not (full := np.char.strip(wide) != "").all():
        raise InputError(f"{word} is empty at row {np.argmin(full)}: name the class")
    if wide.dtype.kind in "bU":
        return wide
    with np.errstate(invalid="ignore"):
        out = wide.astype(np.int64)
    wrong = out != wide
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{word} is {wide[row]} at row {row}: labels are whole numbers or words; for numbers "
            f"{targets.SAY} regress"
        )
    return out


def _numbered(
    labels: NDArray[Any], classes: Sequence[str] | None
) -> tuple[IntArray, tuple[str, ...]]:
    """Labels as class numbers from 0, and the classes' names.

    Without a list of classes these are the distinct labels in sorted order: a number that no
    example has is no class. With a list, labels are its entries, or integers from 0 that count it.
    """
    if labels.dtype.kind == "U":
        number, found = _codes(labels.tolist())
    else:
        distinct, number = np.unique(labels, return_inverse=True)
        number, found = number.astype(np.int64), tuple(map(str, distinct))
    if classes is None:
        return number, found
    names = tuple(map(str, classes))
    listed = names if labels.dtype.kind == "U" else tuple(map(str, range(len(names))))
    place = {name: i for i, name in enumerate(listed)}
    at = [place.get(name, -1) for name in found]
    if -1 in at:
        label = found[at.index(-1)]
        what = f"{len(names)} classes, {', '.join(names)[:80]}"
        raise InputError(f"label {label}, but only {what}: name all, or correct the label")
    return np.array(at, np.int64)[number], names


def from_arrays(
    x: Any,
    y: ArrayLike,
    client: ArrayLike | None = None,
    x_test: Any = None,
    y_test: ArrayLike | None = None,
    client_test: ArrayLike | None = None,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    task: str | None = None,
) -> Dataset:
    """A data set from arrays, checked; values are taken as they are, without scaling.

    `x` is one array, or several as a dict or a tuple: the model is called with them as keywords or
    arguments. Labels are whole numbers or words; the classes are the distinct ones in sorted order,
    of training and test rows together. Where `classes` names them, an integer k is the k-th of it.
    `task` is what to predict: classify, regress, multilabel or sequence; None: as y says.
    """
    if (x_test is None) != (y_test is None):
        raise InputError("x_test and y_test belong together: give both or none")
    xs = _inputs("x", x, y)
    n_train, n_test = len(trees.leaves(xs)[0]), 0
    parts = [("y", _column("y", y, "buifU", _LABELS, None), n_train)]
    if x_test is not None and y_test is not None:
        more = _inputs("x_test", x_test, y_test)
        n_test = len(trees.leaves(more)[0])
        parts.append(("y_test", _column("y_test", y_test, "buifU", _LABELS, None), n_test))
        xs = _joined(xs, more)
    ys, kind, names = _targets(parts, targets.check_task(task), classes, xs)
    made = partial(Dataset, task=kind, task_given=task is not None)
    if client is None:
        if client_test is not None:
            raise InputError("client_test without client: say who owns the training rows, too")
        return made(name, xs, ys, n_train, names)
    ids = _column(
        "client", client, "iuU", "client ids are integers or strings: use .astype(str)", n_train
    )
    if client_test is not None:
        rule = "give ids of the same kind as in client"
        more = _column(
            "client_test", client_test, "U" if ids.dtype.kind == "U" else "iu", rule, n_test
        )
        ids = np.concatenate([ids, more])
    known, owner = np.unique(ids, return_inverse=True)
    client = np.full(len(ys), -1, np.int64)
    client[: len(ids)] = owner
    return made(name, xs, ys, n_train, names, client, tuple(map(str, known)))


def _joined(xs: Inputs, more: Inputs) -> Inputs:
    """Training inputs, then test inputs."""
    keys, others = trees.leaf_names(xs, "x"), trees.leaf_names(more, "x")
    if keys != others:
        raise InputError(f"x_test has {', '.join(others)}, x has {', '.join(keys)}: give the same")
    both = []
    for key, a, b in zip(keys, trees.leaves(xs), trees.leaves(more), strict=True):
        if a.shape[1:] != b.shape[1:]:
            word = key.replace("x", "x_test", 1)
            shapes = f"{b.shape[1:]}, those of {key} {a.shape[1:]}"
            raise InputError(f"the examples of {word} have shape {shapes}: make them the same")
        if (a.dtype.kind == "f") != (b.dtype.kind == "f"):
            a, b = a.astype(np.float32), b.astype(np.float32)
        both.append(np.concatenate([a, b]))
    each = iter(both)
    return trees.mapped(lambda _: next(each), xs)


def _targets(
    parts: list[tuple[str, NDArray[Any], int]],
    task: Task | None,
    classes: Sequence[str] | None,
    xs: Inputs,
) -> tuple[NDArray[Any], Task, tuple[str, ...]]:
    """All targets, their task, and the names of the classes or labels."""
    arrays = [values for _, values, _ in parts]
    if task is None and all(values.ndim for values in arrays):
        task = targets.infer(arrays)
    if task in (None, "classify"):
        labels = [_labels(*part) for part in parts]
        if len({part.dtype.kind == "U" for part in labels}) > 1:
            first, tested = (part.dtype for part in labels)
            raise InputError(f"y has dtype {first}, y_test {tested}: give both alike")
        number, names = _numbered(np.concatenate(labels), classes)
        return number, "classify", names
    found = [targets.read_numbers(*part, task) for part in parts]
    if len({part.shape[1:] for part in found}) > 1:
        shapes = "{}, y_test of {}".format(*(part.shape[1:] for part in found))
        raise InputError(f"y has examples of shape {shapes}: give both alike")
    ys = np.concatenate(found)
    if task == "regress":
        return ys, task, ()
    if task == "multilabel":
        many = ys.shape[1]
    else:  # tokens of the inputs are of the same vocabulary, as in a text
        tokens = xs if isinstance(xs, np.ndarray) and xs.dtype.kind == "i" else ys[:0]
        many = 1 + max(int(ys.max()), int(tokens.max(initial=0)))
    names = tuple(map(str, range(many) if classes is None else classes))
    if len(names) < many or (task == "multilabel" and len(names) > many):
        what = "labels" if task == "multilabel" else "classes, 0 to " + str(many - 1)
        raise InputError(f"classes names {len(names)}, but y has {many} {what}: name each once")
    return ys, task, names


def _open(path: Path, **how: Any) -> IO[Any]:
    """Open a user's file; the error of an unreadable file differs from that of a damaged one."""
    try:
        handle: IO[Any] = path.open(**how)
    except OSError as err:
        raise InputError(f"{path}: {err.strerror}: make it readable, or name another") from None
    return handle


def _array(path: Path, data: Any, key: str) -> Any:
    """One array of an .npz file; objects in it are refused, not unpickled."""
    try:
        return data[key]
    except ValueError as err:
        if "Object arrays" not in str(err):
            raise
        rule = "client ids are integers or strings: use .astype(str)"
        rule = rule if key.startswith("client") else "save numbers"
        raise InputError(f"{path}: {key} has dtype object: {rule}") from None


def _npz(path: Path, task: Task | None) -> Dataset:
    """An .npz file of arrays; several inputs are x.NAME each, or x.0, x.1 and so on."""
    allowed = ("x", "y", "client", "x_test", "y_test", "client_test")
    try:
        with _open(path, mode="rb") as handle, np.load(handle, allow_pickle=False) as data:
            found = {key: _array(path, data, key) for key in data.files}
    except InputError:
        raise
    except Exception as err:  # np.load can raise anything on a damaged file
        told = (
            "" if "allow_pickle" in str(err) else f" ({published.error_line(err)})"
        )  # numpy's advice
        what = f"not an .npz file of plain arrays{told}"
        raise InputError(f"{path}: {what}: save it with np.savez(file, x=x, y=y)") from None
    try:
        for head in ("x", "x_test"):
            _gather(found, head)
        for key in found:
            if key not in allowed:
                raise unknown("array", key, allowed)
        if "x" not in found or "y" not in found:
            raise InputError(f"arrays {sorted(found)}: save at least x and y")
        return from_arrays(**found, name=path.name, task=task)
    except InputError as err:
        raise InputError(f"{path}: {err}") from None


def _gather(found: dict[str, Any], head: str) -> None:
    """Put the arrays x.ids, x.mask in place of x, as a dict; x.0, x.1 as a tuple."""
    inner = {key.removeprefix(f"{head}."): key for key in found if key.startswith(f"{head}.")}
    if not inner:
        return
    if head in found:
        raise InputError(f"arrays {head} and {inner.popitem()[1]}: save one or the other")
    several = {name: found.pop(key) for name, key in inner.items()}
    numbers = [str(i) for i in range(len(several))]
    counted = sorted(several) == sorted(numbers)
    found[head] = tuple(several[i] for i in numbers) if counted else several


def _codes(words: list[str]) -> tuple[IntArray, tuple[str, ...]]:
    """Words numbered in sorted order, by value where all are integers."""
    distinct = set(words)
    numeric = all(w.isascii() and w.removeprefix("-").isdecimal() and len(w) < 19 for w in distinct)
    names = sorted(distinct, key=lambda w: (int(w) if numeric else 0, w))
    number = {word: i for i, word in enumerate(names)}
    return np.array([number[word] for word in words], np.int64), tuple(names)


def _no_index(path: Path, header: list[str], x: FloatArray) -> None:
    """Refuse a column that has the name of a saved index and numbers the rows from 0 or 1."""
    for column, values in zip(header, x.T, strict=True):
        if len(x) > 1 and re.fullmatch(_INDEX, column, re.IGNORECASE):
            first = float(values.min())
            if first in (0.0, 1.0) and np.array_equal(np.sort(values), first + np.arange(len(x))):
                raise InputError(
                    f"{path}: column {column!r} only numbers the rows: leave it out (pandas: "
                    "to_csv(file, index=False)), or give it another name if it is a feature"
                )


_INDEX = r"unnamed(: ?\d+)?|index|level_0|id|row(_?(id|name|names|number))?"


def _csv(path: Path, task: Task | None) -> Dataset:
    """A .csv file with a header: label (or y), optional client and split, the rest are features."""
    cells, n = array("f"), 0  # features, row after row
    try:
        with _open(path, newline="", encoding="utf-8-sig") as handle:
            reader = csv.reader(handle)
            header = [word.strip() for word in next(reader, [])]
            if {"label", "y"} <= set(header):
                raise InputError(f"{path}: columns label and y: keep the one that is the label")
            if "" in header:
                raise InputError(
                    f"{path}: column {header.index('') + 1} has no name, like a saved index: leave "
                    "it out (pandas: to_csv(file, index=False)), or name it"
                )
            label = "label" if "label" in header else "y"
            words: dict[str, list[str]] = {w: [] for w in (label, "client", "split") if w in header}
            if label not in words or len(words) == len(header) or len(set(header)) < len(header):
                rule = "label (or y), at least one feature, and no name twice"
                raise InputError(f"{path}: header {','.join(header)[:80]!r}: it needs {rule}")
            for row in reader:
                at = f"{path}, line {reader.line_num}"
                if row and len(row) != len(header):
                    raise InputError(f"{at}: {len(row)} cells, but the header has {len(header)}")
                for column, cell in zip(header, row, strict=False):
                    if column in words:
                        words[column].append(cell.strip())
                        if column == "split" and cell.strip() not in ("train", "test"):
                            raise InputError(f"{at}, column split: {cell!r}: write train or test")
                        if not cell.strip():
                            raise InputError(f"{at}, column {column}: it is empty: fill it")
                        continue
                    try:
                        value = float(cell)
                    except ValueError:
                        value = math.nan
                    if not abs(value) < 3.4e38:  # the largest float32
                        what = f"{cell!r} is no finite number: correct or drop the row"
                        named = "columns that hold words are called label, client or split"
                        raise InputError(f"{at}, column {column}: {what}; {named}")
                    cells.append(value)
                n += bool(row)
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise InputError(
            f"{path}: no CSV in UTF-8 ({published.error_line(err)}): save it anew"
        ) from None
    test = np.array([word == "test" for word in words.get("split", ["train"] * n)], np.bool_)
    if test.all():
        raise InputError(f"{path}: no training rows among {n}: add rows, or correct column split")
    order = np.argsort(test, kind="stable")  # training rows first
    x = np.array(cells, np.float32).reshape(n, -1)
    _no_index(path, [column for column in header if column not in words], x)
    x = x[order]
    numbers = _numbers_of_csv(path, label, words[label], task)
    y, classes = _codes(words[label]) if numbers is None else (numbers, ())
    client, names = _codes(words["client"]) if "client" in words else (None, ())
    client = client[order] if client is not None else None
    kind: Task = "classify" if numbers is None else "regress"
    many, said = n - int(test.sum()), task is not None
    return Dataset(path.name, x, y[order], many, classes, client, names, task=kind, task_given=said)


def _numbers_of_csv(
    path: Path, label: str, words: list[str], task: Task | None
) -> NDArray[np.float32] | None:
    """The label column as numbers to predict; None where its cells name classes."""
    if task in ("multilabel", "sequence"):
        raise InputError(
            f"{path}: task {task}, but a .csv file has one label for each row: save an .npz file"
        )
    if task == "classify":
        return None
    try:
        values = np.array(words, np.float64)
    except ValueError:
        if task is None:
            return None
        wrong = next(i for i, word in enumerate(words) if not _is_number(word))
        raise InputError(
            f"{path}, example {wrong + 1}, column {label}: {words[wrong]!r} is no number, but the "
            "task is regress: correct or drop the row"
        ) from None
    if task is None and targets.infer([values]) != "regress":
        return None
    try:
        return targets.read_numbers(f"column {label}", values, len(words), "regress")
    except InputError as err:
        raise InputError(f"{path}: {err}") from None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


# --- synthetic ---------------------------------------------------------------------------------

_DEFAULT = "clients=30,alpha=1,beta=1,features=60,classes=10,size=100,spread=1,seed=0"
_LEAST = {"clients": 1, "features": 1, "classes": 2, "size": 1, "seed": 0}  # the whole numbers


def _options(name: str) -> dict[str, float]:
    """The options of a synthetic set, checked."""
    option = {part.partition("=")[0]: math.nan for part in _DEFAULT.split(",")}
    for part in f"{_DEFAULT},{name.partition(':')[2]}".rstrip(",").split(","):
        key, _, text = (word.strip() for word in part.partition("="))
        if key not in option:
            raise unknown("option of synthetic", key, option)
        try:
            option[key] = int(text) if key in _LEAST else float(text)
        except ValueError:
            option[key] = math.nan
        least, most = _LEAST.get(key, 0), 10**9 if key in _LEAST else 100
        if not least <= option[key] <= most:
            kind = "an integer" if key in _LEAST else "a number"
            raise InputError(f"synthetic: {key}={text}: give {kind} from {least} to {most}")
    size = max(10, option["size"] * min(20.0, math.exp(min(option["spread"], 3.0) ** 2 / 2)))
    needed = (option["clients"] * size + option["classes"]) * option["features"]
    if needed > 2e8:
        raise InputError(f"{name}: needs gigabytes: lower clients, size, features or classes")
    return option


def _synthetic(name: str) -> Dataset:
    """Synthetic(alpha, beta), after Li et al., Federated Optimization in Heterogeneous Networks.

    One softmax layer for all: weights and biases ~ N(0, 1). Client k adds its own ~ N(0, alpha).
    Its inputs: b ~ N(0, beta), centre v_j ~ N(b, 1), x_j ~ N(v_j, j^-1.2) for feature j = 1, 2, ...
    Its label: the class with the largest output. It has round(size * exp(spread * z)) examples,
    z ~ N(0, 1), kept in 10..20 * size; the last fifth of them is its part of the test set. The
    second number of N is a variance.
    Differs: the authors add one number, ~ N(0, alpha), to all weights of a client, which moves all
    outputs alike and so no label, for any alpha; here alpha = 0 is one model for all clients. Sizes
    there are 50 + a log-normal (4, 2) number.
    """
    option = _options(name)
    clients, features, classes, size, seed = (
        int(option[key]) for key in ("clients", "features", "classes", "size", "seed")
    )
    rng = generator(seed, "synthetic")
    n = np.rint(size * np.exp(option["spread"] * rng.standard_normal(clients)))
    n = np.clip(n, 10, max(10, 20 * size)).astype(np.int64)  # (N,)
    x, y = np.empty((int(n.sum()), features), np.float32), np.empty(int(n.sum()), np.int64)
    deviation = np.arange(1.0, features + 1) ** -0.6  # (features,)
    shared = rng.standard_normal((features + 1, classes))  # the last row is the bias
    end = np.cumsum(n)
    for rows in map(slice, end - n, end):
        weight = shared + math.sqrt(option["alpha"]) * rng.standard_normal(shared.shape)
        centre = rng.normal(math.sqrt(option["beta"]) * rng.standard_normal(), 1.0, features)
        inputs = centre + deviation * rng.standard_normal((rows.stop - rows.start, features))
        x[rows] = inputs
        y[rows] = np.argmax(inputs @ weight[:-1] + weight[-1], axis=1)
    test = np.arange(len(y)) >= np.repeat(end - n // 5, n)
    order = np.argsort(test, kind="stable")  # training rows first
    names = tuple(map(str, range(classes))), tuple(map(str, range(clients)))
    owner = np.repeat(np.arange(clients, dtype=np.int64), n)[order]
    return Dataset(name, x[order], y[order], len(y) - int(test.sum()), names[0], owner, names[1])
