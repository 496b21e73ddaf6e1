"""What the general forms share, and the last of them: one row after another."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from fedmaba.data import trees
from fedmaba.rows.base import (
    Inputs,
    Layout,
    LossFn,
    RowObjective,
    Rows,
    Step,
    call,
    layers_with_statistics,
    returned,
    seed_torch,
)
from fedmaba.rows.operations import RowMethod, RowOperations, crashes_backward

ONE_ROW = RowMethod(rows=False)
BEST_AT_ONCE = 100  # examples of one row; with 10 or 400 a CPU takes up to twice as long for each


class General(Rows):
    """Rows of a model that is called as it is, by each thread in a copy of its own."""

    evaluates_apart = True

    def __init__(
        self, model: nn.Module, layout: Layout, example: Inputs, loss: LossFn | None, path: str
    ) -> None:
        super().__init__(model, layout, example, loss, path)
        first = trees.leaves(example)[0]
        self.cuda, self.minibatch = first.is_cuda, len(first)
        self._own = threading.local()
        places = list(zip(layout.names, layout.starts, strict=True))
        self.trained = [name for name, a in places if a < layout.trained]
        self.statistics = [name for name, a in places if a >= layout.trained]

    def _model(self, training: bool) -> nn.Module:
        """This thread's copy of the model: a call changes the modules that it goes through."""
        if not hasattr(self._own, "model"):
            self._own.model = own_copy(self.model, share_frozen=True)
        model: nn.Module = self._own.model
        return model if model.training == training else model.train(training)

    def features(self, x: Inputs) -> Tensor | None:
        with torch.no_grad():
            got = returned(self._model(False), x)
        return got[1] if len(got) == 2 else None


def own_copy(model: nn.Module, *, share_frozen: bool = False) -> nn.Module:
    """A copy whose recurrent layers skip their check of memory addresses, because rows have none.

    With `share_frozen`, both have the same frozen weights in memory.
    """
    frozen = (p for p in model.parameters() if share_frozen and not p.requires_grad)
    copied = copy.deepcopy(model, {id(p): p for p in frozen})
    for module in copied.modules():
        if isinstance(module, nn.RNNBase):
            module.__dict__["flatten_parameters"] = _nothing
    return copied


def _nothing() -> None:
    pass


