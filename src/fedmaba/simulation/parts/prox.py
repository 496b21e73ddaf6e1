"""A pull of each client's model back to where it started."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedmaba.simulation.client import Chunk, FloatArray, Trainer
from fedmaba.simulation.part import IntArray, Part, Setting
from fedmaba.strategies.base import Local


class Prox(Part):
    """The runs in which some client is pulled back."""

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return bool(np.any(_pulls(setting.local[r])))

    def alike(self, r: int) -> IntArray | int:
        pulled = _pulls(self.setting.local[r]) > 0
        return pulled.astype(np.int64) if pulled.ndim else int(pulled)

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        pull = np.zeros(len(chunk.run))
        for r, mine in chunk.by_run(self.runs):
            each = _pulls(trainer.local[r])
            pull[mine] = each[chunk.client[mine]] if each.ndim else each
        if pull.any():
            chunk.job = replace(chunk.job, pull=pull)


def _pulls(local: Local) -> FloatArray:
    """(N,) or () how strongly each client is pulled."""
    return np.array(local.pull if local.by_client is None else local.by_client)
