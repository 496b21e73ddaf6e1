"""Archives of finished runs: how many test images of each client were right at each evaluation.

One NPZ file per batch of runs: what was run, where and how long (`about`, JSON as bytes), and for
each model the counts (runs, evaluations, clients), as differences from one evaluation to the next.
Accuracy and every figure derived from it come back exactly. Scores of another metric, which no
counts give, are kept as float32. Losses and weights are not kept, but for the training losses of
targets that ask for them (`keep`), to three digits.
No torch.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmaba.errors import InputError, reason
from fedmaba.results import array_files, files, run_folder, schema
from fedmaba.results.array_files import Arrays
from fedmaba.results.history import History
from fedmaba.results.metrics import ACCURACY
from fedmaba.results.run_history import GrowingArray, RunHistory
from fedmaba.results.saved_history import metric_of
from fedmaba.results.table_checks import is_increasing
from laboratory import targets
from laboratory.selection import of_deploy
from laboratory.targets import RunKey

TRAINING = "training.loss"  # This is a table of what clients reported at each evaluation.
ARCHIVED_MODELS = (
    *("last", "deployed", "personal"),
    *("last_validation", "deployed_validation", "personal_validation"),
)
ARCHIVED_TABLES = (
    "evaluated",
    "length",
    "test_size",
    "validation_size",
    "training_loss",
    *ARCHIVED_MODELS,
)


class Versions(schema.Part):
    torch: schema.Word
    fedmaba: schema.Word


class About(schema.Part):
    """The `about` of a file."""

    format: Literal[1]
    target: schema.Word
    settings: dict[str, Any]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    dtype: schema.Word
    device: schema.Word
    command: str
    versions: Versions
    runs: Annotated[list[schema.SavedRun], Field(min_length=1, max_length=schema.MAX_RUNS)]


@dataclass(frozen=True)
class ArchiveFile:
    """One file of an archive; its tables are read when they are first needed."""

    path: Path
    about: dict[str, Any]
    digest: str  # of the settings
    keys: tuple[RunKey, ...]

    @cached_property
    def runs(self) -> dict[RunKey, RunHistory]:
        told = self.about["runs"]
        with _one_line_errors(self.path):
            arrays = array_files.read_npz(
                self.path, ARCHIVED_TABLES, partial(_check_tables, len(told)), missing=True
            )
            _check_numbers(arrays)
            return {key: _unpack_run(told[r], r, arrays) for r, key in enumerate(self.keys)}


def write_archive(
    path: Path,
    runs: Sequence[RunHistory],
    validation: Sequence[NDArray[np.int64]],  # examples of each client, by run
    about: dict[str, Any],
) -> None:
    """Save a finished batch as one file, whole or not at all."""
    about = {
        "format": 1,
        **about,
        "runs": [_about_run(run) for run in runs],
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
    for model in ARCHIVED_MODELS:
        if any(f"{model}.accuracy" in run.tables for run in runs):
            size = arrays["validation_size" if "validation" in model else "test_size"]
            counts = all(run.metric == ACCURACY for run in runs)
            arrays[model] = (
                _pack_counts(model, runs, size, len(evaluated))
                if counts
                else _pack_scores(model, runs, len(evaluated))
            )
    if any(TRAINING in run.tables for run in runs):
        arrays["training_loss"] = _pack_losses(runs, len(evaluated))
    content = array_files.npz(arrays, zipfile.ZIP_LZMA)
    run_folder.write_file(path, content, remedy="fix it, or choose another --out")


def _pack_counts(
    model: str, runs: Sequence[RunHistory], size: NDArray[np.int32], length: int
) -> NDArray[Any]:
    """Counts as differences between evaluations; unsigned sums that wrap around restore them."""
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


def _about_run(run: RunHistory) -> dict[str, Any]:
    """What is told of a run; its metric where it is not accuracy, and whether clients have models.

    Runs of one file share their tables, so one without personal models has zeros in that table.
    """
    told: dict[str, Any] = {"label": run.label, "seed": run.seed, "deploy": run.deploy}
    told |= {"diverged": run.diverged} | ({"personal": True} if run.has_personal else {})
    return told if run.metric == ACCURACY else {**told, "metric": run.metric._asdict()}


def _pack_scores(model: str, runs: Sequence[RunHistory], length: int) -> NDArray[np.float32]:
    """(runs, evaluations, clients) scores as they are; nan where there is none."""
    out = np.full((len(runs), length, len(runs[0].test_size)), np.nan, np.float32)
    for r, run in enumerate(runs):
        if f"{model}.accuracy" in run.tables:
            scores = run.tables[f"{model}.accuracy"].array()
            out[r, : len(scores)] = scores
    return out


def _pack_losses(runs: Sequence[RunHistory], length: int) -> NDArray[np.float16]:
    """(runs, evaluations, clients); nan where a client reported none."""
    out = np.full((len(runs), length, len(runs[0].test_size)), np.nan, np.float16)
    with np.errstate(over="ignore"):
        for r, run in enumerate(runs):
            if TRAINING in run.tables:
                told = run.tables[TRAINING].array()
                out[r, : len(told)] = told
    return out


def read_file(path: Path) -> ArchiveFile:
    """Read one file; refuse it if `write` cannot have written it."""
    with _one_line_errors(path):
        text = array_files.read_npz(path, ["about"], _check_about)["about"].tobytes()
        about = schema.check(About, files.parse_json(text))
        keys = tuple(RunKey(run["label"], run["seed"], run["deploy"]) for run in about["runs"])
        if len(set(keys)) < len(keys):
            raise ValueError("it holds a run twice")
        return ArchiveFile(path, about, targets.digest(about["settings"]), keys)


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Turn every error of reading a file into one line."""
    try:
        yield
    except array_files.READ_ERRORS as error:
        raise InputError(
            f"{path} is no file of `fedmaba reproduce` ({reason(error)}): take it "
            "away, or restore it"
        ) from error


