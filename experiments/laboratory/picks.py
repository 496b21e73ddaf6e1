"""Targets that search: trials, a pick for each row on validation data, fresh seeds of the picks.

A pick at the end of its grid asks for more trials (grids.py). The trials are runs as any other, in
the archive like the fresh ones, so the pick is a function of the archive: whoever reads the same
files finds the same picks. Test data play no part. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedmaba.results.history import History
from fedmaba.results.metrics import Fairness, Unit
from fedmaba.results.run_history import Model, RunHistory
from fedmaba.strategies import deployed
from fedmaba.strategies.base import Strategy
from laboratory import archive, grids, targets
from laboratory.archive import ArchiveFile
from laboratory.targets import Job, RunKey, Target, row_of


class SearchTrial(NamedTuple):
    """One setting of one row, and its scores on validation data."""

    row: str
    job: Job  # the experiment that it belongs to
    label: str
    asked: int  #       seeds
    found: int  #       of them that are done
    seeds: int  #       of these that did not diverge
    score: float
    variance: float
    good: float  # what the target's rule goes by; more is better
    note: str
    picked: bool = False


class TargetSize(NamedTuple):
    """How many runs and updates a target takes, and how many runs are done."""

    name: str
    title: str
    runs: int
    done: int  #    of the runs
    updates: int  # of clients, in all runs


def for_own_models(strategy: Strategy) -> bool:
    """Whether a strategy is there for models of the clients' own, and its server is a means.

    A model that is trained alone so that the server learns its loss is a yardstick.
    """
    local = strategy.local()
    own = local.own_model or bool(local.own_layers) or local.second is not None
    return own and not strategy.needs().alone


def judged_model(strategy: Strategy) -> Model:
    """The model that a strategy is for.

    A client that trains layers of its own is served by the deployed model with these layers.
    """
    local = strategy.local()
    trained_layers = bool(local.own_layers) and local.own_epochs != 0
    return "personal" if for_own_models(strategy) and not trained_layers else "deployed"


def judged_alone(run: RunHistory, label: str, model: Model) -> RunHistory:
    """A run by this name with one model, as its deployed one."""
    recorded = run.recorded(model)
    tables = {f"deployed.{word}": run.tables[f"{recorded}.{word}"] for word in ("accuracy", "loss")}
    return replace(run, label=label, tables={"evaluated": run.tables["evaluated"], **tables})


def searched(target: Target, batches: Sequence[ArchiveFile]) -> Target:
    """The target with every trial that its own results ask for."""
    while target.view.further:
        before = target
        for trial in _scored(target, batches):
            if trial.picked:
                target = grids.extended(target, trial.row, trial.job, trial.label)
        if target.jobs == before.jobs:
            break
    return target


def trials(target: Target, batches: Sequence[ArchiveFile]) -> list[SearchTrial]:
    """Every trial row by row, the picked ones marked; a row that lacks a run has no pick."""
    return _scored(searched(target, batches), batches)


def _scored(target: Target, batches: Sequence[ArchiveFile]) -> list[SearchTrial]:
    rule = target.view.pick
    found = [trial for job in target.jobs for trial in _of_job(job, batches, rule)]
    rows: dict[str, list[SearchTrial]] = {}
    for trial in found:
        rows.setdefault(trial.row, []).append(trial)
    return [trial for own in rows.values() for trial in _with_pick(own, rule)]


def _goodness(found: Fairness, rule: str, unit: Unit) -> float:
    """What a rule goes by first, as a share where scores are shares."""
    return unit.sign * (found.worst if rule == "best:worst" else found.accuracy) / unit.scale


def _of_job(job: Job, batches: Sequence[ArchiveFile], rule: str) -> list[SearchTrial]:
    """The trials of one experiment."""
    keys = _trial_keys(job)
    history = archive.deployed_history(batches, replace(job, runs=keys))
    judged, unit = history.judged_on("validation"), history.unit
    by_model = {
        model: {row.label: row for row in judged.summary(model)}
        for model in {judged_model(job.strategies[run.label]) for run in judged.runs}
    }
    out = []
    for label in dict.fromkeys(key.label for key in keys):
        asked = sum(key.label == label for key in keys)
        done = sum(run.label == label for run in history.runs)
        row = by_model.get(judged_model(job.strategies[label]), {}).get(label)
        whole = row is not None and row.seeds == asked
        out.append(
            SearchTrial(
                row_of(label),
                job,
                label,
                asked,
                done,
                row.seeds if row else 0,
                row.mean.accuracy if row and whole else np.nan,
                row.mean.variance if row and whole else np.nan,
                _goodness(row.mean, rule, unit) if row and whole else np.nan,
                row.note if row else "not run yet",
            )
        )
    return out


def _trial_keys(job: Job) -> tuple[RunKey, ...]:
    return tuple(key for key in job.runs if key.seed not in job.every_fresh)


def _with_pick(own: Sequence[SearchTrial], rule: str) -> list[SearchTrial]:
    """A row's trials, one of them picked if all are there and one did not diverge."""
    good = [i for i, trial in enumerate(own) if np.isfinite(trial.good)]
    if any(trial.found < trial.asked for trial in own) or not good:
        return list(own)
    score = np.array([own[i].good for i in good])
    variance = np.array([own[i].variance for i in good]) / 1e4
    by = "best:fair" if rule == "best:fair" else "best:accuracy"
    best = good[deployed.pick_round(by, score, variance)]
    return [trial._replace(picked=i == best) for i, trial in enumerate(own)]


