"""Load data sets by name: the embedded sample, published sets, synthetic data, your own files.

No torch here. How the data are divided over clients is the business of `partition`.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmaba.data import natural, published, tables, targets, trees
from fedmaba.data.published import IntArray, Progress, check, export, fetch
from fedmaba.data.tables import Preparation, RawTable, Reading, Words
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
    group: IntArray | None = None  # (n,) the group 0..G-1 of people that each example is of
    group_names: tuple[str, ...] = ()  # (G,)
    validation: NDArray[np.bool_] | None = None  # (n,) training rows kept for validation
    preparation: Preparation | None = None  # what waits for a split; x is not finished until then
    steps: tuple[str, ...] = ()  # what was done to the data, in words
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
        for values in (*trees.leaves(self.x), self.y, self.client, self.group):
            if values is not None:
                floats = values.dtype.kind == "f" or _as_floats(values, self.x)
                digest.update(np.ascontiguousarray(values, "<f4" if floats else "<i8").data)
        return digest.hexdigest()

    def as_they_are(self) -> Dataset:
        """The data where no other site's are known: numbers as they are, and nothing else.

        Words and gaps are refused: which columns they become depends on what all sites have.
        """
        if self.validation is not None:
            raise InputError(
                f"{self.name}: a site has no use for validation rows: leave them out, or call them "
                "train or test"
            )
        how = self.preparation
        if how is None:
            return self
        wordy = next((f.column for f in how.features if f.word is not None), None)
        if wordy is not None:
            raise InputError(
                f"{self.name}: column {wordy} has words: each site would number its own: give "
                "numbers, one column for each word, the same at all sites"
            )
        if how.flags:
            raise InputError(
                f"{self.name}: column {how.flags[0]} has gaps: fill them in the file, in the same "
                "way at all sites"
            )
        return replace(self, x=np.asarray(self.x, np.float32), preparation=None)


def _as_floats(values: NDArray[Any], x: Inputs) -> bool:
    """Whether integer inputs are digested as float32, as versions did that knew no integers.

    Where all are below 2**24 this loses nothing.
    """
    return values is x and int(np.abs(values).max(initial=0)) < 2**24


OWN_FILES = (".npz", ".csv", ".parquet")
TABLES = (".csv", ".parquet")


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    normalise: str | None = None,
    download: bool = True,
    progress: Progress | None = None,
    task: str | None = None,
    reading: Reading | None = None,
) -> Dataset:
    """The data set of this name, file or specification; `describe_datasets` lists what there is.

    `normalise` says how the pixels of a published set become inputs; None: as is usual for it.
    `task` is what a model is to predict; None: as the targets of a file say. `reading` says what
    the columns of a table are for.
    """
    check_normalise(name, normalise)
    reading = reading or Reading()
    check_reading(name, reading)
    asked = targets.check_task(task)
    if name.endswith(OWN_FILES):
        path = next(
            (p for p in (Path(name), Path(data_dir or "", name)) if published.is_file(p)), None
        )
        if path is None:
            raise InputError(f"{name}: no such file: correct the path or --data-dir")
        return _npz(path, asked) if name.endswith(".npz") else _table_file(path, asked, reading)
    kind = "sequence" if _is_text(name) else "classify"
    if asked not in (None, kind):
        what = "text" if kind == "sequence" else "class labels"
        raise InputError(f"task={asked}, but {name} has {what}: leave it out")
    if natural.is_natural(name):
        return _natural(name, reading)
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
    if name.endswith(OWN_FILES) or _is_made(name):
        remedy = "leave it out, and scale your own data yourself"
        if name.endswith(TABLES) or (natural.is_natural(name) and not _is_text(name)):
            remedy = "leave it out; --standardise is for tables"
        raise InputError(f"normalise={how!r}: {name} has no pixels of a published set: {remedy}")
    published.normalisation(published.spec_of(name), how)


def check_reading(name: str, reading: Reading) -> None:
    """Refuse what is said about the columns of a table where there is none, or a known one."""
    said = [key for key, value in reading._asdict().items() if value not in (None, ())]
    if name.endswith(TABLES) or not said:
        return
    if natural.is_natural(name) and not _is_text(name):
        said = [key for key in said if key not in ("missing", "standardise")]
        if not said:
            return
        what = "its columns have their uses"
    else:
        what = "it is no table with columns"
    more = ", or say --clients for how many" if said[0] == "client" else ""
    value = getattr(reading, said[0])
    raise InputError(f"{said[0]}={value!r}, but {name}: {what}: leave it out{more}")


def check_name(name: str) -> None:
    """Refuse a name that no data set has, or a wrong specification."""
    if name.partition(":")[0] == "synthetic":
        _options(name)
    elif natural.is_natural(name):
        natural.check(name)
    elif name.endswith(OWN_FILES):
        return
    elif "." in name or "/" in name:
        raise InputError(f"data {name!r}: your own file must end in .npz, .csv or .parquet")
    else:
        published.spec_of(name)


def _is_made(name: str) -> bool:
    """Whether the set is generated or comes with the package as tables and text."""
    return name.partition(":")[0] == "synthetic" or natural.is_natural(name)


def _is_text(name: str) -> bool:
    return name.partition(":")[0] == "shakespeare"


def describe_datasets() -> list[tuple[str, str]]:
    """Name and one-line description of every data set."""
    return [
        *((spec.name, spec.about) for spec in published.PUBLISHED.values()),
        *((one.name, f"{one.about} ({one.licence})") for one in natural.NATURAL.values()),
        ("synthetic", f"a softmax model per client, Li et al. 2020; synthetic:{_DEFAULT}"),
        ("FILE.npz", "arrays x (or x.ids, x.mask, ...), y; also client, x_test, y_test ..."),
        (
            "FILE.csv",
            "a table with a header, numbers and words; --label, --client say what is what",
        ),
        ("FILE.parquet", "the same, through pyarrow"),
    ]


def _natural(name: str, reading: Reading) -> Dataset:
    """A federation that comes with the package."""
    if _is_text(name):
        told = natural.shakespeare(name)
        return Dataset(
            name,
            told.x,
            told.y,
            len(told.y),
            told.characters,
            told.client,
            told.roles,
            task="sequence",
        )
    table = natural.table(name)
    how = table.reading._replace(missing=reading.missing, standardise=reading.standardise)
    return from_table(table._replace(reading=how), name, "classify")


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
    shape = wide.shape[1:]
    if not several and len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) > 4:
        raise InputError(
            f"{word} has examples of shape {shape}, like images with channels last: give "
            f"np.moveaxis({word}, -1, 1); if they are no images, {word}.reshape(len({word}), -1)"
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
    *,
    x_validation: Any = None,
    y_validation: ArrayLike | None = None,
    client_validation: ArrayLike | None = None,
    group: ArrayLike | None = None,
    group_validation: ArrayLike | None = None,
    group_test: ArrayLike | None = None,
) -> Dataset:
    """A data set from arrays, checked; values are taken as they are, without scaling.

    `x` is one array, or several as a dict or a tuple: the model is called with them as keywords or
    arguments. Labels are whole numbers or words; the classes are the distinct ones in sorted order,
    of all rows together. Where `classes` names them, an integer k is the k-th of it. `task` is what
    to predict: classify, regress, multilabel or sequence; None: as y says. `client` says who owns
    an example, `group` which group of people it is of; the validation and test parts have theirs.
    """
    parts: list[tuple[str, Any, Any, Any, Any]] = [("", x, y, client, group)]
    for tail, xs, ys, owner, people in (
        ("_validation", x_validation, y_validation, client_validation, group_validation),
        ("_test", x_test, y_test, client_test, group_test),
    ):
        if (xs is None) != (ys is None):
            raise InputError(f"x{tail} and y{tail} belong together: give both or none")
        if xs is None and (owner is not None or people is not None):
            word = "client" if owner is not None else "group"
            if client is not None or word == "group":
                raise InputError(f"{word}{tail} without x{tail}: give the examples, too")
        if owner is not None and client is None:
            raise InputError(f"client{tail} without client: say who owns the training rows, too")
        if xs is not None:
            parts.append((tail, xs, ys, owner, people))
    read = [_inputs(f"x{tail}", xs, ys) for tail, xs, ys, _, _ in parts]
    size = {part[0]: len(trees.leaves(xs)[0]) for part, xs in zip(parts, read, strict=True)}
    found = [
        (f"y{tail}", _column(f"y{tail}", ys, "buifU", _LABELS, None), size[tail])
        for tail, _, ys, _, _ in parts
    ]
    both = read[0]
    for (tail, *_), more in zip(parts[1:], read[1:], strict=True):
        both = _joined(both, more, tail)
    ys, kind, names = _targets(found, targets.check_task(task), classes, both)
    owners = [(tail, size[tail], owner) for tail, _, _, owner, _ in parts]
    groups = [(tail, size[tail], people) for tail, _, _, _, people in parts]
    held = size.get("_validation", 0)
    validation = None
    if held:
        validation = np.zeros(len(ys), np.bool_)
        validation[size[""] : size[""] + held] = True
    client_number, client_names = _named("client", owners)
    group_number, group_names = _named("group", groups)
    return Dataset(
        name,
        both,
        ys,
        size[""] + held,
        names,
        client_number,
        client_names,
        group_number,
        group_names,
        validation,
        task=kind,
        task_given=task is not None,
    )


def _named(
    word: str, parts: Sequence[tuple[str, int, ArrayLike | None]]
) -> tuple[IntArray | None, tuple[str, ...]]:
    """The client or group of every example by number, -1 where a part does not say, and names."""
    if parts[0][2] is None:
        if more := next((tail for tail, _, ids in parts if ids is not None), None):
            raise InputError(f"{word}{more} without {word}: say it of the training rows, too")
        return None, ()
    rule, kinds = f"{word} ids are integers or strings: use .astype(str)", "iuU"
    if word == "group":
        rule, kinds = "groups are integers, truth values or strings: use .astype(str)", "biuU"
    read: list[NDArray[Any]] = []
    for tail, many, ids in parts:
        if ids is not None:
            read.append(_column(f"{word}{tail}", ids, kinds, rule, many))
            if (read[-1].dtype.kind == "U") != (read[0].dtype.kind == "U"):
                raise InputError(
                    f"{word}{tail} has dtype {read[-1].dtype}: give ids of the same kind as in "
                    f"{word}"
                )
            if read[-1].dtype.kind == "U" and not (full := np.char.strip(read[-1]) != "").all():
                raise InputError(f"{word}{tail} is empty at row {np.argmin(full)}: name it")
    known, number = np.unique(np.concatenate(read), return_inverse=True)
    out = np.full(sum(many for _, many, _ in parts), -1, np.int64)
    told = np.repeat([ids is not None for _, _, ids in parts], [many for _, many, _ in parts])
    out[told] = number
    return out, tuple(map(str, known))


def _joined(xs: Inputs, more: Inputs, tail: str) -> Inputs:
    """Training inputs, then those of the part with this tail of a name."""
    keys, others = trees.leaf_names(xs, "x"), trees.leaf_names(more, "x")
    if keys != others:
        raise InputError(f"x{tail} has {', '.join(others)}, x has {', '.join(keys)}: give the same")
    both = []
    for key, a, b in zip(keys, trees.leaves(xs), trees.leaves(more), strict=True):
        if a.shape[1:] != b.shape[1:]:
            word = key.replace("x", f"x{tail}", 1)
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
        for (word, *_), part in zip(parts, labels, strict=True):
            if (part.dtype.kind == "U") != (labels[0].dtype.kind == "U"):
                raise InputError(
                    f"y has dtype {labels[0].dtype}, {word} {part.dtype}: give both alike"
                )
        number, names = _numbered(np.concatenate(labels), classes)
        return number, "classify", names
    found = [targets.read_numbers(*part, task) for part in parts]
    for (word, *_), part in zip(parts, found, strict=True):
        if part.shape[1:] != found[0].shape[1:]:
            shapes = f"{found[0].shape[1:]}, {word} of {part.shape[1:]}"
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
        rule = rule if key.startswith(("client", "group")) else "save numbers"
        raise InputError(f"{path}: {key} has dtype object: {rule}") from None


def _npz(path: Path, task: Task | None) -> Dataset:
    """An .npz file of arrays; several inputs are x.NAME each, or x.0, x.1 and so on."""
    words = ("x", "y", "client", "group")
    allowed = [f"{word}{tail}" for tail in ("", "_test", "_validation") for word in words]
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
        for head in ("x", "x_test", "x_validation"):
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


# --- tables ------------------------------------------------------------------------------------

PARTS = ("train", "validation", "test")


def _table_file(path: Path, task: Task | None, reading: Reading) -> Dataset:
    """A .csv or .parquet file with named columns."""
    try:
        if path.suffix == ".parquet":
            table = tables.read_frame(_parquet(path), reading)
        else:
            with _open(path, newline="", encoding="utf-8-sig") as handle:
                table = tables.read_csv(path, handle, reading)
        return from_table(table, path.name, task)
    except InputError as err:
        told = str(err)
        raise InputError(told if told.startswith(str(path)) else f"{path}: {told}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise InputError(
            f"{path}: no CSV in UTF-8 ({published.error_line(err)}): save it anew"
        ) from None


def _parquet(path: Path) -> Any:
    """The table of a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(
            "a .parquet file needs pyarrow: pip install pyarrow, or save a .csv file"
        ) from None
    with _open(path, mode="rb") as handle:
        try:
            return parquet.read_table(handle)
        except (ArrowException, OSError, ValueError) as err:
            raise InputError(
                f"no Parquet file ({published.error_line(err)}): save it anew"
            ) from None


