"""What a data set is: examples ready for a model, and who owns them. No torch here."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmaba.data import trees
from fedmaba.data.preparation import Preparation
from fedmaba.data.targets import TargetKind, TaskName
from fedmaba.data.trees import Tree
from fedmaba.errors import InputError

IntArray: TypeAlias = NDArray[np.int64]
Inputs: TypeAlias = Tree[NDArray[Any]]


@dataclass(frozen=True)
class Dataset:
    """Examples ready for a model, training ones first, then the official test ones."""

    name: str
    x: Inputs  # It is (n, *shape), or a tuple or dict of such arrays.
    y: NDArray[Any]  # It is (n,) 0..C-1; for other tasks see `targets`.
    n_train: int  # Rows from here on are the official test set; it is n where there is none.
    classes: tuple[str, ...]  # It has (C,) labels' names, or () where targets are numbers.
    # It has (n,) owners 0..N-1 where the data say so; -1 is a test row, or unknown.
    client: IntArray | None = None
    client_names: tuple[str, ...] = ()  # (N,)
    group: IntArray | None = None  # It has (n,) groups 0..G-1 of people that the examples are of.
    group_names: tuple[str, ...] = ()  # (G,)
    # It has (n,) numbers of whom rows are of; those of one stay in one part of a split.
    unit: IntArray | None = None
    # It marks (n,) training rows that are kept for validation.
    validation: NDArray[np.bool_] | None = None
    # This waits for a split, and x is not finished until then.
    preparation: Preparation | None = None
    steps: tuple[str, ...] = ()  # what was done to the data, in words
    inputs: str = ""  # It says how published pixels became x, or is empty for values as given.
    task: TaskName = "classify"
    task_given: bool = False  # It says whether the user named the task, or it was inferred.
    # This column of a table names the clients, or only looks so, where `client` is None.
    client_column: str = ""
    doubts: tuple[str, ...] = ()  # what may be a mistake, and how to say what is meant

    def __repr__(self) -> str:
        return f"Dataset({self.in_words()})"

    def in_words(self) -> str:
        """Its name and size for people."""
        one, table = self.shape, self.preparation
        what = f"inputs of shape {trees.in_words(one)}"
        if isinstance(one, trees.Shape) and len(one) == 1:
            columns = len({f.column for f in table.features}) if table else one[0]
            what = f"{columns:,} feature{'s' if columns != 1 else ''}"
        return f"{self.name}: {len(self.y):,} rows, {what}"

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
        """The data of one site that knows no other site's data: its numbers stay as they are.

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
