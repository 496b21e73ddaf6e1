"""Who takes part in a round, and the table of rows that are to be trained.

A cohort is the participants of one run. Each participant is one row of the round's table. A chunk
is some rows that are trained at once; a job is the training of one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.kept_vectors import (
    added_terms,
    as_slice,
    put_rows,
    take_rows,
    vector_pieces,
)
from fedmaba.simulation.local_training import AddedTerms, TrainingJob
from fedmaba.simulation.optimiser import counted_steps, parse_schedule
from fedmaba.simulation.state import Plan, Run
from fedmaba.strategies.base import PERSONAL, Local, Needs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Cohort:
    """The participants of one run in one round."""

    r: int  #                 number of the run in the batch
    run: Run
    needs: Needs
    client: IntArray  # (m,)
    rows: slice  #            its rows in the round's table
    kept_at: int  #           its first row in Trained.changes; -1: it has none there


@dataclass(frozen=True)
class RowTable:
    """The rows that a round trains: the participants of all runs, one run after another."""

    cohort: IntArray  # (M,)   place of its cohort in the round
    run: IntArray  # (M,)
    client: IntArray  # (M,)
    first: IntArray  # (M,)    where its training examples begin in batch.train
    size: IntArray  # (M,)     how many they are
    steps: IntArray  # (M,)
    key: IntArray  # (M,)      random stream of this client in this round
    kind: IntArray  # (M,)     rows of one kind can be trained together


@dataclass(frozen=True)
class Drawn:
    """What is known of a round before training: who takes part, with which random streams."""

    round: int
    lr: float
    cohorts: list[Cohort]
    table: RowTable
    chunks: list[IntArray]  #  rows of the table that this rank trains

    @property
    def runs(self) -> list[int]:
        """The numbers of the runs that play this round."""
        return [c.r for c in self.cohorts]

    @property
    def late(self) -> list[Cohort]:
        """The cohorts whose weights come after training; until then their changes are kept."""
        return [c for c in self.cohorts if c.kept_at >= 0]

    def rows_in_order_and_equal(self, rows: IntArray) -> bool:
        """Whether these are all rows of the table, in order, with equally many for each run."""
        many = np.bincount(self.table.cohort)
        whole = len(rows) == len(self.table.size)
        return bool(whole and (many == many[0]).all() and (rows == np.arange(len(rows))).all())


def draw(batch: Batch, runs: list[int], t: int) -> Drawn:
    """Draw the participants of a round with their random streams; cut their rows into chunks."""
    plan, cohorts, columns, end, kept = batch.plan, [], [], 0, 0
    same: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}  # runs of one seed draw alike
    for r in runs:
        run, needs = batch.runs[r], batch.needs[r]
        n, part, local = run.federation.n_clients, run.federation.train, batch.local[r]
        if (run.seed, n) not in same:
            drawn, stream = batch.draws(run.seed, t, n, plan.participants or n)
            same[run.seed, n] = (drawn, stream.view(np.int64))
        client, key = same[run.seed, n]
        size = part.size[client]
        epoch = -(-size // plan.minibatch)
        steps = np.full_like(size, plan.steps) if plan.steps else plan.epochs * epoch
        steps = np.ones_like(size) if local.full_batch else steps
        begin, end = end, end + len(client)
        late = not needs.early
        cohorts.append(Cohort(r, run, needs, client, slice(begin, end), kept if late else -1))
        kept += len(client) if late else 0
        first = batch.train.base[r] + part.start[client]
        columns.append((client, first, size, steps, key, batch.kinds(r, client)))
    whose = np.repeat(np.arange(len(runs)), [len(c.client) for c in cohorts])
    client, first, size, steps, key, kind = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    table = RowTable(whose, np.array(runs)[whose], client, first, size, steps, key, kind)
    return Drawn(t, plan.lr_in_round(t), cohorts, table, _chunks(batch, table))


def _chunks(batch: Batch, table: RowTable) -> list[IntArray]:
    """Cut this rank's rows into chunks of one kind, those with the most steps first."""
    order = np.lexsort((-table.size, -table.steps, table.kind))[batch.ranks.mine]
    cuts = np.flatnonzero(np.diff(table.kind[order])) + 1
    groups = np.split(order, cuts) if len(cuts) else [order]
    most = batch.progress.chunk
    return [group[a : a + most] for group in groups for a in range(0, len(group), most)]


def job_of(batch: Batch, drawn: Drawn, rows: IntArray) -> TrainingJob:
    """The local training of one chunk of rows: of the models that clients send."""
    plan, table = batch.plan, drawn.table
    local, whose = _local_work(batch, drawn, rows)
    return TrainingJob(
        run=table.run[rows],
        first=table.first[rows],
        size=table.size[rows],
        key=table.key[rows],
        steps=table.steps[rows],
        minibatch=plan.minibatch,
        lr=drawn.lr,
        optimiser=plan.optimiser,
        schedule=parse_schedule(plan.step_schedule, "step_schedule"),
        augment=None if plan.augment is None else parse_augment(plan.augment),
        local=local,
        whose=whose,
        added=_added(batch, drawn, rows),
        own=own_parts(batch, table.run[rows], table.client[rows]),
    )


