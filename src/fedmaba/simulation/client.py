"""How clients train: a chunk of the simulator's rows, or the one row of a site on Flower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.rows import Rows
from fedmaba.rows.cuda_graphs import GraphCache, send
from fedmaba.simulation.augmentation import Augmentation
from fedmaba.simulation.local_training import Pool, TrainingJob, train_chunk
from fedmaba.simulation.memory import ClientMemory
from fedmaba.simulation.optimiser import Optimiser, Schedule, counted_steps
from fedmaba.simulation.part import Part
from fedmaba.strategies.base import Local

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Trainer:
    """What clients train with, and what they keep."""

    rows: Rows
    pool: Pool
    graphs: GraphCache
    local: Sequence[Local]  #     of each run
    memory: ClientMemory
    parts: Sequence[Part]
    minibatch: int
    optimiser: Optimiser
    schedule: Schedule  #         of the step size, over the steps of a client
    augment: Augmentation | None

    def counted(self, steps: IntArray) -> FloatArray:
        """(m,) What the local steps of clients amount to, as `counted_steps` says."""
        each, place = np.unique(steps, return_inverse=True)
        amounts = [counted_steps(self.optimiser, self.schedule, int(k)) for k in each]
        return np.array(amounts)[place]

    def used(self, r: int, client: IntArray, models: Tensor) -> Tensor:
        """(n, P) the server's models as these clients of a run use them, in place."""
        for part in self.parts:
            models = part.used(self, r, client, models)
        return models


class GuidedSteps(NamedTuple):
    """What joins the local steps of a cohort, beside its own gradients."""

    scale: FloatArray  # (m,)    of each participant's gradients
    own: FloatArray  # (m,)      of its gradient at the server's model
    mix: Tensor | None  # (P,)   the mix of all participants' gradients there; None: nothing


@dataclass
class Chunk:
    """Rows that are trained at once, each of them one client of one run."""

    rows: IntArray  # (n,)      of the round's table
    run: IntArray  # (n,)
    client: IntArray  # (n,)
    place: IntArray  # (n,)     of each in its cohort
    models: Tensor  # (R, P)    of the servers
    job: TrainingJob  #         of the models that clients send
    new: Mapping[int, Mapping[str, Tensor]]  # (m, width) by run: where cohorts' columns are written
    guides: Mapping[int, GuidedSteps] = field(default_factory=dict)  # by run, see `parts.guided`
    slot: object = None  #      apart from results of other chunks, see `GraphCache.run`
    trains: bool = True  #      whether the models that are sent are trained
    # after training
    end: Tensor = field(init=False, repr=False)  # (n, P) the models that clients send
    summary: Tensor = field(init=False, repr=False)  # (2, n) mean loss, and sum of weights
    factor: FloatArray | None = None  # (n,)       by which clients multiplied their changes
    checks: list[Tensor] = field(default_factory=list)  # (n,) finite where all else of a row is
    numbers: dict[str, Tensor] = field(default_factory=dict)  # (n,) what servers may ask for
    made: dict[str, Tensor] = field(default_factory=dict)  # (n, .) what parts leave to others

    def by_run(self, runs: frozenset[int]) -> Iterator[tuple[int, IntArray]]:
        """The runs of the chunk that are among these, and which of its rows are theirs."""
        for r in np.unique(self.run):
            if int(r) in runs:
                yield int(r), np.flatnonzero(self.run == r)


def train_clients(trainer: Trainer, chunk: Chunk) -> None:
    """Train the rows of a chunk as their runs' strategies and parts say."""
    for part in trainer.parts:
        part.prepare(trainer, chunk)
    if chunk.trains:
        run = (trainer.rows, trainer.pool, chunk.models, chunk.job, trainer.graphs, chunk.slot)
        chunk.end, chunk.summary = train_chunk(*run)
    else:
        chunk.end = chunk.models.index_select(0, send(chunk.run, chunk.models.device))
        if chunk.job.own is not None:
            chunk.end[:, trainer.rows.layout.shared :] = chunk.job.own
        chunk.summary = torch.stack([torch.zeros_like(chunk.end[:, 0]), chunk.end.sum(1)])
    for part in trainer.parts:
        part.finish(trainer, chunk)
    if trainer.graphs.on and chunk.trains:
        chunk.summary = chunk.summary.clone()  # which a replay overwrites
