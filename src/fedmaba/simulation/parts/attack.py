"""Hostile clients: they multiply their changes before they send them, and report other losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, FloatArray, Trainer
from fedmaba.simulation.part import IntArray, Part, Setting
from fedmaba.simulation.work import Cohort, Work


class UpdateAttack(Part):
    """The runs in which some clients are hostile."""

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        hostile = [setting.runs[r].federation.hostile for r in runs]
        self.multiplies = any(lies is not None and lies.attack.update != 1 for lies in hostile)

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return bool(setting.runs) and setting.runs[r].federation.hostile is not None

    def finish(self, trainer: Trainer, chunk: Chunk) -> None:
        if not self.multiplies:
            return
        factor = np.ones(len(chunk.run))
        for r, mine in chunk.by_run(self.runs):
            hostile = self.setting.runs[r].federation.hostile
            assert hostile is not None
            factor[mine] = hostile.update_factors(chunk.client[mine])
        if (factor != 1).any():
            chunk.factor = factor
            _multiply_changes(chunk.models, chunk.end, chunk.run, factor)
            chunk.summary = torch.stack([chunk.summary[0], chunk.end.sum(1)])

    def report(self, batch: Batch, work: Work, c: Cohort, seen: dict[str, Any]) -> None:
        hostile = c.run.federation.hostile
        if hostile is not None and "loss" in seen:
            loss, others = hostile.reported(c.client, seen["loss"], seen)
            seen |= others | {"loss": loss}
        if hostile is not None and "loss_after" in seen:
            seen["loss_after"] = hostile.reported_losses(c.client, seen["loss_after"])


def _multiply_changes(model: Tensor, w: Tensor, run: IntArray, factor: FloatArray) -> None:
    """Multiply the model changes (n, P) of rows, in place; a factor of 1 keeps their bits."""
    rows = np.flatnonzero(factor != 1)
    at, start = send(rows, w.device), model.index_select(0, send(run[rows], w.device))
    times = send(factor[rows, None], w.device).to(w.dtype)
    w.index_copy_(0, at, start + times * (w.index_select(0, at) - start))
