"""Layers that compute all rows at once: weights per row, a backward pass written by hand.

The step size is multiplied into the output gradient, so the matrix product of a weight gradient
adds the SGD step to the weights directly. A layer without weights is the same function for every
row: rows and examples form one axis, and autograd gives its backward pass. On CUDA, `dense`
computes linear layers with their ReLU and dropout, and `conv` the convolutions that it covers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmaba.rows import kernels
from fedmaba.rows.batchnorm import FrozenBatchNorm
from fedmaba.rows.random import dropout_mask

WITHOUT_WEIGHTS = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    *(nn.Flatten, nn.Unflatten, nn.Identity),
)
# With frozen weights these are the same function of an example in every row and in both modes.
ALIKE_WHEN_FROZEN = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding),
    *(nn.GroupNorm, nn.LayerNorm, nn.PReLU, FrozenBatchNorm),
)


class Layer(ABC):
    """One layer of all rows, or several that belong together."""

    weights = 0  # It owns this many entries of the layout.

    @abstractmethod
    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        """Outputs (R, B, ...), and what `backward` needs; `keys` are given only in training."""

    @abstractmethod
    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        """Add the weights' gradient to `sink`; return the inputs' gradient where `deeper`."""


class Linear(Layer):
    """y = x W + b with W as (in, out), then ReLU where one follows."""

    def __init__(self, module: nn.Linear, relu: bool) -> None:
        self.weights = 1 if module.bias is None else 2
        self.relu = relu

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        flat = x.flatten(1, -2)
        y = torch.bmm(flat, w[0]) if self.weights == 1 else torch.baddbmm(w[1][:, None], flat, w[0])
        y = y.relu_() if self.relu else y
        return y.view(*x.shape[:-1], -1), (flat, y) if save else None

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        x, y = saved
        flat = g.flatten(1, -2)
        if self.relu:
            flat = torch.ops.aten.threshold_backward(flat, y, 0)
        if self.weights == 2:
            sink[1].add_(flat.sum(1))
        below = torch.bmm(flat, w[0].transpose(1, 2)).view(*g.shape[:-1], -1) if deeper else None
        sink[0].baddbmm_(x.transpose(1, 2), flat)
        return below


class Dense(Layer):
    """On CUDA: x W + b of vectors, then ReLU and dropout where they follow, by `dense`.

    In the backward pass the layer above undoes this layer's ReLU and dropout. In turn this layer
    does so for the one below: `undone` is 1 / (1 - its dropout), or 0 where that is no Dense layer.
    """

    weights = 2

    def __init__(self, relu: bool, drop: tuple[float, int] | None, undo: float, dtype: str) -> None:
        self.relu, self.drop, self.undone, self.dtype = relu, drop, undo, dtype
        self.factor = 1.0 / (1.0 - drop[0] if drop else 1.0) if relu else 0.0

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        flat = x.flatten(1, -2)
        if keys is not None and flat.shape[1] <= kernels.dense.MAX_MINIBATCH:
            if not flat[0].is_contiguous():  # The kernels want each row's examples in order.
                flat = flat.contiguous()
            y = kernels.dense.linear(flat, w[0], w[1], self.relu, keys, self.drop, self.dtype)
        else:
            y = kernels.dense.bias_act(torch.bmm(flat, w[0]), w[1], self.relu)
            if keys is not None and self.drop is not None:
                y *= dropout_mask(keys, self.drop[1], y.shape, self.drop[0], y.dtype)
        return y.view(*x.shape[:-1], -1), flat

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        x: Tensor = saved
        flat = g.flatten(1, -2).contiguous()
        if x.shape[1] <= kernels.dense.MAX_MINIBATCH:
            below = kernels.dense.linear_back(
                flat, x, w[0], sink[0], sink[1], deeper, self.undone, self.dtype
            )
        else:
            below = torch.bmm(flat, w[0].transpose(1, 2)) if deeper else None
            if below is not None and self.undone:
                below = torch.where(x > 0, below * self.undone, 0.0)
            sink[1].add_(flat.sum(1))
            sink[0].baddbmm_(x.transpose(1, 2), flat)
        return None if below is None else below.view(*g.shape[:-1], -1)


class Conv2d(Layer):
    """A convolution, then ReLU where one follows: row after row on a CPU, as groups on a GPU."""

    def __init__(self, module: nn.Conv2d, relu: bool) -> None:
        self.weights = 1 if module.bias is None else 2
        self.relu = relu
        self.stride: Any = module.stride
        self.padding: Any = (0, 0) if module.padding == "valid" else module.padding
        self.dilation: Any = module.dilation

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        rows = len(w[0])
        if x.is_cuda:
            y = _apart(self._conv(_beside(x), w[0].flatten(0, 1), None, rows), rows)
            y = y + w[1][:, None, :, None, None] if self.weights == 2 else y
        else:
            x = _channels_last(x) if torch.backends.mkldnn.enabled else x
            bias = w[1] if self.weights == 2 else [None] * rows
            y = _stacked([self._conv(x[r], w[0][r], bias[r], 1) for r in range(rows)])
        y = y.relu_() if self.relu else y
        return y, (x, y) if save else None

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        x, y = saved
        rows = len(w[0])
        if self.relu:
            g = torch.ops.aten.threshold_backward(g, y, 0)
        if self.weights == 2:
            sink[1].add_(g.sum((1, 3, 4)))
        if g.is_cuda:
            below, dw = self._gradient(_beside(g), _beside(x), w[0].flatten(0, 1), rows, deeper)
            sink[0].add_(dw.view_as(w[0]))
            return _apart(below, rows) if deeper else None
        each = []
        for r in range(rows):
            below, dw = self._gradient(g[r], x[r], w[0][r], 1, deeper)
            sink[0][r].add_(dw)
            each.append(below)
        return _stacked(each) if deeper else None

    def _conv(self, x: Tensor, w: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        return F.conv2d(x, w, bias, self.stride, self.padding, self.dilation, groups)

    def _gradient(
        self, g: Tensor, x: Tensor, w: Tensor, groups: int, deeper: bool
    ) -> tuple[Tensor, Tensor]:
        if self._turned(x):  # With images as channels, this is one product of Fourier transforms.
            turned = F.conv2d(x.transpose(0, 1), g.transpose(0, 1), None, 1, self.padding)
            below = self._backward(g, x, w, groups, [True, False])[0] if deeper else x
            return below, turned.transpose(0, 1)
        return self._backward(g, x, w, groups, [deeper, True])

    def _turned(self, x: Tensor) -> bool:
        """Whether the weight gradient is better taken as a convolution of x with g, by NNPACK."""
        sides = (n + 2 * p for n, p in zip(x.shape[-2:], self.padding, strict=True))
        plain = self.stride == self.dilation == (1, 1)
        fits = max(sides) <= 16 <= x.shape[1] and x.dtype == torch.float32  # a tile; its rule
        return not x.is_cuda and plain and fits and not torch.backends.mkldnn.enabled

    def _backward(
        self, g: Tensor, x: Tensor, w: Tensor, groups: int, wanted: list[bool]
    ) -> tuple[Tensor, Tensor]:
        how = (self.stride, self.padding, self.dilation, False, [0, 0], groups)
        below, dw, _ = torch.ops.aten.convolution_backward(g, x, w, None, *how, [*wanted, False])
        return below, dw


def _beside(x: Tensor) -> Tensor:
    """(R, B, C, H, W) -> (B, R*C, H, W)."""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: Tensor, rows: int) -> Tensor:
    """(B, R*C, H, W) -> (R, B, C, H, W)."""
    return x.view(len(x), rows, -1, *x.shape[2:]).transpose(0, 1)


def _channels_last(x: Tensor) -> Tensor:
    """Each row's images (B, C, H, W) with their channels side by side, as oneDNN likes them."""
    return x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _stacked(each: list[Tensor]) -> Tensor:
    """Images of rows (B, C, H, W) as (R, B, C, H, W), in the order they have in memory."""
    if len(each) == 1:
        return each[0][None]
    if each[0].is_contiguous():
        return torch.stack(each)
    return torch.stack([x.permute(0, 2, 3, 1) for x in each]).permute(0, 1, 4, 2, 3)


