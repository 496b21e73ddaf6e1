"""The grid of a search: its two axes, and what is tried beyond an end that was picked. No torch.

One axis are the step sizes, the other the values of the one hyper-parameter in which a row's trials
differ. If a pick has the first or last value of an axis, the next value that the target's file
names there is tried with the pick's other value. So the grid is a function of the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from fedmaba.errors import InputError
from fedmaba.strategies.base import Strategy
from laboratory.targets import Ends, Job, RunKey, Target, row_of, step_size_of, with_step_size

LR = "lr"  # names the axis of step sizes in a target's file


class Point(NamedTuple):
    """Where a trial stands in the grid."""

    lr: float
    own: Any  # value of the row's own hyper-parameter; None for a row without


class Edge(NamedTuple):
    """One end of an axis, seen from a row's pick."""

    axis: str  # `lr`, or the name of the hyper-parameter
    picked: Any
    next: float | None  # tried next; None at an end behind which nothing is tried
    why: str  # nothing is tried there, or nothing more


def own_parameter(made: Sequence[Strategy]) -> str:
    """The name of the hyper-parameter in which a row's trials differ; empty for none."""
    trees = [asdict(strategy) for strategy in made]
    differ = [name for name in trees[0] if any(t[name] != trees[0][name] for t in trees)]
    if len(differ) > 1:
        raise InputError(f"{made[0].name}: trials differ in {' and '.join(differ)}: vary one")
    return differ[0] if differ else ""


def points(target: Target, row: str) -> dict[tuple[str, str], Point]:
    """Where each trial of a row stands, by its job's digest and its label."""
    own = own_parameter(made_of(target, row))
    return {
        (job.digest, label): Point(step_size_of(job), getattr(made, own) if own else None)
        for job in target.jobs
        for label, made in job.strategies.items()
        if row_of(label) == row
    }


def made_of(target: Target, row: str) -> list[Strategy]:
    """Every setting of a row, once."""
    found = {k: s for job in target.jobs for k, s in job.strategies.items() if row_of(k) == row}
    return list(found.values())


def edges(target: Target, row: str, picked: Point) -> Iterator[Edge]:
    """The ends of the axes at which a row's pick stands."""
    tried, own = set(points(target, row).values()), own_parameter(made_of(target, row))
    yield from _edges(LR, target.view.further.get(LR), picked.lr, {p.lr for p in tried})
    if own:
        yield from _edges(own, target.view.further.get(row), picked.own, {p.own for p in tried})


def _edges(axis: str, ends: Ends | None, picked: Any, tried: set[Any]) -> Iterator[Edge]:
    if not isinstance(picked, int | float):
        return  # names have no order, so no end
    line = sorted(tried)
    for at, sign in ((line[0], -1), (line[-1], 1)):
        if picked != at or ends is None:
            continue
        beyond = ends.low if sign < 0 else ends.high
        if isinstance(beyond, str):
            yield Edge(axis, picked, None, beyond)
            continue
        left = [value for value in beyond if sign * value > sign * at]
        why = "" if left else f"extended {len(beyond)} times"
        yield Edge(axis, picked, left[0] if left else None, why)


def extended(target: Target, row: str, picked: Job, label: str) -> Target:
    """The target with the trials that follow from a row's pick."""
    strategy = picked.strategies[label]
    seeds = {
        key for key in picked.runs if key.label == label and key.seed not in picked.every_fresh
    }
    at = points(target, row)[picked.digest, label]
    for edge in edges(target, row, at):
        if edge.next is None:
            continue
        lr, new = step_size_of(picked), strategy
        if edge.axis == LR:
            lr = edge.next
        else:
            kind = type(edge.picked)
            new = replace(strategy, **{edge.axis: kind(edge.next)})
        runs = tuple(sorted(key._replace(label=new.label()) for key in seeds))
        target = _with_trial(target, picked, lr, new, runs)
    return target


def _with_trial(
    target: Target, like: Job, lr: float, strategy: Strategy, runs: tuple[RunKey, ...]
) -> Target:
    """The target with one trial more, in the experiment of its step size."""
    jobs = {step_size_of(job): job for job in target.jobs}
    job = jobs.get(lr) or with_step_size(like, lr)
    jobs[lr] = replace(
        job,
        strategies=job.strategies | {strategy.label(): strategy},
        runs=tuple(dict.fromkeys([*job.runs, *runs])),
        every=job.every | {*runs},
    )
    return replace(target, jobs=tuple(jobs.values()))
