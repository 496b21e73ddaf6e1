"""The server's step of all runs: weighted sums of trained rows, new models, deployed averages."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba import average
from fedmaba.batch import Batch, precision
from fedmaba.cohort import Cohort, FloatArray, IntArray, Table
from fedmaba.runs import Kept
from fedmaba.strategy import stays
from fedmaba.tape import send


def shares(batch: Batch, cohorts: list[Cohort], t: int) -> NDArray[Any]:
    """(R,) share of each run's new model in its deployed one; 0 for runs that do not move."""
    double = batch.progress.model.dtype == torch.float64
    share = np.zeros(len(batch.runs), np.float64 if double else np.float32)
    for c in cohorts:
        if not batch.progress.diverged[c.r]:
            for r in c.same:
                share[r] = average.share(batch.runs[r].average, t)
    return share


def weighted(w: Tensor, coef: list[FloatArray]) -> tuple[Tensor, Tensor]:
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


def combined(coef: FloatArray, change: Tensor, past: Tensor) -> Tensor:
    """coef @ change (m, P), with what stands behind it in coef times changes of rounds before."""
    share = send(coef, change.device).to(change.dtype)
    with precision("float32"):
        out = share[: len(change)] @ change
        return out + share[len(change) :] @ past if len(coef) > len(change) else out


def kept(before: Kept, c: Cohort, change: Tensor, t: int) -> Kept:
    """The changes that a cohort's strategy wants to see again after round t."""
    old = stays((before.client, before.round), c.client, t, c.needs.keep_rounds)
    return Kept(
        torch.cat([before.change[send(np.flatnonzero(old), change.device)], change]),
        np.concatenate([before.client[old], c.client]),
        np.concatenate([before.round[old], np.full(len(c.client), t)]),
    )


def even(table: Table, rows: IntArray) -> bool:
    """Whether rows are in order, with as many for each run."""
    many = np.bincount(table.cohort)
    return bool((many == many[0]).all() and (rows == np.arange(len(rows))).all())


def whole(batch: Batch, cohorts: list[Cohort], w: Tensor, share: NDArray[Any]) -> Tensor:
    """Weigh a whole round's rows at once and take the server's step."""
    model = batch.progress.model

    def work(coef: Tensor, runs: Tensor, share: Tensor) -> Tensor:
        total, weight = _summed(coef, w)
        delta = torch.zeros_like(model)
        delta[runs] = total - weight * model[runs]
        return step(batch, delta, share)

    coef = np.stack([c.decision.coef for c in cohorts if c.decision]).astype(share.dtype)
    runs = np.array([c.r for c in cohorts])
    shape = ("move", w.data_ptr(), model.data_ptr(), coef.shape, runs.tobytes())
    out: Tensor = batch.tape(shape, work, coef, runs, share)
    return out


def step(batch: Batch, delta: Tensor, share: Tensor) -> Tensor:
    """The server's step of each run whose new model is finite, (R,); the others keep their last."""
    plan, at = batch.plan, batch.progress
    asked = share > 0
    if batch.first is not None:
        delta = delta.index_select(0, batch.first)
    if at.velocity is not None:
        pushed = plan.server_momentum * at.velocity + delta
        delta = at.velocity.copy_(torch.where(asked[:, None], pushed, at.velocity))
    new = at.model + plan.server_lr * delta
    finite = new.isfinite().all(1)
    moved = (finite & asked)[:, None]
    averaged = at.deployed + share[:, None] * (new - at.deployed)
    at.model.copy_(torch.where(moved, new, at.model))
    at.deployed.copy_(torch.where(moved, averaged, at.deployed))
    return finite
