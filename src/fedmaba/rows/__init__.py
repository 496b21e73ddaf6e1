"""Many independent copies of one model ("rows"), computed together: one flat vector per row.

This package knows rows and minibatches, but no clients, rounds or strategies. `compile` picks the
fastest form that fits the model and says why: layers with weights per row and a hand-written
backward pass, else `torch.func.vmap`, else one row after another. All three give the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmaba.data import trees
from fedmaba.rows.base import Inputs, Layout, LossFn, Rows
from fedmaba.rows.general import LoopRows, VmapRows, vmap_refusal
from fedmaba.rows.stack import LayerRows, plan_layers

__all__ = ["Layout", "LossFn", "Rows", "compile"]


def compile(
    model: nn.Module,
    example: Inputs,
    loss: LossFn | None = None,
    *,
    dtype: str = "float32",
    target: Tensor | None = None,
) -> Rows:
    """The rows form of a model; `example` is a minibatch of inputs (B, ...).

    `dtype` says how products are rounded on CUDA: float32, tf32 or bf16. `target` is a minibatch of
    targets; without it they are class numbers.
    """
    if target is None:
        first = trees.leaves(example)[0]
        target = torch.zeros(len(first), dtype=torch.int64, device=first.device)
    how = plan_layers(model, example, dtype)
    reason = how.refusal
    if not reason and isinstance(example, Tensor):
        return LayerRows(model, how, example, loss)
    refusal = vmap_refusal(model, example, loss, target)
    layout = Layout(model)
    if refusal is None:
        return VmapRows(model, layout, example, loss, f"torch.func.vmap: {reason}")
    return LoopRows(model, layout, example, loss, f"one client after another: {reason}; {refusal}")
