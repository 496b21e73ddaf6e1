"""Scores of clients by a metric of all of a client's predictions, such as the area under a curve.

Models are evaluated one by one, and a group of clients at a time, so that the outputs of no more
than a group are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedmaba.errors import InputError
from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.batch import Batch, RunParts
from fedmaba.simulation.evaluation import outputs_and_losses
from fedmaba.simulation.part import IntArray, ModelsOf
from fedmaba.simulation.state import Scores
from fedmaba.stop import Ended
from fedmaba.user_code import error_in_user_code

# All outputs (n, ...) and targets (n, ...) of one client -> its score, nan where undefined.
ClientMetricFn = Callable[[NDArray[np.float64], NDArray[Any]], float]
MOST_OUTPUTS = 16_000_000  # numbers in memory at a time, unless one client has more


def client_scores(
    batch: Batch, parts: RunParts, r: int, models: ModelsOf, *, shared: bool
) -> Scores:
    """Mean loss and score of each client of run r under its model; ranks share the work.

    `shared` says that all clients have the same model.
    """
    if batch.client_metric is None:
        raise ValueError("the batch has no metric of clients")
    part = parts.parts[r]
    found = torch.zeros(2, len(part.size), dtype=torch.float64)
    some = np.flatnonzero(part.size)
    for told in outputs_of_clients(batch, parts, r, models, some, shared=shared):
        ends = np.cumsum(part.size[told.clients])
        for c, b in zip(told.clients, ends, strict=True):
            own_rows = slice(b - part.size[c], b)
            found[0, c] = told.losses[own_rows].mean()
            found[1, c] = score_of_client(
                batch.client_metric, told.outputs[own_rows], told.y[own_rows], f"client {c}"
            )
    batch.ranks.sum(found)
    loss, scores = found.numpy()
    if np.isnan(scores[some]).all() and np.isfinite(loss[some]).all():
        raise InputError(
            "the client_metric gave nan for every client: give a number where there is one"
        )
    found[:, part.size == 0] = np.nan
    return Scores(loss, scores)


class Predicted(NamedTuple):
    """What a model predicts for all examples of some clients, one client after another."""

    clients: IntArray
    losses: NDArray[np.float64]  # (n,)
    outputs: NDArray[np.float64]  # (n, ...)
    y: NDArray[Any]  # (n, ...)


def outputs_of_clients(
    batch: Batch, parts: RunParts, r: int, models: ModelsOf, clients: IntArray, *, shared: bool
) -> Iterator[Predicted]:
    """The outputs for this rank's share of some clients of run r, a group of them at a time.

    Each client of `clients` has an example. `shared` says that all of them have the same model.
    """
    part, pool = parts.parts[r], batch.pool
    for group in _groups(clients[batch.ranks.mine], part.size, _most(batch) if shared else 0):
        index = np.concatenate([part.of(c) for c in group])
        rows, w = send(index, batch.progress.model.device), models(group[:1])
        losses, outputs = outputs_and_losses(batch.rows, w, rows, pool.x, pool.y, batch.workers)
        told = (v.cpu().numpy() for v in (losses.double(), outputs.double(), pool.y[rows]))
        yield Predicted(group, *told)


def whole_models(batch: Batch) -> bool:
    """Whether all clients use the server's model as it is."""
    return not any(part.changes_model for part in batch.parts)


def score_of_client(
    metric: ClientMetricFn, outputs: NDArray[np.float64], targets: NDArray[Any], whose: str
) -> float:
    """The score of one client; nan where the metric, or a broken model, leaves it undefined."""
    if not np.isfinite(outputs).all():
        return math.nan
    try:
        value = metric(outputs, targets)
    except Ended:  # a signal, not an error of the function
        raise
    except Exception as error:  # a user's function can raise anything
        raise error_in_user_code(f"the client_metric, of {whose}", error) from error
    plain = np.asarray(value)
    if plain.shape or plain.dtype.kind not in "buif" or np.isinf(plain):
        given = repr(value) if not plain.shape else f"an array of shape {plain.shape}"
        raise InputError(
            f"the client_metric gave {given[:80]} for {whose}: it must give one finite number, or "
            "nan where it is undefined"
        )
    return float(plain)


def _most(batch: Batch) -> int:
    """How many examples' outputs there is room for."""
    kind = batch.runs[0].federation.data.target
    positions = math.prod(kind.shape) if kind.task == "sequence" else 1
    return max(1, MOST_OUTPUTS // (kind.outputs * positions))


def _groups(clients: IntArray, size: IntArray, most: int) -> Iterator[IntArray]:
    """Clients in order, as many at a time as have at most so many examples; at least one."""
    first = 0
    while first < len(clients):
        ends = np.cumsum(size[clients[first:]])
        many = max(1, int(np.searchsorted(ends, most, side="right")))
        yield clients[first : first + many]
        first += many
