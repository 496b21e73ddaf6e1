"""Losses, scores and outputs of examples under models, as rows: what training never needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedmaba.data import trees
from fedmaba.rows.base import Inputs, Rows
from fedmaba.rows.steps import take_examples
from fedmaba.rows.workers import Workers

MetricFn = Callable[[Tensor, Tensor], Tensor]  # as LossFn, the score of each example (n,)
MAX_ACTIVATIONS = 4_000_000  # numbers held at a time in an evaluation on a CPU


def evaluate(
    rows: Rows,
    flat: Tensor,  # (R, P)
    index: Tensor,  # (n,) shared by all rows, or (R, n)
    x: Inputs,
    y: Tensor,
    workers: Workers,
    metric: MetricFn | None = None,
    *,
    scored: bool = True,
) -> tuple[Tensor, Tensor]:
    """Loss and score (R, n) of each example; without `scored` the scores are left out."""
    n, shared = index.shape[-1], index.ndim == 1
    budget = MAX_ACTIVATIONS
    if flat.is_cuda:
        budget = torch.cuda.get_device_properties(flat.device).total_memory // 256
    losses = torch.empty(len(flat), n, device=flat.device, dtype=flat.dtype)
    scores = torch.empty_like(losses) if scored else losses[:, :0]
    group = 1
    if flat.is_cuda and not rows.evaluates_apart:
        group = max(1, min(len(flat), budget // (rows.activations * 1000)))
    step = rows.evaluated_at_once(budget // group)

    def piece(a: int) -> None:
        part = index[..., a : a + step]
        if shared:  # gathered once for all rows
            inputs, labels = trees.mapped(lambda v: v[None], take_examples(x, part)), y[part][None]
        for r in range(0, len(flat), group):
            if not shared:
                inputs, labels = take_examples(x, part[r : r + group]), y[part[r : r + group]]
            out = rows.outputs(flat[r : r + group], inputs)
            target = labels.expand(*out.shape[:2], *labels.shape[2:])
            losses[r : r + group, a : a + step] = rows.losses(out, target)
            if scored and metric is None:
                scores[r : r + group, a : a + step] = out.argmax(-1) == target
            elif scored and metric is not None:
                score = metric(out.flatten(0, 1), target.flatten(0, 1))
                scores[r : r + group, a : a + step] = score.view(out.shape[:2])

    for _ in workers.map(piece, range(0, n, step)):
        pass
    return losses, scores


def outputs_and_losses(
    rows: Rows,
    w: Tensor,  # (1, P)
    index: Tensor,  # (n,)
    x: Inputs,
    y: Tensor,
    workers: Workers,
) -> tuple[Tensor, Tensor]:
    """The loss (n,) and the outputs (n, ...) of each example under one model."""
    budget = MAX_ACTIVATIONS
    if w.is_cuda:
        budget = torch.cuda.get_device_properties(w.device).total_memory // 256
    step = max(1, budget // rows.activations)

    def piece(a: int) -> tuple[Tensor, Tensor]:
        part = index[a : a + step]
        out = rows.outputs(w, trees.mapped(lambda v: v[None], take_examples(x, part)))
        return rows.losses(out, y[part][None])[0], out[0]

    losses, outputs = zip(*workers.map(piece, range(0, len(index), step)), strict=True)
    return torch.cat(losses), torch.cat(outputs)


def mean_losses(losses: Tensor, valid: Tensor) -> Tensor:
    """Mean loss of each client over its own examples, in float64; `valid` marks those."""
    return torch.where(valid, losses.double(), 0.0).sum(-1) / valid.sum(-1)