def with_picks(target: Target, batches: Sequence[ArchiveFile]) -> Target:
    """The target with the fresh runs of what its search has picked so far."""
    target = replace(target, uses=tuple(with_picks(used, batches) for used in target.uses))
    if not target.view.search:
        return target
    target = searched(target, batches)
    jobs = {job.digest: job for job in target.jobs}
    for trial in _scored(target, batches):
        if trial.picked:
            job = jobs[trial.job.digest]
            (deploy,) = {key.deploy for key in job.runs if key.label == trial.label}
            asked, every = (
                [RunKey(trial.label, seed, deploy) for seed in seeds]
                for seeds in (job.fresh, job.every_fresh)
            )
            runs = tuple(dict.fromkeys([*job.runs, *asked]))
            jobs[job.digest] = replace(job, runs=runs, every=job.every | {*every})
    return replace(target, jobs=tuple(jobs.values()))


def picked_history(
    target: Target, batches: Sequence[ArchiveFile], tried: Sequence[SearchTrial] = ()
) -> History:
    """The fresh runs of what was picked, each row by the name of its strategy alone.

    `tried` are the target's trials, for a caller who has them.
    """
    runs = []
    for trial in tried or trials(target, batches):
        if trial.picked:
            job = trial.job
            deploys = {key.deploy for key in job.runs if key.label == trial.label}
            keys = tuple(RunKey(trial.label, seed, d) for seed in job.fresh for d in deploys)
            found = archive.deployed_history(batches, replace(job, runs=keys))
            runs += [replace(run, label=trial.row) for run in found.runs]
    return History(runs, target.jobs[0].experiment.eval.share)


def waiting(tried: Sequence[SearchTrial]) -> list[str]:
    """The rows of a search that have no pick yet, because a trial is not done."""
    return list(dict.fromkeys(trial.row for trial in tried if trial.found < trial.asked))


def target_sizes(batches: Sequence[ArchiveFile]) -> list[TargetSize]:
    """Every target, with how many of its runs are done."""
    there = {(batch.digest, key) for batch in batches for key in batch.keys}
    out = []
    for target in targets.every_target():
        jobs = with_picks(target, batches).every_job()
        done = sum((job.digest, key) in there for job in jobs for key in job.runs)
        runs = sum(len(job.runs) for job in jobs)
        work = sum(targets.updates(job, job.runs) for job in jobs)
        for one in (target, *target.uses):
            for job in one.jobs[:1]:  # Fresh runs of rows without a pick all have the same rounds.
                tried = trials(one, batches) if one.view.search else []
                unpicked = len(waiting(tried)) * len(job.fresh)
                runs += unpicked
                work += unpicked * targets.participants(job) * job.experiment.train.rounds
        out.append(TargetSize(target.name, target.view.title, runs, done, work))
    return out