def call_training(
    model: nn.Module, x: Inputs, weights: dict[str, Tensor] | None, valid: Tensor | None
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """What one row's model returns in training, and how far this minibatch moves its statistics.

    `valid` says which examples are none of the padding; None: there is none.
    """
    layers = layers_with_statistics(model)
    for layer in layers.values():
        layer.valid = valid
    got = returned(model, x, weights)
    moved = [
        new.detach() - (getattr(layer, name) if weights is None else weights[head + name])
        for head, layer in layers.items()
        for name, new in zip(layer.statistics, layer.after, strict=True)
    ]
    for layer in layers.values():
        layer.valid, layer.after = None, ()
    return got, moved


class _GroupNorms(TorchFunctionMode):
    """Sees whether the backward pass of a call would end the process."""

    crash = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (F.group_norm, torch.group_norm):
            self.crash |= crashes_backward(args[0] if args else kwargs["input"])
        return func(*args, **kwargs)


class LoopRows(General):
    """One row after another, by the model as it stands and torch's autograd.

    Dropout follows the row's key. Other random numbers are torch's own, seeded by that key.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, example: Inputs, loss: LossFn | None, path: str
    ) -> None:
        super().__init__(model, layout, example, loss, path)
        self.max_rows = None if self.cuda else 1
        mode = RowOperations(ONE_ROW, torch.zeros((), dtype=torch.int64, device=self._device))
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
        if not isinstance(example, Tensor) or example.ndim != 4:
            return False
        if not any(isinstance(m, nn.Conv2d) for m in self.model.modules()):
            return False
        model = self._model(False)
        turned = example[:2].contiguous(memory_format=torch.channels_last)
        try:
            with torch.enable_grad(), _GroupNorms() as norms:
                got = call(model, turned).detach()
        except RuntimeError:  # This is of a model that views images in the usual order.
            return False
        with torch.no_grad():
            want = call(model, example[:2])
        return not norms.crash and torch.allclose(got, want, 1e-3, 1e-4, equal_nan=True)

    def evaluated_at_once(self, budget: int) -> int:
        """On a CPU 100, where oneDNN is fastest, but no more than take the memory of training."""
        most = super().evaluated_at_once(budget)
        return most if self.cuda else min(BEST_AT_ONCE, max(most, 2 * self.minibatch))

    def _inputs(self, x: Inputs) -> Inputs:
        wanted = self.channels_last and torch.backends.mkldnn.enabled
        if not wanted or not isinstance(x, Tensor):
            return x
        return x.contiguous(memory_format=torch.channels_last)

    def _drawing(self, key: Tensor) -> AbstractContextManager[object]:
        """With the random numbers of a row's key."""
        if self.random:
            return self._seeded(key)
        return RowOperations(ONE_ROW, key) if self.masks else nullcontext()

    @contextmanager
    def _seeded(self, key: Tensor) -> Iterator[None]:
        with torch.random.fork_rng(devices=[self._device] if self.cuda else []):
            seed_torch(int(key) & (2**63 - 1))
            with RowOperations(ONE_ROW, key):
                yield

    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        model, losses, many_weights = self._model(True), [], len(self.trained)
        into = None if sink is read else self.layout.views(sink)
        # Without padding, which depends on the other rows and would draw random numbers, too.
        many = (step.weight > 0).sum(1).clamp(min=1).tolist()
        for r, size in enumerate(many):
            x = trees.mapped(lambda v: v[r, :size], step.x)  # noqa: B023
            y, weight = step.y[r, :size], step.weight[r, :size]
            objective = None if step.objective is None else step.objective.row(r)
            others = None if objective is None else self._seen(objective, x)
            tensors, row = self._take_row(model, read, r)
            weights = tensors[:many_weights]
            with torch.enable_grad():
                with self._drawing(step.keys[r]):
                    got, moved = call_training(model, self._inputs(x), None, None)
                each = self.per_example(got[0], y)
                total = usual = (each * weight).sum()
                if objective is not None and others is not None:
                    seen = [v[None] for v in got[: 1 + objective.features]]
                    total = objective.losses(each[None], seen, y[None], others)[0]
                    total = (total * weight).sum()
                grads = list(torch.autograd.grad(total, weights, materialize_grads=True))
            losses.append(usual.detach())
            factor = step.scale
            if objective is not None and others is None:
                factor = factor * objective.factor(losses[-1][None])
            places = row if into is None else [view[r] for view in into]
            torch._foreach_add_(places[:many_weights], grads, alpha=float(factor))
            for place, change in zip(places[many_weights:], moved, strict=True):
                place.add_(change)
        return torch.stack(losses)

    def _take_row(
        self, model: nn.Module, flat: Tensor, r: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """This thread's weights and statistics, and the views of row r that they are from now."""
        own = self._own
        if not hasattr(own, "tensors"):
            own.tensors = [*self.layout.tensors(model).values()]
        row = flat[r : r + 1]
        if own.tensors[0].data_ptr() != row.data_ptr():  # The step before was of another row.
            own.row = [view[0] for view in self.layout.views(row)]
            for tensor, view in zip(own.tensors, own.row, strict=True):
                tensor.data = view
        return own.tensors, own.row

    def _seen(self, objective: RowObjective, x: Inputs) -> dict[str, Any] | None:
        """What one row's objective of outputs gets of the models that it sees, (1, B, ...)."""
        if objective.seen is None:
            return None
        one = tree_map(lambda v: v[None], x)
        what = self._returned if objective.features else self.outputs
        found = {name: what(flat, one) for name, flat in objective.seen.items()}
        self._model(True)  # as it was before
        return found

    def outputs(self, flat: Tensor, x: Inputs) -> Tensor:
        return self._returned(flat, x, 1)[0]

    def _returned(self, flat: Tensor, x: Inputs, parts: int = 2) -> tuple[Tensor, ...]:
        """Outputs (R, B, ...) in evaluation mode, or the first of outputs and features."""
        model, each = self._model(False), []
        key = torch.zeros((), dtype=torch.int64, device=self._device)  # one for all evaluations
        with torch.no_grad():
            for r in range(len(flat)):
                self._take_row(model, flat, r)
                own = tree_map(lambda v: v[r % len(v)], x)  # noqa: B023
                with self._drawing(key):  # A model may draw random numbers here, too.
                    each.append(returned(model, self._inputs(own))[:parts])
        return tuple(torch.stack(part) for part in zip(*each, strict=True))
