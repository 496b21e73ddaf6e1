"""How often the server's model is right about each group of people, for strategies that ask."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client_scores import whole_models
from fedmaba.simulation.group_counts import group_counts
from fedmaba.simulation.measurements import server_models
from fedmaba.simulation.part import Host, Moment, Part, Setting
from fedmaba.simulation.work import Cohort, Work


class GroupCounts(Part):
    """The runs whose strategies ask."""

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.needs[r].groups

    def numbers(self, batch: Batch, work: Work, moment: Moment) -> Mapping[int, Mapping[str, Host]]:
        """Each participant's training examples by group, label and the server's prediction."""
        if moment == "after training":
            return {}
        asking = [c for c in work.cohorts if c.r in self.runs]
        counts = {c.r: _counts(batch, c) for c in asking}
        return {r: {"groups": partial(_given, value)} for r, value in counts.items()}


def _counts(batch: Batch, c: Cohort) -> NDArray[Any]:  # (m, G, 2, 2)
    models = partial(server_models, batch.trainer, c.r, batch.progress.model[c.r])
    shared = whole_models(batch)
    counts = group_counts(batch, batch.train, c.r, models, c.client, shared=shared)
    return counts.reshape(*counts.shape[:2], 2, 2)


def _given(value: NDArray[Any]) -> NDArray[Any]:
    return value
