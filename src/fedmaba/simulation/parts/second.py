"""A second model that takes part in each local step, beside the one that clients send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, Trainer
from fedmaba.simulation.local_training import JobSecond
from fedmaba.simulation.memory import Column
from fedmaba.simulation.part import ModelsOf, Part, Setting
from fedmaba.simulation.vectors import put_rows, take_rows
from fedmaba.simulation.work import Cohort, Work
from fedmaba.strategies.base import PERSONAL, SECOND


class SecondModels(Part):
    """The runs whose clients step with two models."""

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        every = {r: how for r in runs if (how := setting.local[r].second) is not None}
        between = {r: how.layers for r, how in every.items() if how.kind == "between"}
        self.places = {r: setting.layout.places_of(layers) for r, layers in between.items()}

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.local[r].second is not None

    def columns(self, r: int) -> Mapping[str, Column]:
        if r not in self.runs:
            return {}
        first, kept = self.setting.first[r], self.setting.local[r].models_kept
        columns = {name: Column(first) for name in sorted(kept & {PERSONAL, SECOND})}
        return columns | ({SECOND: Column(torch.ones_like(first))} if r in self.places else {})

    def alike(self, r: int) -> int:
        every = [local.second for local in self.setting.local]
        return 0 if every[r] is None else 1 + every.index(every[r])

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        how = trainer.local[int(chunk.run[0])].second  # rows of one chunk are alike
        if how is None:
            return

        def begin(into: Tensor) -> None:
            for r, mine in chunk.by_run(self.runs):
                put_rows(into, mine, trainer.memory.take(r, SECOND, chunk.client[mine]))

        def begin_at_own(into: Tensor) -> None:
            into.copy_(chunk.models.index_select(0, send(chunk.run, into.device)))
            for r, mine in chunk.by_run(self.runs):
                own = trainer.memory.take(r, PERSONAL, chunk.client[mine])
                for place in self.places[r]:
                    put_rows(into[:, place], mine, own[:, place])

        second = JobSecond(how, begin if how.kind in ("mixed", "between") else None)
        own = begin_at_own if how.kind == "between" else None
        chunk.job = replace(chunk.job, second=second, begin=own)

    def finish(self, trainer: Trainer, chunk: Chunk) -> None:
        """Part the second models from those that are sent, and keep them."""
        second = chunk.job.second
        if second is None or not second.how.kept:
            return
        n = len(chunk.run)
        chunk.end, x = chunk.end[:n], chunk.end[n:]
        chunk.checks.append(x.sum(1))
        for r, mine in chunk.by_run(self.runs):
            own, new, place = take_rows(x, mine), chunk.new[r], chunk.place[mine]
            if SECOND in new:
                put_rows(new[SECOND], place, own)
                mix = second.how.mix if second.how.kind == "mixed" else 0.0
                own = torch.lerp(take_rows(chunk.end, mine), own, mix)
            put_rows(new[PERSONAL], place, own)

    def add(self, batch: Batch, work: Work, c: Cohort, delta: Tensor) -> None:
        """Add nan where a client's own model is broken, so that the run ends."""
        if PERSONAL in work.new[c.r]:
            whole = torch.stack(work.new[c.r][PERSONAL].aminmax()).isfinite().all()
            delta.add_(torch.where(whole, 0.0, torch.nan).to(delta.dtype))

    def joins_step(self, r: int) -> bool:
        return r in self.runs and self.setting.local[r].own_model

    def models_of_clients(self, trainer: Trainer, r: int) -> ModelsOf | None:
        own = r in self.runs and self.setting.local[r].own_model
        return partial(trainer.memory.take, r, PERSONAL) if own else None
