"""Run folders with parts: runs that do not fit one computation, or that were added later. No torch.

`RUN/parts/001`, `002`, ... are run folders of their own, each with its experiment, checkpoints and
digests. `RUN` itself may hold the runs that were there first. What is asked for is compared with
what is there, and only what is missing becomes a new part.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmaba import strategies
from fedmaba.errors import Busy, InputError
from fedmaba.experiment import config, experiment_file, sweep
from fedmaba.experiment.config import Experiment
from fedmaba.results import files, run_folder
from fedmaba.results.history import History, Models, TrainedModel
from fedmaba.results.run_folder import SavedModels
from fedmaba.results.run_history import Arrays, RunHistory

if TYPE_CHECKING:
    from torch import nn

PARTS_FOLDER = run_folder.PARTS_FOLDER
FOLDER_NAME = re.compile(r"[0-9]{3,6}")


def folders(path: Path) -> list[Path]:
    """The run folders that a folder is made of: itself if it holds runs, then its parts.

    A part that is still without files counts for nothing: a process was killed before its first.
    """
    with run_folder.reading(path / PARTS_FOLDER):
        names = sorted(files.matching_names(path / PARTS_FOLDER, FOLDER_NAME), key=int)
    found = [path / PARTS_FOLDER / name for name in names]
    for part in found:
        with run_folder.reading(part):
            files.path_inside(path, f"{PARTS_FOLDER}/{part.name}/{run_folder.EXPERIMENT_FILE}")
    found = [part for part in found if not _is_empty(part)]
    if not found or files.exists(path / run_folder.EXPERIMENT_FILE):
        return [path, *found]
    return found


def _is_empty(part: Path) -> bool:
    """Whether nothing was written into the folder of a part yet."""
    begun = files.exists(part / run_folder.EXPERIMENT_FILE)
    return not begun and not run_folder.holds_something_else(part)


def require_picked(path: Path) -> None:
    """Refuse a folder of `fedmaba tune` that has no runs of a pick yet."""
    begun = any(files.exists(part / run_folder.EXPERIMENT_FILE) for part in folders(path))
    if not begun and files.exists(path / run_folder.SEARCH_FILE):
        raise InputError(
            f"{path} holds a search that has not picked yet: repeat its command to go on, or look "
            f"at its trials: fedmaba table {path / run_folder.SEARCH}"
        )


def any_in_use(path: Path) -> bool:
    """Whether a process works on a folder or one of its parts."""
    return any(run_folder.in_use(part) for part in {path, *folders(path)})


def how_to_resume(path: Path) -> str:
    """The command, or call, that goes on with what is unfinished."""
    found = folders(path)
    begun = next((part for part in found if run_folder.load_about(part)), path)
    return run_folder.resume_hint(begun).replace(str(begun), str(path), 1)


def about_of(path: Path) -> dict[str, Any]:
    """What about.json says of the first part that was begun; {} before that."""
    return next((told for part in folders(path) if (told := run_folder.load_about(part))), {})


def experiment_of(part: Path) -> Experiment:
    """The experiment of one part."""
    file = part / run_folder.EXPERIMENT_FILE
    return config.build(experiment_file.read_toml(file, links=False), str(file))


def run_settings(experiment: Experiment) -> dict[str, Any]:
    """All that decides the numbers of a run, except its strategy and its seed."""
    tree = experiment_file.result_settings(experiment)
    del tree["strategies"], tree["seeds"]
    return tree


def load_history(path: Path | str, trained: Iterable[Models | None] = ()) -> History:
    """The history of a run folder with all its parts; what is unfinished, up to its checkpoint.

    Where experiments differ in a key, the labels say it: `fedavg, lr=0.01`. The models that were
    `trained` by this process know their modules.
    """
    path = Path(path)
    require_picked(path)
    found, known = folders(path), {m.path: m for m in trained if isinstance(m, SavedModels)}
    if found == [path]:
        history = run_folder.load_history(path)
        history.trained = known.get(path.resolve(), history.trained)
        return history
    begun = [p for p in found if run_folder.is_finished(p) or run_folder.checkpoints(p)]
    if not begun:
        raise InputError(f"{path} holds no checkpoint yet: wait, or {how_to_resume(path)}")
    names = suffixes([run_settings(experiment_of(part)) for part in found])
    histories = {p: run_folder.load_history(p) for p in begun}
    for part, history in histories.items():
        history.trained = known.get(part.resolve(), history.trained)
    every = [(names[found.index(p)], history) for p, history in histories.items()]
    return merged(every, str(path.resolve()))


def suffixes(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is added to the labels of each experiment, so that rows are told apart."""
    return [sweep.suffix(values) for values in sweep.differing(every)]


