"""The number of local steps of each client, for strategies that ask for it."""

from __future__ import annotations

from typing import Any

from fedmaba.simulation.batch import Batch
from fedmaba.simulation.part import Part, Setting
from fedmaba.simulation.work import Cohort, Work


class StepCounts(Part):
    """The runs whose strategies ask."""

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.needs[r].steps

    def report(self, batch: Batch, work: Work, c: Cohort, seen: dict[str, Any]) -> None:
        seen["steps"] = batch.trainer.counted(work.table.steps[c.rows])
