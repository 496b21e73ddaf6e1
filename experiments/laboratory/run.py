"""Running the targets of `fedmaba reproduce`: batch after batch, each saved as soon as it is done.

Runs that the results folder already holds are not run again, and an interrupted batch resumes from
its checkpoint, so the same command continues a target. To merge the folders of several machines,
put their files together.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmaba.data.dataset import Dataset
from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.experiment import session as experiment
from fedmaba.experiment.driver import drive
from fedmaba.experiment.session import Session, UserObjects
from fedmaba.results import files, run_folder
from fedmaba.results.run_history import RunHistory, append_row
from fedmaba.simulation import engine
from fedmaba.simulation.state import Round
from laboratory import archive, picks, targets
from laboratory.targets import Job, RunKey, Target

CHECKPOINT_SECONDS = 120.0  # between checkpoints


@dataclass(frozen=True)
class PendingBatch:
    """The runs of a job that are not done yet: one batch of the engine."""

    name: str  # of the target it was asked for
    job: Job
    runs: tuple[RunKey, ...]

    @property
    def file(self) -> str:
        """The name of its results file, made from target, settings and runs."""
        text = json.dumps([self.job.digest, sorted(self.runs)])
        return f"{self.name}.{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    @property
    def updates(self) -> int:
        """How many client updates all its runs take."""
        return targets.updates(self.job, self.runs)


def plan(target: Target, out: Path, part: tuple[int, int] = (1, 1)) -> list[PendingBatch]:
    """The batches that `out` does not hold yet; `part` (i, n) takes the i-th of n parts.

    Where a target searches, runs of what is picked are among them once all trials are done.
    """
    done = archive.read_folder(out) if out.exists() else []
    left = []
    for job in picks.with_picks(target, done).every_job():
        missing, asked = set(archive.collect(done, job)[2]), []
        for fresh in (False, True):
            some = [key for key in job.runs if (key.seed in job.fresh) == fresh]
            first, last = (len(some) * k // part[1] for k in (part[0] - 1, part[0]))
            asked += some[first:last]
        left += batches_of(target.name, job, [key for key in asked if key in missing])
    return left


def batches_of(name: str, job: Job, keys: Sequence[RunKey]) -> list[PendingBatch]:
    """Runs of a job as batches, each with one form of model."""
    forms: dict[tuple[str, ...], list[RunKey]] = {}
    for key in keys:
        forms.setdefault(job.strategies[key.label].local().own_layers, []).append(key)
    return [PendingBatch(name, job, tuple(runs)) for runs in forms.values()]


def parse_part(text: str) -> tuple[int, int]:
    """`2/3` as part 2 of 3."""
    first, slash, last = text.partition("/")
    if slash and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise InputError(f"--batch {text}: write I/N, the I-th of N parts, as 1/3")


class LoadedData(NamedTuple):
    """The data of a finished batch, kept for the next one."""

    asked: config.Data
    data: Dataset
    sha256: str

    def fits(self, asked: config.Data) -> bool:
        same = ("name", "dir", "normalise")
        return all(getattr(self.asked, key) == getattr(asked, key) for key in same)


@dataclass
class RunningBatch:
    """One batch in progress: the sink of its rounds, which ends as one file of the archive."""

    work: PendingBatch
    session: Session
    folder: run_folder.Folder  # of its checkpoints
    target: Path  # Its results go to this file.
    command: Sequence[str]
    seconds: float  #       spent on it so far
    loaded: LoadedData | None  # These are its data, if the batch before had the same.
    stopped: bool = False
    _before: float = 0.0  # when seconds were last counted

    def rounds(self, stop: Callable[[], bool] = lambda: False) -> Iterator[engine.Snapshot]:
        """Simulate, with a checkpoint every two minutes and whenever told to stop."""
        self._before = time.monotonic()
        self.stopped = yield from drive(self.session.batch, self, stop, CHECKPOINT_SECONDS)

    def take(self, snapshot: engine.Snapshot) -> None:
        """Keep the evaluations: the archive has no use for what the server saw."""
        history = self.session.history
        history.add(replace(snapshot, rounds=[None] * len(snapshot.rounds)))
        if "losses" in self.work.job.keep and snapshot.evaluations is not None:
            for d, (run, r) in enumerate(zip(history.runs, snapshot.progress.owner, strict=True)):
                seen = snapshot.rounds[r]
                if snapshot.evaluations[d] is not None and seen is not None:
                    _keep_training_losses(run, seen)
        self._count_seconds()

    def checkpoint(self) -> None:
        """Save all that is needed to resume from here."""
        self._count_seconds()
        progress = self.session.batch.progress
        meta = {**self.session.meta(), "seconds": self.seconds}
        self.folder.save(progress.round, progress.arrays(), meta, self.session.history)

    def finish(self) -> None:
        """Save the compact history; the checkpoint is no longer needed."""
        self._count_seconds()
        sizes = [run.federation.validation.size for run, _ in self.session.batch.handed_out]
        archive.write_archive(self.target, self.session.history.runs, sizes, self._about())
        self.folder.discard()

    def close(self) -> None:
        self.session.close()
        self.folder.close()

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self.seconds, self._before = self.seconds + now - self._before, now

    def loaded_data(self) -> LoadedData:
        """Its data as they were read, for the next batch."""
        if self.loaded is None:
            data = self.session.data
            self.loaded = LoadedData(self.session.experiment.data, data, data.sha256())
        return self.loaded

    def _about(self) -> dict[str, Any]:
        batch = self.session.batch
        loaded, splits = self.loaded_data(), {run.seed: run.federation for run in batch.runs}
        return {
            "target": self.work.name,
            "settings": self.work.job.settings,
            "seconds": round(self.seconds, 1),
            "dtype": batch.plan.dtype,
            **experiment.environment(batch),
            "command": _command(self.command),
            "data": {"name": loaded.data.name, "sha256": loaded.sha256},
            "partition": {str(seed): fed.split.sha256() for seed, fed in splits.items()},
        }


def _keep_training_losses(run: RunHistory, seen: Round) -> None:
    """Keep what clients reported in the round that was evaluated last; nan for the others."""
    if seen.loss is not None:
        losses = np.full(run.n_clients, np.nan)
        losses[seen.client] = seen.loss
        append_row(run, {archive.TRAINING: losses})


def begin(
    work: PendingBatch,
    out: Path,
    machine: config.Machine,
    loaded: LoadedData | None = None,
    command: Sequence[str] = (),
) -> RunningBatch:
    """Start a batch, or resume it; `loaded` data are used if they are those of this batch."""
    job = work.job
    seeds = sorted({key.seed for key in work.runs})
    asked = job.experiment.model_copy(update={"seeds": seeds, "machine": machine})
    chosen = [(job.strategies[key.label], key.seed, key.deploy) for key in work.runs]
    loaded = loaded if loaded and loaded.fits(asked.data) else None
    own = UserObjects(loaded.data) if loaded else None
    rows = [job.strategies[label] for label in dict.fromkeys(key.label for key in work.runs)]
    session = experiment.prepare(asked, own, rows, chosen)
    if session.batch.ranks.count > 1:
        raise InputError("reproduce is one process: give each GPU its part with --batch I/N")
    run_folder.make_folder(out)
    name = f"checkpoint/{work.file}.{machine.dtype}"
    try:
        place = files.path_inside(out, f"{name}/.lock").parent
    except OSError as error:
        raise files.write_error(out / name, error) from error
    folder = run_folder.Folder(place, remedy="fix it, then repeat the command")
    files.remove_temporary_files(out, f"{work.file}.npz")
    seconds = 0.0
    try:
        if run_folder.checkpoints(folder.path):
            arrays, meta, damaged = run_folder.load_checkpoint(folder.path)
            experiment.require_same_experiment(session, meta, folder.path, apart="machine")
            session.restore(arrays, meta, folder.path)
            seconds = float(meta.get("seconds", 0))
            session.warnings += damaged
            session.notes.append(f"resumed after round {meta['round']}")
    except BaseException:
        folder.close()
        session.batch.workers.close()
        raise
    target = out / f"{work.file}.npz"
    return RunningBatch(work, session, folder, target, command, seconds, loaded)


def _command(words: Sequence[str]) -> str:
    """The command as anyone would type it, without --out."""
    kept, skip = ["fedmaba"], False
    for word in words[1:]:
        if not skip and not word.startswith("--out"):
            kept.append(word)
        skip = word == "--out"
    return " ".join(kept)
