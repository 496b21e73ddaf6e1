"""Running the targets of `fedmaba reproduce`: batch after batch, each saved as soon as it is done.

Runs that a results folder holds already are not run again, and a batch that was interrupted goes on
from its checkpoint: the same command continues a target, and folders of several machines are merged
by putting their files together.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedmaba.data.datasets import Dataset
from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.experiment import session as experiment
from fedmaba.experiment.session import Own, Session
from fedmaba.reproduction import archive, targets
from fedmaba.reproduction.targets import Job, Key, Target
from fedmaba.results import files, run_folder
from fedmaba.simulation import engine

SECONDS = 120.0  # between checkpoints


@dataclass(frozen=True)
class Work:
    """What is left to do of a job: one batch of the engine."""

    name: str  # of the target it was asked for
    job: Job
    runs: tuple[Key, ...]

    @property
    def file(self) -> str:
        """The name of its results, which says target, settings and runs."""
        text = json.dumps([self.job.digest, sorted(self.runs)])
        return f"{self.name}.{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    @property
    def updates(self) -> int:
        """Of clients, in all its runs."""
        return targets.updates(self.job, self.runs)


def plan(target: Target, out: Path, part: tuple[int, int] = (1, 1)) -> list[Work]:
    """The batches that `out` does not hold yet, or part i of n of every job's."""
    done = archive.read_all(out) if out.exists() else []
    left = []
    for job in target.every_job():
        first, last = (len(job.runs) * k // part[1] for k in (part[0] - 1, part[0]))
        missing = set(archive.collect(done, job)[2])
        runs = tuple(key for key in job.runs[first:last] if key in missing)
        if runs:
            left.append(Work(target.name, job, runs))
    return left


def parse_part(text: str) -> tuple[int, int]:
    """`2/3` as part 2 of 3."""
    first, slash, last = text.partition("/")
    if slash and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise InputError(f"--batch {text}: write I/N, the I-th of N parts, as 1/3")


class Held(NamedTuple):
    """The data of a batch that is done, for the next one."""

    asked: config.Data
    data: Dataset
    sha256: str

    def suits(self, asked: config.Data) -> bool:
        return (self.asked.name, self.asked.dir) == (asked.name, asked.dir)


@dataclass
class Batch:
    """One batch in progress."""

    work: Work
    session: Session
    folder: run_folder.Folder
    seconds: float  #       spent on it so far
    held: Held | None  #    its data, if they were those of the batch before
    stopped: bool = False

    def rounds(self, stop: Callable[[], bool] = lambda: False) -> Iterator[engine.Snapshot]:
        """Simulate, with a checkpoint every two minutes and whenever told to stop."""
        session, at = self.session, self.session.batch.progress
        before, begun = self.seconds, time.monotonic()
        saved = begun
        try:
            for snapshot in engine.simulate(session.batch):
                session.history.add(replace(snapshot, rounds=[None] * len(snapshot.rounds)))
                yield snapshot
                now = time.monotonic()
                self.seconds = before + now - begun
                self.stopped = stop() and at.round < session.batch.plan.rounds
                if self.stopped or now - saved > SECONDS:
                    self._checkpoint()
                    saved = time.monotonic()
                if self.stopped:
                    return
        finally:
            session.batch.workers.close()

    def _checkpoint(self) -> None:
        at = self.session.batch.progress
        meta = {**self.session.meta(), "seconds": self.seconds}
        self.folder.save(at.round, at.arrays(), meta, self.session.history)

    def finish(self, out: Path, command: Sequence[str]) -> Path:
        """Save the compact history; the checkpoint is no longer needed."""
        target = out / f"{self.work.file}.npz"
        sizes = [run.federation.validation.size for run, _ in self.session.batch.handed_out]
        archive.write(target, self.session.history.runs, sizes, self._about(command))
        self.folder.discard()
        return target

    def hold(self) -> Held:
        """Its data for the next batch, without all that was made of them."""
        if self.held is None:
            data = self.session.data
            self.held = Held(self.session.experiment.data, data, data.sha256())
        return self.held

    def _about(self, command: Sequence[str]) -> dict[str, Any]:
        batch = self.session.batch
        held, splits = self.hold(), {run.seed: run.federation for run in batch.runs}
        return {
            "target": self.work.name,
            "settings": self.work.job.settings,
            "seconds": round(self.seconds, 1),
            "dtype": batch.plan.dtype,
            **experiment.made_with(batch),
            "command": _command(command),
            "data": {"name": held.data.name, "sha256": held.sha256},
            "partition": {str(seed): fed.split.sha256() for seed, fed in splits.items()},
        }


def begin(work: Work, out: Path, machine: config.Machine, held: Held | None = None) -> Batch:
    """A batch at round 0, or where it was interrupted; with the data that are held, if its own."""
    job = work.job
    seeds = sorted({key.seed for key in work.runs})
    asked = job.experiment.model_copy(update={"seeds": seeds, "machine": machine})
    chosen = [(job.strategies[key.label], key.seed, key.deploy) for key in work.runs]
    held = held if held and held.suits(asked.data) else None
    own = Own(held.data) if held else None
    session = experiment.prepare(asked, own, list(job.strategies.values()), chosen)
    if session.batch.ranks.count > 1:
        raise InputError("reproduce is one process: give each GPU its part with --batch I/N")
    run_folder.make_folder(out)
    name = f"checkpoint/{work.file}.{machine.dtype}"
    try:
        place = files.inside(out, f"{name}/.lock").parent
    except OSError as error:
        raise files.failed(out / name, error) from error
    folder = run_folder.Folder(place, remedy="fix it, then repeat the command")
    files.tidy(out, f"{work.file}.npz")
    seconds = 0.0
    try:
        if run_folder.checkpoints(folder.path):
            arrays, meta, damaged = run_folder.load_checkpoint(folder.path)
            experiment.alike(session, meta, folder.path, apart="machine")
            session.restore(arrays, meta, folder.path)
            seconds = float(meta.get("seconds", 0))
            session.faults += damaged
            session.notes.append(f"goes on after round {meta['round']}")
    except BaseException:
        folder.close()
        session.batch.workers.close()
        raise
    return Batch(work, session, folder, seconds, held)


def _command(words: Sequence[str]) -> str:
    """The command as anyone would type it: without where files went."""
    kept, skip = ["fedmaba"], False
    for word in words[1:]:
        if not skip and not word.startswith("--out"):
            kept.append(word)
        skip = word == "--out"
    return " ".join(kept)
