"""Clients of several kinds, each of which holds a part of the model, as the model says.

A client trains, and is served by, the server's model without what its kind does not hold. Where the
model joins weights by name, the server takes what it makes of them in place of a weighted sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedmaba.data.federation import Federation, Kinds
from fedmaba.errors import InputError
from fedmaba.rows.by_client import ByClient
from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, Trainer
from fedmaba.simulation.part import IntArray, Part, Setting
from fedmaba.simulation.state import Run
from fedmaba.simulation.work import Cohort, Work
from fedmaba.strategies.base import optimiser_of_server
from fedmaba.strategies.deployed import needs_validation


def dealt(runs: Sequence[Run], told: ByClient | None) -> Sequence[Run]:
    """The same runs, whose federations know the kind of each client, if a model has kinds."""
    if told is None or len(told.kinds) == 1:
        return runs
    feds: dict[tuple[int, int], Federation] = {}
    for run in runs:
        if (which := (id(run.federation), run.seed)) not in feds:
            kinds = Kinds(told.kinds, told.deal(run.seed, run.federation.n_clients))
            feds[which] = replace(run.federation, kinds=kinds)
    return [replace(run, federation=feds[id(run.federation), run.seed]) for run in runs]


def not_held(setting: Setting, r: int) -> IntArray:
    """(N,) How many numbers of the model each client of a run does not hold."""
    fed, told = setting.runs[r].federation, setting.layout.by_client
    if fed.kinds is None or told is None:
        return np.zeros(fed.n_clients, np.int64)
    every = setting.first.new_ones(len(told.kinds), setting.layout.size)
    told.cut(setting.layout.named_views(every), np.arange(len(every)))
    return (every == 0).sum(1).cpu().numpy()[fed.kinds.of]


class ClientKinds(Part):
    """All runs of such a model."""

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        assert setting.layout.by_client is not None
        self.told = setting.layout.by_client
        self.changes_model = len(self.told.kinds) > 1
        for r in runs:
            if why := _refused(setting, r, self.told):
                raise InputError(f"{setting.runs[r].strategy.label()}: {why}")

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.layout.by_client is not None

    def takes_changes(self, r: int) -> bool:
        return self.told.joins

    def joins_step(self, r: int) -> bool:
        return self.told.joins

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        """Let each row begin with what its client holds."""
        if not self.changes_model:
            return

        def begin(into: Tensor) -> None:
            into.copy_(chunk.models.index_select(0, send(chunk.run, into.device)))
            kind = np.zeros(len(chunk.run), np.int64)
            for r, mine in chunk.by_run(self.runs):
                kind[mine] = self._kind(r, chunk.client[mine])
            self.told.cut(trainer.rows.layout.named_views(into), kind)
            if (own := chunk.job.own) is not None:
                into[:, trainer.rows.layout.shared :] = own

        chunk.job = replace(chunk.job, begin=begin)

    def used(self, trainer: Trainer, r: int, client: IntArray, models: Tensor) -> Tensor:
        if self.changes_model:
            self.told.cut(trainer.rows.layout.named_views(models), self._kind(r, client))
        return models

    def add(self, batch: Batch, work: Work, c: Cohort, delta: Tensor) -> None:
        """Put what the model makes of some weights in place of their weighted sum."""
        if not self.told.joins or c.r not in work.decision:
            return
        layout, own = batch.rows.layout, batch.progress.model[c.r][None]
        sent = work.change(c) + own
        if not bool(sent.isfinite().all()):
            delta.fill_(torch.nan)  # so that the run ends
            return
        server = {name: view[0] for name, view in layout.named_views(own).items()}
        coef = work.decision[c.r].coef[: len(c.client)]
        new = self.told.join(server, layout.named_views(sent), coef)
        step = layout.named_views(delta[None])
        for name, value in new.items():
            step[name][0] = value - server[name]

    def _kind(self, r: int, client: IntArray) -> IntArray:
        """(n,) The kinds of some clients of a run."""
        kinds = self.setting.runs[r].federation.kinds
        assert kinds is not None
        return kinds.of[client]


def _refused(setting: Setting, r: int, told: ByClient) -> str:
    """Why a run cannot do with clients of such a model; empty where it can."""
    local, needs, plan, run = setting.local[r], setting.needs[r], setting.plan, setting.runs[r]
    assert plan is not None
    seen = local.objective is not None and bool(local.objective.sees)
    both = {
        "vectors that clients keep": bool(local.keep or local.add),
        "models of the clients' own": local.own_model or local.second is not None,
        "dp": plan.privacy is not None,
        "sums=secure": plan.turnout is not None and plan.turnout.sums == "secure",
    }
    parts = both | {
        "a pull towards the server's model": local.prox != 0,
        "an objective that sees other models": seen,
        "finetune": plan.finetune is not None,
    }
    joined = both | {
        "a rule of the strategy's own that combines changes": run.strategy.combine() is not None,
        "an optimiser of the server's": optimiser_of_server(run.strategy) is not None,
        "server_lr and server_momentum": plan.server_lr != 1 or plan.server_momentum != 0,
        "weights of layers, of first steps or of earlier changes": needs.changes == "layers"
        or needs.first_steps
        or needs.keep_rounds > 0
        or needs.last_step,
        "steps of several lengths": needs.trials,
    }
    averages = [one for one in run.rules if one != "last" and not needs_validation(one)]
    joined |= {
        f"deploy={one}, an average over rounds (say --deploy last)": True for one in averages
    }
    why = f"clients hold parts of the model ({', '.join(told.kinds)})"
    if len(told.kinds) > 1 and (found := [what for what, holds in parts.items() if holds]):
        return f"{why}, which does not go with {found[0]}"
    why = "the server joins clients' weights by name"
    if told.joins and (found := [what for what, holds in joined.items() if holds]):
        return f"{why}, which does not go with {found[0]}"
    return told.misfit(setting.layout.sent_names()) if told.joins else ""
