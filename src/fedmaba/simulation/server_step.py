"""The server's step of all runs: weighted sums of trained rows, new models, deployed averages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.batch import Batch, precision
from fedmaba.simulation.part import FloatArray


@dataclass(frozen=True)
class StepSpec:
    """Step size of the server, and which parts a model has."""

    lr: float
    compared: int  # what lies beyond this are statistics, which no optimiser changes
    shared: int  # what lies beyond this the clients keep, and it stays as it is here


def server_step(
    spec: StepSpec,
    model: Tensor,  # (R, P)
    deployed: Tensor,  # (D, P)
    moments: Moments | None,
    owner: Tensor | None,  # (D,)   run of each deployed model; None: one each
    delta: Tensor,  # (R, P)
    moves: Tensor,  # (R,)          1 for runs that move
    share: Tensor,  # (D,)          of the new model in the deployed one
) -> Tensor:
    """Move each run whose new model is finite, and say which are, (R,); others keep their last."""
    asked = moves > 0
    if moments is not None:
        delta = _directions(spec, moments, delta, asked[:, None])
    new = (spec.lr * delta).add_(model)
    new[:, spec.shared :] = model[:, spec.shared :]
    finite = new.abs().amax(1).isfinite()
    moved = (finite & asked)[:, None]
    torch.where(moved, new, model, out=model)
    each, gone_on = (new, moved) if owner is None else (new[owner], moved[owner])
    averaged = each.sub_(deployed).mul_(share[:, None]).add_(deployed)
    torch.where(gone_on, averaged, deployed, out=deployed)
    return finite


# first moments (R, P), the numbers of the optimisers (9, R, 1), and second moments if any
Moments = tuple[Tensor, ...]


def _directions(spec: StepSpec, moments: Moments, delta: Tensor, asked: Tensor) -> Tensor:
    """(R, P) What each run's optimiser makes of its weighted changes; moments move on in place."""
    first, numbers, *rest = moments
    keep, take, lr, own, adaptive, yogi, keep2, take2, tau = numbers.unbind()
    first.copy_(torch.where(asked, keep * first + take * delta, first))
    out = first
    if rest:
        (second,) = rest
        square = delta.square()
        adam = keep2 * second + take2 * square
        grown = torch.where(yogi > 0, second - take2 * square * (second - square).sign(), adam)
        second.copy_(torch.where(asked & (adaptive > 0), grown, second))
        out = torch.where(adaptive > 0, first / (second.sqrt() + tau), first)
    out = lr * out
    if spec.compared < spec.shared:
        plain = slice(spec.compared, spec.shared)
        out[:, plain] = torch.where(own > 0, delta[:, plain], out[:, plain])
    return out


def aggregate_whole_round(
    spec: StepSpec,
    w: Tensor,  # (C * m, P)
    model: Tensor,
    deployed: Tensor,
    moments: Moments | None,
    owner: Tensor | None,
    coef: Tensor,  # (C, m)
    runs: Tensor,  # (C,)
    moves: Tensor,
    share: Tensor,
) -> Tensor:
    """Weigh all rows of a round at once and take the server's step."""
    total, weight = _summed(coef, w)
    change = total.sub_(weight * model.index_select(0, runs))
    delta = torch.zeros_like(model).index_copy_(0, runs, change)
    return server_step(spec, model, deployed, moments, owner, delta, moves, share)


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


def weighted(coef: FloatArray, change: Tensor, layers: list[slice]) -> Tensor:
    """(P,) Weighted changes (m, P), with one row of coefficients or one for each layer (L, m).

    Rows of another number are mixes, of which a rule makes the step; this is their mean.
    """
    if coef.ndim == 1:
        return combine_changes(coef, change)
    out = combine_changes(coef.mean(0), change)  # statistics have the mean of the layers
    if len(coef) != len(layers):
        return out
    for row, part in zip(coef, layers, strict=True):
        out[part] = combine_changes(row, change[:, part])
    return out


def combine_changes(coef: FloatArray, change: Tensor) -> Tensor:  # (P,)
    """coef @ changes (m, P)."""
    share = send(coef, change.device).to(change.dtype)
    with precision("float32"):
        return share @ change


def held_by_step(batch: Batch) -> tuple[Tensor, Tensor, Moments | None, Tensor | None]:
    """The tensors that the server's step reads or changes in place."""
    at = batch.progress
    one_each = len(at.owner) == len(at.model)
    moments = None
    if at.velocity is not None:
        second = () if at.second is None else (at.second,)
        moments = (at.velocity, batch.optimiser_numbers, *second)
    return at.model, at.deployed, moments, None if one_each else batch.owner