def merged(histories: Sequence[tuple[str, History]], whole: str = "") -> History:
    """Several histories as one, each with what is added to its labels.

    They are parts of one whole, a folder or a call, whose labels say how they differ. Rows stand in
    the order in which they first appear, and the seeds of a row in their own.
    """
    whole = whole or secrets.token_hex(8)
    whose = [
        (history, run, run.label + more) for more, history in histories for run in history.runs
    ]
    runs = [
        replace(run, label=label, origin=run.origin._replace(whole=whole))
        for _, run, label in whose
    ]
    order = list(dict.fromkeys(run.label for run in runs))
    runs = _equal_rounds_only(runs)
    runs.sort(key=lambda run: (order.index(run.label), run.seed))
    out = History(runs, histories[0][1].share, histories[0][1].on)
    if any(history.trained is not None for _, history in histories):
        out.trained = _ModelsOfParts({(label, r.seed, r.deploy): (h, r) for h, r, label in whose})
    return out


class _ModelsOfParts:
    """The models of several histories, by what their runs are called together."""

    def __init__(self, whose: Mapping[tuple[str, int, str], tuple[History, RunHistory]]) -> None:
        self._whose = whose

    def weights(self, run: RunHistory, which: TrainedModel) -> Arrays:
        models, there = self._find(run)
        return models.weights(there, which)

    def new_module(self, run: RunHistory) -> nn.Module:
        models, there = self._find(run)
        return models.new_module(there)

    def _find(self, run: RunHistory) -> tuple[Models, RunHistory]:
        history, there = self._whose[run.label, run.seed, run.deploy]
        if history.trained is None:
            raise InputError(
                f"{run.label}, seed {run.seed}, is not finished, so its models are not there yet: "
                "finish it first"
            )
        return history.trained, there


