"""A round under way: who takes part, the table of rows to be trained, and all that comes of them.

A cohort is the participants of one run. Each participant is one row of the round's table. A chunk
is some rows that are trained at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.simulation.client import Chunk, GuidedSteps, Trainer
from fedmaba.simulation.distributed import Ranks
from fedmaba.simulation.local_training import TrainingJob
from fedmaba.simulation.part import Drawn, Host
from fedmaba.simulation.state import Plan, Run
from fedmaba.strategies.base import Decision, Needs, Replies

if TYPE_CHECKING:
    from fedmaba.simulation.batch import Batch

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
    kept_at: int  #           its first row in Work.changes; -1: it has none there

    @property
    def early(self) -> bool:
        """Whether its changes are summed up as they come, since their weights are known."""
        return self.kept_at < 0


@dataclass(frozen=True)
class RowTable:
    """The rows that a round trains: the participants of all runs, one run after another."""

    cohort: IntArray  # (M,)   place of its cohort in the round
    run: IntArray  # (M,)
    client: IntArray  # (M,)
    place: IntArray  # (M,)    of the client in its cohort
    first: IntArray  # (M,)    where its training examples begin in batch.train
    size: IntArray  # (M,)     how many they are
    steps: IntArray  # (M,)
    key: IntArray  # (M,)      random stream of this client in this round
    kind: IntArray  # (M,)     rows of one kind can be trained together


@dataclass
class Work:
    """One round of some runs: first who takes part, then what is known so far. By run: `dict`s."""

    round: int
    lr: float
    cohorts: list[Cohort]
    table: RowTable
    chunks: list[IntArray]  #  rows of the table that this rank trains
    drawn: Mapping[int, Drawn]  # by run, where a part says who takes part; maybe nobody
    # of training
    new: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # (m, width) rows of columns
    means: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # (P,) of columns, new ones
    delta: Tensor | None = None  # (R, P) what joins the models, as far as it is weighed
    changes: Tensor = field(init=False, repr=False)  # (n, P) of cohorts that are weighed later
    whole: Tensor | None = None  # (M, P) all rows, where one sum can take them all
    checks: list[tuple[IntArray, Tensor]] = field(default_factory=list)  # (k, n) finite if all is
    # what strategies are told and answer
    pieces: dict[int, dict[str, list[tuple[IntArray, Host]]]] = field(default_factory=dict)
    waiting: dict[int, dict[str, Host]] = field(default_factory=dict)  # numbers by name
    counting: dict[int, Host] = field(default_factory=dict)  # (m,) whose changes count, if not all
    replies: dict[int, Replies] = field(default_factory=dict)
    decision: dict[int, Decision] = field(default_factory=dict)
    guides: dict[int, GuidedSteps] = field(default_factory=dict)  # where `guide` is asked
    ended: dict[int, str] = field(default_factory=dict)  # why runs end instead
    finite: Host | None = None  # (R,) which runs have a finite model after the server's step

    @property
    def runs(self) -> list[int]:
        """The numbers of the runs that play this round."""
        return [c.r for c in self.cohorts]

    @property
    def late(self) -> list[Cohort]:
        """The cohorts whose weights come after training; until then their changes are kept."""
        return [c for c in self.cohorts if not c.early]

    def change(self, c: Cohort) -> Tensor:
        """(m, P) The changes of a late cohort."""
        return self.changes[c.kept_at : c.kept_at + len(c.client)]

    def step_of(self, batch: Batch) -> Tensor:
        """(R, P) What joins the models; zeros at first."""
        if self.delta is None:
            self.delta = torch.zeros_like(batch.progress.model)
        return self.delta

    def rows_in_order_and_equal(self, rows: IntArray) -> bool:
        """Whether these are all rows of the table, in order, with equally many for each run."""
        many = np.bincount(self.table.cohort)
        whole = len(rows) == len(self.table.size)
        return bool(whole and (many == many[0]).all() and (rows == np.arange(len(rows))).all())

    def tell(self, c: Cohort, name: str, place: IntArray, value: Host) -> None:
        """Keep a number of some clients of a cohort, maybe still on its way, for its strategy."""
        self.pieces.setdefault(c.r, {}).setdefault(name, []).append((place, value))

    def gathered(self, c: Cohort, name: str, ranks: Ranks) -> Host:
        """(m,) What was told of a cohort's clients by all chunks on all ranks."""
        return partial(_gathered, self.pieces.get(c.r, {}).get(name, []), len(c.client), ranks)


