"""The vectors that clients keep: how they join training, and what they are after it.

Also the gradient of all of a client's examples, of which such a vector may be made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmaba.rows.base import Rows
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.simulation.local_training import Pool, TrainingJob, train_chunk
from fedmaba.simulation.optimiser import Optimiser, Schedule
from fedmaba.strategies.base import Keep, Local


def added_terms(
    local: Local,
    kept: Iterable[tuple[str, Tensor]],  #  (m, P) each
    means: Mapping[str, Tensor],  #         (P,) each
    like: Tensor,
) -> Tensor:  # (m, P)
    """What clients add to their gradients: vectors that they keep, and means of those over all."""
    total = None
    for name, vector in kept:
        if name in local.add:
            more = local.add[name] * vector
            total = more if total is None else total.add_(more)
    total = torch.zeros_like(like) if total is None else total
    for name, factor in local.add_mean.items():
        total.add_(means[name], alpha=factor)
    return total


class TrainedClients(NamedTuple):
    """What clients know after their training, of which the vectors are made that they keep."""

    start: Tensor  # (m, P)          the server's model; (1, P) where it is the same for all
    end: Tensor  # (m, P)            their own
    moved: Tensor  # (m, 1)          number of steps times step size
    gradient: Tensor | None  # (m, P)  of all examples at the server's model, where needed


def kept_after(
    keep: Keep, name: str, trained: TrainedClients, before: Tensor, means: Mapping[str, Tensor]
) -> Tensor:  # (m, P)
    """A vector that clients keep, after their training."""
    start, end, moved, gradient = trained
    new = before if keep.before == 1 else keep.before * before
    if keep.start or keep.end:
        new = (keep.end * end).add_(keep.start * start).add_(new)
    if keep.mean:
        new = new + keep.mean * means[name]
    if keep.step_gradient:
        new = (start - end).mul_(keep.step_gradient / moved).add_(new)
    if keep.full_gradient and gradient is not None:
        new = new + (gradient if keep.full_gradient == 1 else keep.full_gradient * gradient)
    return new


# A step of this size makes a full gradient out of two models. It is so large that the weights take
# no digits from the gradient, and a power of two, so that dividing by it is exact.
GRADIENT_STEP = 2.0**20


def full_gradients(
    rows: Rows,
    pool: Pool,
    models: Tensor,
    job: TrainingJob,
    graphs: GraphCache,
    result_slot: object = None,
) -> Tensor:  # (R, P)
    """The gradient of all examples of each row's client, at the model that it starts from."""
    whole = replace(
        job,
        steps=np.ones_like(job.steps),
        lr=GRADIENT_STEP,
        optimiser=Optimiser(),
        schedule=Schedule(),
        augment=None,
        local=(Local(full_batch=True),),
        whose=None,
        added=None,
    )
    moved, _ = train_chunk(rows, pool, models, whole, graphs, ("gradient", result_slot))
    start = models.index_select(0, torch.from_numpy(job.run).to(models.device))
    if job.own is not None:
        start[:, rows.layout.shared :] = job.own
    return (start - moved).div_(GRADIENT_STEP)
