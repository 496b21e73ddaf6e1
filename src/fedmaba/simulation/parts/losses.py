"""The losses that strategies ask for: at the server's model, in training, or after it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedmaba.rows.cuda_graphs import start_fetch
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk
from fedmaba.simulation.measurements import end_losses, start_losses
from fedmaba.simulation.part import Host, Moment, Part, Setting
from fedmaba.simulation.parts.own_layers import clients_end
from fedmaba.simulation.vectors import take_rows
from fedmaba.simulation.work import Work


class Losses(Part):
    """The runs whose strategies ask."""

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.needs[r].loss != "none" or setting.needs[r].loss_after

    def numbers(self, batch: Batch, work: Work, moment: Moment) -> Mapping[int, Mapping[str, Host]]:
        """Losses at the servers' models, on training or on validation examples."""
        if moment == "after training":
            return {}
        found: dict[int, Host] = {}
        for at, part in (("start", batch.train), ("held", batch.validation)):
            cohorts = [c for c in work.cohorts if c.needs.loss == at]
            found |= start_losses(batch, part, cohorts)
        return {r: {"loss": loss} for r, loss in found.items()}

    def collect(self, batch: Batch, work: Work, chunk: Chunk) -> None:
        for c in work.late:
            mine = np.flatnonzero(chunk.run == c.r)
            place = chunk.place[mine]
            if c.needs.loss == "mean" and len(mine):
                work.tell(c, "loss", place, start_fetch(take_rows(chunk.summary[0], mine)))
            name = "loss" if c.needs.loss == "end" else "loss_after" if c.needs.loss_after else ""
            if name and len(mine):
                end = end_losses(batch, c, place, clients_end(batch.trainer, chunk, mine))
                work.tell(c, name, place, start_fetch(end))