def from_table(table: RawTable, name: str = "table", task: str | None = None) -> Dataset:
    """A data set from a table: its matrix, and the label, client, group and part of each row."""
    reading, asked = table.reading, targets.check_task(task)
    x, how = tables.features(table)
    assert reading.label is not None  # `tables.assign` found one
    label = _full(table, reading.label)
    y, kind, classes = _label_column(table, reading.label, label, asked)
    client = None if reading.client is None else _full(table, reading.client)
    group = None if reading.group is None else _full(table, reading.group)
    part = _part_column(table, len(y))
    order = np.argsort(part, kind="stable")  # training rows, validation rows, test rows
    held = part[order] == 1
    return Dataset(
        name,
        x[order],
        y[order],
        int((part < 2).sum()),
        classes,
        None if client is None else client.code[order],
        () if client is None else client.words,
        None if group is None else group.code[order],
        () if group is None else group.words,
        held if held.any() else None,
        how,
        tables.uses(reading),
        task=kind,
        task_given=task is not None,
    )


def _full(table: RawTable, name: str) -> Words:
    """A column of words in which no cell may be empty."""
    column = table.columns[name]
    assert isinstance(column, Words)
    gap = column.code < 0
    if gap.any():
        row = int(np.argmax(gap))
        raise InputError(
            f"{table.at(row)}, column {name}: it is empty ({int(gap.sum())} such cells): fill it "
            "or drop the row; NA, None, ? and the like count as empty"
        )
    return column


