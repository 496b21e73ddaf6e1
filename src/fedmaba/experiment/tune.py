"""Search for settings: trials, a pick on validation data, then fresh seeds of what was picked.

The trials of `fedmaba tune` lie in `RUN/search`, a run folder with parts, and `RUN` itself holds
the runs of what was picked. A search that is begun again asks for the same trials: those that are
finished are read, not trained. Test data play no part in the pick.
"""

from __future__ import annotations

import copy
import json
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np

from fedmaba import rng, strategies
from fedmaba.errors import Busy, Diverged, InputError
from fedmaba.experiment import checks, config, parts, sweep, without_effect
from fedmaba.experiment.config import Experiment
from fedmaba.experiment.proposals import Entry, Proposals, Range, read_range, with_values
from fedmaba.experiment.session import Session, UserObjects
from fedmaba.experiment.starting import LOOK_AGAIN, RunGroup, shared
from fedmaba.experiment.trials import Trial, load_search
from fedmaba.results import files, run_folder
from fedmaba.results.history import History, Models, Row
from fedmaba.strategies import deployed

SAMPLERS = ("grid", "random", "tpe")
RULES = ("best:accuracy", "best:fair")


@dataclass(frozen=True)
class Search:
    """What is tried, and how the best is picked."""

    strategies: tuple[str, ...]  # each picks its own settings
    tree: Mapping[str, Any]  # In this experiment the keys to try have lists or ranges.
    sampler: str = "grid"
    trials: int | None = None  # This many for each strategy are tried; None means its whole grid.
    rule: str = "best:accuracy"
    seeds: int = 3  # of every trial: 0, 1, ...


