"""One more strategy against the stored rows of a setting: the same trials, rule and fresh seeds.

It takes as many trials as every row there: its own settings at the step sizes that a row with as
many settings tries. Its runs lie in a folder named after its code, so changed code runs anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmaba import strategies
from fedmaba.errors import InputError, unknown
from fedmaba.experiment import fingerprint
from fedmaba.report import ranks, table
from fedmaba.report.document import Document, between
from fedmaba.report.paired import interval
from fedmaba.results.history import History
from fedmaba.strategies.base import Strategy
from laboratory import baseline_tables, picks, targets
from laboratory.archive import ArchiveFile
from laboratory.baseline_tables import title_of
from laboratory.selection import CHOICES, REFERENCE, by_seed, fairness_by_seed
from laboratory.targets import Job, RunKey, Target, row_of

PREFIX = "baselines-"  # begins the names of the targets that hold every strategy
OUT = Path("runs/challenge")
BESIDE = (REFERENCE, "fedmaba")  # rows that the table shows beside the new one


def settings() -> list[str]:
    """What `--setting` takes."""
    return [name.removeprefix(PREFIX) for name in targets.names() if name.startswith(PREFIX)]


def load_setting(name: str) -> Target:
    """The target that holds every strategy in this setting."""
    if name not in settings():
        raise unknown("setting", name, settings())
    return targets.load_target(PREFIX + name)


def enter(stored: Target, spec: str) -> Target:
    """The target with the new strategy alone, in the place of a row that has as many settings."""
    made = {strategy.label(): strategy for strategy in strategies.parse(spec)}
    row = row_of(next(iter(made)))
    rows: dict[str, set[str]] = {}
    for job in stored.jobs:
        for label in job.strategies:
            rows.setdefault(row_of(label), set()).add(label)
    if row in rows:
        raise InputError(
            f"{row} has a row in {stored.name} already: `fedmaba reproduce {stored.name} --only "
            f"{row}` runs it, or give your strategy another name"
        )
    like = next((name for name, labels in rows.items() if len(labels) == len(made)), None)
    if like is None:
        many = sorted({len(labels) for labels in rows.values()})
        raise InputError(
            f"{spec!r} is {len(made)} settings, but each row of {stored.name} has as many trials, "
            f"from {' or '.join(map(str, many))} settings: name as many"
        )
    kind = type(next(iter(made.values())))
    if row not in strategies.REGISTRY:
        strategies.register(kind)
    jobs = (_entered(job, made, like) for job in stored.jobs)
    return replace(stored, jobs=tuple(job for job in jobs if job.runs))


def _entered(job: Job, made: dict[str, Strategy], like: str) -> Job:
    """A job whose only rows are the new ones, where a row like them stands."""
    seeds = sorted({key.seed for key in job.runs if row_of(key.label) == like})
    runs = tuple(RunKey(label, seed, s.deploy) for seed in seeds for label, s in made.items())
    return replace(job, strategies=made, runs=runs, every=frozenset(runs))


def folder(out: Path, entry: Target) -> Path:
    """Where the runs of a strategy lie: another place for another setting or other code."""
    first = next(iter(entry.jobs[0].strategies.values()))
    code = fingerprint.fingerprints({"strategy": type(first)}).texts.get("strategy", "")
    name = "-".join([entry.name.removeprefix(PREFIX), first.name, *code.split()[1:]])
    return out / name


def both(stored: Target, entry: Target) -> Target:
    """The target with the stored rows and the new one."""
    added = {job.digest: job for job in entry.jobs}
    return replace(stored, jobs=tuple(_joined(job, added.get(job.digest)) for job in stored.jobs))


def _joined(job: Job, new: Job | None) -> Job:
    if new is None:
        return job
    return replace(
        job,
        strategies={**job.strategies, **new.strategies},
        runs=job.runs + new.runs,
        every=job.every | new.every,
    )


def document(stored: Target, entry: Target, batches: Sequence[ArchiveFile]) -> Document:
    """The new row beside FedAvg and FedMABA, its rank, and what it is proven to beat."""
    whole = both(stored, entry)
    first = next(iter(entry.jobs[0].strategies.values()))
    row = title_of(first.name)
    out = Document(f"{row} in {stored.name.removeprefix(PREFIX)}: {stored.view.title}")
    if not any(trial.picked for trial in picks.trials(entry, batches)):
        out.text.append(f"Every trial of {row} diverged, so it has no row.")
        return out
    own = picks.for_own_models(first)
    fresh = picks.picked_history(whole, batches)
    history = baseline_tables.titled(
        baseline_tables.own_models(fresh) if own else baseline_tables.servers(fresh)
    )
    for trial in picks.trials(entry, batches):
        if trial.picked:
            lr = trial.job.title
            out.text.append(f"Picked on validation data: {trial.label}, {lr}.")
    out.text += _verdict(history, row)
    shown = {row, *map(title_of, BESIDE)}
    few = replace(history, runs=[run for run in history.runs if run.label in shown])
    out.grids.append(table.summary(few, "deployed"))
    out.grids.append(table.differences(few, "deployed", "last", row))
    out.text.append(_machines(batches))
    return out


def _verdict(history: History, row: str) -> Iterator[str]:
    """The rank by variance, and the rows from which the new one differs after Holm's correction."""
    found = fairness_by_seed(history, "deployed", CHOICES["last"])
    mean = {name: np.mean([*by_seed(found, name, "variance").values()]) for name in found}
    if row not in mean:
        yield f"No run of {row} with a fresh seed ended, so it has no rank."
        return
    place = 1 + sum(value < mean[row] for value in mean.values())
    yield f"{row} is number {place} of {len(mean)} by variance; number 1 has the least."
    samples = table.differences_by_seed(history, "deployed", "last", row)
    corrected = table.corrected_p_values(samples)
    at = table.FIGURES.index("variance")
    proven = [name for name, p in corrected.items() if p[at] < ranks.SIGNIFICANT]
    words = {
        "It is fairer than": [name for name in proven if mean[name] > mean[row]],
        "Fairer than it": [name for name in proven if mean[name] < mean[row]],
        "Undecided": [name for name in corrected if name not in proven],
    }
    yield f"After Holm's correction for {len(corrected)} comparisons, p < {ranks.SIGNIFICANT}:"
    for what, names in words.items():
        listed = ", ".join(sorted(names, key=lambda name: mean[name])) or "none"
        yield f"{what}: {listed}."
    for other in map(title_of, BESIDE):
        if other in mean:
            span = interval(table.subtract_figures(found, row, found, other)[at])
            yield f"Variance against {other}: {between(span).text} (interval of this pair alone)."


def _machines(batches: Sequence[ArchiveFile]) -> str:
    """On what the runs were made: sums differ in their last digits."""
    made = sorted({f"{batch.about['dtype']} on {batch.about['device']}" for batch in batches})
    return f"Computed in {'; '.join(made)}."