def _check_about(declared: Mapping[str, array_files.Declared]) -> None:
    """Refuse an `about` that is not bytes, or too long."""
    dtype, shape = declared["about"]
    if dtype != np.uint8 or len(shape) != 1 or shape[0] > files.MAX_JSON_BYTES:
        raise ValueError(f"about is {dtype} of shape {shape}")


def _check_tables(runs: int, declared: Mapping[str, array_files.Declared]) -> None:
    """Refuse tables that do not belong together, by their types and shapes alone."""
    for name in ("evaluated", "length", "test_size"):
        if name not in declared:
            raise ValueError(f"it lacks {name!r}")
    dimensions = {"evaluated": 1, "length": 1, "test_size": 2, "validation_size": 2}
    for name, (dtype, shape) in declared.items():
        kinds = "uf" if name in ARCHIVED_MODELS else "f" if name == "training_loss" else "iu"
        if dtype.kind not in kinds or (
            name in ARCHIVED_MODELS and dtype in (np.float16, np.float64)
        ):
            raise ValueError(f"{name} is {dtype}")
        if len(shape) != dimensions.get(name, 3):
            raise ValueError(f"{name} is of shape {shape}")
    evaluations, clients = declared["evaluated"].shape[0], declared["test_size"].shape[-1]
    if not clients:
        raise ValueError("it has no clients")
    fitting: dict[str, tuple[int, ...]] = {"evaluated": (evaluations,), "length": (runs,)}
    fitting |= dict.fromkeys(("test_size", "validation_size"), (runs, clients))
    for name, (_, shape) in declared.items():
        if shape != fitting.get(name, (runs, evaluations, clients)):
            raise ValueError(f"{name} is of shape {shape}")
    if evaluations and not {"last", "deployed"} <= declared.keys():
        raise ValueError("it lacks a model")
    held = any("validation" in name for name in declared.keys() & {*ARCHIVED_MODELS})
    if held and "validation_size" not in declared:
        raise ValueError("it lacks 'validation_size'")