def _gathered(pieces: list[tuple[IntArray, Host]], many: int, ranks: Ranks) -> FloatArray:
    out = np.zeros(many)
    for place, value in pieces:
        out[place] = value()
    ranks.sum(torch.from_numpy(out))
    return out


def draw(batch: Batch, runs: list[int], t: int) -> Work:
    """Draw the participants of a round with their random streams; cut their rows into chunks."""
    plan, cohorts, columns, end, kept = batch.plan, [], [], 0, 0
    same: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}  # runs of one seed draw alike
    drawn: dict[int, Drawn] = {}
    for r in runs:
        run, needs = batch.runs[r], batch.needs[r]
        n, part = run.federation.n_clients, run.federation.train
        decided = (one for p in batch.parts_of(r) if (one := p.draw(batch, r, t)) is not None)
        if (own := next(decided, None)) is not None:
            drawn[r] = own
            client, key = own.client, own.key
            if not len(client):
                continue
        else:
            if (run.seed, n) not in same:
                sample, stream = batch.draws(run.seed, t, n, plan.participants or n)
                same[run.seed, n] = (sample, stream.view(np.int64))
            client, key = same[run.seed, n]
        size = part.size[client]
        steps = steps_of(plan, batch.local[r].full_batch, size)
        begin, end = end, end + len(client)
        late = not batch.early[r]
        cohorts.append(Cohort(r, run, needs, client, slice(begin, end), kept if late else -1))
        kept += len(client) if late else 0
        first = batch.train.base[r] + part.start[client]
        place, kind = np.arange(len(client)), batch.kinds[r][client]
        columns.append((client, place, first, size, steps, key, kind))
    whose = np.repeat(np.arange(len(cohorts)), [len(c.client) for c in cohorts])
    nobody = [np.zeros(0, np.int64)] * 7
    whole = [np.concatenate(column) for column in zip(*columns, strict=True)] or nobody
    table = RowTable(whose, np.array([c.r for c in cohorts], np.int64)[whose], *whole)
    return Work(t, plan.lr_in_round(t), cohorts, table, _chunks(batch, table), drawn)


def steps_of(plan: Plan, full_batch: bool, size: IntArray) -> IntArray:
    """How many local steps clients with so many training examples take."""
    if full_batch:
        return np.ones_like(size)
    epoch = -(-size // plan.minibatch)
    return np.full_like(size, plan.steps) if plan.steps else plan.epochs * epoch


def _chunks(batch: Batch, table: RowTable) -> list[IntArray]:
    """Cut this rank's rows into chunks of one kind, those with the most steps first."""
    order = np.lexsort((-table.size, -table.steps, table.kind))[batch.ranks.mine]
    cuts = np.flatnonzero(np.diff(table.kind[order])) + 1
    groups = np.split(order, cuts) if len(cuts) else [order]
    most = batch.progress.chunk
    return [group[a : a + most] for group in groups for a in range(0, len(group), most)]


def chunk_of(trainer: Trainer, work: Work, rows: IntArray, models: Tensor) -> Chunk:
    """Some rows of a round, ready to be trained: of the models that clients send."""
    table = work.table
    job = TrainingJob(
        run=table.run[rows],
        first=table.first[rows],
        size=table.size[rows],
        key=table.key[rows],
        steps=table.steps[rows],
        minibatch=trainer.minibatch,
        lr=work.lr,
        optimiser=trainer.optimiser,
        schedule=trainer.schedule,
        augment=trainer.augment,
    )
    # lanes can have chunks of equal shapes
    slot = any(c.early for c in work.cohorts), any(c.needs.guided for c in work.cohorts)
    client, place = table.client[rows], table.place[rows]
    return Chunk(rows, job.run, client, place, models, job, work.new, work.guides, slot)


def not_finite(checks: list[tuple[IntArray, Tensor]], many: int) -> NDArray[np.int64]:
    """1 for each row of a round's table that ended with a loss or model that is not finite."""
    out = np.zeros(many, np.int64)
    for rows, numbers in checks:
        out[rows] |= (~numbers.isfinite().all(0)).cpu().numpy()
    return out


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error means that a GPU or a CPU ran out of memory."""
    if error is None:
        return False
    cpu = "DefaultCPUAllocator" in str(error)
    return cpu or isinstance(error, torch.OutOfMemoryError) or out_of_memory(error.__context__)
