"""Start an experiment: from the words of a call, in a run folder, or from where a run stopped."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.data.paths import is_file
from fedmaba.errors import Busy, InputError, unknown
from fedmaba.experiment import checks, config, experiment_file, parts, without_effect
from fedmaba.experiment.config import Experiment
from fedmaba.experiment.federations import ReadData
from fedmaba.experiment.opening import check_beside, open_run_folder, require_room
from fedmaba.experiment.session import Session, UserObjects, prepare
from fedmaba.results import files, run_folder
from fedmaba.results.history import History
from fedmaba.simulation import distributed
from fedmaba.strategies.base import Strategy
from fedmaba.user_code import allow_working_folder, say_sources

LOOK_AGAIN = 1.0  # seconds, where other processes are at all that is left


class PythonCall(NamedTuple):
    """The keywords of a call as keys of an experiment, and the objects among them."""

    tree: dict[str, Any]
    own: UserObjects


def python_call(named: Sequence[str], options: Mapping[str, Any]) -> PythonCall:
    """Read the keywords of a call: names go into the tree of keys, objects beside it."""
    flags = {key.argument: key for key in config.options()}
    tree: dict[str, Any] = {"strategies": list(named)}
    told = dict(options)
    data, model = told.pop("data", "sample"), told.pop("model", None)
    metric, init = told.pop("metric", None), told.pop("init", None)
    data = str(data) if isinstance(data, Path) else data
    if not isinstance(data, str | list | datasets.Dataset | Federation):
        raise InputError(
            f"data of type {type(data).__name__}: give a name, a file, or "
            "fedmaba.Federation.from_arrays(x, y, client)"
        )
    given = data.data if isinstance(data, Federation) else data
    if model is None and isinstance(given, datasets.Dataset):
        model = config.usual_model(given.name)
    own = UserObjects(
        data=None if isinstance(data, str | list) else data,
        model=None if model is None or isinstance(model, str | list) else model,
        loss=told.pop("loss", None),
        metric=None if isinstance(metric, str) else metric,
        client_metric=told.pop("client_metric", None),
        init=None if init is None or isinstance(init, str | Path) else init,
    )
    if model is not None:
        words = isinstance(model, str | list)
        tree["model"] = model if words else getattr(model, "__name__", "own")
    config.set_key(tree, "data.name", data if isinstance(data, str | list) else "own")
    if init is not None:
        tree["init"] = str(init) if isinstance(init, str | Path) else "own"
    if isinstance(metric, str):
        config.set_key(tree, "eval.metric", metric)
    for name, value in told.items():
        if name not in flags:
            raise unknown("option", name, flags)
        config.set_key(tree, flags[name].name, value)
    return PythonCall(tree, own)


@dataclass
class RunGroup:
    """All that one command or call asks for: computations one after another, in one folder."""

    asked: Sequence[Experiment]  # one for each combination of values
    rows: Mapping[str, str]  # These are labels of the strategies, and the words that name them.
    keys: Collection[str] = ()  # that have several values
    out: Path | None = None  # With None, nothing is written unless there is a claim.
    own: UserObjects | None = None
    # These are strategies of a caller in Python, by label.
    objects: Mapping[str, Strategy] | None = None
    # It makes a new folder once all is known to fit.
    claim: Callable[[Session], Path] | None = None
    # It may refuse the first computation before anything is written.
    check: Callable[[Session], None] | None = None
    command: Sequence[str] = ()
    apart: bool = False  # Each computation is a part, also where there is one alone.

    def sessions(self) -> Iterator[Session]:
        """Each computation, ready to run; those that are finished have nothing left to do.

        All are checked before the folder changes and before the first is trained. Several processes
        may work on the computations of one folder: each takes those that no other is at, and looks
        again at the rest, which it takes over where their process has ended.
        """
        yielded: set[str] = set()
        while True:
            works = self._plan()
            try:
                yield from self._free(works, yielded)
                return
            except Busy:
                if len(works) == 1 or distributed.join().count > 1:
                    raise
            time.sleep(LOOK_AGAIN)

    def _free(self, works: Sequence[parts.Work], yielded: set[str]) -> Iterator[Session]:
        """The computations that are not yielded yet; if others are at some, it ends with Busy."""
        there, first, reserved = self._begun(), True, False
        before: ReadData | None = None
        busy: Busy | None = None
        if self.check is None and all(work.new for work in works):
            # What was begun with an option goes on with it; a search asks for each row apart.
            self._refuse_options_without_effect()
        for work in works[1:]:
            if work.new:
                session = self._prepare(work, there, before)
                before = ReadData(session.experiment.data, session.data, shown=False)
                session.close()
                del session  # This frees the device's memory for the next computation.
        for i, work in enumerate(works):
            if work.place in yielded:
                continue
            if self.out is not None and _at_work(work.path(self.out)):
                busy = files.busy(work.path(self.out))
                continue
            session = self._prepare(work, there, before)
            before = ReadData(session.experiment.data, session.data)
            if first:
                first = False
                if self.check is not None:
                    self.check(session)
                if self.out is None and self.claim is not None:
                    self.out = self.claim(session)
            try:
                if self.out is not None:
                    if not work.new:
                        open_run_folder(session, work.path(self.out), self.command)
                    if not reserved and not session.done:
                        reserved = True
                        if session.batch.ranks.rank == 0:
                            held = None if work.place else session.folder
                            parts.reserve(works, self.out, held)
                    if work.new:
                        open_run_folder(session, work.path(self.out), self.command)
            except Busy as error:  # Another process was quicker.
                session.close()
                if work.new:  # What is there has changed.
                    raise
                busy = error
                continue
            if len(works) > 1:
                some = ", ".join(work.labels[:4]) + ", ..." * (len(work.labels) > 4)
                session.notes.insert(0, f"computation {i + 1} of {len(works)}: {some}")
            yielded.add(work.place)
            yield session
            del session
        if busy is not None:
            raise busy

    def _refuse_options_without_effect(self) -> None:
        own = self.objects or {}
        rows = [own.get(label) or strategies.parse(spec)[0] for label, spec in self.rows.items()]
        for experiment in self.asked:
            without_effect.refuse(experiment, rows)

    def _prepare(self, work: parts.Work, there: Sequence[Path], before: ReadData | None) -> Session:
        """A computation, loaded and checked; beside those that are there, if it is not begun."""
        listed = None if self.objects is None else [self._named(name) for name in work.labels]
        session = prepare(work.experiment, self.own, listed, before=before)
        if self.out is not None or self.claim is not None:
            require_room(session)
        if self.out is None or work.path(self.out) not in there:
            # This also holds where an earlier try left an empty folder.
            check_beside(session, there)
        return session

    def _begun(self) -> list[Path]:
        """The parts that the folder has already; only rank 0 looks."""
        if self.out is None or distributed.join().rank:
            return []
        return [part for part in parts.folders(self.out) if run_folder.load_about(part)]

    def _named(self, label: str) -> Strategy:
        """A strategy of the caller's, or one that the folder holds beside those."""
        try:
            return (self.objects or {}).get(label) or strategies.parse(label)[0]
        except InputError as error:
            raise InputError(f"{self.out} also holds {label!r}: name it, too ({error})") from error

    def _plan(self) -> list[parts.Work]:
        """What to run, which rank 0 finds out: the others may not see the folder."""
        together = distributed.join()
        # This is done before rank 0's settings take the place of all others.
        if together.count > 1:
            settings = [experiment_file.result_settings(experiment) for experiment in self.asked]
            together.alike(json.dumps(settings))
        works: list[parts.Work] = []
        if not together.rank:
            works = parts.computations(
                self.asked, self.rows, self._forms(), self.keys, self.out, apart=self.apart
            )
        if together.count == 1:
            return works
        found = [[w.place, experiment_file.dump(w.experiment), w.labels, w.new] for w in works]
        return [
            parts.Work(place, config.build(files.parse_toml(text.encode())), tuple(labels), new)
            for place, text, labels, new in json.loads(together.tell(json.dumps(found).encode()))
        ]

    def _forms(self) -> dict[str, tuple[str, ...]]:
        """By label, the layers that stay with clients: one computation has one form of models."""
        forms: dict[str, tuple[str, ...]] = dict.fromkeys(self.rows, ())
        own = self.objects or {}
        for label, words in self.rows.items():
            with suppress(Exception):  # What is wrong with a user's strategy is said later.
                strategy = own.get(label) or strategies.parse(words)[0]
                forms[label] = strategy.local().own_layers
        return forms

    def history(self, finished: Sequence[tuple[Experiment, History]]) -> History:
        """All runs of the folder, or of these experiments where nothing was written."""
        mine = self.out if distributed.join().rank == 0 else None  # only rank 0 touches it
        if mine is not None and parts.folders(mine) != [mine]:
            return parts.load_history(mine, [history.trained for _, history in finished])
        if len(finished) == 1:
            return finished[0][1]
        names = parts.suffixes([parts.run_settings(experiment) for experiment, _ in finished])
        return parts.merged(list(zip(names, (history for _, history in finished), strict=True)))


