"""A sequential model as rows: the row form of each layer, and the steps of all layers together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedmaba.rows import kernels
from fedmaba.rows.base import Inputs, Layout, LossFn, ProxPull, Rows, Step, StoredForm
from fedmaba.rows.layers import (
    ALIKE_WHEN_FROZEN,
    WITHOUT_WEIGHTS,
    Conv2d,
    ConvStages,
    Dense,
    Dropout,
    Flatten,
    Layer,
    Linear,
    MaxPoolTwo,
    WithoutWeights,
)

# A function of (layer, gradient of its outputs, what its forward pass saved, deeper). It takes the
# layer's step and returns the gradient of its inputs, where `deeper`.
Back = Callable[[int, Tensor, Any, bool], Tensor | None]


class LayerPlan:
    """The row form of a sequential model: its layers, and how their weights are stored."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.forms: dict[str, StoredForm] = {}
        self.kinds: list[str] = []
        self.refusal = ""


def plan_layers(model: nn.Module, example: Inputs, dtype: str) -> LayerPlan:
    """Plan the row form of each layer; `refusal` names the first layer that has none."""
    out = LayerPlan()
    if not isinstance(example, Tensor):
        out.refusal = "a model of several inputs has no row form"
        return out
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        out.refusal = "a model with hooks has no row form"
        return out
    leaves = list(_leaves(model))
    out.kinds = [type(module).__name__ for _, module in leaves]
    fast = kernels.can_run(example)
    done = _plan_conv_stages(out, leaves, example, dtype) if fast else 0
    while done < len(leaves):
        number = done
        name, module = leaves[number]
        kind = type(module)
        done += 1
        follows = done < len(leaves) and type(leaves[done][1]) is nn.ReLU
        if _is_frozen(module):
            if kind not in ALIKE_WHEN_FROZEN:
                out.refusal = f"a frozen {kind.__name__} has no row form"
                return out
            out.layers.append(WithoutWeights(module))
        elif kind in (nn.Linear, nn.Conv2d) and _is_partly_frozen(module):
            out.refusal = f"{kind.__name__}, of which only some weights are frozen, has no row form"
            return out
        elif isinstance(module, nn.Linear) and kind is nn.Linear:
            taken = _plan_dense(out, leaves[number:], number, dtype) if fast else 0
            if not taken:
                out.layers.append(Linear(module, follows))
            done = number + max(1, taken)
            size = (module.out_features, module.in_features)
            out.forms.setdefault(f"{name}.weight".lstrip("."), StoredForm(size, (1, 0), size[::-1]))
        elif isinstance(module, nn.Conv2d) and kind is nn.Conv2d:
            if module.groups != 1 or module.padding_mode != "zeros" or module.padding == "same":
                out.refusal = "Conv2d with groups or special padding has no row form"
                return out
            later = follows and not example.is_cuda and _starts_with_pool_of_two(leaves[done + 1 :])
            out.layers.append(Conv2d(module, follows and not later))
        elif isinstance(module, nn.Dropout) and kind is nn.Dropout:
            out.layers.append(Dropout(module, number))
        elif kind is nn.ReLU and out.layers and _is_frozen(leaves[number - 1][1]):
            out.layers.append(WithoutWeights(nn.ReLU()))  # never in place
        elif (
            kind is nn.ReLU and out.layers and type(leaves[number - 1][1]) in (nn.Linear, nn.Conv2d)
        ):
            continue  # part of the layer before it
        elif isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
            out.layers.append(Flatten())
        elif not example.is_cuda and _starts_with_pool_of_two(leaves[number:]):
            before = [type(module) for _, module in leaves[max(0, number - 2) : number]]
            out.layers.append(MaxPoolTwo(before == [nn.Conv2d, nn.ReLU]))
        elif kind in WITHOUT_WEIGHTS and not getattr(module, "inplace", False):
            out.layers.append(WithoutWeights(module))
        else:
            out.refusal = f"{kind.__name__} has no row form"
            return out
    trained = sum(p.requires_grad for p in model.parameters())
    if trained != sum(layer.weights for layer in out.layers):
        out.refusal = "weights shared between layers have no row form"
    elif Layout(model).names != [n for n, p in model.named_parameters() if p.requires_grad]:
        out.refusal = "weights that clients keep, before others that they send, have no row form"
    return out


def _is_partly_frozen(module: nn.Module) -> bool:
    return any(not p.requires_grad for p in module.parameters())


