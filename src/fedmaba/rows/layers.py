"""Sequential models layer by layer: weights per row, backward by hand, the update fused into it.

The step size is folded into the output gradient, so each weight gradient is added to its weights
by the matrix product itself. A layer without weights is the same function for every row: rows and
examples are one axis, and autograd gives its backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmaba.rows.base import Bent, Layout, LossFn, Rows
from fedmaba.rows.random import dropout_mask

MKL: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
STATELESS = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    *(nn.Flatten, nn.Unflatten, nn.Identity),
)


class Layer(ABC):
    """One layer of all rows."""

    weights = 0  # how many entries of the layout it owns

    @abstractmethod
    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        """Outputs (R, B, ...) and what backward wants; `keys` only while training."""

    @abstractmethod
    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        """Add the weights' gradient to `sink`; the inputs' gradient where a layer lies deeper."""


class Linear(Layer):
    """y = x W + b, with W as (in, out)."""

    def __init__(self, module: nn.Linear) -> None:
        self.weights = 1 if module.bias is None else 2

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        flat = x.flatten(1, -2)
        y = torch.bmm(flat, w[0]) if self.weights == 1 else torch.baddbmm(w[1][:, None], flat, w[0])
        return y.view(*x.shape[:-1], -1), flat if save else None

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        flat = g.flatten(1, -2)
        below = torch.bmm(flat, _transposed(w[0])).view(*g.shape[:-1], -1) if deeper else None
        sink[0].baddbmm_(saved.transpose(1, 2), flat)
        if self.weights == 2:
            sink[1].add_(flat.sum(1))
        return below


def _transposed(w: Tensor) -> Tensor:
    """(R, out, in): a view, but a copy for BLAS libraries that are slow on transposed operands."""
    view = w.transpose(1, 2)
    return view if w.is_cuda or MKL else view.contiguous()


class Conv2d(Layer):
    """A convolution: row after row on a CPU, whose cache holds one; as groups on a GPU."""

    def __init__(self, module: nn.Conv2d) -> None:
        self.weights = 1 if module.bias is None else 2
        self.stride: Any = module.stride
        self.padding: Any = module.padding
        self.dilation: Any = module.dilation

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        rows, kept = len(w[0]), x if save else None
        if x.is_cuda:
            y = self._conv(_beside(x), w[0].flatten(0, 1), None, rows)
            y = _apart(y, rows)
            return (y + w[1][:, None, :, None, None] if self.weights == 2 else y), kept
        bias = w[1] if self.weights == 2 else [None] * rows
        each = [self._conv(x[r], w[0][r], bias[r], 1) for r in range(rows)]
        return torch.stack(each), kept

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        rows = len(w[0])
        if self.weights == 2:
            sink[1].add_(g.sum((1, 3, 4)))
        if g.is_cuda:
            below, dw = self._gradient(_beside(g), _beside(saved), w[0].flatten(0, 1), rows, deeper)
            sink[0].add_(dw.view_as(w[0]))
            return _apart(below, rows) if deeper else None
        each = []
        for r in range(rows):
            below, dw = self._gradient(g[r], saved[r], w[0][r], 1, deeper)
            sink[0][r].add_(dw)
            each.append(below)
        return torch.stack(each) if deeper else None

    def _conv(self, x: Tensor, w: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        return F.conv2d(x, w, bias, self.stride, self.padding, self.dilation, groups)

    def _gradient(
        self, g: Tensor, x: Tensor, w: Tensor, groups: int, deeper: bool
    ) -> tuple[Tensor, Tensor]:
        how = (self.stride, self.padding, self.dilation, False, [0, 0], groups)
        below, dw, _ = torch.ops.aten.convolution_backward(
            g, x, w, None, *how, [deeper, True, False]
        )
        return below, dw


def _beside(x: Tensor) -> Tensor:
    """(R, B, C, H, W) -> (B, R*C, H, W)."""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: Tensor, rows: int) -> Tensor:
    """(B, R*C, H, W) -> (R, B, C, H, W)."""
    return x.view(len(x), rows, -1, *x.shape[2:]).transpose(0, 1)


def _rows(flat: Tensor, like: Tensor) -> Tensor:
    """(R*B, ...) -> (R, B, ...)."""
    return flat.view(*like.shape[:2], *flat.shape[1:])


class Dropout(Layer):
    """Masks are a function of the step's key and the layer's number, as everything random is."""

    def __init__(self, module: nn.Dropout, number: int) -> None:
        self.p, self.number = module.p, number

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        if keys is None:
            return x, None
        mask = dropout_mask(keys, self.number, x.shape, self.p, x.dtype)
        return x * mask, mask

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        below: Tensor = g * saved
        return below


class ReLU(Layer):
    """In place: what stands below a ReLU here never needs its own output again."""

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        y = x.relu_()
        return y, y if save else None

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        out: Tensor = torch.ops.aten.threshold_backward(g, saved, 0)
        return out


class Stateless(Layer):
    """Any layer without weights."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        flat = x.flatten(0, 1)
        if not save:
            return _rows(self.module(flat), x), None
        with torch.enable_grad():
            leaf = flat.detach().requires_grad_()
            y = self.module(leaf)
        return _rows(y.detach(), x), (leaf, y)

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        if not deeper:
            return None
        leaf, y = saved
        (below,) = torch.autograd.grad(y, leaf, g.flatten(0, 1))
        return _rows(below, g)


