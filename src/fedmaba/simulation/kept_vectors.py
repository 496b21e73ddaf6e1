"""The vectors that clients keep: how they join training, and what they are after it.

Also the gradient of all of a client's examples, of which such a vector may be made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.errors import InputError
from fedmaba.rows import kernels
from fedmaba.rows.base import Rows
from fedmaba.rows.cuda_graphs import GraphCache, send
from fedmaba.simulation.local_training import Pool, TrainingJob, train_chunk
from fedmaba.simulation.optimiser import Optimiser, Schedule
from fedmaba.strategies.base import PERSONAL, Keep, Local, Strategy

PIECE = 2**18  # numbers that are combined at once on a CPU, so that they stay in its cache
MAX_GPU_SHARE = 1 / 8  # of a GPU's memory that kept vectors may take
EDGE = 1024  # pieces begin at multiples of this, so that sums have the same order in any piece


def host_memory() -> int:
    """The bytes of this machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def first_vectors(
    strategies: Sequence[Strategy], clients: Sequence[int], models: Tensor
) -> list[dict[str, Tensor]]:
    """What the clients of each run keep: zeros, and models of their own, which begin as the run's.

    They lie in the host's memory where they would take more than a part of a GPU's. `models` (R, P)
    are those that the runs begin with.
    """
    local = [strategy.local() for strategy in strategies]
    many = [len(o.keep) + (o.personal is not None) for o in local]
    size = sum(k * n for k, n in zip(many, clients, strict=True)) * models[0].nbytes
    where = models.device
    if models.is_cuda:
        total = torch.cuda.get_device_properties(where).total_memory
        where = torch.device("cpu") if size > MAX_GPU_SHARE * total else where
    if where.type == "cpu":
        _require_room(size, strategies)
    out = []
    for r, (n, o) in enumerate(zip(clients, local, strict=True)):
        own: dict[str, Tensor] = {}
        for name in o.keep:
            own[name] = torch.zeros(n, models.shape[1], dtype=models.dtype, device=where)
        if o.personal is not None:
            own[PERSONAL] = models[r].to(where).repeat(n, 1)
        out.append(own)
    return out


def _require_room(size: int, strategies: Sequence[Strategy]) -> None:
    """Refuse vectors that the host's memory cannot hold, before the system ends the run for it."""
    memory = host_memory()
    if memory and size > memory:
        keeping = dict.fromkeys(s.name for s in strategies if s.local().keep or s.local().personal)
        raise InputError(
            f"{', '.join(keeping)}: what clients keep takes {size / 1e9:.1f} GB, and this machine "
            f"has {memory / 1e9:.1f} GB of memory: run fewer seeds or strategies at once, or take "
            "fewer clients or a smaller model"
        )