def _is_frozen(module: nn.Module) -> bool:
    """Whether a layer has weights, and training changes none of them."""
    weights = [p.requires_grad for p in module.parameters()]
    return bool(weights) and not any(weights)


def _plan_dense(
    out: LayerPlan, leaves: list[tuple[str, nn.Module]], number: int, dtype: str
) -> int:
    """Plan a Linear with its ReLU and Dropout for the kernels; return how many modules that is."""
    modules = [module for _, module in leaves]
    taken = _modules_of_dense(modules)
    if not taken:
        return 0
    last, below = modules[taken - 1], out.layers[-1] if out.layers else None
    drop = (last.p, number + 2) if isinstance(last, nn.Dropout) and last.p else None
    undo = below.factor if isinstance(below, Dense) else 0.0
    out.layers.append(Dense(taken > 1, drop, undo, dtype))
    return taken


def _modules_of_dense(modules: list[nn.Module]) -> int:
    """How many modules one Dense layer would cover; 0 where the first cannot be one.

    In the backward pass the Dense layer above undoes this layer's ReLU and dropout, so there must
    be one.
    """
    kinds = [type(module) for module in modules[:3]]
    if kinds[:1] != [nn.Linear] or modules[0].bias is None:
        return 0
    if _is_partly_frozen(modules[0]):
        return 0
    if kinds[1:2] != [nn.ReLU]:
        return 1
    taken = 3 if kinds[2:] == [nn.Dropout] else 2
    dropped = taken == 3 and modules[2].p == 1.0  # It drops everything, so nothing is left to undo.
    return 0 if dropped or not _modules_of_dense(modules[taken:]) else taken


def _plan_conv_stages(
    out: LayerPlan, leaves: list[tuple[str, nn.Module]], example: Tensor, dtype: str
) -> int:
    """Plan the first convolutions for the kernels; return how many modules they cover."""
    stages: list[Any] = []
    shape, at = tuple(example.shape[1:]), 0
    while at + 2 < len(leaves) and type(leaves[at][1]) is nn.Conv2d and len(shape) == 3:
        (name, module), (_, pool) = leaves[at], leaves[at + 2]
        c, h, w = shape
        assert isinstance(module, nn.Conv2d)
        k, n = module.kernel_size[0], module.out_channels
        plain = (module.stride, module.padding, module.dilation) == ((1, 1), (0, 0), (1, 1))
        square = module.kernel_size == (k, k) and module.groups == 1 and module.bias is not None
        pooled = isinstance(pool, nn.MaxPool2d) and _is_pool_of_two(pool)
        fits = kernels.conv.Stage.fits(h, w, c, k, n) and (c >= 16 or not stages)
        frozen = _is_partly_frozen(module)
        relu = type(leaves[at + 1][1]) is nn.ReLU
        if frozen or not (plain and square and pooled and fits and relu):
            return 0
        stages.append(kernels.conv.Stage(h, w, c, k, n, dtype, first=not stages))
        out.forms[f"{name}.weight"] = StoredForm((n, c, k, k), (2, 3, 1, 0), (k, k, c, n))
        shape = (n, stages[-1].ph, stages[-1].pw)
        at += 3
    rest = [type(module) for _, module in leaves[at:]]
    if not stages or rest[:2] != [nn.Flatten, nn.Linear] or _is_frozen(leaves[at + 1][1]):
        out.forms.clear()
        return 0
    name, linear = leaves[at + 1]
    assert isinstance(linear, nn.Linear)
    size = linear.in_features, linear.out_features
    out.forms[f"{name}.weight"] = StoredForm((size[1], *shape), (2, 3, 1, 0), size)
    out.layers.append(ConvStages(stages))
    return at + 1


def _is_pool_of_two(pool: nn.MaxPool2d) -> bool:
    """Whether this is exactly MaxPool2d(2)."""
    usual = "kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False"
    return type(pool) is nn.MaxPool2d and pool.extra_repr() == usual and not pool.return_indices


def _starts_with_pool_of_two(leaves: list[tuple[str, nn.Module]]) -> bool:
    """Whether the first module is exactly MaxPool2d(2)."""
    first = leaves[0][1] if leaves else None
    return isinstance(first, nn.MaxPool2d) and _is_pool_of_two(first)


