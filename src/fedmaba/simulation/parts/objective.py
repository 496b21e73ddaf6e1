"""A client's own loss in place of the usual one, and steps on all of a client's examples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from torch import Tensor

from fedmaba.rows import objectives
from fedmaba.rows.base import HAS_OBJECTIVE
from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.client import Chunk, Trainer
from fedmaba.simulation.local_training import JobObjective
from fedmaba.simulation.part import Part, Setting
from fedmaba.simulation.parts.own_layers import own_parts
from fedmaba.simulation.vectors import put_rows, take_rows
from fedmaba.strategies.base import SERVER


class LocalObjective(Part):
    """The runs with another loss, or with full batches."""

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        named = [local.objective for local in setting.local if local.objective is not None]
        # The first one of the loss alone is trained beside plain rows, whose factor is 1.
        ordered = sorted(named, key=lambda one: objectives.find(one.name).of_outputs)
        self.forms = list(dict.fromkeys(one.form for one in ordered))
        self.beside_plain = bool(ordered) and not objectives.find(ordered[0].name).of_outputs

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.local[r].objective is not None or setting.local[r].full_batch

    def alike(self, r: int) -> int:
        local = self.setting.local[r]
        form = 0 if local.objective is None else 1 + self.forms.index(local.objective.form)
        shared = form == 1 and self.beside_plain and not local.full_batch
        return local.full_batch + 2 * (0 if shared else form)

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        local = [trainer.local[r] for r in chunk.run]
        chunk.job = replace(chunk.job, full_batch=local[0].full_batch)  # rows of one chunk: alike
        each = [one.objective for one in local]
        if (first := next((one for one in each if one is not None), None)) is not None:
            numbers = {
                name: np.array([1.0 if one is None else one.numbers[name] for one in each])
                for name in first.form[1]
            }
            if None in each:
                numbers[HAS_OBJECTIVE] = np.array([float(one is not None) for one in each])
            seen = {
                name: partial(_write_servers_models, trainer, chunk)
                if name == SERVER
                else partial(_write_kept_models, trainer, chunk, name)
                for name in first.sees
            }
            chunk.job = replace(chunk.job, objective=JobObjective(first.name, numbers, seen))


def _write_servers_models(trainer: Trainer, chunk: Chunk, into: Tensor) -> None:
    """Write the model that each row's client started from (n, P)."""
    into.copy_(chunk.models.index_select(0, send(chunk.run, into.device)))
    if (own := own_parts(trainer, chunk.run, chunk.client)) is not None:
        into[:, trainer.rows.layout.shared :] = own


def _write_kept_models(trainer: Trainer, chunk: Chunk, name: str, into: Tensor) -> None:
    """Write the model of this name that each row's client kept (n, P)."""
    for r, mine in chunk.by_run(frozenset(chunk.run.tolist())):
        put_rows(into, mine, take_rows(trainer.memory.columns[r][name], chunk.client[mine]))
