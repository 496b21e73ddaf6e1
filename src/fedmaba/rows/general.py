"""What the general forms share, and the last of them: one row after another."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedmaba.rows.base import Inputs, Rows, Step, call
from fedmaba.rows.operations import How, RowOperations

ALONE = How(rows=False)


class General(Rows):
    """Rows of a model that is called as it is: named weights, and adding a gradient to them."""

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.layout.names, self.layout.views(flat), strict=True))

    def _add(self, sink: Tensor, grads: list[Tensor], loss: Tensor, step: Step) -> Tensor:
        """sink += scale * gradient, row by row; grads are (R, *shape)."""
        factor = step.scale.expand_as(loss)
        if step.propfair is not None:
            factor = factor * step.propfair.gradient_factor(loss)
        for view, g in zip(self.layout.views(sink), grads, strict=True):
            view.addcmul_(g, factor.view(-1, *[1] * (g.ndim - 1)))
        return loss


class LoopRows(General):
    """One row after another, as it stands; dropout follows the row's key.

    Other random numbers are torch's own, seeded by that key.
    """

    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        self.model.train()
        losses, grads = [], []
        # Without padding, which depends on the other rows and would draw random numbers, too.
        many = (step.weight > 0).sum(1).clamp(min=1).tolist()
        devices = [read.device] if read.is_cuda else []
        named = self._named(read)
        with torch.random.fork_rng(devices=devices):
            for r, (k, size) in enumerate(zip(step.keys.tolist(), many, strict=True)):
                torch.manual_seed(k & (2**63 - 1))
                with torch.enable_grad():
                    own = {n: v[r].detach().requires_grad_() for n, v in named.items()}
                    x, y, weight = tree_map(lambda v: v[r, :size], tuple(step[:3]))  # noqa: B023
                    with RowOperations(ALONE, step.keys[r]):
                        out = call(self.model, x, own)
                    loss = (self.per_example(out, y) * weight).sum()
                    grads.append(torch.autograd.grad(loss, list(own.values())))
                losses.append(loss.detach())
        stacked = [torch.stack(g) for g in zip(*grads, strict=True)]
        return self._add(sink, stacked, torch.stack(losses), step)

    def outputs(self, flat: Tensor, x: Inputs) -> Tensor:
        self.model.eval()
        named, each = self._named(flat), []
        with torch.no_grad():
            for r in range(len(flat)):
                own = tree_map(lambda v: v[r % len(v)], x)  # noqa: B023
                each.append(call(self.model, own, {n: v[r] for n, v in named.items()}))
        return torch.stack(each)
