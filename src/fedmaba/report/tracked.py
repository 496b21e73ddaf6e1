"""What experiment trackers are told of a run, and what each must be able to do. No torch."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import installed
from fedmaba.experiment import experiment_file
from fedmaba.results import files, run_folder
from fedmaba.results.metrics import Unit, every

if TYPE_CHECKING:
    from fedmaba.experiment.session import Session
    from fedmaba.results.run_history import RunHistory

TRACKED_MODELS = ("deployed", "last", "personal")
TRACKED_FIGURES = ("variance", "accuracy", "worst", "best", "gini", "jain")


class TrackedRun(NamedTuple):
    """One strategy with one seed, as it is shown to a tracker."""

    stem: str  # its name among the runs of a folder
    label: str
    seed: int
    folder: Path  # the run folder that it lies in
    group: str  # The runs of one experiment share these.
    settings: Mapping[str, object]  # every key that decides its numbers
    done: int  # It goes on after so many rounds.

    def title(self) -> str:
        """Its name for people."""
        return f"{self.label}, seed {self.seed}"


class RoundFigures(NamedTuple):
    """What one round says of one run."""

    values: dict[str, float]
    clients: NDArray[Any] | None  # These are the scores of the clients, as they are shown.


class Tracker(Protocol):
    """Where the figures of one run go."""

    @property
    def id(self) -> str:
        """What the tracker calls the run, so that it can go on after an interruption."""

    @property
    def there(self) -> Container[int]:
        """The rounds whose figures it has from before, which are not written twice."""

    def write(self, done: int, figures: RoundFigures) -> None:
        """Take the figures after so many rounds."""

    def close(self, finished: bool) -> None:
        """End it: the run is finished, or was stopped and may be resumed."""


class TrackerModule(Protocol):
    """A module for one tracker."""

    def check(self) -> None:
        """Say what to install before any work starts."""

    def errors(self) -> tuple[type[Exception], ...]:
        """What it raises when the tracker fails, not fedmaba."""

    def open_run(self, run: TrackedRun, known: str) -> Tracker:
        """Start to track a run, or go on with the one that is `known` by its id."""


def installed_for(name: str, what: str) -> AbstractContextManager[None]:
    """Say what to install for a tracker where an import inside fails."""
    remedy = f"in a clone of fedmaba, pip install '.[{name}]'"
    return installed(f"tracking with {name} wants {what}: {remedy}")


def runs_of(session: Session, out: Path) -> list[TrackedRun]:
    """The runs of a session whose folder is `out`."""
    whole = out.resolve()
    if whole.parent.name == run_folder.PARTS_FOLDER:
        whole = whole.parent.parent
    searched = whole.name == run_folder.SEARCH
    group = f"{whole.parent.name} {whole.name}" if searched else whole.name
    settings = experiment_file.result_settings(session.experiment)
    del settings["strategies"], settings["seeds"]
    flat = dict(files.flattened(settings))
    return [
        TrackedRun(
            run_folder.run_file_stem(r, run.label, run.seed),
            run.label,
            run.seed,
            out,
            group,
            {"strategy": run.label, "seed": run.seed, "deploy": run.deploy, **flat},
            session.batch.progress.round,
        )
        for r, run in enumerate(session.history.runs)
    ]


def figures_of(session: Session, done: int, r: int) -> RoundFigures:
    """What the history says of a round of the run number r; nothing where it was not touched."""
    run, unit = session.history.runs[r], session.history.unit
    values: dict[str, float] = {}
    if (row := _row(run, "round", done)) is not None:
        told = {name: table[row] for name, table in run.tables.items() if name.startswith("info.")}
        values |= {f"strategy/{n[5:]}": float(v) for n, v in told.items() if not np.isnan(v)}
    clients: NDArray[Any] | None = None
    row = _row(run, "evaluated", done)
    for model in (m for m in TRACKED_MODELS if row is not None and f"{m}.accuracy" in run.tables):
        accuracy, loss = (run.tables[f"{model}.{what}"][[row]] for what in ("accuracy", "loss"))
        share = session.experiment.eval.share
        (figures,) = every(accuracy, loss, run.test_size, share, unit)
        values |= {f"{model}/{name}": getattr(figures, name) for name in TRACKED_FIGURES}
        if model == "deployed":
            clients = known_scores(accuracy[0], unit)
    return RoundFigures(values, clients)


def _row(run: RunHistory, name: str, done: int) -> int | None:
    """Which row of a run's tables is of this round."""
    rounds = np.asarray(run.tables.get(name, ()))
    at = int(np.searchsorted(rounds, done))
    return at if at < len(rounds) and rounds[at] == done else None


def known_scores(scores: NDArray[Any], unit: Unit) -> NDArray[Any]:
    """The scores of clients that have one, as per cent where they are shares."""
    return np.asarray(unit.scale * scores[np.isfinite(scores)])


def place(out: Path, name: str) -> Path:
    """A folder of a tracker in a run folder, refused where it or something in it is a link."""
    found = out / name
    with files.writing(found):
        files.path_inside(out, f"{name}/any")
        for entry in os.listdir(found) if files.exists(found) else ():
            if (found / entry).is_symlink():
                raise files.UnexpectedKind(found / entry, f"{entry} is a link in {name}")
    return found
