"""The gradient of all of a client's examples at the model it starts from, beside its training.

Kept vectors may be made of it, and a server may weigh one step along it (`Needs.first_steps`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation import server_step
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, Trainer
from fedmaba.simulation.local_training import train_chunk
from fedmaba.simulation.optimiser import Optimiser, Schedule
from fedmaba.simulation.part import Part, Setting
from fedmaba.simulation.work import Work

GRADIENT = "full gradient"  # what `Chunk.made` calls it
# A step of this size makes a full gradient out of two models. It is so large that the weights take
# no digits from the gradient, and a power of two, so that dividing by it is exact.
GRADIENT_STEP = 2.0**20


class FullGradient(Part):
    """The runs that need it."""

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        self.first_steps = {r for r in runs if setting.needs[r].first_steps}

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        kept = setting.local[r].keep.values()
        return setting.needs[r].first_steps or any(keep.full_gradient for keep in kept)

    def joins_step(self, r: int) -> bool:
        return r in self.first_steps

    def alike(self, r: int) -> int:
        return int(r in self.runs)

    def finish(self, trainer: Trainer, chunk: Chunk) -> None:
        if int(chunk.run[0]) in self.runs:  # rows of one chunk are alike
            chunk.made[GRADIENT] = full_gradients(trainer, chunk)

    def collect(self, batch: Batch, work: Work, chunk: Chunk) -> None:
        weights = slice(batch.rows.layout.compared)
        for c in work.cohorts:
            mine = np.flatnonzero(chunk.run == c.r)
            if c.r not in self.first_steps or c.r not in work.decision or not len(mine):
                continue
            m = len(c.client)
            coef = -work.lr * work.decision[c.r].coef[m + chunk.place[mine]]
            if chunk.factor is not None:
                coef = coef * chunk.factor[mine]
            here = send(mine, chunk.end.device)
            first = chunk.made[GRADIENT].index_select(0, here)[:, weights]
            delta = work.step_of(batch)
            delta[c.r, weights] += server_step.combine_changes(coef, first)


def full_gradients(trainer: Trainer, chunk: Chunk) -> Tensor:  # (n, P)
    """The gradient of all examples of each row's client, at the model that it starts from."""
    job = chunk.job
    whole = replace(
        job,
        steps=np.ones_like(job.steps),
        lr=GRADIENT_STEP,
        optimiser=Optimiser(),
        schedule=Schedule(),
        augment=None,
        pull=None,
        full_batch=True,
        objective=None,
        added=None,
    )
    slot = ("gradient", chunk.slot)
    moved, _ = train_chunk(trainer.rows, trainer.pool, chunk.models, whole, trainer.graphs, slot)
    start = chunk.models.index_select(0, send(job.run, chunk.models.device))
    if job.own is not None:
        start[:, trainer.rows.layout.shared :] = job.own
    return (start - moved).div_(GRADIENT_STEP)
