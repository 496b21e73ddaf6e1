"""Who takes part in a round and what each trains: cohorts of clients, rows, chunks, jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.batch import Batch
from fedmaba.local import Job
from fedmaba.runs import Progress, Run
from fedmaba.strategy import Bend, Decision, Needs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Host = Callable[[], NDArray[Any]]  # waits for what is copied to the host


@dataclass
class Cohort:
    """One run's round in the making."""

    r: int
    run: Run
    same: list[int]  #                        this run and those that only hand out another model
    needs: Needs
    client: IntArray  # (m,)
    rows: slice  #                            its rows in the round's table
    loss: FloatArray | None = None  # (m,)
    change: Tensor | None = None  # (m, P)    kept where the weights come after training
    place: int = 0  #                         its first row among all that are kept
    decision: Decision | None = None


@dataclass(frozen=True)
class Table:
    """Rows to be trained: participants of all runs, one run after another."""

    cohort: IntArray  # (M,)   whose
    run: IntArray  # (M,)
    first: IntArray  # (M,)    where its training examples begin in batch.train
    size: IntArray  # (M,)     how many they are
    steps: IntArray  # (M,)
    key: IntArray  # (M,)      random stream of this client in this round
    kind: IntArray  # (M,)     rows of one kind can be trained together


@dataclass(frozen=True)
class Drawn:
    """All of a round that does not depend on the models."""

    cohorts: list[Cohort]
    table: Table
    chunks: list[IntArray]  #  rows of the table that this rank trains


@dataclass
class Begun:
    """A round of a lane that has begun: its losses and its training are asked for."""

    lr: float
    table: Table
    cohorts: list[Cohort]
    model: Tensor  # (R, P)     that it begins with
    kept: Tensor  # (n, P)      changes of the cohorts whose weights come after training
    losses: Callable[[], None]  # waits for the losses at the server's model and hands them out
    trained: Iterator[tuple[IntArray, Tensor, Tensor]]  # rows, and what `local.train` gave of them
    taken: list[tuple[IntArray, Tensor]] = field(default_factory=list)  # rows, their loss and sum
    met: list[tuple[Cohort, IntArray, Host]] = field(default_factory=list)  # losses of places
    looks: list[dict[str, Host]] | None = None  # what strategies want to know of the changes

    @cached_property
    def delta(self) -> Tensor:
        """(R, P) What is to be added to the models, where rows are added up part by part."""
        return torch.zeros_like(self.model)


def draw(batch: Batch, alive: list[int], t: int) -> Drawn:
    """Who takes part in a round, with which random streams, in which chunks."""
    plan, cohorts, columns, end = batch.plan, [], [], 0
    same: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}  # runs of one seed draw alike
    for r in alive:
        run = batch.runs[r]
        n, part, local = run.federation.n_clients, run.federation.train, batch.local[r]
        if (run.seed, n) not in same:
            drawn, stream = batch.draws(run.seed, t, n, plan.participants or n)
            same[run.seed, n] = (drawn, stream.view(np.int64))
        client, key = same[run.seed, n]
        size = part.size[client]
        epoch = -(-size // plan.minibatch)
        steps = np.full_like(size, plan.steps) if plan.steps else plan.epochs * epoch
        needs, begin, end = batch.needs[r], end, end + len(client)
        cohorts.append(Cohort(r, run, batch.same[r], needs, client, slice(begin, end)))
        if needs.loss in ("mean", "end"):
            cohorts[-1].loss = np.zeros(len(client))
        steps = np.ones_like(size) if local.full_batch else steps
        columns.append((batch.train.base[r] + part.start[client], size, steps, key))
    whose = np.repeat(np.arange(len(alive)), [len(c.client) for c in cohorts])
    first, size, steps, key = (np.concatenate(column) for column in zip(*columns, strict=True))
    kind = batch.kind[alive][whose]
    table = Table(whose, np.array(alive)[whose], first, size, steps, key, kind)
    order = np.lexsort((-table.size, -table.steps, table.kind))  # of one kind, longest first
    order = order[batch.ranks.mine]
    cuts = np.flatnonzero(np.diff(table.kind[order])) + 1
    groups = np.split(order, cuts) if len(cuts) else [order]
    most = batch.progress.chunk
    chunks = [group[a : a + most] for group in groups for a in range(0, len(group), most)]
    return Drawn(cohorts, table, chunks)


def keep(model: Tensor, late: list[Cohort]) -> Tensor:
    """Room for the changes of all cohorts whose weights come after training; each has its part."""
    room = model.new_zeros(sum(len(c.client) for c in late), model.shape[1])
    end = 0
    for c in late:
        begin, end = end, end + len(c.client)
        c.change, c.place = room[begin:end], begin
    return room


def job_of(batch: Batch, cohorts: list[Cohort], table: Table, rows: IntArray, lr: float) -> Job:
    """The local work of a chunk of rows of one kind."""
    plan, whose = batch.plan, table.cohort[rows]
    local = [batch.local[c.r] for c in cohorts]
    one, bend = local[whose[0]], None
    if any(local[i].bend for i in np.unique(whose)):
        bends = [o.bend or Bend(math.inf, 1.0, 1.0) for o in local]
        bend = np.array([[getattr(b, f.name) for b in bends] for f in fields(Bend)])[:, whose]
    return Job(
        run=table.run[rows],
        first=table.first[rows],
        size=table.size[rows],
        key=table.key[rows],
        steps=table.steps[rows],
        minibatch=plan.minibatch,
        lr=lr,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        prox=np.array([o.prox for o in local])[whose] if one.prox > 0 else None,
        bend=bend,
        full_batch=one.full_batch,
    )


def factors(cohorts: list[Cohort]) -> FloatArray | None:
    """How many times its change each row sends; None where all are honest in that."""
    hostile = [c.run.federation.hostile for c in cohorts]
    if all(lies is None or lies.attack.update == 1 for lies in hostile):
        return None
    both = zip(cohorts, hostile, strict=True)
    return np.concatenate(
        [lies.factor(c.client) if lies else np.ones(len(c.client)) for c, lies in both]
    )


def diverge(at: Progress, c: Cohort, t: int, why: str) -> None:
    label = c.run.strategy.label()
    for r in c.same:
        at.diverged[r] = f"{label}, seed {c.run.seed}, diverged in round {t + 1}: {why}"
    c.decision = None