def _check_numbers(arrays: Arrays) -> None:
    """Refuse numbers that no batch writes."""
    if not is_increasing(arrays["evaluated"]):
        raise ValueError("evaluated does not count upwards from 1 or more")
    if (arrays["length"] < 0).any() or (arrays["length"] > len(arrays["evaluated"])).any():
        raise ValueError("length is more or less than there is")
    for name in ("test_size", "validation_size"):
        if name in arrays and (arrays[name] < 0).any():
            raise ValueError(f"{name} is fewer than no examples")


def _unpack_run(told: dict[str, Any], r: int, arrays: Arrays) -> RunHistory:
    length = int(arrays["length"][r])
    size = arrays["test_size"][r].astype(np.int64)
    run = RunHistory(told["label"], told["seed"], told["deploy"], size, told["diverged"])
    run.metric, run.reproduced = metric_of(told.get("metric")), True
    if not length:
        return run
    run.tables["evaluated"] = GrowingArray(arrays["evaluated"][:length])
    for model in ARCHIVED_MODELS:
        own = told.get("personal", False) or not model.startswith("personal")
        if model in arrays and own:
            size = arrays["validation_size" if "validation" in model else "test_size"][r]
            found = arrays[model][r, :length]
            accuracy = found if found.dtype.kind == "f" else _shares(model, found, size)
            if np.isinf(accuracy).any():
                raise ValueError(f"{model} holds a score that is not finite")
            nothing = np.broadcast_to(np.float32(np.nan), accuracy.shape)
            run.tables[f"{model}.accuracy"] = GrowingArray(accuracy)
            run.tables[f"{model}.loss"] = GrowingArray(nothing)
    if "deployed_validation" in arrays:
        run.validation_size = arrays["validation_size"][r].astype(np.int64)
    if "training_loss" in arrays and not np.isnan(arrays["training_loss"][r, :length]).all():
        run.tables[TRAINING] = GrowingArray(arrays["training_loss"][r, :length].astype(np.float64))
    return run


def _shares(model: str, steps: NDArray[Any], size: NDArray[Any]) -> NDArray[np.float64]:
    """Accuracies from counts, which are kept as differences; nan where there are no examples."""
    right = np.cumsum(steps, axis=0, dtype=steps.dtype)
    if (right > size).any():
        raise ValueError(f"{model} counts more than there are")
    with np.errstate(invalid="ignore"):
        out: NDArray[np.float64] = right / size
    return out


def read_folder(folder: Path) -> list[ArchiveFile]:
    """Read every file of a folder; no two may hold the same run."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: name one with files of `fedmaba reproduce`")
    if files.exists(folder / run_folder.EXPERIMENT_FILE):
        raise InputError(f"{folder} is a run folder: name one with files of `fedmaba reproduce`")
    batches = [read_file(path) for path in sorted(folder.glob("*.npz"))]
    seen: dict[tuple[str, RunKey], Path] = {}
    for batch in batches:
        for key in batch.keys:
            first = seen.setdefault((batch.digest, key), batch.path)
            if first != batch.path:
                raise InputError(
                    f"{first} and {batch.path} both hold {key.label}, seed {key.seed}: keep one"
                )
    return batches


def collect(
    batches: Iterable[ArchiveFile], job: targets.Job
) -> tuple[History, list[ArchiveFile], list[RunKey]]:
    """The history of the runs that a job has, the files they come from, and the missing runs."""
    own = [batch for batch in batches if batch.digest == job.digest]
    found = {key: run for batch in own for key, run in batch.runs.items()}
    rows = {label: i for i, label in enumerate(job.strategies)}
    wanted = sorted(job.runs, key=lambda key: (rows[key.label], key.seed))
    history = History([found[key] for key in wanted if key in found], job.experiment.eval.share)
    used = [batch for batch in own if set(batch.keys) & set(wanted)]
    return history, used, [key for key in job.runs if key not in found]


def deployed_history(batches: Iterable[ArchiveFile], job: targets.Job) -> History:
    """The history of the runs that a job has, each row with its first deployed model."""
    return of_deploy(collect(batches, job)[0], None)