def _part_column(table: RawTable, rows: int) -> IntArray:
    """(n,) 0, 1 or 2: the row is for training, validation or testing."""
    name = table.reading.split
    if name is None:
        return np.zeros(rows, np.int64)
    column = _full(table, name)
    known = {word: number for number, word in enumerate(PARTS)}
    number = np.array([known.get(word, -1) for word in column.words], np.int64)
    part: IntArray = number[column.code]
    if (part < 0).any():
        row = int(np.argmax(part < 0))
        word = column.words[column.code[row]]
        raise InputError(
            f"{table.at(row)}, column {name}: {word!r}: write train, validation or test"
        )
    if not (part == 0).any():
        raise InputError(f"no training rows among {len(part)}: add rows, or correct column {name}")
    return part


def _label_column(
    table: RawTable, name: str, label: Words, task: Task | None
) -> tuple[NDArray[Any], Task, tuple[str, ...]]:
    """The label column as classes, or as numbers to predict."""
    if task in ("multilabel", "sequence"):
        raise InputError(f"task {task}, but a table has one label for each row: save an .npz file")
    try:
        values = np.array(label.words, np.float64)
    except ValueError:
        values = None
    if values is None and task == "regress":
        row = next(i for i, code in enumerate(label.code) if not _is_number(label.words[code]))
        word = label.words[label.code[row]]
        raise InputError(
            f"{table.at(row)}, column {name}: {word!r} is no number, but the task is regress: "
            "correct or drop the row"
        )
    numbers = None if values is None else values[label.code]
    if numbers is None or (
        task == "classify" or (task is None and targets.infer([numbers]) != "regress")
    ):
        _no_measurement(table, name, label, task)
        return label.code, "classify", label.words
    return targets.read_numbers(f"column {name}", numbers, len(numbers), "regress"), "regress", ()


def _no_measurement(table: RawTable, name: str, label: Words, task: Task | None) -> None:
    """Refuse a label that almost every row has for itself, as a name or a measurement is."""
    many, n = len(label.words), len(label.code)
    if task is None and many > max(20, n // 2):
        raise InputError(
            f"column {name} has {many} different labels in {n} rows: name the column of classes "
            "with --label; for numbers to predict say --task regress, or else --task classify"
        )


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