@dataclass
class Tuning:
    """A search in its folder: run its sessions one after another, then look at the result."""

    search: Search
    out: Path
    own: UserObjects | None = None
    command: Sequence[str] = ()
    trials: list[Trial] = field(default_factory=list)
    _rows: dict[str, dict[str, str]] = field(default_factory=dict)  # words by strategy and label
    _first: list[dict[str, Any]] = field(default_factory=list)  # of the order, not written yet

    def __post_init__(self) -> None:
        search = self.search
        if search.sampler not in SAMPLERS:
            raise InputError(f"sampler={search.sampler!r}: choose one of {', '.join(SAMPLERS)}")
        if search.rule not in RULES:
            raise InputError(f"pick={search.rule!r}: choose one of {', '.join(RULES)}")
        if search.seeds < 1 or (search.trials is not None and search.trials < 1):
            raise InputError("search_seeds and trials: give numbers of at least 1")
        if search.sampler != "grid" and search.trials is None:
            raise InputError(f"sampler={search.sampler}: say how many trials, as --trials 20")
        self._rows = {spec: strategies.single_specs([spec]) for spec in search.strategies}
        strategies.single_specs(search.strategies)  # refuses a row that is there twice
        if not _space(search.tree) and all(len(rows) == 1 for rows in self._rows.values()):
            raise InputError(
                "nothing to try: name values, as --grid lr=[0.01,0.1] or fedmaba:alpha=[0.5,0.8]"
            )
        self.fresh = _fresh_seeds(search)

    def sessions(self) -> Iterator[Session]:
        """Every computation of the search, then those of what was picked."""
        self._refuse_other()
        adaptive = self.search.sampler == "tpe"
        yield from self._adaptive() if adaptive else self._listed()
        for spec in self._rows:
            _mark_pick([t for t in self.trials if t.strategy == spec], self.search, self._unit())
        self._note(self.trials)
        yield from self._final()

    def history(self, trained: Iterable[Models | None] = ()) -> History:
        """The runs of what was picked, with the fresh seeds; some models may be known already."""
        return parts.load_history(self.out, trained)

    def _listed(self) -> Iterator[Session]:
        """Run trials that are known beforehand: all of the same settings share a computation."""
        swept = sweep.combinations(_without_ranges(self.search))
        many = len(swept.trees)
        grids = {
            spec: [(label, c) for c in range(many) for label in rows]
            for spec, rows in self._rows.items()
        }
        chosen = _same_budget(grids, self.search)
        tried = []
        for c, tree in enumerate(swept.trees):
            labels = {spec: [row for row, at in some if at == c] for spec, some in chosen.items()}
            if any(labels.values()):
                tried.append((tree, labels))
        yield from shared([partial(self._train, *one) for one in tried])
        for one in tried:
            self.trials += self._scored(*one)

    def _adaptive(self) -> Iterator[Session]:
        """Run trials that Optuna proposes, each after the scores that there are by then."""
        space = _space(self.search.tree)
        for number, (spec, rows) in enumerate(self._rows.items()):
            proposals = Proposals(number, spec, list(rows), space)
            while (trial := self._next(proposals)) is not None:
                try:
                    yield from self._train(*self._asked_of(trial))
                except Busy:
                    time.sleep(LOOK_AGAIN)
                else:
                    self._note_value(proposals, trial)
            for trial in proposals.entries:
                self.trials += self._scored(*self._asked_of(trial))

    def _asked_of(self, trial: Entry) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """The tree of keys of a proposal, and its row."""
        return with_values(self.search.tree, trial["values"]), {trial["strategy"]: [trial["row"]]}

    def _next(self, proposals: Proposals) -> Entry | None:
        """The trial to run now: one that was left, a new one, or one that others are at."""
        with self._order() as order:
            proposals.follow(order)
            waiting = [proposals.entries[n] for n in proposals.without_score()]
            if left := [trial for trial in waiting if self._was_left(trial)]:
                return left[0]
            if len(proposals.entries) == self.search.trials:
                return random.choice(waiting) if waiting else None
            order.append(proposals.ask())
            return order[-1]

    def _note_value(self, proposals: Proposals, trial: Entry) -> None:
        """Write what a trial is worth to the sampler into the order, unless another has."""
        score = self._unit().sign * self._scored(*self._asked_of(trial))[0].score
        with self._order() as order:
            proposals.follow(order)
            if trial["trial"] not in proposals.scored:
                number = {name: trial[name] for name in ("strategy", "trial")}
                order.append({**number, "value": _plain(score)})

    def _was_left(self, trial: Entry) -> bool:
        """Whether a trial was begun, and nobody works on it now."""
        tree, labels = self._asked_of(trial)
        asked = self._experiment(tree, list(range(self.search.seeds)), self._rows_of(labels))
        mine = [p for p in self._parts_of(asked) if _same_rows(parts.experiment_of(p), asked)]
        return any(not run_folder.in_use(part) for part in mine)

    @contextmanager
    def _order(self) -> Iterator[list[Entry]]:
        """The order of proposals and their values, for one process at a time; additions are kept.

        Until the first trial is checked nothing is written: all begin with the same proposal.
        """
        if load_search(self.out) is None:
            yield self._first
            return
        with closing(_wait_for_lock(self.out / run_folder.SEARCH)):
            there = load_search(self.out) or {}
            order = list(there.get("order") or self._first)
            yield order
            if order != there.get("order"):
                self._write({**there, "order": order})

    def _train(self, tree: Mapping[str, Any], labels: Mapping[str, list[str]]) -> Iterator[Session]:
        """Run some rows with the same settings."""
        rows = self._rows_of(labels)
        asked = self._experiment(tree, list(range(self.search.seeds)), rows)
        where = self.out / run_folder.SEARCH
        yield from self._whole([asked], rows, where, apart=True).sessions()

    def _rows_of(self, labels: Mapping[str, list[str]]) -> dict[str, str]:
        return {row: self._rows[spec][row] for spec, some in labels.items() for row in some}

    def _scored(self, tree: Mapping[str, Any], labels: Mapping[str, list[str]]) -> list[Trial]:
        """The trials of these rows with their scores on validation data."""
        asked = self._experiment(tree, list(range(self.search.seeds)), self._rows_of(labels))
        values = {
            name: reduce(getattr, name.split("."), asked) for name in _space(self.search.tree)
        }
        histories = [("", run_folder.load_history(part)) for part in self._parts_of(asked)]
        judged = parts.merged(histories).judged_on("validation")
        found = {row.label: row for row in judged.summary()}
        return [
            _trial(spec, label, values, found[label], self.search.seeds)
            for spec, some in labels.items()
            for label in some
        ]

    def _parts_of(self, asked: Experiment) -> list[Path]:
        """The run folders of the search that have these settings."""
        mine = parts.run_settings(asked)
        found = parts.folders(self.out / run_folder.SEARCH)
        begun = [part for part in found if files.exists(part / run_folder.EXPERIMENT_FILE)]
        return [p for p in begun if parts.run_settings(parts.experiment_of(p)) == mine]

    def _final(self) -> Iterator[Session]:
        """Run what was picked with seeds that no trial had."""
        groups: dict[str, dict[str, str]] = {}
        trees: dict[str, dict[str, Any]] = {}
        for trial in self.trials:
            if trial.picked:
                key = json.dumps(trial.values, sort_keys=True)
                groups.setdefault(key, {})[trial.row] = self._rows[trial.strategy][trial.row]
                trees[key] = with_values(self.search.tree, trial.values)
        wholes = [
            self._whole(
                [self._experiment(trees[key], self.fresh, rows)],
                rows,
                self.out,
                apart=len(groups) > 1,
            )
            for key, rows in groups.items()
        ]
        yield from shared([whole.sessions for whole in wholes])

    def _experiment(
        self, tree: Mapping[str, Any], seeds: list[int], rows: Mapping[str, str]
    ) -> Experiment:
        given = {**tree, "strategies": list(rows.values()), "seeds": seeds}
        return checks.build_checked(given) if self.own is None else config.build(given)

    def _whole(
        self, asked: list[Experiment], rows: Mapping[str, str], out: Path, *, apart: bool
    ) -> RunGroup:
        keys = tuple(_space(self.search.tree))
        return RunGroup(
            asked,
            rows,
            keys,
            out,
            self.own,
            check=self._begin,
            command=self.command,
            apart=apart,
        )

    def _begin(self, session: Session) -> None:
        """Before anything is written: refuse data on which nothing can be picked."""
        if session.batch.ranks.count > 1:
            raise InputError("tune is one process: start it without torchrun")
        if not all(run.federation.validation.size.any() for run in session.batch.runs):
            session.close()
            raise InputError(
                "tune picks on validation data, but none are held back: add --validation 20%"
            )
        if load_search(self.out) is None:
            without_effect.refuse_precision(session.experiment)
            self._note([])

    def _unit(self) -> Any:
        return parts.load_history(self.out / run_folder.SEARCH).unit

    def _refuse_other(self) -> None:
        """Refuse a folder of another search, or of something else."""
        there, mine = load_search(self.out), self._asked()
        if there is None:
            begun = files.exists(self.out / run_folder.EXPERIMENT_FILE)
            if begun or run_folder.holds_something_else(self.out):
                raise InputError(f"{self.out} exists and is no search: choose another --out")
        elif other := [key for key, value in mine.items() if there["search"].get(key) != value]:
            raise InputError(
                f"{self.out} holds another search, in {', '.join(other)}: choose another --out"
            )

    def _note(self, trials: Sequence[Trial]) -> None:
        """Write what is searched and what was found."""
        shown = [{k: _plain(v) for k, v in vars(trial).items()} for trial in trials]
        order = (load_search(self.out) or {}).get("order") or self._first
        found = {"search": self._asked(), "trials": shown}
        self._write(found | ({"order": order} if order else {}))

    def _write(self, found: Mapping[str, Any]) -> None:
        text = json.dumps(found, indent=2, allow_nan=False) + "\n"
        run_folder.make_folder(self.out)
        run_folder.write_file(self.out / run_folder.SEARCH_FILE, text.encode())

    def _asked(self) -> dict[str, Any]:
        search = self.search
        space = {name: _told(values) for name, values in _space(search.tree).items()}
        return {
            "strategies": list(search.strategies),
            "grid": space,
            "sampler": search.sampler,
            "trials": search.trials,
            "pick": search.rule,
            "search_seeds": search.seeds,
        }


