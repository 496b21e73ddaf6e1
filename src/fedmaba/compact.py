"""Histories in compact form: how many test images of each client were right, at each evaluation.

One NPZ file per batch of runs: what was run, where and how long (`about`, JSON as bytes), and for
each model the counts (runs, evaluations, clients), as differences from one evaluation to the next.
Accuracy and every figure derived from it come back exactly; losses and weights are not kept.
No torch.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba import record, targets
from fedmaba.errors import InputError
from fedmaba.history import Column, History, RunHistory
from fedmaba.targets import Key

MODELS = ("last", "deployed", "last_validation")
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Batch:
    """The content of one file; its tables are read when first asked for."""

    path: Path
    about: dict[str, Any]
    digest: str  # of the settings
    keys: tuple[Key, ...]

    @cached_property
    def runs(self) -> dict[Key, RunHistory]:
        arrays, told = record.read_npz(self.path), self.about["runs"]
        with _refusing(self.path):
            return {key: _run(told[r], r, arrays) for r, key in enumerate(self.keys)}


class Size(NamedTuple):
    """What a target takes, and how much of it is there."""

    name: str
    title: str
    runs: int
    held: int  #    of the runs
    updates: int  # of clients, in all runs


def write(
    path: Path,
    runs: Sequence[RunHistory],
    validation: Sequence[NDArray[np.int64]],  # examples of each client, by run
    about: dict[str, Any],
) -> None:
    """Save a finished batch, whole or not at all."""
    about = {
        "format": 1,
        **about,
        "runs": [
            {"label": r.label, "seed": r.seed, "deploy": r.deploy, "diverged": r.diverged}
            for r in runs
        ],
    }
    longest = max(runs, key=lambda r: len(r.tables.get("evaluated", [])))
    evaluated = np.asarray(longest.tables.get("evaluated", []), np.int32)
    text = json.dumps(about, indent=1, allow_nan=False).encode()
    arrays: Arrays = {
        "about": np.frombuffer(text, np.uint8),
        "evaluated": evaluated,
        "length": np.array([len(r.tables.get("evaluated", [])) for r in runs], np.int32),
        "test_size": np.stack([r.test_size for r in runs]).astype(np.int32),
    }
    if any(size.sum() for size in validation):
        arrays["validation_size"] = np.stack(validation).astype(np.int32)
    for model in MODELS:
        if any(f"{model}.accuracy" in run.tables for run in runs):
            size = arrays["validation_size" if "validation" in model else "test_size"]
            arrays[model] = _pack(model, runs, size, len(evaluated))
    record.write_file(
        path, record.npz(arrays, zipfile.ZIP_LZMA), remedy="mend it, or choose another --out"
    )


def _pack(
    model: str, runs: Sequence[RunHistory], size: NDArray[np.int32], length: int
) -> NDArray[Any]:
    """Counts as differences; modulo arithmetic of small unsigned numbers brings them back."""
    kind = np.min_scalar_type(int(size.max()))  # the smallest unsigned one
    counts = np.zeros((len(runs), length, size.shape[1]), kind)
    for r, run in enumerate(runs):
        accuracy = np.asarray(run.tables.get(f"{model}.accuracy", []), np.float64)
        if len(accuracy):
            right = np.rint(np.nan_to_num(accuracy) * size[r])
            counts[r, : len(right)] = right
            counts[r, len(right) :] = right[-1]
    counts[:, 1:] -= counts[:, :-1].copy()
    return counts


def read(path: Path) -> Batch:
    """One file; refused if it is not what `write` writes."""
    text = record.read_npz(path, ["about"])["about"].tobytes()
    with _refusing(path):
        about = json.loads(text)
        if about["format"] != 1:
            raise ValueError(f"its format is {about['format']}, this version knows 1")
        keys = tuple(Key(str(r["label"]), int(r["seed"]), str(r["deploy"])) for r in about["runs"])
        return Batch(path, about, targets.digest(about["settings"]), keys)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Anything unexpected in a file is one line."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(
            f"{path} is no file of `fedmaba reproduce` ({reason}): take it away, or restore it"
        ) from error


def _run(told: dict[str, Any], r: int, arrays: Arrays) -> RunHistory:
    length = int(arrays["length"][r])
    run = RunHistory(
        str(told["label"]),
        int(told["seed"]),
        str(told["deploy"]),
        arrays["test_size"][r].astype(np.int64),
        str(told["diverged"]),
    )
    if not length:
        return run
    run.tables["evaluated"] = Column(arrays["evaluated"][:length])
    for model in MODELS:
        if model in arrays:
            size = arrays["validation_size" if "validation" in model else "test_size"][r]
            right = np.cumsum(arrays[model][r, :length], axis=0, dtype=arrays[model].dtype)
            with np.errstate(invalid="ignore"):
                accuracy = right / size
            nothing = np.broadcast_to(np.float32(np.nan), right.shape)
            run.tables[f"{model}.accuracy"] = Column(accuracy)
            run.tables[f"{model}.loss"] = Column(nothing)
    return run


def read_all(folder: Path) -> list[Batch]:
    """Every file of a folder."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: name one with files of `fedmaba reproduce`")
    if (folder / record.FIRST).exists():
        raise InputError(f"{folder} is a run folder: name one with files of `fedmaba reproduce`")
    batches = [read(path) for path in sorted(folder.glob("*.npz"))]
    seen: dict[tuple[str, Key], Path] = {}
    for batch in batches:
        for key in batch.keys:
            first = seen.setdefault((batch.digest, key), batch.path)
            if first != batch.path:
                raise InputError(
                    f"{first} and {batch.path} both hold {key.label}, seed {key.seed}: keep one"
                )
    return batches


def collect(batches: Iterable[Batch], job: targets.Job) -> tuple[History, list[Batch], list[Key]]:
    """The runs of a job that are there, the files they come from, and which runs are missing."""
    own = [batch for batch in batches if batch.digest == job.digest]
    found = {key: run for batch in own for key, run in batch.runs.items()}
    rows = {label: i for i, label in enumerate(job.strategies)}
    wanted = sorted(job.runs, key=lambda key: (rows[key.label], key.seed))
    history = History([found[key] for key in wanted if key in found], job.experiment.eval.share)
    used = [batch for batch in own if set(batch.keys) & set(wanted)]
    return history, used, [key for key in job.runs if key not in found]


def sizes(batches: Iterable[Batch]) -> list[Size]:
    """Every target, with how many of its runs are there."""
    there = {(batch.digest, key) for batch in batches for key in batch.keys}
    out = []
    for target in map(targets.load, targets.names()):
        jobs = target.every_job()
        held = sum((job.digest, key) in there for job in jobs for key in job.runs)
        runs = sum(len(job.runs) for job in jobs)
        work = sum(targets.updates(job, job.runs) for job in jobs)
        out.append(Size(target.name, target.view.title, runs, held, work))
    return out
