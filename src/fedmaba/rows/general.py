"""What the general forms share, and the last of them: one row after another."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from fedmaba.rows.base import Inputs, Layout, LossFn, Rows, Step, call
from fedmaba.rows.operations import How, RowOperations

ALONE = How(rows=False)


class General(Rows):
    """Rows of a model that is called as it is, by each thread in a copy of its own."""

    evaluates_apart = True

    def __init__(
        self, model: nn.Module, layout: Layout, example: Inputs, loss: LossFn | None, path: str
    ) -> None:
        super().__init__(model, layout, example, loss, path)
        self.cuda = tree_flatten(example)[0][0].is_cuda
        self._own = threading.local()

    def _model(self, training: bool) -> nn.Module:
        """This thread's copy of the model: a call changes the modules that it goes through."""
        if not hasattr(self._own, "model"):
            self._own.model = own_copy(self.model)
        model: nn.Module = self._own.model
        return model.train(training)


def own_copy(model: nn.Module) -> nn.Module:
    """A copy whose recurrent layers do not look at addresses, which rows do not have."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if isinstance(module, nn.RNNBase):
            module.__dict__["flatten_parameters"] = _nothing
    return copied


def _nothing() -> None:
    pass


class LoopRows(General):
    """One row after another, by the model as it stands and torch's autograd.

    Dropout follows the row's key. Other random numbers are torch's own, seeded by that key.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, example: Inputs, loss: LossFn | None, path: str
    ) -> None:
        super().__init__(model, layout, example, loss, path)
        self.max_rows = None if self.cuda else 1
        mode = RowOperations(ALONE, torch.zeros((), dtype=torch.int64, device=self._device))
        before = torch.get_rng_state()
        with torch.no_grad(), mode:
            call(self._model(True), example)
        self.masks = mode.masks > 0
        self.random = self.cuda or not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        self.parallel = not self.random
        self.channels_last = not self.cuda and self._takes_channels_last(example)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _takes_channels_last(self, example: Inputs) -> bool:
        """Whether convolutions may have their channels side by side, as oneDNN likes them."""
        fits = isinstance(example, Tensor) and example.ndim == 4
        if not (fits and any(isinstance(m, nn.Conv2d) for m in self.model.modules())):
            return False
        model = self._model(False)
        with torch.no_grad():
            want = call(model, example[:2])
            try:
                got = call(model, example[:2].contiguous(memory_format=torch.channels_last))
            except RuntimeError:  # of a model that views images in the usual order
                return False
        return torch.allclose(got, want, 1e-3, 1e-4, equal_nan=True)

    def _inputs(self, x: Inputs) -> Inputs:
        if not (self.channels_last and torch.backends.mkldnn.enabled):
            return x
        return x.contiguous(memory_format=torch.channels_last)

    @contextmanager
    def _drawing(self, key: Tensor) -> Iterator[None]:
        """With the random numbers of a row's key."""
        if not self.random:
            with RowOperations(ALONE, key) if self.masks else nullcontext():
                yield
            return
        with torch.random.fork_rng(devices=[key.device] if self.cuda else []):
            torch.manual_seed(int(key) & (2**63 - 1))
            with RowOperations(ALONE, key):
                yield

    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        model, losses = self._model(True), []
        weights = [p for p in model.parameters() if p.requires_grad]
        own, into = self.layout.views(read), self.layout.views(sink)
        # Without padding, which depends on the other rows and would draw random numbers, too.
        many = (step.weight > 0).sum(1).clamp(min=1).tolist()
        for r, size in enumerate(many):
            for p, view in zip(weights, own, strict=True):
                p.data = view[r]
            x, y, weight = tree_map(lambda v: v[r, :size], tuple(step[:3]))  # noqa: B023
            with torch.enable_grad():
                with self._drawing(step.keys[r]):
                    out = call(model, self._inputs(x))
                loss = (self.per_example(out, y) * weight).sum()
                grads = list(torch.autograd.grad(loss, weights, materialize_grads=True))
            losses.append(loss.detach())
            factor = step.scale
            if step.propfair is not None:
                one = type(step.propfair)(*(v[r] for v in step.propfair))
                factor = factor * one.gradient_factor(losses[-1])
            torch._foreach_add_([v[r] for v in into], grads, alpha=float(factor))
        return torch.stack(losses)

    def outputs(self, flat: Tensor, x: Inputs) -> Tensor:
        model, each = self._model(False), []
        weights = [p for p in model.parameters() if p.requires_grad]
        with torch.no_grad():
            for r in range(len(flat)):
                for p, view in zip(weights, self.layout.views(flat[r : r + 1]), strict=True):
                    p.data = view[0]
                each.append(call(model, self._inputs(tree_map(lambda v: v[r % len(v)], x))))  # noqa: B023
        return torch.stack(each)