def _fresh_seeds(search: Search) -> list[int]:
    """Seeds that no trial has: as many as asked for, after those of the trials."""
    seeds = config.build({"strategies": ["fedavg"], "seeds": search.tree.get("seeds", 3)}).seeds
    if isinstance(seeds, int):
        return list(range(search.seeds, search.seeds + seeds))
    if used := [seed for seed in seeds if seed < search.seeds]:
        raise InputError(
            f"seed {used[0]} is one of the trials' (0 to {search.seeds - 1}): what is picked is "
            "judged by fresh ones: give a count, or other seeds"
        )
    return seeds


def _space(tree: Mapping[str, Any]) -> dict[str, list[Any] | Range]:
    """The keys that are tried, with their values or range."""
    found: dict[str, list[Any] | Range] = {}
    for key in config.options():
        value = config.value_at(tree, key.name)
        if isinstance(value, str) and (between := read_range(value)):
            found[key.name] = between
        elif some := sweep.values_of(tree, key):
            found[key.name] = some
    return found


def _without_ranges(search: Search) -> Mapping[str, Any]:
    for name, values in _space(search.tree).items():
        if isinstance(values, Range):
            raise InputError(
                f"{name} has a range, which --sampler {search.sampler} cannot try: list its values "
                "as [0.01,0.1], or say --sampler tpe"
            )
    return search.tree


