"""What a model is to predict: a class, numbers, several labels, or a class at each position.

The kind of a target, its task, is inferred from its dtype and shape where these leave no doubt;
otherwise the user must say it. This module also says which outputs of a model fit which task.
No torch: losses and metrics of the tasks are in `rows.tasks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError, unknown

TaskName = Literal["classify", "regress", "multilabel", "sequence"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
# A position of a sequence with this value does not count, as in torch's cross_entropy.
IGNORED = -100
FEW_CLASSES = 20  # Up to so many, nobody asks whether labels are classes.
SAY = "say --task (in Python task=)"


@dataclass(frozen=True)
class TargetKind:
    """The task of a data set, the shape of one example's target, and the outputs that it needs."""

    task: TaskName
    shape: tuple[int, ...]
    outputs: int  # classes, labels or numbers

    def in_words(self) -> str:
        """The kind of target for people."""
        where = " x ".join(map(str, self.shape))
        return {
            "classify": f"one of {self.outputs} classes for each example",
            "regress": f"{_many(self.outputs, 'number')} for each example",
            "multilabel": f"any of {_many(self.outputs, 'label')} for each example",
            "sequence": f"one of {self.outputs} classes at each of {where} positions",
        }[self.task]

    def misfit(self, out: tuple[int, ...]) -> str:
        """Why outputs of this shape per example do not fit; empty where they do."""
        given = f"gives outputs of shape {out} per example"
        if self.task == "classify":
            if len(out) == 1 and out[0] >= self.outputs:
                return ""
            need = f"its last layer must have at least {self.outputs} outputs"
            return f"{given}, but the data have {self.outputs} classes: {need}"
        if self.task == "sequence":
            if out[:-1] == self.shape and out[-1] >= self.outputs:
                return ""
            need = f"give {(*self.shape, self.outputs)}: the classes come last"
            return f"{given}, but the task is {self.task}, {self.in_words()}: {need}"
        if out == self.shape or (self.task == "regress" and out == (self.outputs,)):
            return ""
        shape = self.shape or (1,)
        return f"{given}, but the task is {self.task}, {self.in_words()}: give {shape}"

    def as_outputs(self, y: Any, out: tuple[int, ...]) -> Any:
        """Numbers (n, ...) in the shape of the outputs, so that a loss can subtract them."""
        fit = self.task == "regress" and math.prod(out) == math.prod(self.shape)
        return y.reshape(len(y), *out) if fit else y


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def check_task(task: str | None) -> TaskName | None:
    """A task's name, or None: it is to be inferred."""
    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    return task


def infer(parts: Sequence[NDArray[Any]]) -> TaskName:
    """The task of targets, those of training and test rows together; in doubt, an error."""
    first = parts[0]
    kinds = {part.dtype.kind for part in parts}
    if first.ndim < 2:
        number = kinds <= {"i", "u", "f", "b"} and "f" in kinds
        return "regress" if number and _mostly_fractions(parts) else "classify"
    marks = all(np.isin(part, (0, 1)).all() for part in parts)
    shape = f"y has shape {first.shape}"
    if marks and first.shape[1] == 1:
        raise InputError(
            f"{shape}: for one label per example give y[:, 0]; else {SAY} multilabel or sequence"
        )
    if marks and first.ndim == 2:
        if kinds != {"b"} and all((part.sum(1) == 1).all() for part in parts):
            raise InputError(
                f"{shape} and exactly one 1 in each row: if that marks the class, give "
                f"y.argmax(1); else {SAY} multilabel"
            )
        return "multilabel"
    if kinds <= {"i", "u"}:
        if first.shape[1:] == (1,):
            raise InputError(
                f"{shape}: for one label per example give y[:, 0]; else {SAY} sequence or regress"
            )
        return "sequence"
    if "f" in kinds and _mostly_fractions(parts):
        return "regress"
    raise InputError(f"{shape} and dtype {first.dtype}: {SAY}, one of {', '.join(TASKS)}")


def _mostly_fractions(parts: Sequence[NDArray[Any]]) -> bool:
    """Whether more than half of the finite numbers are not whole."""
    values = np.concatenate([np.asarray(part, np.float64).ravel() for part in parts])
    values = values[np.isfinite(values)]
    return int((values != np.rint(values)).sum()) * 2 > len(values)


def require_classes(word: str, names: Sequence[str], n: int, asked: TaskName | None) -> None:
    """Refuse labels that look like names or measurements, unless the user says what they are."""
    if asked is not None:
        return
    many, what = len(names), "labels"
    wrong = many > max(FEW_CLASSES, n // 2)
    if not wrong and many > FEW_CLASSES and (values := _whole_numbers(names)):
        least, most = min(values), max(values)
        # Numbers of classes begin with 0 or 1, leave few out, and each has some rows.
        wrong = least not in (0, 1) or most - least + 1 > 1.1 * many or n < 5 * many
        what = f"whole numbers from {least:g} to {most:g}"
    if wrong:
        raise InputError(
            f"{word} has {many} different {what} in {n} rows: say --task regress for numbers to "
            "predict or --task classify for classes (in Python task=), or give other labels"
        )


def one_class(word: str, names: Sequence[str]) -> tuple[str, ...]:
    """A doubt about labels that are all the same."""
    if len(names) != 1:
        return ()
    return (f"{word} is {names[0]!r} in each row: with one class any model is always right",)


def _whole_numbers(names: Sequence[str]) -> list[float]:
    """The values of names that all are whole numbers, else nothing."""
    try:
        values = [float(name) for name in names]
    except ValueError:
        return []
    return values if all(value.is_integer() for value in values) else []


def read_numbers(word: str, values: NDArray[Any], n: int, task: TaskName) -> NDArray[Any]:
    """The targets of a task other than classify, checked: float32, or int64 for a sequence."""
    rule = {
        "regress": "give numbers, one or several for each example",
        "multilabel": "give an array (n, labels) of 0 and 1",
        "sequence": f"give whole numbers from 0, one for each position, {IGNORED} where none",
    }[task]
    if values.dtype.kind not in "buif":
        raise InputError(f"{word} has dtype {values.dtype}, but the task is {task}: {rule}")
    if not values.ndim or len(values) != n:
        raise InputError(f"{word} has shape {values.shape}, but there are {n} examples: {rule}")
    least, most = {"regress": (1, 9), "multilabel": (2, 2), "sequence": (2, 9)}[task]
    if not least <= values.ndim <= most or not values.size:
        raise InputError(f"{word} has shape {values.shape}, but the task is {task}: {rule}")
    flat = values.reshape(n, -1)
    if task == "sequence":
        with np.errstate(invalid="ignore"):
            whole = flat.astype(np.int64)
        _refuse(word, flat, (whole != flat) | ((whole < 0) & (whole != IGNORED)), rule)
        _refuse(word, flat, (whole == IGNORED).all(1, keepdims=True), "leave this row out")
        return np.ascontiguousarray(whole.reshape(values.shape))
    if task == "multilabel":
        _refuse(word, flat, (flat != 0) & (flat != 1), rule)
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(values, np.float32)
    _refuse(word, flat, ~np.isfinite(out.reshape(n, -1)), "give finite numbers of float32")
    return out


def _refuse(word: str, flat: NDArray[Any], wrong: NDArray[np.bool_], rule: str) -> None:
    """Refuse the first value (n, k) that is wrong (n, k or 1), by its row."""
    if wrong.any():
        row = int(np.argmax(wrong.any(1)))
        raise InputError(f"{word} is {flat[row, int(np.argmax(wrong[row]))]} at row {row}: {rule}")
