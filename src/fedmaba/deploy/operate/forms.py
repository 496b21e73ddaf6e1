"""What the examples of a federation look like, agreed before anybody joins. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedmaba.data import datasets, trees
from fedmaba.data.dataset import Dataset
from fedmaba.deploy.site_targets import SiteTargets
from fedmaba.errors import InputError, SaveFailed
from fedmaba.results import files, run_folder

FAR = 3.0  # widths of the agreed range, beyond which a median looks like another unit


@dataclass(frozen=True)
class Form:
    """Shape, classes and columns of the examples, and where their values lie."""

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()  #   of a table, in order
    low: tuple[float, ...] = ()  #     a value of each column that few are below, 5 %
    high: tuple[float, ...] = ()  #    and above

    @classmethod
    def of(cls, path: Path) -> Form:
        """The form of a file of examples, as the operator shows it to everybody."""
        data = datasets.load(str(path))
        columns = columns_of(data)
        data = data.as_they_are()
        shape = data.shape
        if not isinstance(shape, trees.Shape) or data.task != "classify":
            raise InputError(
                f"{path}: the ready-made app learns classes from one array or table: begin with "
                "`fedmaba flower new`, and change its task.py"
            )
        classes = data.classes or tuple(str(c) for c in range(int(data.y.max()) + 1))
        low: Any = ()
        high: Any = ()
        if columns:
            low, high = np.quantile(np.asarray(data.x), [0.05, 0.95], axis=0).tolist()
        return cls(tuple(shape), classes, columns, tuple(low), tuple(high))

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Form:
        return cls(**{key: tuple(value) for key, value in told.items()})

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) for key, value in vars(self).items() if value}

    def task(self) -> str:
        """task.py of an app for examples of this form."""
        name = "table_task.py.tmpl" if self.columns else "template/task.py.tmpl"
        text = (resources.files("fedmaba.deploy.flower_app") / name).read_text(encoding="utf-8")
        told = {"SHAPE": self.shape, "CLASSES": list(self.classes), "COLUMNS": self.columns}
        told["CENTRE"] = tuple((a + b) / 2 for a, b in zip(self.low, self.high, strict=True))
        wide = tuple((b - a) / 2 for a, b in zip(self.low, self.high, strict=True))
        told["WIDTH"] = tuple(w or 1.0 for w in wide)
        for key, value in told.items():
            text = re.sub(rf"^{key} = .*?(?=  #|$)", f"{key} = {value!r}", text, flags=re.M)
        return text

    def check(self, path: Path) -> Comparison:
        """Compare a site's own file; InputError where it cannot take part."""
        if not path.is_file():
            raise InputError(f"{path} is no file: name this site's examples")
        data = datasets.load(str(path))
        columns = columns_of(data)
        if columns != self.columns:
            wrong = [c for c in columns if c not in self.columns]
            missing = [c for c in self.columns if c not in columns]
            what = f"lacks {missing[0]!r}" if missing else f"has {wrong[0]!r}" if wrong else ""
            said = what or "has the columns in another order"
            raise InputError(f"{path} {said}: the federation agreed on {', '.join(self.columns)}")
        data = data.as_they_are()
        shape = np.asarray(data.x).shape[1:]
        if shape != self.shape:
            raise InputError(
                f"{path} has examples of shape {shape}, and the federation agreed on {self.shape}"
            )
        labels = SiteTargets(data, list(self.classes)).labels()
        named = np.unique(labels[: data.n_train])
        found = tuple(self.classes[int(c)] for c in named)
        return Comparison(data.n_train, len(data.y) - data.n_train, found, self._doubts(data))

    def _doubts(self, data: Dataset) -> tuple[str, ...]:
        """Columns whose values lie so far off that their unit may be another."""
        found = []
        for name, low, high, middle in zip(
            self.columns,
            self.low,
            self.high,
            np.median(np.asarray(data.x), axis=0) if self.columns else (),
            strict=True,
        ):
            far = FAR * max(high - low, 1e-9)
            if not low - far <= middle <= high + far:
                found.append(
                    f"column {name}: half of the values lie above {middle:.4g}, and where the "
                    f"form was made they lay between {low:.4g} and {high:.4g}: another unit?"
                )
        return tuple(found)


@dataclass(frozen=True)
class Comparison:
    """What a site's file has, where it has the agreed form."""

    train: int
    test: int
    classes: tuple[str, ...]
    doubts: tuple[str, ...] = field(default=())


def columns_of(data: Dataset) -> tuple[str, ...]:
    """The columns of a table in order; () for arrays."""
    if data.preparation is None:
        return ()
    return tuple(dict.fromkeys(f.column for f in data.preparation.features))


def usual_form() -> Form:
    """That of the template: images of ten classes."""
    return Form((1, 28, 28), tuple(str(c) for c in range(10)))


def read_bytes(path: Path, most: int = 1_000_000) -> bytes:
    """A small file that the user named."""
    with run_folder.reading(path, "name the file that you were sent"):
        return files.read(path, most, links=True)


def no_save(path: Path, error: OSError) -> SaveFailed:
    return SaveFailed(f"{path} could not be written: {error.strerror}: fix that, then try again")