def _same_budget(
    grids: Mapping[str, list[tuple[str, int]]], search: Search
) -> dict[str, list[tuple[str, int]]]:
    """The trials of each strategy, the same number for all: its grid, or some drawn from it."""
    sizes = {spec: len(grid) for spec, grid in grids.items()}
    told = ", ".join(f"{spec} {size}" for spec, size in sizes.items())
    if search.sampler == "grid" and search.trials is None:
        if len(set(sizes.values())) > 1:
            least = min(sizes.values())
            raise InputError(
                f"the grids have different numbers of trials ({told}), and every strategy gets the "
                f"same: list as many values for each, or say --sampler random --trials {least}"
            )
        return dict(grids)
    many = search.trials or 0
    if search.sampler == "grid":
        raise InputError(f"trials={many}: a grid is tried whole: say --sampler random as well")
    if many > min(sizes.values()):
        raise InputError(f"trials={many}, but the grids have {told}: list more values, or lower it")
    drawn = {}
    for number, (spec, grid) in enumerate(grids.items()):
        some = rng.generator(number, "tune").choice(len(grid), many, replace=False)
        drawn[spec] = [grid[i] for i in sorted(some.tolist())]
    return drawn


def _trial(spec: str, label: str, values: dict[str, Any], row: Row, seeds: int) -> Trial:
    whole = row.seeds == seeds
    return Trial(
        spec,
        label,
        values,
        row.seeds,
        row.mean.accuracy if whole else math.nan,
        row.sd.accuracy if whole else math.nan,
        row.mean.variance if whole else math.nan,
        row.note,
    )


def _mark_pick(trials: Sequence[Trial], search: Search, unit: Any) -> None:
    """Mark the trial that the rule picks; among equals the one that was tried first."""
    good = [trial for trial in trials if math.isfinite(trial.score)]
    if not good:
        raise Diverged(f"every trial of {trials[0].strategy} diverged: try other values")
    if search.rule == "best:fair" and unit.lower:
        raise InputError(
            "pick='best:fair' goes by points of a score where higher is better, but here lower is: "
            "say --pick best:accuracy, which picks the lowest"
        )
    scale = 100.0 if unit.mark else 1.0
    score = np.array([unit.sign * trial.score for trial in good]) / scale
    variance = np.array([trial.variance for trial in good]) / scale**2
    good[deployed.pick_round(search.rule, score, variance)].picked = True


def _same_rows(one: Experiment, other: Experiment) -> bool:
    return (one.strategies, one.seed_list()) == (other.strategies, other.seed_list())


def _wait_for_lock(folder: Path) -> files.FolderLock:
    """Lock a folder that other processes hold for moments."""
    while True:
        try:
            return files.FolderLock(folder)
        except Busy:
            time.sleep(0.05)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _told(values: list[Any] | Range) -> Any:
    if isinstance(values, Range):
        return f"{'log:' * values.log}{values.low:g}..{values.high:g}"
    return values


def with_grid(tree: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of keys with those of a grid, which are named as options or as keys of a file."""
    found = copy.deepcopy(dict(tree))
    names = {key.argument: key.name for key in config.options()}
    for name, values in grid.items():
        config.set_key(found, names.get(name.replace("-", "_"), name), values)
    return found
