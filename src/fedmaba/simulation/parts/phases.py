"""Layers that stay with the client are trained alone first, then the others alone."""

from __future__ import annotations

from dataclasses import replace

from fedmaba.simulation.client import Chunk, Trainer
from fedmaba.simulation.local_training import train_chunk
from fedmaba.simulation.part import Part, Setting

STREAM = 1 << 56  # apart from the random streams of the steps that follow


class Phases(Part):
    """The runs whose clients do not train all layers together."""

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.local[r].own_epochs is not None

    def alike(self, r: int) -> int:
        epochs = self.setting.local[r].own_epochs
        return 0 if epochs is None else 1 + epochs

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        """Train the client's own layers, and leave the others to the round."""
        epochs = trainer.local[int(chunk.run[0])].own_epochs  # rows of one chunk are alike
        if epochs is None:
            return
        job = replace(chunk.job, moves="sent")
        if epochs:
            alone = replace(
                job, moves="own", key=job.key + STREAM, steps=epochs * job.minibatches()
            )
            slot = ("own layers", chunk.slot)
            models, _ = train_chunk(
                trainer.rows, trainer.pool, chunk.models, alone, trainer.graphs, slot
            )
            own = models[:, trainer.rows.layout.shared :]
            job = replace(job, own=own.clone())  # before a replay overwrites it
        chunk.job = job
