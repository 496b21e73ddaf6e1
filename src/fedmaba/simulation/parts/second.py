"""A second model that takes part in each local step, beside the one that clients send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

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

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.local[r].second is not None

    def columns(self, r: int) -> Mapping[str, Column]:
        names = self.setting.local[r].models_kept & {PERSONAL, SECOND} if r in self.runs else ()
        return {name: Column(self.setting.first[r]) for name in sorted(names)}

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

        second = JobSecond(how, begin if how.kind == "mixed" else None)
        chunk.job = replace(chunk.job, second=second)

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
            if second.how.kind == "mixed":
                put_rows(new[SECOND], place, own)
                own = torch.lerp(take_rows(chunk.end, mine), own, second.how.mix)
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