class Flatten(Layer):
    """Examples as vectors; a view, also of inputs that rows share."""

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        return x.flatten(2), x.shape

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        below: Tensor = g.reshape(saved)
        return below


def layers_of(model: nn.Module) -> tuple[list[Layer] | None, str]:
    """The row form of each layer, or None and the layer that has none."""
    layers: list[Layer] = []
    for number, module in enumerate(_leaves(model)):
        kind = type(module)
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            layers.append(Linear(module))
        elif isinstance(module, nn.Conv2d) and kind is nn.Conv2d:
            if module.groups != 1 or module.padding_mode != "zeros" or module.padding == "same":
                return None, "Conv2d with groups or special padding has no row form"
            layers.append(Conv2d(module))
        elif isinstance(module, nn.Dropout) and kind is nn.Dropout:
            layers.append(Dropout(module, number))
        elif kind is nn.ReLU and layers and isinstance(layers[-1], Linear | Conv2d):
            layers.append(ReLU())
        elif isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
            layers.append(Flatten())
        elif kind in STATELESS and not getattr(module, "inplace", False):
            layers.append(Stateless(module))
        else:
            return None, f"{kind.__name__} has no row form"
    if len(list(model.parameters())) != sum(layer.weights for layer in layers):
        return None, "weights shared between layers have no row form"
    return layers, ""


def _leaves(model: nn.Module) -> list[nn.Module]:
    if type(model) is not nn.Sequential:
        return [model]
    return [leaf for child in model for leaf in _leaves(child)]


class LayerRows(Rows):
    """Rows of a sequential model."""

    parallel = True

    def __init__(
        self, model: nn.Module, layers: list[Layer], example: Tensor, loss: LossFn | None
    ) -> None:
        kinds = ", ".join(dict.fromkeys(type(layer).__name__ for layer in layers))
        flipped = [f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear)]
        super().__init__(model, Layout(model, flipped), example, loss, f"fast rows ({kinds})")
        self.layers = layers

    def _weights(self, flat: Tensor) -> list[list[Tensor]]:
        views = iter(self.layout.views(flat))
        return [[next(views) for _ in range(layer.weights)] for layer in self.layers]

    def accumulate(
        self,
        read: Tensor,
        sink: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        scale: float,
        bent: Bent | None,
        keys: Tensor,
    ) -> Tensor:
        w = self._weights(read)
        into = w if sink is read else self._weights(sink)
        saved = []
        for layer, own in zip(self.layers, w, strict=True):
            x, kept = layer.forward(x, own, keys, True)
            saved.append(kept)
        loss, g = self.loss_and_gradient(x, y, weight, scale, bent)
        first = next(i for i, layer in enumerate(self.layers) if layer.weights)
        for i in reversed(range(first, len(self.layers))):
            below = self.layers[i].backward(g, saved[i], w[i], into[i], i > first)
            if below is not None:
                g = below
        return loss

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        x = x.expand(len(flat), *x.shape[1:])
        for layer, own in zip(self.layers, self._weights(flat), strict=True):
            x, _ = layer.forward(x, own, None, False)
        return x
