"""Whether a model's rows are what the model itself computes: tried once, before a run.

Two rows with weights and inputs of their own are computed at once and compared with the plain
model, in float64 where the model allows it. What differs, or fails, is refused with its reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from fedmaba.rows.base import Inputs, Layout, call, returned
from fedmaba.rows.batchnorm import use_running_statistics
from fedmaba.rows.general import ONE_ROW, call_training, own_copy
from fedmaba.rows.operations import RowOperations

EXAMPLES = 3
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}


@dataclass(frozen=True)
class Finding:
    """What a try of the rows of a model has shown."""

    refusal: str = ""
    slow: str = ""  # Torch computes this operation row after row.
    operations: int = 0  # of one step


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def try_rows(
    make: Callable[[nn.Module, Inputs], Any], model: nn.Module, example: Inputs, target: Tensor
) -> Finding:
    """Compare the rows that `make` builds of a model with the model itself."""
    first = next(model.parameters())
    found = Finding()
    for dtype in dict.fromkeys((torch.float64, first.dtype)):
        copied = own_copy(model).to(dtype)
        inputs = tree_map(
            lambda v: (v.to(dtype) if v.is_floating_point() else v)[:EXAMPLES],  # noqa: B023
            example,
        )
        try:
            with (
                torch.random.fork_rng(devices=[first.device] if first.is_cuda else []),
                warnings.catch_warnings(record=True) as said,
            ):
                warnings.simplefilter("always")
                found = _compare(make(copied, inputs), copied, inputs, target[:EXAMPLES], dtype)
        except Exception as error:  # The model's own code can raise anything.
            found = Finding(refusal=_in_words(error))
            continue
        slow = [str(w.message) for w in said if "performance drop" in str(w.message)]
        name = slow[0].split("batching rule for ")[-1].split(" ")[0].rstrip(".") if slow else ""
        return Finding(found.refusal, name, found.operations)
    return found


def _in_words(error: Exception) -> str:
    """Why a try failed, in one line."""
    line = (str(error).strip() or type(error).__name__).split("\n")[0]
    if "data-dependent" in line or "data dependent" in line or ".item()" in line:
        return "what it computes depends on the values of its inputs (if, .item())"
    if "random operation" in line:
        return "it draws random numbers of its own, and dropout alone follows a row"
    return line[:120]


def _compare(
    rows: Any, model: nn.Module, inputs: Inputs, target: Tensor, dtype: torch.dtype
) -> Finding:
    layout, leaves = Layout(model), tree_flatten(inputs)[0]
    device, many = leaves[0].device, len(leaves[0])
    draw = torch.Generator().manual_seed(0)
    flat = layout.pack(model).to(device, dtype).repeat(2, 1)
    flat += 0.05 * flat.std() * torch.randn(flat.shape, generator=draw).to(device, dtype)
    x = tree_map(lambda v: torch.stack([v, v.flip(0)]), inputs)
    y, keys = torch.stack([target, target.flip(0)]), torch.tensor([11, -5], device=device)
    weight = torch.full((2, many), 1 / many, dtype=dtype, device=device)
    named = [
        {n: v[r] for n, v in zip(layout.names, layout.views(flat), strict=True)} for r in (0, 1)
    ]
    before = _python_state(model)
    with _Counter() as counter:
        found = rows.gradients(flat, x, y, weight, keys)
    for r in (0, 1):
        own = {n: named[r][n].detach().clone().requires_grad_() for n in rows.trained}
        still, whole = {n: named[r][n] for n in rows.statistics}, tree_map(lambda v: v[r], x)  # noqa: B023
        with torch.enable_grad(), RowOperations(ONE_ROW, keys[r]):
            got, moved = call_training(model.train(), whole, own | still, weight[r] > 0)
        with torch.enable_grad():
            loss = (rows.per_example(got[0], y[r]) * weight[r]).sum()
            want = (
                loss.detach(),
                *torch.autograd.grad(loss, list(own.values()), materialize_grads=True),
                *moved,
            )
        if not all(_close(a[r], b, dtype) for a, b in zip(found, want, strict=True)):
            return Finding("all rows at once give other gradients than the model itself")
        fewer = tree_map(lambda v: v[r, :-1], x)  # noqa: B023
        if still:  # What statistics over examples mix is declared elsewhere.
            use_running_statistics(model)
            with torch.no_grad(), RowOperations(ONE_ROW, keys[r]):
                got = returned(model, whole, named[r])
        with torch.no_grad(), RowOperations(ONE_ROW, keys[r]):
            less = returned(model, fewer, named[r]) if many > 1 else ()
        if not all(_close(a, b[:-1].detach(), dtype) for a, b in zip(less, got, strict=False)):
            return Finding(
                "an example's dropout depends on how many others there are: put examples on the "
                "first axis (batch_first=True)"
            )
    model.eval()
    for r in (0, 1):
        own = tree_map(lambda v: v[r], x)  # noqa: B023
        with torch.no_grad():
            plain = call(model, own, named[r])
        if not _close(
            rows.outputs(flat[r : r + 1], tree_map(lambda v: v[None], own))[0], plain, dtype
        ):
            return Finding("its recorded form gives other outputs than the model itself")
    if (changed := _changed(before, _python_state(model))) is not None:
        return Finding(f"its forward pass changes {changed!r}, which a recording would not repeat")
    return Finding(operations=counter.count)


def _close(got: Tensor, want: Tensor, dtype: torch.dtype) -> bool:
    limit = TOLERANCE.get(dtype, 2e-3)
    scale = float(want.abs().amax()) if want.numel() else 0.0
    return torch.allclose(got, want, limit, limit * max(scale, 1e-6), equal_nan=True)


def _python_state(model: nn.Module) -> dict[str, object]:
    """Plain values that modules keep: counters and switches."""
    return {
        f"{name}.{key}".lstrip("."): value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, int | float | str) and key != "training"
    }


def _changed(before: dict[str, object], after: dict[str, object]) -> str | None:
    return next((name for name in after if before.get(name) != after[name]), None)
