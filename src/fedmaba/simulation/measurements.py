"""What strategies need to know of a round: training losses, norms and inner products of changes.

Each function here starts its computation on the device and returns a function that waits for the
result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.rows import Rows
from fedmaba.rows.base import Inputs
from fedmaba.rows.cuda_graphs import send, start_fetch
from fedmaba.rows.workers import Workers
from fedmaba.simulation.batch import Batch, RunParts
from fedmaba.simulation.client import Trainer
from fedmaba.simulation.client_scores import whole_models
from fedmaba.simulation.evaluation import evaluate, mean_losses
from fedmaba.simulation.part import Host, IntArray, ModelsOf
from fedmaba.simulation.work import Cohort


@dataclass(frozen=True)
class LossSpec:
    """Everything that decides which operations compute the losses of participants."""

    rows: Rows
    workers: Workers
    everyone: bool  # whether all clients take part: then all runs see the same examples
    width: int  #     examples of the largest client
    length: int  #    examples of a run's participants, at most


def start_losses(
    batch: Batch, parts: RunParts, cohorts: list[Cohort], model: Tensor | None = None
) -> dict[int, Host]:
    """Each participant's loss at its run's model on these examples of its own, by run.

    `model` (R, P): other models than those of the servers.
    """
    model = batch.progress.model if model is None else model
    if not cohorts:
        return {}
    if not whole_models(batch):
        return {c.r: _own_losses(batch, parts, c, model[c.r]) for c in cohorts}
    runs, ranks = np.array([c.r for c in cohorts]), batch.ranks
    first, size = parts.entries_of([(c.r, c.client) for c in cohorts])
    found = np.zeros(first.shape)
    first, size = first[:, ranks.mine], size[:, ranks.mine]
    everyone = all(len(c.client) == c.run.federation.n_clients for c in cohorts)
    spec = LossSpec(
        rows=batch.rows,
        workers=batch.workers,
        everyone=ranks.count == 1 and everyone,
        width=int(size.max(initial=0)),
        length=int(size.sum(1).max()),
    )
    pool = batch.pool
    held = (pool.x, pool.y, parts.entries, parts.union, parts.place, model)
    means = torch.zeros(size.shape)  # a rank without a client
    if size.size:
        means = batch.graphs.run(losses_at_models, spec, held, (runs, first, size))
    pending = start_fetch(means)

    @cache
    def all_losses() -> NDArray[np.float64]:
        found[:, ranks.mine] = pending()
        ranks.sum(torch.from_numpy(found))
        return found

    def of_run(i: int, many: int) -> NDArray[np.float64]:
        return all_losses()[i, :many].copy()

    return {c.r: partial(of_run, i, len(c.client)) for i, c in enumerate(cohorts)}


def _own_losses(batch: Batch, parts: RunParts, c: Cohort, model: Tensor) -> Host:
    """Each participant's loss at a model (P,) as it uses it."""
    models = partial(server_models, batch.trainer, c.r, model)
    losses, _ = client_means(batch, parts, c.r, models, c.client)
    return start_fetch(losses)


def server_models(trainer: Trainer, r: int, model: Tensor, client: IntArray) -> Tensor:
    """(n, P) A server's model (P,) as clients use it."""
    return trainer.used(r, client, model.repeat(len(client), 1))


def client_means(
    batch: Batch,
    parts: RunParts,
    r: int,
    models: ModelsOf,
    client: IntArray,  # (n,)
    *,
    scored: bool = False,
) -> tuple[Tensor, Tensor]:
    """(n,) mean loss and score of clients of run r, each under a model of its own.

    Ranks share the work. A client without examples has no mean (nan).
    """
    device = batch.progress.model.device
    found = torch.zeros(2, len(client), dtype=torch.float64, device=device)
    mine = np.arange(len(client))[batch.ranks.mine]
    for at in np.split(mine, range(batch.progress.chunk, len(mine), batch.progress.chunk)):
        first, size = (v[0] for v in parts.entries_of([(r, client[at])]))
        offset = torch.arange(max(1, int(size.max(initial=0))), device=device)
        valid = offset < send(size, device)[:, None]
        entry = torch.where(valid, send(first, device)[:, None] + offset, 0)
        values = batch.evaluate(models(client[at]), parts.entries[entry], scored=scored)
        for into, value in zip(found, values if scored else values[:1], strict=False):
            into[send(at, device)] = mean_losses(value, valid)
    batch.ranks.sum(found)
    return found[0], found[1]


def losses_at_models(
    spec: LossSpec,
    x: Inputs,
    y: Tensor,
    entries: Tensor,
    union: Tensor,
    place: Tensor,
    model: Tensor,  # (R, P)
    runs: Tensor,  # (C,)
    first: Tensor,  # (C, m)  first entry of each participant
    size: Tensor,  # (C, m)   how many it has
) -> Tensor:
    """(C, m) mean loss of each participant at its run's model."""
    offset = torch.arange(spec.width, device=first.device)
    valid = offset < size[..., None]  # (C, m, n_max)
    entry = torch.where(valid, first[..., None] + offset, 0)
    if spec.everyone:  # one set of examples for all runs
        index, at = union, place[entry]
    else:  # each run's own, without padding
        index, at = _without_padding(entries, entry, valid, spec.length)
    losses, _ = evaluate(spec.rows, model[runs], index, x, y, spec.workers, scored=False)
    return mean_losses(losses.gather(1, at.flatten(1)).view(at.shape), valid)


def _without_padding(
    entries: Tensor, entry: Tensor, valid: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """Pool rows (C, length) of entries (C, m, n_max) without padding, and where each went."""
    place = (valid.flatten(1).cumsum(1) - 1).clamp_(min=0)
    at = torch.where(valid.flatten(1), place, length)  # padding: one place beyond the end
    index = torch.zeros(len(entry), length + 1, dtype=torch.int64, device=entry.device)
    index.scatter_(1, at, entries[entry.flatten(1)])
    return index[:, :length], place.view(valid.shape)


def end_losses(batch: Batch, c: Cohort, place: IntArray, w: Tensor) -> Tensor:
    """(n,) The training loss of trained rows, each on its own client's examples."""
    part = c.run.federation.train
    first, size = batch.train.base[c.r] + part.start[c.client[place]], part.size[c.client[place]]
    offset = torch.arange(int(size.max()), device=w.device)
    valid = offset < send(size, w.device)[:, None]
    entry = torch.where(valid, send(first, w.device)[:, None] + offset, 0)
    losses, _ = batch.evaluate(w, batch.train.entries[entry], scored=False)
    return mean_losses(losses, valid)
