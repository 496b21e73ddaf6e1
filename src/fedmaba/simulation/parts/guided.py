"""A second exchange before training: what a server says of all participants' local steps.

First each participant's gradient of all its examples at the server's model is computed, and mixed
as the strategy says. Then clients train, and the mix joins each of their steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation import server_step
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, FloatArray, GuidedSteps, Trainer
from fedmaba.simulation.local_training import JobObjective
from fedmaba.simulation.part import IntArray, Part, Setting
from fedmaba.simulation.parts.full_gradient import full_gradients
from fedmaba.simulation.round import in_chunks
from fedmaba.simulation.work import Cohort, Work, chunk_of
from fedmaba.strategies.answers import call_guide


class Guided(Part):
    """The runs whose strategies guide local steps."""

    guides = True

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.needs[r].guided

    def alike(self, r: int) -> int:
        return int(r in self.runs)

    def decided(self, batch: Batch, work: Work, runs: Sequence[int]) -> None:
        """Ask what joins the steps, and mix the gradients that this takes."""
        mixed: dict[int, FloatArray] = {}
        for c in (c for c in work.cohorts if c.r in self.runs and c.r in runs):
            guide = call_guide(c.run.strategy, work.replies[c.r], work.decision[c.r])
            scale, own, mix = (np.asarray(part) for part in guide)
            work.guides[c.r] = GuidedSteps(scale, own, None)
            if mix.any():
                mixed[c.r] = mix * _said(c)
        if not mixed:
            return
        total = torch.zeros_like(batch.progress.model)
        _add_mixes(batch, work, mixed, total)
        batch.ranks.sum(total)
        for r in mixed:
            work.guides[r] = work.guides[r]._replace(mix=total[r])

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        steps = [(chunk.guides[r], mine) for r, mine in chunk.by_run(frozenset(chunk.guides))]
        scale, own = np.ones(len(chunk.run)), np.zeros(len(chunk.run))
        for guide, mine in steps:
            scale[mine], own[mine] = guide.scale[chunk.place[mine]], guide.own[chunk.place[mine]]
        if (scale != 1).any():
            objective = JobObjective("scaled", {"factor": scale})
            chunk.job = replace(chunk.job, objective=objective)
        if not own.any() and all(guide.mix is None for guide, _ in steps):
            return
        sent = trainer.rows.layout.compared
        gradient = full_gradients(trainer, chunk) if own.any() else None

        def write(into: Tensor, factor: FloatArray, towards: bool) -> None:
            into.zero_()
            if gradient is not None:
                each = send((factor * own)[:, None], into.device).to(into.dtype)
                torch.mul(gradient[:, :sent], each, out=into[:, :sent])
            for guide, mine in steps:
                if guide.mix is not None:
                    each = send(factor[mine, None], into.device).to(into.dtype)
                    joins = each * guide.mix[:sent]
                    into[:, :sent].index_add_(0, send(mine, into.device), joins)

        chunk.job = replace(chunk.job, added=write)  # nothing pulls these rows, see `contract`


def _said(c: Cohort) -> FloatArray:
    """(m,) By what clients multiply the gradients that they send: 1, if they are not hostile."""
    hostile = c.run.federation.hostile
    return np.ones(len(c.client)) if hostile is None else hostile.update_factors(c.client)


def _add_mixes(batch: Batch, work: Work, mixed: dict[int, FloatArray], total: Tensor) -> None:
    """Add to each of these runs' rows (R, P) the mix of its participants' gradients."""
    trainer, model, sent = batch.trainer, batch.progress.model, batch.rows.layout.compared
    table = work.table
    wanted = np.isin(table.run, list(mixed))
    chunks = [rows[wanted[rows]] for rows in work.chunks]

    def gradients(rows: IntArray) -> tuple[IntArray, Tensor]:
        chunk = chunk_of(trainer, work, rows, model)
        chunk.guides = {}
        for part in trainer.parts:
            part.prepare(trainer, chunk)
        return rows, full_gradients(trainer, chunk)

    for rows, found in in_chunks(batch, [rows for rows in chunks if len(rows)], gradients):
        for r in np.unique(table.run[rows]):
            mine = np.flatnonzero(table.run[rows] == r)
            weights = mixed[int(r)][table.place[rows[mine]]]
            here = found.index_select(0, send(mine, found.device))[:, :sent]
            total[r, :sent] += server_step.combine_changes(weights, here)
