"""Many independent copies of one model ("rows"), computed together: one flat vector per row.

This package knows rows and minibatches, but no clients, rounds or strategies. `compile` picks the
fastest form that fits the model and says why: layers with weights per row and a hand-written
backward pass, else the model under `torch.func`, recorded and on CUDA compiled, else one row after
another. All three give the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from fedmaba.data import trees
from fedmaba.rows import grouped, inductor
from fedmaba.rows.base import Inputs, Layout, LossFn, Rows, count_activations
from fedmaba.rows.checks import try_rows
from fedmaba.rows.general import LoopRows
from fedmaba.rows.grouped import GroupedRows
from fedmaba.rows.stack import LayerRows, plan_layers
from fedmaba.rows.traced import TracedRows

SMALL = 600_000  # These are the weights and activations of one row's minibatch.
__all__ = ["Layout", "LossFn", "Rows", "compile"]


def compile(
    model: nn.Module,
    example: Inputs,
    loss: LossFn | None = None,
    *,
    dtype: str = "float32",
    target: Tensor | None = None,
    compiled: bool | None = None,
) -> Rows:
    """The rows form of a model; `example` is a minibatch of inputs (B, ...).

    `dtype` says how products are rounded on CUDA: float32, tf32 or bf16. `target` is a minibatch of
    targets; without it they are class numbers. `compiled` says whether Inductor compiles the
    general form; without it, on CUDA where Triton is installed.
    """
    if target is None:
        first = trees.leaves(example)[0]
        target = torch.zeros(len(first), dtype=torch.int64, device=first.device)
    how = plan_layers(model, example, dtype)
    reason = how.refusal
    if not reason and isinstance(example, Tensor):
        form = GroupedRows if grouped.fits(how, example) else LayerRows
        return form(model, how, example, loss)
    first, layout = tree_flatten(example)[0][0], Layout(model)
    if not (first.is_cuda or _is_small(model, layout, example)):
        path = f"one client after another, which a CPU does fastest: {reason}"
        return LoopRows(model, layout, example, loss, path)
    if compiled is None:
        compiled = inductor.available(first.device)

    def make(tried: nn.Module, inputs: Inputs) -> TracedRows:
        return TracedRows(tried, Layout(tried), inputs, loss, "", compiled=compiled)

    found = try_rows(make, model, example, target)
    if found.refusal:
        path = f"one client after another: {reason}; {found.refusal}"
        return LoopRows(model, layout, example, loss, path)
    path = f"{_form(first.is_cuda, compiled)}: {reason}"
    path += f"; {found.slow} is slow" if found.slow else ""
    if compiled:
        path += f"; compiling takes about {inductor.seconds(found.operations):.0f} s the first time"
    return TracedRows(model, layout, example, loss, path, dtype=dtype, compiled=compiled)


def _is_small(model: nn.Module, layout: Layout, example: Inputs) -> bool:
    """Whether a CPU computes many rows at once faster than one after another.

    So it is where the calls of torch cost more than what they compute. Measured on one x86 core:
    twice as fast for a perceptron of 90,000 weights, 1.4 times for a small transformer.
    Convolutions and recurrent layers are faster row by row, because oneDNN knows no rows.
    """
    if any(isinstance(m, nn.modules.conv._ConvNd | nn.RNNBase) for m in model.modules()):
        return False
    examples = len(tree_flatten(example)[0][0])
    return layout.size + count_activations(model, example) * examples <= SMALL


def _form(cuda: bool, compiled: bool) -> str:
    if not cuda:
        return "all rows at once by torch.func"
    how = "compiled" if compiled else "not compiled, because Triton is not installed"
    return f"all rows at once by torch.func, {how}"
