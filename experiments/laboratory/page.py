"""What `fedmaba reproduce` shows of a target: our tables beside the paper's, row by row. No torch.

Three questions are kept apart: which model and at which round (selection.py), and whether a
difference to FedAvg is one (paired.py). The tables are made in target_tables.py, reading_tables.py,
fair_tables.py, baseline_tables.py and claims.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedmaba.errors import InputError
from fedmaba.report.document import Document
from laboratory import (
    archive,
    baseline_tables,
    claims,
    fair_tables,
    picks,
    reading_tables,
    target_tables,
    targets,
)
from laboratory.archive import ArchiveFile
from laboratory.paper import name_of
from laboratory.targets import Job, RunKey, Target


def document(target: Target, batches: Sequence[ArchiveFile]) -> Document:
    """The page of a target, from what has been run."""
    out, target = Document(target.view.title), picks.with_picks(target, batches)
    jobs = target.every_job()
    found = {job.digest: archive.collect(batches, job) for job in jobs}
    if not any(history.runs for history, _, _ in found.values()):
        raise InputError(
            f"{target.name}: none of its runs is there: name their folder with --from, or run "
            f"`{targets.command(target)}`"
        )
    out.text += _about(target, jobs, found)
    shows: dict[str, Callable[[Document, Target, Sequence[ArchiveFile]], None]] = {
        "table": target_tables.table,
        "grid": target_tables.search,
        "figure": target_tables.curve,
        "sweep": target_tables.sweep,
        "readings": reading_tables.readings,
        "fair": fair_tables.fair,
        "attacks": target_tables.attacks,
        "privacy": target_tables.privacy,
        "turnout": target_tables.turnout,
        "baselines": baseline_tables.every_strategy,
        "claims": claims.show_claims,
        "all": lambda *_: None,
    }
    shows[target.view.kind](out, target, batches)
    return out


# --- what is said above the tables ---------------------------------------------------------------


def _about(target: Target, jobs: Sequence[Job], found: dict[str, Any]) -> list[str]:
    """Cut down or whole, the set-up, what has not been run, where and how long it ran."""
    view, text = target.view, []
    cut = list(dict.fromkeys(change for job in jobs for change in targets.changes(job)))
    some = [part] if (part := targets.part(*jobs)) else []
    if some and not cut:
        text.append(f"A part of it: {'; '.join(some)}.")
    if cut:
        text.append(
            "CUT-DOWN VERSION, not the paper's experiment: "
            + "; ".join([*cut, *some])
            + ". Its numbers do not compare with the paper's."
        )
    text += [part for part in (view.note, view.rule and f"Rule: {view.rule}") if part]
    if target.jobs and not view.variant:
        text.append(f"Set-up: {_setup(target.jobs[0], view.step_sizes)}.")
    missing = [key for _, _, keys in found.values() for key in keys]
    if missing:
        several = _variants(jobs, found) if target.jobs else _lacking(target, found)
        listed = _listed(missing) if len(target.jobs) == 1 else several
        text.append(f"Not run yet: {listed}.")
    used = {batch.path: batch for _, own, _ in found.values() for batch in own}
    text.append(_ran(list(used.values())))
    return text


def _setup(job: Job, step_sizes: Sequence[float]) -> str:
    asked = job.experiment
    steps = " or ".join(f"{lr:g}" for lr in step_sizes or [asked.train.lr])
    data, train = asked.data, asked.train
    some = "all" if train.participants == "all" else f"{train.participants} of them"
    work = f"{train.steps} steps" if train.steps else f"{train.epochs} epoch"
    what = f"{data.name}, {data.partition}, {data.clients} clients"
    tests = {"local": "a fifth of each client's own data as test images"}
    tested = tests.get(data.test or "", "official test images by training labels")
    if job.clients:  # The note of such a target says which examples are for tests.
        what, tested = f"{data.name}, its own {job.clients} clients", ""
    held = (
        f", {data.validation} of the training images held back" if data.validation != "0%" else ""
    )
    lies = asked.attack
    hostile = f"{lies.share} of them hostile ({lies.does}), " if lies.does else ""
    return (
        f"{what}, {hostile}{some} in each round, "
        f"{train.rounds:,} rounds, {work} of minibatch {train.minibatch} at step size "
        f"{steps} · {train.lr_decay:g}^round, model {asked.model}, "
        f"{tested}{held}{', ' if tested or held else ''}"
        f"evaluation every {f'{asked.eval.every} rounds' if asked.eval.every > 1 else 'round'}"
    )


def _listed(keys: Sequence[RunKey]) -> str:
    """Runs as seeds with their rows."""
    rows: dict[str, set[int]] = {}
    for key in keys:
        rows.setdefault(name_of(key.label), set()).add(key.seed)
    seeds: dict[tuple[int, ...], list[str]] = {}
    for row, own in rows.items():
        seeds.setdefault(tuple(sorted(own)), []).append(row)
    named = []
    for lacks, labels in seeds.items():
        rest = f"; and {len(labels) - 20} more rows" if len(labels) > 20 else ""
        which = f"seed{'s' * (len(lacks) > 1)} {', '.join(map(str, lacks))}"
        named.append(f"{which} of {'; '.join(labels[:20])}{rest}")
    return ", and ".join(named)


def _variants(jobs: Sequence[Job], found: dict[str, Any]) -> str:
    """Which variants of a target lack runs."""
    lost = [(job, len(found[job.digest][2])) for job in jobs]
    return "; ".join(f"{job.title} ({n} of {len(job.runs)} runs)" for job, n in lost if n)


def _lacking(target: Target, found: dict[str, Any]) -> str:
    """Which of the targets that are shown lack runs."""
    out = []
    for used in target.uses:
        lost = [k in set(found[job.digest][2]) for job in used.every_job() for k in job.runs]
        if any(lost):
            out.append(f"{used.name} ({sum(lost)} of {len(lost)} runs)")
    return "; ".join(out)


def _ran(batches: Sequence[ArchiveFile]) -> str:
    runs = sum(len(batch.keys) for batch in batches)
    seconds = sum(float(batch.about["seconds"]) for batch in batches)
    where = sorted(
        {
            f"{b.about['device']}, {b.about['dtype']}, torch {b.about['versions']['torch']}, "
            f"fedmaba {b.about['versions']['fedmaba']}"
            for b in batches
        }
    )
    many = f"{len(batches)} batch{'es' * (len(batches) > 1)}"
    return f"The files behind it: {runs} runs in {many}, {seconds:,.0f} s on {'; '.join(where)}."