def _equal_rounds_only(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """Drop runs with fewer rounds than the row's other seeds, so that seeds can be pooled."""
    most: dict[str, int] = {}
    for run in runs:
        done = len(run.tables.get("evaluated", ()))
        most[run.label] = max(most.get(run.label, 0), done)
    return [
        run
        for run in runs
        if run.diverged or len(run.tables.get("evaluated", ())) == most[run.label]
    ]


@dataclass(frozen=True)
class Work:
    """One computation: runs that share a batch, and the folder that they go into."""

    place: str  # below the folder: "" is the folder itself
    experiment: Experiment
    labels: tuple[str, ...]  # of its strategies
    new: bool = False

    def path(self, out: Path) -> Path:
        return out / self.place if self.place else out


def computations(
    asked: Sequence[Experiment],
    rows: Mapping[str, str],
    forms: Mapping[str, object],
    listed: Collection[str] = (),
    out: Path | None = None,
    *,
    apart: bool = False,
) -> list[Work]:
    """The computations that are asked for; what a folder holds already is kept as it is there.

    `asked` has an experiment for each combination of the keys `listed`; `rows` maps the labels of
    the strategies to the words that name them, and `forms` to what is equal for all of a
    computation. Those that are finished come first, so that they can refuse before anything is
    written. `apart` makes a part of each, also where there is one alone.
    """
    there = _parts_in_folder(out, rows)
    if not there:
        if len(asked) == 1 and len({*forms.values()}) == 1 and not apart:
            return [Work("", asked[0], tuple(rows), new=True)]
        pairs = [(one, form) for one in asked for form in dict.fromkeys(forms.values())]
        return [
            _some(i, one, rows, [label for label in rows if forms[label] == form], one.seed_list())
            for i, (one, form) in enumerate(pairs, 1)
        ]
    last = max((int(work.place.rpartition("/")[2]) for work in there if work.place), default=0)
    finished: list[Work] = []
    found: list[Work] = []
    for one in asked:
        wanted = [(label, seed) for label in rows for seed in one.seed_list()]
        same = _matching_parts(out, there, one, listed)
        for work in same:
            if work.experiment.train.rounds < one.train.rounds:
                _name_all(out, work, wanted, one.train.rounds)
            if set(_runs(work)) & set(wanted):
                kept = {key: getattr(work.experiment, key) for key in ("strategies", "seeds")}
                again = replace(work, experiment=one.model_copy(update=kept))
                grows = work.experiment.train.rounds < one.train.rounds
                over = not grows and out is not None and run_folder.is_finished(work.path(out))
                (finished if over else found).append(again)
        held = {run for work in same for run in _runs(work)}
        groups: dict[tuple[tuple[int, ...], object], list[str]] = {}
        for label in rows:
            if missing := tuple(s for s in one.seed_list() if (label, s) not in held):
                groups.setdefault((missing, forms[label]), []).append(label)
        for (seeds, _), labels in groups.items():
            last += 1
            found.append(_some(last, one, rows, labels, list(seeds)))
    return [*finished, *found]


def _some(
    number: int, one: Experiment, rows: Mapping[str, str], labels: Sequence[str], seeds: list[int]
) -> Work:
    """A new part with some rows and seeds of an experiment."""
    if len(labels) < len(rows) or seeds != one.seed_list():
        some = {"strategies": [rows[label] for label in labels], "seeds": seeds}
        one = one.model_copy(update=some)
    return Work(f"{PARTS_FOLDER}/{number:03d}", one, tuple(labels), new=True)


def _parts_in_folder(out: Path | None, rows: Mapping[str, str]) -> list[Work]:
    """The computations that a folder holds, finished or not."""
    if out is None:
        return []
    found = []
    for part in folders(out):
        if files.exists(part / run_folder.EXPERIMENT_FILE):
            experiment = experiment_of(part)
            labels = tuple(label for spec in experiment.strategies for label in _labels(spec, rows))
            place = "" if part == out else f"{PARTS_FOLDER}/{part.name}"
            found.append(Work(place, experiment, labels))
    return found


def _labels(spec: str, rows: Mapping[str, str]) -> list[str]:
    """The labels of the strategies that an experiment names; of one from Python, its name."""
    if spec in rows:
        return [spec]
    try:
        return [s.label() for s in strategies.parse(spec)]
    except InputError:
        return [spec]


def _runs(work: Work) -> list[tuple[str, int]]:
    return [(label, seed) for label in work.labels for seed in work.experiment.seed_list()]


def _matching_parts(
    out: Path | None, there: Sequence[Work], asked: Experiment, listed: Collection[str]
) -> list[Work]:
    """The parts that belong to an experiment; a difference in a key not listed is refused."""
    mine, rounds = run_settings(asked), "train.rounds"
    changes = [
        set(experiment_file.changed_keys(run_settings(work.experiment), mine)) for work in there
    ]
    grows = set() if rounds in listed else {rounds}
    same = [work for work, keys in zip(there, changes, strict=True) if keys <= grows]
    if any(work.experiment.train.rounds > asked.train.rounds for work in same):
        same, changes, listed = [], [{rounds}], ()
    if not same and not any(keys <= {*listed} for keys in changes):
        told = ", ".join(sorted(sorted(changes, key=lambda keys: len(keys))[0]))
        raise InputError(f"{out} holds another experiment, in {told}: choose another --out")
    return same


def _name_all(
    out: Path | None, work: Work, wanted: Collection[tuple[str, int]], rounds: int
) -> None:
    """Refuse more rounds for some of the runs that were trained together."""
    if left := [run for run in _runs(work) if run not in wanted]:
        label, seed = left[0]
        raise InputError(
            f"{out} also holds {label}, seed {seed}, with {work.experiment.train.rounds} rounds: "
            f"ask for {rounds} rounds of all its runs, or choose another --out"
        )


def reserve(works: Sequence[Work], out: Path, held: run_folder.Folder | None = None) -> None:
    """Note new parts in a folder, so that `fedmaba resume` knows those that are not begun.

    The folder is locked meanwhile, unless it is `held` already.
    """
    new = [work for work in works if work.new and work.place]
    if not new:
        return
    if run_folder.holds_something_else(out):
        raise InputError(f"{out} exists and is no run folder: choose another --out")
    with nullcontext(held) if held else closing(run_folder.Folder(out)) as folder:
        run_folder.make_folder(out / PARTS_FOLDER)
        for work in new:
            name = f"{work.place}/{run_folder.EXPERIMENT_FILE}"
            if files.exists(out / name):
                raise Busy(f"{out} was changed by another process: repeat the command")
            folder.write(name, experiment_file.dump(work.experiment).encode())
