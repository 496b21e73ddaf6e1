"""Your own arrays, and .npz files of them, as a data set: read, checked, never unpickled.

No torch here. Values are taken as they are, without scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmaba.data import names, targets, trees
from fedmaba.data.arrays import as_array, counting, like_pixels, lost_by_float32
from fedmaba.data.cells import Words, words_of
from fedmaba.data.dataset import Dataset, Inputs
from fedmaba.data.names import look_alike, read_as_one
from fedmaba.data.paths import open_file
from fedmaba.data.targets import TaskName
from fedmaba.errors import InputError, error_line, unknown


def _column(word: str, values: ArrayLike, kinds: str, rule: str, n: int | None) -> NDArray[Any]:
    """An array of an allowed kind of dtype, of shape (n,) where n is given."""
    try:
        out = as_array(word, values)
    except InputError:
        raise
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
    many = len(targets) if hasattr(targets, "__len__") else None
    if isinstance(values, dict) and values:
        for name in values:
            if not (isinstance(name, str) and name.isidentifier()):
                raise InputError(f"{word} has the key {name!r}: name an argument of the model")
    elif not isinstance(values, tuple) or len(values) in (0, many):
        return _features(word, values)
    keys = trees.leaf_names(values, word)
    out: Inputs = trees.mapped(partial(_features, several=True), trees.named(values, word), values)
    n = len(trees.leaves(out)[0])
    for key, values in zip(keys, trees.leaves(out), strict=True):
        if len(values) != n:
            raise InputError(
                f"{key} has {len(values)} rows, {keys[0]} {n}: give each one row per example"
            )
    return out


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


def _numbered(labels: NDArray[Any], classes: Sequence[str] | None) -> Words:
    """Labels as class numbers from 0, with the classes' names.

    Without a list of classes these are the distinct labels in sorted order: a number that no
    example has is no class. With a list, labels are its entries, or integers from 0 that count it.
    """
    distinct, number = np.unique(labels, return_inverse=True)
    column = Words(number.astype(np.int64), tuple(map(str, distinct)))
    if labels.dtype.kind == "U":
        column = words_of(column.code, column.words, ())
    if classes is None:
        return column
    found, names = column.words, tuple(map(str, classes))
    listed = names if labels.dtype.kind == "U" else tuple(map(str, range(len(names))))
    place = {name: i for i, name in enumerate(listed)}
    at = [place.get(name, -1) for name in found]
    if -1 in at:
        label = found[at.index(-1)]
        what = f"{len(names)} classes, {', '.join(names)[:80]}"
        raise InputError(f"label {label}, but only {what}: name all, or correct the label")
    return Words(np.array(at, np.int64)[column.code], names, column.joined)


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
    told = _targets(found, targets.check_task(task), classes, both)
    given = trees.leaves(x) if isinstance(read[0], tuple | dict) else [x]
    steps, doubts = [*told.steps], [*told.doubts]
    keys = trees.leaf_names(read[0], "x")
    for word, wide, values in zip(keys, given, trees.leaves(read[0]), strict=True):
        doubts += lost_by_float32(word, as_array(word, wide))
        doubts += (*like_pixels(word, values), *counting(word, values))
    owners = [(tail, size[tail], owner) for tail, _, _, owner, _ in parts]
    groups = [(tail, size[tail], people) for tail, _, _, _, people in parts]
    held = size.get("_validation", 0)
    validation = None
    if held:
        validation = np.zeros(len(told.y), np.bool_)
        validation[size[""] : size[""] + held] = True
    named, judged = _named("client", owners), _named("group", groups)
    for word, column in (("client", named), ("group", judged)):
        if column is not None:
            steps += read_as_one(word, column.joined)
            doubts += look_alike(word, column.words)
    return Dataset(
        name,
        both,
        told.y,
        size[""] + held,
        told.names,
        None if named is None else named.code,
        () if named is None else named.words,
        None if judged is None else judged.code,
        () if judged is None else judged.words,
        validation=validation,
        steps=tuple(steps),
        task=told.task,
        task_given=task is not None,
        doubts=tuple(doubts),
    )


def _named(word: str, parts: Sequence[tuple[str, int, ArrayLike | None]]) -> Words | None:
    """The client or group of every example by name, -1 where a part does not say."""
    if parts[0][2] is None:
        if more := next((tail for tail, _, ids in parts if ids is not None), None):
            raise InputError(f"{word}{more} without {word}: say it of the training rows, too")
        return None
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
    joined: list[str] = []
    if known.dtype.kind == "U":
        words, joined = names.joined(known.tolist())
    if joined:
        known, place = np.unique(words, return_inverse=True)
        number = place[number]
    out[told] = number
    return Words(out, tuple(map(str, known)), tuple(joined))


def _joined(xs: Inputs, more: Inputs, tail: str) -> Inputs:
    """Training inputs, then those of the part with this tail of a name."""
    keys, others = trees.leaf_names(xs, "x"), trees.leaf_names(more, "x")
    if keys != others:
        raise InputError(f"x{tail} has {', '.join(others)}, x has {', '.join(keys)}: give the same")

    def join(key: str, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        if a.shape[1:] != b.shape[1:]:
            word = key.replace("x", f"x{tail}", 1)
            shapes = f"{b.shape[1:]}, those of {key} {a.shape[1:]}"
            raise InputError(f"the examples of {word} have shape {shapes}: make them the same")
        if (a.dtype.kind == "f") != (b.dtype.kind == "f"):
            a, b = a.astype(np.float32), b.astype(np.float32)
        return np.concatenate([a, b])

    return trees.mapped(join, trees.named(xs, "x"), xs, more)


class _Target(NamedTuple):
    """The targets of all examples, what they are, and what there is to say of them."""

    y: NDArray[Any]
    task: TaskName
    names: tuple[str, ...] = ()  # of classes or labels
    steps: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def _targets(
    parts: list[tuple[str, NDArray[Any], int]],
    task: TaskName | None,
    classes: Sequence[str] | None,
    xs: Inputs,
) -> _Target:
    """All targets, their task, and the names of the classes or labels."""
    arrays, asked = [values for _, values, _ in parts], task
    if task is None and all(values.ndim for values in arrays):
        task = targets.infer(arrays)
    if task in (None, "classify"):
        labels = [_labels(*part) for part in parts]
        for (word, *_), part in zip(parts, labels, strict=True):
            if (part.dtype.kind == "U") != (labels[0].dtype.kind == "U"):
                raise InputError(
                    f"y has dtype {labels[0].dtype}, {word} {part.dtype}: give both alike"
                )
        column = _numbered(np.concatenate(labels), classes)
        doubts: tuple[str, ...] = ()
        if not classes:
            targets.require_classes("y", column.words, len(column.code), asked)
            doubts = (*look_alike("y", column.words), *targets.one_class("y", column.words))
        steps = read_as_one("y", column.joined)
        return _Target(column.code, "classify", column.words, steps, doubts)
    found = [targets.read_numbers(*part, task) for part in parts]
    for (word, *_), part in zip(parts, found, strict=True):
        if part.shape[1:] != found[0].shape[1:]:
            shapes = f"{found[0].shape[1:]}, {word} of {part.shape[1:]}"
            raise InputError(f"y has examples of shape {shapes}: give both alike")
    ys = np.concatenate(found)
    if task == "regress":
        wide = np.concatenate(arrays)
        return _Target(ys, task, doubts=lost_by_float32("y", wide))
    if task == "multilabel":
        many = ys.shape[1]
    else:  # Tokens of the inputs are of the same vocabulary, as in a text.
        tokens = xs if isinstance(xs, np.ndarray) and xs.dtype.kind == "i" else ys[:0]
        many = 1 + max(int(ys.max()), int(tokens.max(initial=0)))
    names = tuple(map(str, range(many) if classes is None else classes))
    if len(names) < many or (task == "multilabel" and len(names) > many):
        what = "labels" if task == "multilabel" else "classes, 0 to " + str(many - 1)
        raise InputError(f"classes names {len(names)}, but y has {many} {what}: name each once")
    return _Target(ys, task, names)


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


def load_npz(path: Path, task: TaskName | None) -> Dataset:
    """An .npz file of arrays; several inputs are x.NAME each, or x.0, x.1 and so on."""
    words = ("x", "y", "client", "group")
    allowed = [f"{word}{tail}" for tail in ("", "_test", "_validation") for word in words]
    try:
        with open_file(path, mode="rb") as handle, np.load(handle, allow_pickle=False) as data:
            found = {key: _array(path, data, key) for key in data.files}
    except InputError:
        raise
    except Exception as err:  # np.load can raise anything on a damaged file.
        told = "" if "allow_pickle" in str(err) else f" ({error_line(err)})"  # numpy's advice
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