def _rows(flat: Tensor, like: Tensor) -> Tensor:
    """(R*B, ...) -> (R, B, ...)."""
    return flat.view(*like.shape[:2], *flat.shape[1:])


class ConvStages(Layer):
    """On CUDA: the convolutions at the front of a model, each with its ReLU and pool, then Flatten.

    Inputs are what `prepare` makes of images; outputs (R, B, features) in the order y, x, channel.
    """

    def __init__(self, stages: list[Any]) -> None:
        self.stages = stages
        self.weights = 2 * len(stages)
        self.size = sum(4 * stage.ph * stage.pw * stage.n for stage in stages)  # per example

    def prepare(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) in 16 bits, hi before lo, (n, pieces, H, W, first.cp)."""
        first = self.stages[0]
        top = float(x.abs().amax())
        scale = 2.0 ** (2 - math.frexp(top)[1]) if 0 < top < math.inf else 1.0
        first.scale = scale
        for stage in self.stages[1:]:  # Activations of large images, too, must fit float16.
            stage.scale = min(scale, 1.0)
        moved = F.pad(x.permute(0, 2, 3, 1), (0, first.cp - x.shape[1])) * scale
        hi = moved.to(first.half)
        pieces = [hi, (moved - hi).to(first.half)] if first.pair else [hi]
        return torch.stack(pieces, 1)

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        saved = []
        scales: list[float | None] = [stage.scale for stage in self.stages[1:]] + [None]
        for i, stage in enumerate(self.stages):
            packed = stage.pack(w[2 * i], save and i > 0)
            y, won = stage.forward(x, packed, w[2 * i + 1], scales[i], save)
            saved.append((x, won, packed) if save else None)
            x = y
        return x.flatten(2), saved

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        last = self.stages[-1]
        top = kernels.conv.largest_magnitudes(g, last.half)
        g = g.contiguous().view(*g.shape[:2], last.ph, last.pw, last.n)
        for i in reversed(range(len(self.stages))):
            own = (*saved[i], sink[2 * i], sink[2 * i + 1])
            g = self.stages[i].backward(g, top, *own, i > 0)
        return None


class Dropout(Layer):
    """Dropout whose mask depends only on the step's random stream and the layer's number."""

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
        return g.mul_(saved) if g.is_contiguous() else g * saved


class WithoutWeights(Layer):
    """Any layer without weights of its own in each row: it has none, or all rows share them."""

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
        leaf, y = saved
        (below,) = torch.autograd.grad(y, leaf, g.flatten(0, 1))
        return _rows(below, g)


class MaxPoolTwo(Layer):
    """MaxPool2d(2) on a CPU, followed by the ReLU that stood before it, if there was one.

    In this order ReLU works on a quarter of the numbers. The result is the same: a maximum below 0
    becomes 0 and passes no gradient either way.
    """

    def __init__(self, relu: bool) -> None:
        self.relu = relu

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        flat, won = x.flatten(0, 1), None
        if flat.is_contiguous(memory_format=torch.channels_last):
            y, won = F.max_pool2d(flat, 2, return_indices=True)
        else:
            y, won = _pooled(flat, save)
        y = y.relu_() if self.relu else y
        return _rows(y, x), (flat, won, y) if save else None

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        x, won, y = saved
        flat = g.flatten(0, 1)
        if self.relu:
            flat = torch.ops.aten.threshold_backward(flat, y, 0)
        how = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        return _rows(torch.ops.aten.max_pool2d_with_indices_backward(flat, x, *how, won), g)


def _pooled(x: Tensor, save: bool) -> tuple[Tensor, Tensor | None]:
    """MaxPool2d(2) of images (n, C, H, W) by slices, faster than torch's loop over numbers."""
    height, width = x.shape[-2] // 2, x.shape[-1] // 2
    even = x[..., : 2 * height, : 2 * width]
    if not save:
        tall = torch.maximum(even[..., 0::2, :], even[..., 1::2, :])
        return torch.maximum(tall[..., 0::2], tall[..., 1::2]), None
    left, right = even[..., 0::2], even[..., 1::2]
    wide = torch.maximum(left, right)
    top, bottom = wide[..., 0::2, :], wide[..., 1::2, :]
    # This says which of the four is the maximum, as torch counts: of equals the first, by lines.
    east, south = (right > left).view(torch.int8), (bottom > top).view(torch.int8)
    above, below = east[..., 0::2, :], east[..., 1::2, :]
    east = (below - above).mul_(south).add_(above)
    rows, columns = (torch.arange(0, 2 * n, 2, device=x.device) for n in (height, width))
    won = (rows[:, None] * x.shape[-1] + columns) + east
    won += south.to(torch.int64).mul_(x.shape[-1])
    return torch.maximum(top, bottom), won


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