def _local_work(batch: Batch, drawn: Drawn, rows: IntArray) -> tuple[tuple[Local, ...], IntArray]:
    """What clients do, and which of it each row does."""
    whose, client = drawn.table.cohort[rows], drawn.table.client[rows]
    if all(batch.pulls[c.r] is None for c in drawn.cohorts):
        return tuple(batch.local[c.r] for c in drawn.cohorts), whose
    work: list[Local] = []
    which = np.empty_like(whose)
    for i, c in enumerate(drawn.cohorts):
        mine, local, pulls = np.flatnonzero(whose == i), batch.local[c.r], batch.pulls[c.r]
        own = np.full(len(mine), local.pull) if pulls is None else pulls[client[mine]]
        each, place = np.unique(own, return_inverse=True)
        which[mine] = len(work) + place
        work += [replace(local, prox=float(pull)) for pull in each]
    return tuple(work), which


def personal_job(batch: Batch, drawn: Drawn, rows: IntArray, job: TrainingJob) -> TrainingJob:
    """The training of the clients' own models, on the minibatches of the models that they send."""
    table = drawn.table
    local = tuple(Local(prox=p.prox) if p else Local() for p in (o.personal for o in job.local))

    def begin(into: Tensor) -> None:
        for r in np.unique(table.run[rows]):
            mine = np.flatnonzero(table.run[rows] == r)
            own = take_rows(batch.progress.vectors[r][PERSONAL], table.client[rows[mine]])
            put_rows(into, mine, own)

    return replace(job, local=local, added=None, begin=begin)


def kept_rows(batch: Batch, r: int, name: str, client: IntArray) -> Tensor:
    """(m, P) A vector that some clients of a run keep, on the device."""
    vector = batch.progress.vectors[r][name]
    found = vector.index_select(0, send(client, vector.device))
    return found.to(batch.progress.model.device)


def counted(plan: Plan, steps: IntArray) -> FloatArray:
    """(m,) What the local steps of clients amount to, as `counted_steps` says."""
    schedule = parse_schedule(plan.step_schedule, "step_schedule")
    each, place = np.unique(steps, return_inverse=True)
    return np.array([counted_steps(plan.optimiser, schedule, int(k)) for k in each])[place]


def _added(batch: Batch, drawn: Drawn, rows: IntArray) -> AddedTerms | None:
    """Writes what rows add to their gradients; None where rows of this kind add nothing."""
    progress, run, client = batch.progress, drawn.table.run[rows], drawn.table.client[rows]
    local = batch.local[int(run[0])]
    if not (local.add or local.add_mean):
        return None

    def write(total: Tensor, factor: FloatArray, towards: bool) -> None:
        for r, scale in dict.fromkeys(zip(run.tolist(), factor.tolist(), strict=True)):
            mine = np.flatnonzero((run == r) & (factor == scale))
            local, vectors = batch.local[r], progress.vectors[r]
            start = progress.model[r] if towards else None
            for part in vector_pieces(len(mine), total.shape[1], total.device):
                here = mine[part]
                at = as_slice(here)
                into = total.new_empty(len(here), total.shape[1]) if at is None else total[at]
                kept = {n: take_rows(vectors[n], client[here]).to(total.device) for n in local.add}
                added_terms(local, kept, progress.means[r], into, scale, start)
                if at is None:
                    put_rows(total, here, into)

    return write


def own_parts(batch: Batch, run: IntArray, client: IntArray) -> Tensor | None:
    """(R, P - S) The part of the model that clients of some runs keep; None where they send all."""
    own = batch.progress.own
    if not own[0].shape[1]:
        return None
    out = own[0].new_empty(len(client), own[0].shape[1])
    for r in np.unique(run):
        mine = np.flatnonzero(run == r)
        out[send(mine, out.device)] = own[r][send(client[mine], out.device)]
    return out


def with_own_parts(batch: Batch, w: Tensor, run: IntArray, client: IntArray) -> Tensor:
    """Models (R, P) as these clients use them: with the part that each keeps, in place."""
    own = own_parts(batch, run, client)
    if own is not None:
        w[:, batch.rows.layout.shared :] = own
    return w


def change_factors(cohorts: list[Cohort]) -> FloatArray | None:
    """By which factor each row multiplies its change; None where no client does."""
    hostile = [c.run.federation.hostile for c in cohorts]
    if all(lies is None or lies.attack.update == 1 for lies in hostile):
        return None
    both = zip(cohorts, hostile, strict=True)
    return np.concatenate(
        [lies.update_factors(c.client) if lies else np.ones(len(c.client)) for c, lies in both]
    )


def scale_malicious_updates(model: Tensor, w: Tensor, run: IntArray, factor: FloatArray) -> None:
    """Multiply the model changes of hostile clients' rows, in place."""
    rows = np.flatnonzero(factor != 1)
    if len(rows):
        at, start = send(rows, w.device), model.index_select(0, send(run[rows], w.device))
        many = send(factor[rows, None], w.device).to(w.dtype)
        w.index_copy_(0, at, start + many * (w.index_select(0, at) - start))


def not_finite(summaries: list[tuple[IntArray, Tensor]], many: int) -> NDArray[np.int64]:
    """1 for each row of a round's table that ended with a loss or model that is not finite."""
    out = np.zeros(many, np.int64)
    for rows, numbers in summaries:
        out[rows] = (~numbers.isfinite().all(0)).cpu().numpy()
    return out


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error means that a GPU or a CPU ran out of memory."""
    if error is None:
        return False
    cpu = "DefaultCPUAllocator" in str(error)
    return cpu or isinstance(error, torch.OutOfMemoryError) or out_of_memory(error.__context__)
