"""A model of its own that each client trains and keeps, beside the one that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, Trainer
from fedmaba.simulation.local_training import train_chunk
from fedmaba.simulation.memory import Column
from fedmaba.simulation.part import ModelsOf, Part, Setting
from fedmaba.simulation.vectors import put_rows, take_rows
from fedmaba.simulation.work import Cohort, Work
from fedmaba.strategies.base import PERSONAL


class PersonalModels(Part):
    """The runs whose clients have models of their own."""

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.local[r].personal is not None

    def columns(self, r: int) -> Mapping[str, Column]:
        return {PERSONAL: Column(self.setting.first[r])} if r in self.runs else {}

    def alike(self, r: int) -> int:
        own = self.setting.local[r].personal
        return 0 if own is None else 1 + own.only + 4 * (own.prox > 0)

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        own = trainer.local[int(chunk.run[0])].personal  # rows of one chunk are alike
        chunk.trains = own is None or not own.only

    def finish(self, trainer: Trainer, chunk: Chunk) -> None:
        """Train the clients' own models, on the minibatches of those that they send."""
        if int(chunk.run[0]) not in self.runs:
            return
        own = [trainer.local[r].personal for r in chunk.run]
        pull = np.array([0.0 if one is None else one.prox for one in own])

        def begin(into: Tensor) -> None:
            for r, mine in chunk.by_run(self.runs):
                kept = take_rows(trainer.memory.columns[r][PERSONAL], chunk.client[mine])
                put_rows(into, mine, kept)

        job = replace(
            chunk.job,
            pull=pull if pull.any() else None,
            full_batch=False,
            objective=None,
            added=None,
            begin=begin,
        )
        slot = ("personal", chunk.slot)
        models, summary = train_chunk(
            trainer.rows, trainer.pool, chunk.models, job, trainer.graphs, slot
        )
        chunk.numbers["alone"] = summary[0].clone()  # before a replay overwrites it
        chunk.checks.append(models.sum(1))
        if not chunk.trains:
            chunk.summary = torch.stack([chunk.numbers["alone"], chunk.summary[1]])
        for r, mine in chunk.by_run(self.runs):
            put_rows(chunk.new[r][PERSONAL], chunk.place[mine], take_rows(models, mine))

    def add(self, batch: Batch, work: Work, c: Cohort, delta: Tensor) -> None:
        """Add nan where a client's own model is broken, so that the run ends."""
        whole = torch.stack(work.new[c.r][PERSONAL].aminmax()).isfinite().all()
        delta.add_(torch.where(whole, 0.0, torch.nan).to(delta.dtype))

    def joins_step(self, r: int) -> bool:
        return r in self.runs  # one whose clients' own models are broken makes no step

    def models_of_clients(self, trainer: Trainer, r: int) -> ModelsOf | None:
        return partial(trainer.memory.take, r, PERSONAL)

    def only_own_models(self, r: int) -> bool:
        own = self.setting.local[r].personal
        return own is not None and own.only
