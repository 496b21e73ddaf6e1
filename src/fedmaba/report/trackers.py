"""Experiment trackers: TensorBoard, Weights & Biases and MLflow see every round of every run.

Each is a module of this folder with the same three functions, which `tracked.Kind` describes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedmaba.errors import InputError, reason, unknown
from fedmaba.report import tracked
from fedmaba.results import files, run_folder, schema

if TYPE_CHECKING:
    from fedmaba.experiment.session import Session
    from fedmaba.simulation.engine import Snapshot

TRACKER_NAMES = ("tensorboard", "wandb", "mlflow")


def check(track: str | Sequence[str]) -> list[str]:
    """The trackers that are asked for, each once; refused before any work if one is not there."""
    names = list(dict.fromkeys([track] if isinstance(track, str) else map(str, track)))
    for name in names:
        if name not in TRACKER_NAMES:
            raise unknown("tracker", name, TRACKER_NAMES)
        _kind(name).check()
    return names


@contextmanager
def tracking(
    names: Sequence[str], session: Session, warn: Callable[[str], None]
) -> Iterator[Callable[[Snapshot], None]]:
    """What to feed with the snapshots of a session that has a folder.

    A tracker that fails later does not stop the training: it is told, and the run goes on. Rounds
    that the folder has and a tracker lacks are shown first, and none is shown twice.
    """
    if not names or session.folder is None:
        yield lambda snapshot: None
        return
    out = session.folder.path
    runs, ids = tracked.runs_of(session, out), _known(out)
    opened: dict[str, list[tracked.Tracker]] = {}
    finished = False
    try:
        for name in names:
            opened[name] = []
            for run in runs:
                opened[name].append(_open(name, run, ids.get(name, {}).get(run.stem, "")))
        named = {
            name: {run.stem: one.id for run, one in zip(runs, some, strict=True) if one.id}
            for name, some in opened.items()
        }
        if any(named.values()):
            text = json.dumps({**ids, **named}, indent=2) + "\n"
            run_folder.write_file(out / run_folder.TRACKED_FILE, text.encode(), below=out)

        def show(done: int) -> None:
            for name in list(opened):
                with _failing(name, opened, warn):
                    for r, one in enumerate(opened[name]):
                        if done not in one.there:
                            found = tracked.figures_of(session, done, r)
                            if found.values:
                                one.write(done, found)

        # What a process that was killed had saved but not shown, or begun without trackers.
        for done in range(1, session.batch.progress.round + 1):
            show(done)
        yield lambda snapshot: show(snapshot.round + 1)
        finished = not session.stopped
    finally:
        for name in list(opened):
            with _failing(name, opened, warn):
                for one in opened[name]:
                    one.close(finished)


@contextmanager
def _failing(
    name: str, opened: dict[str, list[tracked.Tracker]], warn: Callable[[str], None]
) -> Iterator[None]:
    """Tell that a tracker failed, and go on without it."""
    try:
        yield
    except _kind(name).errors() as error:
        del opened[name]
        warn(f"{name} failed, so later rounds are not tracked there: {reason(error)}")


def _open(name: str, run: tracked.TrackedRun, known: str) -> tracked.Tracker:
    kind = _kind(name)
    try:
        return kind.open_run(run, known)
    except kind.errors() as error:
        raise InputError(
            f"{name} cannot be used: {reason(error)}: fix that, or leave it out"
        ) from error


def _kind(name: str) -> tracked.TrackerModule:
    return cast(tracked.TrackerModule, import_module(f"fedmaba.report.{name}"))


def _known(out: Path) -> dict[str, dict[str, str]]:
    """What each tracker calls the runs of a folder that was tracked before."""
    file = out / run_folder.TRACKED_FILE
    if not files.exists(file):
        return {}
    with run_folder.reading(file):
        return dict(schema.check(schema.Tracked, {"ids": files.read_json(file)})["ids"])
