"""Steps of servers that are tried before they are taken, for strategies that search for a length.

All runs of a lane that search are asked in turn: each names a length, the losses of all are
computed together, and so on until each has taken one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedmaba.simulation import server_step
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.measurements import start_losses
from fedmaba.simulation.part import FloatArray, Part, Setting
from fedmaba.simulation.parts.changes import weighted_past
from fedmaba.simulation.work import Cohort, Work
from fedmaba.strategies.answers import call_search
from fedmaba.strategies.base import Decision, Tried


class StepSearch(Part):
    """The runs whose strategies search."""

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        self.models = setting.first.clone()  # (R, P) memory for models that servers try

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.needs[r].trials

    def decided(self, batch: Batch, work: Work, runs: Sequence[int]) -> None:
        searching = [c for c in work.late if c.r in self.runs and c.r in runs]
        step = {c.r: _step(batch, work, c) for c in searching}
        tried: dict[int, list[Tried]] = {c.r: [] for c in searching}
        taken: set[int] = set()
        while asking := [c for c in searching if c.r not in taken]:
            factor = {}
            for c in asking:
                decision, before = work.decision[c.r], tried[c.r]
                found = call_search(c.run.strategy, work.replies[c.r], decision, before)
                if found.take:
                    trials = {"step_factor": found.factor, "trials": float(len(before))}
                    info = {**decision.info, **trials}
                    coef = found.factor * decision.coef
                    work.decision[c.r] = Decision(coef, decision.state, info)
                    taken.add(c.r)
                else:
                    factor[c.r] = found.factor
                    self.models[c.r] = batch.progress.model[c.r] + found.factor * step[c.r]
            for r, loss in self._losses(batch, work, searching, list(factor)).items():
                tried[r].append((factor[r], loss))

    def _losses(
        self, batch: Batch, work: Work, searching: list[Cohort], runs: list[int]
    ) -> dict[int, FloatArray]:
        """Each participant's loss, as it reports it, at the model that its run tries."""
        measured = [c for c in searching if c.r in runs or (runs and batch.graphs.on)]
        known = start_losses(batch, batch.train, measured, self.models)  # equal shapes are recorded
        out = {}
        for c in searching:
            if c.r in runs:
                loss = batch.reported(work, c, {"loss": known[c.r]()})["loss"]
                out[c.r] = np.where(np.isfinite(loss), loss, np.inf)
        return out


def _step(batch: Batch, work: Work, c: Cohort) -> Tensor:  # (P,)
    """The step of a run as its strategy weighed it."""
    coef = work.decision[c.r].coef
    step = server_step.weighted(coef[..., : len(c.client)], work.change(c), batch.layers)
    if (past := weighted_past(batch, c, coef)) is not None:
        step += past
    step = batch.plan.server_lr * step
    step[batch.rows.layout.shared :] = 0  # what clients keep stays as it is
    return step
