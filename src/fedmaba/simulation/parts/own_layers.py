"""Layers that stay with the client: it trains them, and the server never sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.client import Chunk, Trainer
from fedmaba.simulation.memory import Column
from fedmaba.simulation.part import IntArray, Part, Setting
from fedmaba.simulation.vectors import put_rows, take_rows

OWN = "/model"  # the column, and what `Chunk.made` calls it; no vector of a strategy has a slash


class OwnLayers(Part):
    """All runs of a model of which clients keep a part."""

    changes_model = True

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.layout.shared < setting.layout.size

    def columns(self, r: int) -> Mapping[str, Column]:
        first = self.setting.first[r, self.setting.layout.shared :]
        return {OWN: Column(first, key="own/{r}")}

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        chunk.job = replace(chunk.job, own=own_parts(trainer, chunk.run, chunk.client))

    def finish(self, trainer: Trainer, chunk: Chunk) -> None:
        shared, device = trainer.rows.layout.shared, chunk.end.device
        own = chunk.made[OWN] = chunk.end[:, shared:].clone()
        servers = chunk.models[:, shared:].index_select(0, send(chunk.run, device))
        chunk.end[:, shared:] = servers  # what a client keeps is no change that the server sees
        for r, mine in chunk.by_run(self.runs):
            put_rows(chunk.new[r][OWN], chunk.place[mine], take_rows(own, mine))

    def used(self, trainer: Trainer, r: int, client: IntArray, models: Tensor) -> Tensor:
        models[:, trainer.rows.layout.shared :] = trainer.memory.take(r, OWN, client)
        return models


def own_parts(trainer: Trainer, run: IntArray, client: IntArray) -> Tensor | None:
    """(n, P - S) the part of the model that clients keep; None where they send all."""
    if trainer.rows.layout.shared == trainer.rows.layout.size:
        return None
    out = trainer.memory.like.new_empty(len(client), trainer.memory.columns[0][OWN].shape[1])
    for r in np.unique(run):
        mine = np.flatnonzero(run == r)
        put_rows(out, mine, trainer.memory.take(r, OWN, client[mine]))
    return out


def clients_start(trainer: Trainer, chunk: Chunk, r: int, rows: IntArray) -> Tensor:
    """The model that clients of a run begin with: (n, P), or (1, P) where it is the same."""
    start, own = chunk.models[r][None], chunk.job.own
    if own is None:
        return start
    shared = start[:, : trainer.rows.layout.shared].expand(len(rows), -1)
    return torch.cat([shared, take_rows(own, rows)], 1)


def clients_end(trainer: Trainer, chunk: Chunk, rows: IntArray) -> Tensor:  # (n, P)
    """What clients have after training: what they send, with what they keep."""
    end = take_rows(chunk.end, rows)
    if OWN not in chunk.made:
        return end
    shared = trainer.rows.layout.shared
    return torch.cat([end[:, :shared], take_rows(chunk.made[OWN], rows)], 1)
