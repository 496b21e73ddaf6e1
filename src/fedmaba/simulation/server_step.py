"""The server's step of all runs: weighted sums of trained rows, new models, deployed averages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.batch import Batch, precision
from fedmaba.simulation.cohort import Cohort, FloatArray
from fedmaba.simulation.state import KeptChanges
from fedmaba.strategies.base import still_kept


@dataclass(frozen=True)
class StepSpec:
    """Step size and momentum of the server, and how much of a model it has."""

    lr: float
    momentum: float
    shared: int  # what lies beyond this the clients keep, and it stays as it is here


def server_step(
    spec: StepSpec,
    model: Tensor,  # (R, P)
    deployed: Tensor,  # (D, P)
    velocity: Tensor | None,  # (R, P)
    owner: Tensor | None,  # (D,)   run of each deployed model; None: one each
    delta: Tensor,  # (R, P)
    moves: Tensor,  # (R,)          1 for runs that move
    share: Tensor,  # (D,)          of the new model in the deployed one
) -> Tensor:
    """Move each run whose new model is finite, and say which are, (R,); others keep their last."""
    asked = moves > 0
    if velocity is not None:
        pushed = spec.momentum * velocity + delta
        delta = velocity.copy_(torch.where(asked[:, None], pushed, velocity))
    new = model + spec.lr * delta
    new[:, spec.shared :] = model[:, spec.shared :]
    finite = new.isfinite().all(1)
    moved = (finite & asked)[:, None]
    each, gone_on = (new, moved) if owner is None else (new[owner], moved[owner])
    averaged = deployed + share[:, None] * (each - deployed)
    model.copy_(torch.where(moved, new, model))
    deployed.copy_(torch.where(gone_on, averaged, deployed))
    return finite


def aggregate_whole_round(
    spec: StepSpec,
    w: Tensor,  # (C * m, P)
    model: Tensor,
    deployed: Tensor,
    velocity: Tensor | None,
    owner: Tensor | None,
    coef: Tensor,  # (C, m)
    runs: Tensor,  # (C,)
    moves: Tensor,
    share: Tensor,
) -> Tensor:
    """Weigh all rows of a round at once and take the server's step."""
    total, weight = _summed(coef, w)
    delta = torch.zeros_like(model)
    delta[runs] = total - weight * model[runs]
    return server_step(spec, model, deployed, velocity, owner, delta, moves, share)


def weighted_sums(w: Tensor, coef: list[FloatArray]) -> tuple[Tensor, Tensor]:
    """coef @ w of one cohort's rows after another's, (C, P), and the sum of each coef, (C, 1)."""
    many = [len(v) for v in coef]
    share = send(np.concatenate(coef), w.device).to(w.dtype)
    if min(many) == max(many):
        return _summed(share.view(len(coef), -1), w)
    parts = zip(torch.split(share, many), torch.split(w, many), strict=True)
    total, weight = zip(*(_summed(v[None], rows) for v, rows in parts), strict=True)
    return torch.cat(total), torch.cat(weight)


def _summed(coef: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """coef (C, m) @ w (C * m, P) of each cohort, and the sum of its coef, (C, 1)."""
    with precision("float32"):
        total = torch.bmm(coef[:, None], w.view(*coef.shape, -1))[:, 0]
    return total, coef.sum(1, keepdim=True)


def combine_changes(coef: FloatArray, change: Tensor, past: Tensor) -> Tensor:
    """coef @ changes (m, P); further coefficients belong to `past`, the changes of past rounds."""
    share = send(coef, change.device).to(change.dtype)
    with precision("float32"):
        out = share[: len(change)] @ change
        return out + share[len(change) :] @ past if len(coef) > len(change) else out


def kept_changes(before: KeptChanges, c: Cohort, change: Tensor, t: int) -> KeptChanges:
    """The changes that a cohort's strategy needs again after round t."""
    old = still_kept((before.client, before.round), c.client, t, c.needs.keep_rounds)
    return KeptChanges(
        torch.cat([before.change[send(np.flatnonzero(old), change.device)], change]),
        np.concatenate([before.client[old], c.client]),
        np.concatenate([before.round[old], np.full(len(c.client), t)]),
    )


def held_by_step(batch: Batch) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The tensors that the server's step reads or changes in place."""
    at = batch.progress
    one_each = len(at.owner) == len(at.model)
    return at.model, at.deployed, at.velocity, None if one_each else batch.owner