def vector_pieces(many: int, width: int, device: torch.device) -> list[slice]:
    """Cuts of `many` vectors of a width: on a CPU small ones, elsewhere one of all."""
    most = max(1, PIECE // width) if device.type == "cpu" else many
    return [slice(a, min(a + most, many)) for a in range(0, many, most)]


def weight_pieces(matrix: Tensor) -> list[slice]:
    """Cuts of the columns of a matrix: on a CPU small ones, elsewhere one of all."""
    many, width = matrix.shape
    most = max(1, PIECE // many // EDGE) * EDGE if matrix.device.type == "cpu" else width
    return [slice(a, min(a + most, width)) for a in range(0, width, most)]


def as_slice(index: NDArray[np.int64]) -> slice | None:
    """The slice that takes these rows in this order; None where there is none."""
    first, many = int(index[0]), len(index)
    if int(index[-1]) - first != many - 1 or (np.diff(index) != 1).any():
        return None
    return slice(first, first + many)


def take_rows(matrix: Tensor, index: NDArray[np.int64]) -> Tensor:
    """Some rows of a matrix to read, without a copy where they follow one another."""
    at = as_slice(index)
    return matrix.index_select(0, send(index, matrix.device)) if at is None else matrix[at]


def put_rows(into: Tensor, index: NDArray[np.int64], values: Tensor) -> None:
    """Write some rows of a matrix; the values may be on another device."""
    if (at := as_slice(index)) is not None:
        into[at].copy_(values)
    else:
        into.index_copy_(0, send(index, into.device), values.to(into.device))


def added_terms(
    local: Local,
    kept: Mapping[str, Tensor],  #   (m, P) each
    means: Mapping[str, Tensor],  #  (P,) each
    into: Tensor,  #                 (m, P)
    factor: float = 1.0,
    start: Tensor | None = None,  #  (P,)
) -> Tensor:  # (m, P)
    """What clients add to their gradients: vectors that they keep, and means of those over all.

    It is written over `into`, times the factor, plus `start` where that is given.
    """
    terms = [(kept[name], factor * each) for name, each in local.add.items()]
    terms += [(means[name][None], factor * each) for name, each in local.add_mean.items()]
    terms += [(start[None], 1.0)] if start is not None else []
    return sum_of_vectors(terms, into)


class Difference(NamedTuple):
    """A part of a sum of vectors: (a - b) * rate, with nearly equal a and b."""

    a: Tensor  # (m, P), or (1, P) where it is the same for all
    b: Tensor  # as a
    rate: Tensor  # (m, 1)

    def of(self, at: slice) -> Difference:
        """The same of some of the weights."""
        return Difference(self.a[:, at], self.b[:, at], self.rate)


def sum_of_vectors(
    terms: Sequence[tuple[Tensor, float]],  # vectors (m, P), or (1, P), and their factors
    into: Tensor,  #                          (m, P)
    difference: Difference | None = None,
) -> Tensor:  # (m, P)
    """The sum of vectors times their factors, written over `into`: on a GPU in one pass."""
    terms = [(vector, factor) for vector, factor in terms if factor]
    if kernels.can_run(into) and len(terms) <= kernels.vectors.MAX_VECTORS:
        kernels.vectors.write_sum(terms, difference, into)
        return into
    for at in weight_pieces(into):
        part = into[:, at]
        empty = difference is None
        if difference is not None:
            a, b, rate = difference.of(at)
            torch.sub(a, b, out=part).mul_(rate)
        for vector, factor in terms:
            if empty:
                torch.mul(vector[:, at].expand_as(part), factor, out=part)
            else:
                part.add_(vector[:, at], alpha=factor)
            empty = False
        if empty:
            part.zero_()
    return into


class TrainedClients(NamedTuple):
    """What clients know after their training, of which the vectors are made that they keep."""

    start: Tensor  # (m, P)          the server's model; (1, P) where it is the same for all
    end: Tensor  # (m, P)            their own
    moved: Tensor  # (m, 1)          number of steps times step size
    gradient: Tensor | None  # (m, P)  of all examples at the server's model, where needed


def kept_after(
    keep: Keep, trained: TrainedClients, before: Tensor, mean: Tensor | None, into: Tensor
) -> Tensor:  # (m, P)
    """A vector that clients keep, after their training; it is written over `into` (m, P).

    `mean` (P,) is that over all clients before the training, where there is one.
    """
    start, end, moved, gradient = trained
    terms = [(start, keep.start), (end, keep.end), (before, keep.before)]
    terms += [] if mean is None else [(mean[None], keep.mean)]
    terms += [] if gradient is None else [(gradient, keep.full_gradient)]
    steps = Difference(start, end, keep.step_gradient / moved) if keep.step_gradient else None
    return sum_of_vectors(terms, into, steps)


def new_mean(
    mean: Tensor, after: Tensor, kept: Tensor, client: NDArray[np.int64], n: int
) -> Tensor:  # (P,)
    """The mean of kept vectors (N, P) over all n clients, once those of some are `after` (m, P)."""
    if len(client) == n:
        parts = [after[:, some].sum(0) for some in weight_pieces(after)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).div_(n)
    return mean + _summed_change(after, kept, client) / n


def _summed_change(after: Tensor, kept: Tensor, client: NDArray[np.int64]) -> Tensor:  # (P,)
    at, device = as_slice(client), after.device
    who = None if at is not None else send(client, kept.device)
    parts = []
    for some in weight_pieces(after):
        old = kept[at, some] if who is None else kept[:, some].index_select(0, who)
        parts.append((after[:, some] - old.to(device)).sum(0))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


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
