"""Any nn.Module as rows, all of them at once: called under torch.func, recorded, compiled.

A model is called once for all rows by `torch.func.vmap`, with its operations in the forms of
`operations`. The operations of a call are recorded, and later calls of the same shapes replay them
without running the model's Python code. On CUDA the recording is compiled by Inductor.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from fedmaba.rows import inductor
from fedmaba.rows.base import Inputs, Layout, LossFn, Step, call, returned
from fedmaba.rows.general import General, call_training
from fedmaba.rows.operations import RowMethod, RowOperations

CALLS_BEFORE_RECORDING = 10  # On a CPU a recording saves little each time.
EVALUATED_AT_ONCE = (4096, 1024, 256)  # examples of one row, on CUDA
HALVINGS = 2  # The usual number of rows or examples is halved this often, all compiled.

Graph = Callable[..., Sequence[Tensor]]


class _Task(NamedTuple):
    """What is computed for inputs of some structure."""

    what: str  # gradients or outputs
    rows: bool  # for all rows at once, or for one
    spec: TreeSpec  # of the inputs
    objective: Callable[..., Tensor] | None = None  # one of outputs
    numbers: tuple[str, ...] = ()  # which it gets by name
    seen: tuple[str, ...] = ()  # models whose outputs it gets
    parts: int = 1  # of what models return: outputs, or features too


class TracedRows(General):
    """Rows of any model that torch.func takes."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        example: Inputs,
        loss: LossFn | None,
        path: str,
        *,
        dtype: str = "float32",
        compiled: bool = False,
    ) -> None:
        super().__init__(model, layout, example, loss, path)
        self.compiled = compiled
        self.recordable, self.parallel = self.cuda, not self.cuda
        low = torch.bfloat16 if dtype == "bf16" and self.cuda else None
        self.alone = RowMethod(rows=False, fused=compiled, low=low)
        self.many = RowMethod(True, "products" if self.cuda else "each", compiled, low)
        still = ((n, p.detach()) for n, p in model.named_parameters() if not p.requires_grad)
        self.frozen = dict(still)  # what all rows share, held once
        self.graphs: dict[Hashable, Graph] = {}
        self.calls: Counter[Hashable] = Counter()
        self.only_compiling = False
        self._lock = threading.Lock()

    def compile(self, models: Tensor, work: Callable[[], object]) -> None:
        if self.compiled:
            self.only_compiling = True
            try:
                work()
            finally:
                self.only_compiling = False

    def room(self, minibatch: int, seen: int = 0) -> int:
        # The compiler keeps few activations, but copies of what convolutions see are large.
        return super().room(minibatch, seen) + self.activations * minibatch

    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        rows, many = step.y.shape[:2]
        weights = self.layout.views(read)
        x, y, weight, keys = step.x, step.y, step.weight, step.keys
        objective, task = step.objective, _Task("gradients", True, tree_flatten(x)[1])
        numbers, seen = dict[str, Tensor](), dict[str, Tensor]()
        if objective is not None and objective.seen is not None:
            numbers, seen = dict(objective.numbers), dict(objective.seen)
            task = _Task(
                *task[:3], objective.function, tuple(numbers), tuple(seen), 1 + objective.features
            )
        if self.cuda:
            examples, size = _size(many, self.minibatch), _size(rows, max(rows, step.of))
            x, y, weight = tree_map(lambda v: _longer(v, examples, 1), (x, y, weight))
            x, y, weight, keys = tree_map(lambda v: _longer(v, size, 0), (x, y, weight, keys))
            numbers, seen = tree_map(lambda v: _longer(v, size, 0), (numbers, seen))
            if size > rows:
                weights = self.layout.views(_longer(read, size, 0))
            if examples > many:
                weight[:, many:] = 0.0
        others = [view for flat in seen.values() for view in self.layout.views(flat)]
        leaves = tree_flatten(x)[0]
        more = (v.contiguous() for v in (*numbers.values(), *leaves, y, weight, keys))
        args = [*weights, *self.frozen.values(), *others, *more]
        loss, *found = (v[:rows] for v in self._run(task, args))
        factor = step.scale.expand_as(loss)
        if objective is not None and objective.seen is None:
            factor = factor * objective.factor(loss)
        for name, view, g in zip(self.layout.names, self.layout.views(sink), found, strict=True):
            if name in self.statistics:  # This is how far they moved, whatever the step size.
                view.add_(g)
            else:
                view.addcmul_(g, factor.view(-1, *[1] * (g.ndim - 1)))
        return loss

    def outputs(self, flat: Tensor, x: Inputs) -> Tensor:
        weights, each = self.layout.views(flat), []
        for r in range(len(flat)):
            own = tree_map(lambda v: v[r % len(v)], x)  # noqa: B023
            each.append(self._outputs([w[r] for w in weights], own))
        return torch.stack(each)

    def _outputs(self, weights: list[Tensor], x: Inputs) -> Tensor:
        """The outputs of one row; on CUDA in pieces of few sizes, each of which is compiled."""
        many, found, begin = len(tree_flatten(x)[0][0]), [], 0
        while begin < many:
            left = piece = many - begin
            if self.cuda:
                piece = next((n for n in EVALUATED_AT_ONCE if n < 2 * left), EVALUATED_AT_ONCE[-1])
            part = tree_map(lambda v: _longer(v[begin : begin + piece], piece, 0), x)  # noqa: B023
            leaves, spec = tree_flatten(part)
            args = [*weights, *self.frozen.values(), *(v.contiguous() for v in leaves)]
            (out,) = self._run(_Task("outputs", False, spec), args)
            found.append(out[:left])
            begin += piece
        return found[0] if len(found) == 1 else torch.cat(found)

    def _run(self, task: _Task, args: list[Tensor]) -> Sequence[Tensor]:
        key = (task, *((a.shape, a.stride(), a.dtype) for a in args))
        graph = self.graphs.get(key)
        if graph is None:
            self.calls[key] += 1
            if not self.cuda and self.calls[key] < CALLS_BEFORE_RECORDING:
                with _quiet():
                    return self.function(task)(*args)
            with self._lock:
                graph = self.graphs.get(key) or self._recorded(task, args)
                self.graphs[key] = graph
        elif self.only_compiling and task.what == "gradients":
            return args[-2].new_zeros(len(args[-1])), *map(
                torch.zeros_like, args[: len(self.layout.names)]
            )
        return graph(*args)

    def _recorded(self, task: _Task, args: list[Tensor]) -> Graph:
        with _quiet():
            graph = make_fx(self.function(task))(*args)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        if not self.compiled:
            return graph
        what = f"training of {len(args[-1])} rows"
        what = what if task.rows else f"evaluation of {len(args[-1])} examples"
        self.tell(
            f"compiling the {what}: about {inductor.seconds(len(graph.graph.nodes)):.0f} s, "
            "or a few where it was compiled before"
        )
        return inductor.compile_graph(graph, args)

    def gradients(
        self, flat: Tensor, x: Inputs, y: Tensor, weight: Tensor, keys: Tensor
    ) -> tuple[Tensor, ...]:
        """Losses, gradients and moves of statistics of all rows at once, not recorded."""
        leaves, spec = tree_flatten(x)
        args = [*self.layout.views(flat), *self.frozen.values(), *leaves, y, weight, keys]
        return self.function(_Task("gradients", True, spec))(*args)

    def function(self, task: _Task) -> Callable[..., tuple[Tensor, ...]]:
        """A function of weights, inputs and, for gradients, of targets, their weights and keys.

        Frozen weights come after those of the rows.
        """
        names, how = (*self.layout.names, *self.frozen), self.many if task.rows else self.alone
        model = self._model(task.what == "gradients")

        def total(
            own: dict[str, Tensor],
            statistics: dict[str, Tensor],
            frozen: dict[str, Tensor],
            seen: dict[str, dict[str, Tensor]],
            numbers: dict[str, Tensor],
            x: Inputs,
            y: Tensor,
            weight: Tensor,
            key: Tensor,
        ) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
            with RowOperations(how, key):
                got, moved = call_training(model, x, own | statistics | frozen, weight > 0)
            out, *features = (v.to(weight.dtype) for v in got[: task.parts])
            losses = self.per_example(out, y)
            usual = (losses * weight).sum()
            if task.objective is None:
                return usual, (usual, moved)
            model.eval()
            with RowOperations(how, None):
                every = {n: returned(model, x, w | frozen) for n, w in seen.items()}
                pairs = {n: tuple(v.to(out.dtype) for v in one) for n, one in every.items()}
                others = pairs if features else {n: one[0] for n, one in pairs.items()}
            model.train()
            each = task.objective(losses, out, *features, y, others, numbers)
            return (each * weight).sum(), (usual, moved)

        def gradients(*flat: Tensor) -> tuple[Tensor, ...]:
            left = iter(flat)
            named = {n: next(left) for n in names}
            seen = {name: {n: next(left) for n in self.layout.names} for name in task.seen}
            numbers = {n: next(left) for n in task.numbers}
            *x, y, weight, keys = left
            own, statistics, frozen = (
                {n: named[n] for n in part} for part in (self.trained, self.statistics, self.frozen)
            )
            each: Callable[..., Any] = grad_and_value(total, has_aux=True)
            if task.rows:
                each = vmap(each, in_dims=(0, 0, None, 0, 0, 0, 0, 0, 0))
            inputs = tree_unflatten(x, task.spec)
            given = own, statistics, frozen, seen, numbers, inputs, y, weight, keys
            grads, (_, (loss, moved)) = each(*given)
            return loss.detach(), *(grads[n] for n in self.trained), *moved

        def outputs(*flat: Tensor) -> tuple[Tensor, ...]:
            own, x = dict(zip(names, flat, strict=False)), flat[len(names) :]
            with torch.no_grad(), RowOperations(how, None):
                out = call(model, tree_unflatten(list(x), task.spec), own)
            return (out.to(flat[0].dtype),)

        return gradients if task.what == "gradients" else outputs


def _size(many: int, usual: int) -> int:
    """The size that is computed in place of `many`: usual, some halves of it, or doubles."""
    size = usual
    while size < many:
        size *= 2
    for _ in range(HALVINGS):
        if (half := -(-size // 2)) >= many:
            size = half
    return size


def _longer(x: Tensor, size: int, axis: int) -> Tensor:
    """Filled up to a size with copies of what comes first."""
    more = size - x.shape[axis]
    if more <= 0:
        return x
    first = x.narrow(axis, 0, 1)
    shape = [more if i == axis else -1 for i in range(x.ndim)]
    return torch.cat([x, first.expand(shape)], axis)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings of slow operations; the check at the start has told of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
