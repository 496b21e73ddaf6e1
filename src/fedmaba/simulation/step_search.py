"""Steps of servers that are tried before they are taken, for strategies that search for a length.

All runs of a lane that search are asked in turn: each names a length, the losses of all are
computed together, and so on until each has taken one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from fedmaba.simulation import server_step
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.cohort import Cohort, Drawn, FloatArray
from fedmaba.simulation.measurements import start_losses
from fedmaba.strategies.base import Decision, Replies, Tried
from fedmaba.strategies.contract import call_search


class Weighed(Protocol):
    """What strategies decided, and what those that search for a length were told, by run."""

    decision: dict[int, Decision]
    replies: dict[int, Replies]


def search_steps(
    batch: Batch, drawn: Drawn, changes: dict[int, Tensor], weighed: Weighed
) -> dict[int, Decision]:
    """The decisions of strategies that search, with the step that each has taken; by run."""
    searching = [c for c in drawn.late if c.r in weighed.replies]
    model, layers, sent = batch.progress.model, batch.layers, batch.rows.layout.shared
    step = {}
    for c in searching:
        coef, past = weighed.decision[c.r].coef, batch.progress.kept[c.r].change
        step[c.r] = batch.plan.server_lr * server_step.weighted_changes(
            coef, changes[c.r], past, layers
        )
        step[c.r][sent:] = 0  # what clients keep stays as it is
    tried: dict[int, list[Tried]] = {c.r: [] for c in searching}
    taken: dict[int, Decision] = {}
    while asking := [c for c in searching if c.r not in taken]:
        factor = {}
        for c in asking:
            decision, before = weighed.decision[c.r], tried[c.r]
            found = call_search(c.run.strategy, weighed.replies[c.r], decision, before)
            if found.take:
                info = {**decision.info, "step_factor": found.factor, "trials": float(len(before))}
                taken[c.r] = Decision(found.factor * decision.coef, decision.state, info)
            else:
                factor[c.r] = found.factor
                batch.trial[c.r] = model[c.r] + found.factor * step[c.r]
        for r, loss in _losses(batch, searching, list(factor)).items():
            tried[r].append((factor[r], loss))
    return taken


def _losses(batch: Batch, searching: list[Cohort], runs: list[int]) -> dict[int, FloatArray]:
    """Each participant's loss, as it reports it, at the model that its run tries."""
    measured = [c for c in searching if c.r in runs or (runs and batch.graphs.on)]
    known = start_losses(batch, batch.train, measured, batch.trial)  # equal shapes are recorded
    out = {}
    for c in searching:
        if c.r in runs:
            loss, hostile = known[c.r](), c.run.federation.hostile
            if hostile is not None:
                loss = hostile.reported_losses(c.client, loss)
            out[c.r] = np.where(np.isfinite(loss), loss, np.inf)
    return out
