"""The vectors that clients keep: how they join training, and what they are after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, FloatArray, Trainer
from fedmaba.simulation.memory import Column, mean_after
from fedmaba.simulation.part import Part, Setting
from fedmaba.simulation.parts.full_gradient import GRADIENT
from fedmaba.simulation.parts.own_layers import clients_end, clients_start
from fedmaba.simulation.vectors import (
    Difference,
    as_slice,
    put_rows,
    sum_of_vectors,
    take_rows,
    vector_pieces,
)
from fedmaba.simulation.work import Cohort, Work
from fedmaba.strategies.base import SERVER, Keep, Local


class KeptVectors(Part):
    """The runs whose clients keep vectors."""

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return bool(setting.local[r].keep) or _adds(setting.local[r])

    def columns(self, r: int) -> Mapping[str, Column]:
        local, first = self.setting.local[r], self.setting.first[r]
        return {
            name: Column(first if rule.from_model else None, mean=name in local.means)
            for name, rule in local.keep.items()
        }

    def alike(self, r: int) -> int:
        return int(_adds(self.setting.local[r]))

    def joins_step(self, r: int) -> bool:
        return bool(self.setting.local[r].means)

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        if not _adds(trainer.local[int(chunk.run[0])]):  # rows of one chunk are alike
            return

        def write(total: Tensor, factor: FloatArray, towards: bool) -> None:
            for r, scale in dict.fromkeys(zip(chunk.run.tolist(), factor.tolist(), strict=True)):
                mine = np.flatnonzero((chunk.run == r) & (factor == scale))
                for part in vector_pieces(len(mine), total.shape[1], total.device):
                    here = mine[part]
                    at = as_slice(here)
                    into = total.new_empty(len(here), total.shape[1]) if at is None else total[at]
                    local, memory = trainer.local[r], trainer.memory
                    names = local.add.keys() - {SERVER}
                    kept = {name: memory.take(r, name, chunk.client[here]) for name in names}
                    if SERVER in local.add:
                        kept[SERVER] = clients_start(trainer, chunk, r, here)
                    start = chunk.models[r] if towards else None
                    added_terms(local, kept, memory.means[r], into, scale, start)
                    if at is None:
                        put_rows(total, here, into)

        chunk.job = replace(chunk.job, added=write)

    def finish(self, trainer: Trainer, chunk: Chunk) -> None:
        """Make new vectors of what training gave, right where the memory will find them."""
        device, width = chunk.end.device, chunk.end.shape[1]
        moved = chunk.job.lr * trainer.counted(chunk.job.steps)
        all_moved = send(moved, device).to(chunk.end.dtype)[:, None]
        gradients = chunk.made.get(GRADIENT)
        for r, mine in chunk.by_run(self.runs):
            keep, means = trainer.local[r].keep, trainer.memory.means[r]
            for part in vector_pieces(len(mine), width, device):
                here = mine[part]
                trained = TrainedClients(
                    clients_start(trainer, chunk, r, here),
                    clients_end(trainer, chunk, here),
                    take_rows(all_moved, here),
                    None if gradients is None else take_rows(gradients, here),
                    chunk.job.lr,
                )
                at = as_slice(chunk.place[here])
                for name, rule in keep.items():
                    new = chunk.new[r][name]
                    before = trainer.memory.take(r, name, chunk.client[here])
                    into = before.new_empty(before.shape) if at is None else new[at]
                    after = kept_after(rule, trained, before, means.get(name), into)
                    if at is None:
                        put_rows(new, chunk.place[here], after)
                    if name == trainer.local[r].send:  # statistics have no momentum
                        end, weights = chunk.end, slice(trainer.rows.layout.compared)
                        put_rows(end[:, weights], here, (trained.start + after)[:, weights])

    def add(self, batch: Batch, work: Work, c: Cohort, delta: Tensor) -> None:
        local, weights = batch.local[c.r], slice(batch.rows.layout.compared)
        memory = batch.progress.memory
        for name in local.means:
            before, kept = memory.means[c.r][name], memory.columns[c.r][name]
            work.means[c.r][name] = mean_after(before, work.new[c.r][name], kept, c.client)
        for name in local.server_adds:
            before, after = memory.means[c.r][name], work.means[c.r][name]
            if local.unbiased:
                share = len(c.client) / len(memory.columns[c.r][name])
                after = before + (after - before) / share
            delta[weights] += local.server_factor(name, work.lr) * after[weights]


class TrainedClients(NamedTuple):
    """What clients know after their training, of which the vectors are made that they keep."""

    start: Tensor  # (m, P)          the server's model; (1, P) where it is the same for all
    end: Tensor  # (m, P)            their own
    moved: Tensor  # (m, 1)          number of steps times step size
    gradient: Tensor | None  # (m, P)  of all examples at the server's model, where needed
    lr: float


def _adds(local: Local) -> bool:
    return bool(local.add or local.add_mean)


def added_terms(
    local: Local,
    kept: Mapping[str, Tensor],  #   (m, P) each; "server" may be (1, P)
    means: Mapping[str, Tensor],  #  (P,) each
    into: Tensor,  #                 (m, P)
    factor: float = 1.0,
    start: Tensor | None = None,  #  (P,)
) -> Tensor:  # (m, P)
    """What clients add to their gradients: vectors that they keep, and means of those over all.

    It is written over `into`, times the factor, plus `start` where that is given.
    """
    terms = [(kept[name], factor * each) for name, each in local.add.items()]
    terms += [(means[name][None], factor * each) for name, each in local.add_mean.items()]
    terms += [(start[None], 1.0)] if start is not None else []
    return sum_of_vectors(terms, into)


def kept_after(
    keep: Keep, trained: TrainedClients, before: Tensor, mean: Tensor | None, into: Tensor
) -> Tensor:  # (m, P)
    """A vector that clients keep, after their training; it is written over `into` (m, P).

    `mean` (P,) is that over all clients before the training, where there is one.
    """
    start, end, moved, gradient, lr = trained
    unit = lr if keep.per_step_size else 1.0
    terms = [(start, keep.start / unit), (end, keep.end / unit), (before, keep.before)]
    terms += [] if mean is None else [(mean[None], keep.mean)]
    terms += [] if gradient is None else [(gradient, keep.full_gradient)]
    steps = Difference(start, end, keep.step_gradient / moved) if keep.step_gradient else None
    return sum_of_vectors(terms, into, steps)
