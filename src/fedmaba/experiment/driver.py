"""The loop that drives a batch: simulate, record, save checkpoints, stop when asked.

A `Sink` decides where the rounds go: to memory, a run folder, or an archive of `reproduce`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Protocol

from fedmaba.simulation import engine


class Sink(Protocol):
    """Records the rounds of a batch and decides what is written of them."""

    def take(self, snapshot: engine.Snapshot) -> None:
        """Record one round."""

    def checkpoint(self) -> None:
        """Save all that is needed to resume from here."""

    def finish(self) -> None:
        """Write the results, after the last round."""

    def close(self) -> None:
        """Release processes and folders, whatever happened."""


def drive(
    batch: engine.Batch,
    sink: Sink,
    stop: Callable[[], bool],
    seconds: float,
    every: int | None = None,
) -> Generator[engine.Snapshot, None, bool]:
    """Yield round after round; the generator returns whether it stopped before the last one.

    A checkpoint is saved when the last one is older than `seconds`, and after `every` rounds.
    """
    progress, saved = batch.progress, time.monotonic()
    try:
        for snapshot in engine.simulate(batch):
            sink.take(snapshot)
            due = every is not None and progress.round % every == 0
            if due or time.monotonic() - saved > seconds:
                sink.checkpoint()
                saved = time.monotonic()
            yield snapshot
            if batch.ranks.any(stop()) and progress.round < batch.plan.rounds:
                sink.checkpoint()
                return True
        sink.finish()
        return False
    finally:
        sink.close()
