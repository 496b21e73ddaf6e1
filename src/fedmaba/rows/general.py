"""What the general forms share, and the last of them: one row after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedmaba.rows.base import Inputs, Rows, Step, call, layers_with_statistics
from fedmaba.rows.operations import How, RowOperations

ALONE = How(rows=False)


class General(Rows):
    """Rows of a model that is called as it is: named weights, and adding a gradient to them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        places = list(zip(self.layout.names, self.layout.starts, strict=True))
        self.trained = [name for name, a in places if a < self.layout.trained]
        self.statistics = [name for name, a in places if a >= self.layout.trained]

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.layout.names, self.layout.views(flat), strict=True))

    def _add(
        self,
        sink: Tensor,
        grads: Sequence[Tensor],
        moved: Sequence[Tensor],
        loss: Tensor,
        step: Step,
    ) -> Tensor:
        """sink += scale * gradient, and how far statistics moved; both are (R, *shape) each."""
        factor = step.scale.expand_as(loss)
        if step.propfair is not None:
            factor = factor * step.propfair.gradient_factor(loss)
        views = self.layout.views(sink)
        for view, g in zip(views[: len(grads)], grads, strict=True):
            view.addcmul_(g, factor.view(-1, *[1] * (g.ndim - 1)))
        for view, change in zip(views[len(grads) :], moved, strict=True):
            view.add_(change)
        return loss


def call_training(
    model: nn.Module, x: Inputs, weights: dict[str, Tensor], valid: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The outputs of one row in training, and how far this minibatch moves its statistics.

    `valid` says which examples are none of the padding.
    """
    layers = layers_with_statistics(model)
    for layer in layers.values():
        layer.valid = valid
    out = call(model, x, weights)
    moved = [
        new.detach() - weights[head + name]
        for head, layer in layers.items()
        for name, new in zip(layer.statistics, layer.after, strict=True)
    ]
    for layer in layers.values():
        layer.valid, layer.after = None, ()
    return out, moved


class LoopRows(General):
    """One row after another, as it stands; dropout follows the row's key.

    Other random numbers are torch's own, seeded by that key.
    """

    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        self.model.train()
        losses, grads, moves = [], [], []
        # Without padding, which depends on the other rows and would draw random numbers, too.
        many = (step.weight > 0).sum(1).clamp(min=1).tolist()
        devices = [read.device] if read.is_cuda else []
        named = self._named(read)
        with torch.random.fork_rng(devices=devices):
            for r, (k, size) in enumerate(zip(step.keys.tolist(), many, strict=True)):
                torch.manual_seed(k & (2**63 - 1))
                with torch.enable_grad():
                    own = {n: named[n][r].detach().requires_grad_() for n in self.trained}
                    still = {n: named[n][r] for n in self.statistics}
                    x, y, weight = tree_map(lambda v: v[r, :size], tuple(step[:3]))  # noqa: B023
                    with RowOperations(ALONE, step.keys[r]):
                        out, moved = call_training(self.model, x, own | still, weight > 0)
                    loss = (self.per_example(out, y) * weight).sum()
                    grads.append(torch.autograd.grad(loss, list(own.values())))
                losses.append(loss.detach())
                moves.append(moved)
        stacked, shifted = (
            [torch.stack(each) for each in zip(*rows, strict=True)] for rows in (grads, moves)
        )
        return self._add(sink, stacked, shifted, torch.stack(losses), step)

    def outputs(self, flat: Tensor, x: Inputs) -> Tensor:
        self.model.eval()
        named, each = self._named(flat), []
        with torch.no_grad():
            for r in range(len(flat)):
                own = tree_map(lambda v: v[r % len(v)], x)  # noqa: B023
                each.append(call(self.model, own, {n: v[r] for n, v in named.items()}))
        return torch.stack(each)