def _leaves(model: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    if type(model) is not nn.Sequential:
        return [(name, model)]
    inside = ((f"{name}.{n}" if name else n, child) for n, child in model._modules.items())
    return [leaf for n, child in inside if child is not None for leaf in _leaves(child, n)]


class LayerRows(Rows):
    """Rows of a sequential model."""

    parallel = recordable = True

    def __init__(
        self, model: nn.Module, how: LayerPlan, example: Tensor, loss: LossFn | None
    ) -> None:
        kinds = ", ".join(dict.fromkeys(how.kinds))
        super().__init__(model, Layout(model, how.forms), example, loss, f"fast rows ({kinds})")
        self.layers = how.layers
        self.first = next((i for i, layer in enumerate(self.layers) if layer.weights), 0)
        edges = [*self.layout.starts, self.layout.trained]
        ends = itertools.accumulate((layer.weights for layer in self.layers), initial=0)
        self.parts = [slice(edges[a], edges[b]) for a, b in itertools.pairwise(ends)]
        if self.layers and isinstance(self.layers[0], ConvStages):  # outputs are pooled at once
            self.activations = 4 * example[0].numel() + self.layers[0].size
            self.image_axes = (-3, -2)

    def prepare(self, x: Inputs) -> Inputs:
        front = self.layers[0] if self.layers else None
        if isinstance(x, Tensor) and isinstance(front, ConvStages):
            return front.prepare(x)
        return x

    def weights(self, flat: Tensor) -> list[list[Tensor]]:
        """The weights of each layer as views of flat (R, P)."""
        views = iter(self.layout.views(flat))
        return [[next(views) for _ in range(layer.weights)] for layer in self.layers]

    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        w = self.weights(read)
        into = w if sink is read else self.weights(sink)

        def back(layer: int, g: Tensor, saved: Any, deeper: bool) -> Tensor | None:
            return self.layers[layer].backward(g, saved, w[layer], into[layer], deeper)

        return self.there_and_back(self._first_inputs(step), w, step, self.first, back)[0]

    def add_pulled_gradients(self, w: Tensor, pull: ProxPull, step: Step) -> Tensor:
        """Pull layer after layer on the way back: then only what is read again is copied."""
        if w.is_cuda:  # Here a copy of all at once costs less than many small ones.
            return super().add_pulled_gradients(w, pull, step)
        own = self.weights(w)

        def back(layer: int, g: Tensor, saved: Any, deeper: bool) -> Tensor | None:
            before = [v.clone() for v in own[layer]] if deeper else own[layer]
            part = self.parts[layer]
            w[:, part].lerp_(pull.start[:, part], pull.rate)
            return self.layers[layer].backward(g, saved, before, own[layer], deeper)

        return self.there_and_back(self._first_inputs(step), own, step, self.first, back)[0]

    def _first_inputs(self, step: Step) -> Tensor:
        """What reaches the first layer that has weights."""
        x = step.x
        assert isinstance(x, Tensor)
        for layer in self.layers[: self.first]:
            x, _ = layer.forward(x, [], step.keys, False)
        return x

    def there_and_back(
        self, x: Tensor, w: list[list[Tensor]], step: Step, first: int, back: Back
    ) -> tuple[Tensor, Tensor]:
        """Forward from the inputs of layer `first` to the loss, then backward to that layer.

        Returns the loss of each row, and the last gradient that `back` gave.
        """
        saved = []
        for layer, own in zip(self.layers[first:], w[first:], strict=True):
            x, kept = layer.forward(x, own, step.keys, True)
            saved.append(kept)
        loss, g = self.loss_and_gradient(x, step)
        for i in reversed(range(first, len(self.layers))):
            below = back(i, g, saved.pop(), i > self.first)
            g = g if below is None else below
        return loss, g

    def compile(self, models: Tensor, work: Callable[[], object]) -> None:
        if (
            kernels.can_run(models) and self.loss_fn is None
        ):  # A user's loss may fail on meaningless numbers.
            kernels.compile_only(work)

    def usual_loss_and_gradient(self, out: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        if (
            self.loss_fn is None
            and kernels.can_run(out)
            and kernels.dense.fits_cross_entropy(*out.shape[1:])
        ):
            if not isinstance(self.layers[-1], Dense):  # Other layers may need their outputs again.
                out = out.clone(memory_format=torch.contiguous_format)
            return kernels.dense.cross_entropy(out, step.y, step.weight, step.scale), out
        return super().usual_loss_and_gradient(out, step)

    def outputs(self, flat: Tensor, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        x = x.expand(len(flat), *x.shape[1:])
        for layer, own in zip(self.layers, self.weights(flat), strict=True):
            x, _ = layer.forward(x, own, None, False)
        return x
