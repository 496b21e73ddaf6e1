"""Any nn.Module as rows: vectorised by torch.func where it can be, else one row after another."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedmaba.rows.base import Layout, LossFn, Rows, Step, layers_with_statistics


class _General(Rows):
    """What both general forms share: named weights of all rows, and adding a gradient to them."""

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.layout.names, self.layout.views(flat), strict=True))

    def _parts(self, flat: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The named weights of all rows that gradients move, and their running statistics."""
        every = list(zip(self._named(flat).items(), self.layout.starts, strict=True))
        trained = {n: v for (n, v), start in every if start < self.layout.trained}
        return trained, {n: v for (n, v), start in every if start >= self.layout.trained}

    def _total(
        self, weights: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss of one row, and what its running statistics are after this minibatch."""
        layers = layers_with_statistics(self.model).values()
        for layer in layers:
            layer.valid = weight > 0
        out = functional_call(self.model, weights, (x,))
        after = [value.detach() for layer in layers for value in layer.after]
        for layer in layers:
            layer.valid, layer.after = None, ()
        return (self._per_example(out, y) * weight).sum(), after

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


class VmapRows(_General):
    """Rows by torch.func.vmap."""

    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        self.model.train()
        trained, statistics = self._parts(read)

        def total(
            own: dict[str, Tensor], still: dict[str, Tensor], *minibatch: Tensor
        ) -> tuple[Tensor, list[Tensor]]:
            return self._total(own | still, *minibatch)

        grads, (loss, after) = vmap(grad_and_value(total, has_aux=True))(
            trained, statistics, step.x, step.y, step.weight
        )
        moved = [new - old for new, old in zip(after, statistics.values(), strict=True)]
        return self._add(sink, list(grads.values()), moved, loss.detach(), step)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        self.model.eval()

        def one(weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
            out: Tensor = functional_call(self.model, weights, (inputs,))
            return out

        shared = len(x) == 1 and len(flat) > 1
        out: Tensor = vmap(one, in_dims=(0, None if shared else 0))(
            self._named(flat), x[0] if shared else x
        )
        return out


class LoopRows(_General):
    """One row after another; its random numbers are torch's own, seeded by the row's key."""

    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        self.model.train()
        losses, grads, moved = [], [], []
        trained, statistics = self._parts(read)
        # Without padding, which depends on the other rows and would draw random numbers, too.
        many = (step.weight > 0).sum(1).clamp(min=1).tolist()
        devices = [read.device] if read.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            for r, (k, size) in enumerate(zip(step.keys.tolist(), many, strict=True)):
                torch.manual_seed(k & (2**63 - 1))
                with torch.enable_grad():
                    own = {n: v[r].detach().requires_grad_() for n, v in trained.items()}
                    still = {n: v[r] for n, v in statistics.items()}
                    loss, after = self._total(own | still, *(part[r, :size] for part in step[:3]))
                    grads.append(torch.autograd.grad(loss, list(own.values())))
                losses.append(loss.detach())
                both = zip(after, still.values(), strict=True)
                moved.append([new - old for new, old in both])
        stacked, shifted = (
            [torch.stack(each) for each in zip(*rows, strict=True)] for rows in (grads, moved)
        )
        return self._add(sink, stacked, shifted, torch.stack(losses), step)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        self.model.eval()
        named = self._named(flat)
        with torch.no_grad():
            each = [
                functional_call(self.model, {n: v[r] for n, v in named.items()}, (x[r % len(x)],))
                for r in range(len(flat))
            ]
        return torch.stack(each)


def vmap_refusal(model: nn.Module, example: Tensor, loss: LossFn | None) -> str | None:
    """Why torch.func cannot vectorise model and loss, tried in both modes; None where it can."""
    model = copy.deepcopy(model).train()  # a failed try may leave its own tensors behind
    weights = {n: p[None].expand(2, *p.shape) for n, p in Layout(model).named(model).items()}
    target = torch.zeros(2, len(example), dtype=torch.int64, device=example.device)

    def total(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = functional_call(model, own, (x,))
        return (out.square() if loss is None else loss(out, y)).sum()

    try:
        with warnings.catch_warnings():  # torch warns of slow operations
            warnings.simplefilter("ignore")
            vmap(grad_and_value(total))(weights, example.expand(2, *example.shape), target)
            model.eval()
            with torch.no_grad():  # other operations than with gradients, in an LSTM
                vmap(lambda own: functional_call(model, own, (example,)))(weights)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).strip().split("\n")[0][:120]
    return None
