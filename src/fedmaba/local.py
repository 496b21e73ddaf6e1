"""Local work of many rows at once: minibatches, SGD, losses. The only hot code besides `rows`.

Knows rows and a pool of examples; no clients, rounds or strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.rows.base import Bent, Rows
from fedmaba.rows.random import shuffles
from fedmaba.workers import Workers

MetricFn = Callable[[Tensor, Tensor], Tensor]  # outputs (n, C), targets (n,) -> score of each (n,)
MICRO = 500  # examples of a full-batch gradient taken at once


@dataclass(frozen=True)
class Pool:
    """Every example of a federation, on the device."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n,)


@dataclass(frozen=True)
class Job:
    """Local work of one chunk of rows, sorted by number of steps, longest first."""

    index: Tensor  # (R, n_max)          rows of the pool, padded
    size: NDArray[np.int64]  # (R,)      how many of them count
    steps: NDArray[np.int64]  # (R,)     minibatches (full-batch rows: 1)
    minibatch: int
    keys: Tensor  # (R,)                 random stream of each row in this round
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: Tensor | None = None  # (R, 1) mu
    bent: Bent | None = None
    full_batch: bool = False


def train(rows: Rows, start: Tensor, job: Job, pool: Pool) -> tuple[Tensor, Tensor]:
    """Trained weights (R, P) and the mean loss of the minibatches seen (R,)."""
    w = start.clone()
    seen = torch.zeros(len(w), device=w.device, dtype=w.dtype)
    steps = torch.from_numpy(job.steps).to(w.device)
    plain = not (job.full_batch or job.momentum or job.weight_decay or job.prox is not None)
    gradient = None if plain else torch.empty_like(w)
    velocity = torch.zeros_like(w) if job.momentum else None
    for k, (index, weight) in enumerate(_minibatches(job, w.dtype)):
        a = len(index)  # rows that still have a step to do
        bent = None if job.bent is None else job.bent.first(a)
        if gradient is None:
            seen[:a] += rows.accumulate(
                w[:a], w[:a], pool.x[index], pool.y[index], weight, -job.lr, bent, job.keys[:a] + k
            )
            continue
        gradient[:a] = 0.0
        seen[:a] += _gradient(
            rows, w[:a], gradient[:a], index, weight, bent, job.keys[:a] + k, pool
        )
        g = gradient[:a]
        if job.weight_decay:
            g.add_(w[:a], alpha=job.weight_decay)
        if job.prox is not None:
            g.addcmul_(job.prox[:a], w[:a] - start[:a])
        if velocity is not None:
            g = velocity[:a].mul_(job.momentum).add_(g)
        w[:a].sub_(g, alpha=job.lr)
    return w, seen / steps


def _gradient(
    rows: Rows,
    w: Tensor,
    sink: Tensor,
    index: Tensor,  # (R, B)
    weight: Tensor,  # (R, B)
    bent: Bent | None,
    keys: Tensor,
    pool: Pool,
) -> Tensor:
    """Add the gradient of a minibatch to `sink`, a piece at a time where it is large."""
    if index.shape[1] <= MICRO or bent is not None:  # a bent loss needs the minibatch whole
        return rows.accumulate(w, sink, pool.x[index], pool.y[index], weight, 1.0, bent, keys)
    loss = torch.zeros(len(w), device=w.device, dtype=w.dtype)
    for piece, a in enumerate(range(0, index.shape[1], MICRO)):
        part, share = index[:, a : a + MICRO], weight[:, a : a + MICRO]
        stream = keys + (piece << 32)
        loss += rows.accumulate(w, sink, pool.x[part], pool.y[part], share, 1.0, None, stream)
    return loss


def _minibatches(job: Job, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Pool rows (a, B) and weights (a, B) of each step, for the a rows that still have one."""
    device, width = job.keys.device, job.index.shape[1]
    size = torch.from_numpy(job.size).to(device)[:, None]  # (R, 1)
    if job.full_batch:
        yield job.index, (torch.arange(width, device=device) < size).to(dtype) / size
        return
    batches = -(-job.size // job.minibatch)  # (R,) in an epoch
    epochs = int((-(-job.steps // batches)).max())
    order = torch.stack(
        [shuffles(job.keys + ((1 + e) << 40), size, width) for e in range(epochs)], dim=1
    )  # (R, E, n_max)
    mine = job.index[:, None].expand(-1, epochs, -1).gather(2, order).flatten(1)  # (R, E * n_max)
    per_epoch = torch.from_numpy(batches).to(device)[:, None]
    offset = torch.arange(min(job.minibatch, width), device=device)
    for k in range(int(job.steps.max())):
        a = int((job.steps > k).sum())
        position = k % per_epoch[:a] * job.minibatch + offset  # (a, B) within the epoch
        valid = position < size[:a]
        at = torch.where(valid, k // per_epoch[:a] * width + position, 0)
        yield mine[:a].gather(1, at), valid.to(dtype) / valid.sum(1, keepdim=True)


def evaluate(
    rows: Rows,
    flat: Tensor,  # (R, P)
    index: Tensor,  # (n,) shared by all rows, or (R, n)
    pool: Pool,
    metric: MetricFn | None,
    budget: int,
    workers: Workers,
) -> tuple[Tensor, Tensor]:
    """Loss and score (R, n) of each example; `budget` bounds the numbers held at a time."""
    n, shared = index.shape[-1], index.ndim == 1
    losses = torch.empty(len(flat), n, device=flat.device, dtype=flat.dtype)
    scores = torch.empty_like(losses)
    group = max(1, min(len(flat), budget // (rows.activations * 1000))) if flat.is_cuda else 1
    step = max(1, budget // (rows.activations * group))

    def piece(a: int) -> None:
        part = index[..., a : a + step]
        if shared:  # gathered once for all rows
            x, y = pool.x[part][None], pool.y[part][None]
        for r in range(0, len(flat), group):
            if not shared:
                x, y = pool.x[part[r : r + group]], pool.y[part[r : r + group]]
            out = rows.outputs(flat[r : r + group], x)
            target = y.expand(out.shape[:2])
            losses[r : r + group, a : a + step] = rows.losses(out, target)
            if metric is None:
                score = out.argmax(-1) == target
            else:
                score = metric(out.flatten(0, 1), target.flatten()).view(target.shape)
            scores[r : r + group, a : a + step] = score

    for _ in workers.map(piece, range(0, n, step)):
        pass
    return losses, scores