def shared(tasks: Sequence[Callable[[], Iterator[Session]]]) -> Iterator[Session]:
    """The computations of all tasks; what another process is at is tried again later."""
    left, refused = [*tasks], 0
    while left:
        task = left.pop(0)
        try:
            yield from task()
            refused = 0
        except Busy:
            random.shuffle(left)  # Of several processes, each tries another one next.
            left.append(task)
            refused += 1
        if left and refused >= len(left):
            time.sleep(LOOK_AGAIN)
            refused = 0


def _at_work(folder: Path) -> bool:
    """Whether another process works on a run folder."""
    alone = distributed.join().count == 1 and files.can_lock()
    return alone and run_folder.in_use(folder)


def resume(out: Path, trust: bool = False) -> Session:
    """Resume the experiment of a run folder; `trust` allows importing the modules that it names."""
    source = out / run_folder.EXPERIMENT_FILE
    if not is_file(source):
        raise InputError(f"{out} is no run folder: name one that fedmaba wrote")
    if run_folder.load_about(out).get("python"):
        raise InputError(
            f"{out} was begun in Python, with more than names: {run_folder.resume_hint(out)}"
        )
    asked = config.build(experiment_file.read_toml(source), str(source))
    if named := checks.user_modules(asked.model_dump()):
        if not trust:
            raise InputError(
                f"{out} names code that is not fedmaba's: {say_sources(named)}: look at it, then "
                f"say fedmaba resume {out} --trust"
            )
        allow_working_folder()
    try:
        session = prepare(asked)
    except InputError as error:
        if out.parent.name != parts.PARTS_FOLDER or run_folder.checkpoints(out):
            raise
        raise InputError(
            f"{error}; nothing of {out} is trained yet, so you may delete it to go on without it"
        ) from error
    open_run_folder(session, out)
    return session
