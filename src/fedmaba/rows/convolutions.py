"""Convolutions of any stride, padding, dilation and groups, with weights per row.

`Convolution` is an operation of one row that says itself how many rows are computed: as products of
matrices, as groups of one convolution, or row after row. All give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

Ints = tuple[int, ...]
Way = Literal["products", "groups", "each"]
# Operations of one row's convolution from which on cuDNN in 16 bits is faster than products of
# matrices for all rows at once: between ResNet-8's and ResNet-18's, measured on an H200.
LARGE = 1.5e9


@dataclass(frozen=True)
class Geometry:
    """How a convolution's kernel moves over its input, and how many rows are computed."""

    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int
    way: Way
    fused: bool  # It says whether a compiler will join small operations.

    def plain(self, x: Tensor, w: Tensor, times: int = 1) -> Tensor:
        """The convolution of one row, or of several as groups."""
        how = (self.stride, self.padding, self.dilation, False, [0] * len(self.stride))
        y: Tensor = torch.ops.aten.convolution(x, w, None, *how, self.groups * times)
        return y

    def plain_back(
        self, g: Tensor, x: Tensor, w: Tensor, wanted: tuple[bool, bool], times: int = 1
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of one row's input and weights, as far as they are wanted."""
        how = (self.stride, self.padding, self.dilation, False, [0] * len(self.stride))
        below, dw, _ = torch.ops.aten.convolution_backward(
            g, x, w, None, *how, self.groups * times, [*wanted, False]
        )
        return below, dw

    def by_products(self) -> bool:
        """Whether rows are computed as products of matrices."""
        return self.way == "products" and self.groups == 1


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
    way: Way,
    fused: bool,
) -> Tensor:
    """What torch.conv1d, conv2d or conv3d gives."""
    sides = weight.dim() - 2
    if x.dim() < weight.dim():  # This is one example without the minibatch's axis.
        return convolve(x[None], weight, bias, stride, padding, dilation, groups, way, fused)[0]
    steps, spread = _each(stride, sides), _each(dilation, sides)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(spread, weight.shape[2:], strict=True)]
        x = F.pad(x, [n for t in reversed(total) for n in (t // 2, t - t // 2)])
    border = (0,) * sides if isinstance(padding, str) else _each(padding, sides)
    if way == "products" and weight.element_size() == 2:
        places = math.prod(-(-n // s) for n, s in zip(x.shape[2:], steps, strict=True))
        way = "each" if 2.0 * len(x) * places * weight.numel() > LARGE else way
    form = Geometry(steps, border, spread, groups, way, fused)
    y: Tensor = Convolution.apply(x, weight, form)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias.to(y.dtype).view(-1, *[1] * sides)


def _each(value: int | Sequence[int], sides: int) -> Ints:
    many = (value,) if isinstance(value, int) else tuple(value)
    return many * sides if len(many) == 1 else many


class Convolution(Function):
    """A convolution without bias."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, form: Geometry) -> Tensor:
        return form.plain(x, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, w, ctx.form = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        wanted = ctx.needs_input_grad[:2]
        below, dw = ConvolutionBack.apply(g, *ctx.saved_tensors, ctx.form, wanted)  # type: ignore[no-untyped-call]
        return below if wanted[0] else None, dw if wanted[1] else None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, form: Geometry) -> tuple[Tensor, int]:
        rows = info.batch_size
        x = _rows_first(x, in_dims[0], rows)
        if in_dims[1] is None:  # all rows have the same weights
            y = form.plain(x.flatten(0, 1), w)
            return y.view(rows, -1, *y.shape[1:]), 0
        w = w.movedim(in_dims[1], 0)
        if form.by_products():
            return _products(x, w, form), 0
        if form.way == "each":
            return torch.stack([form.plain(x[r], w[r]) for r in range(rows)]), 0
        return _channels_into_rows(
            form.plain(_rows_into_channels(x), w.flatten(0, 1), rows), rows
        ), 0


class ConvolutionBack(Function):
    """The gradients of a convolution; one that is not wanted is left empty."""

    @staticmethod
    def forward(
        g: Tensor, x: Tensor, w: Tensor, form: Geometry, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        below, dw = form.plain_back(g, x, w, wanted)
        return _or_empty(below, x), _or_empty(dw, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("gradients of gradients have no row form")

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        g: Tensor,
        x: Tensor,
        w: Tensor,
        form: Geometry,
        wanted: tuple[bool, bool],
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        rows = info.batch_size
        g, x = _rows_first(g, in_dims[0], rows), _rows_first(x, in_dims[1], rows)
        below: Tensor | None = None
        dw: Tensor | None = None
        if in_dims[2] is None:
            below, _ = form.plain_back(g.flatten(0, 1), x.flatten(0, 1), w, (wanted[0], False))
            below = None if below is None else below.reshape(x.shape)
            dw = w.new_zeros(rows)
            if wanted[1]:
                raise NotImplementedError("weights that rows share are not trained")
            return (_or_empty(below, x, rows), dw), (0, 0)
        w = w.movedim(in_dims[2], 0)
        if form.by_products():
            below, dw = _products_back(g, x, w, form, wanted[0])
        elif form.way == "each":
            each = [form.plain_back(g[r], x[r], w[r], wanted) for r in range(rows)]
            below = torch.stack([b for b, _ in each if b is not None]) if wanted[0] else None
            dw = torch.stack([d for _, d in each if d is not None]) if wanted[1] else None
        else:
            one = (_rows_into_channels(g), _rows_into_channels(x), w.flatten(0, 1), wanted, rows)
            below, dw = form.plain_back(*one)
            below = None if below is None else _channels_into_rows(below, rows)
            dw = None if dw is None else dw.view(w.shape)
        return (_or_empty(below, x, rows), _or_empty(dw, w, rows)), (0, 0)


def _or_empty(value: Tensor | None, like: Tensor, *size: int) -> Tensor:
    return like.new_zeros(size) if value is None else value


def _rows_first(x: Tensor, dim: int | None, rows: int) -> Tensor:
    """With the axis of rows in front; what rows share gets one."""
    return x.expand(rows, *x.shape) if dim is None else x.movedim(dim, 0)


def _rows_into_channels(x: Tensor) -> Tensor:
    """(R, B, C, ...) -> (B, R*C, ...)."""
    return x.transpose(0, 1).flatten(1, 2)


def _channels_into_rows(x: Tensor, rows: int) -> Tensor:
    """(B, R*C, ...) -> (R, B, C, ...)."""
    return x.view(len(x), rows, -1, *x.shape[2:]).transpose(0, 1)


def _columns(x: Tensor, kernel: Ints, form: Geometry) -> tuple[Tensor, Ints]:
    """What each place of the output sees, (R, B * places, kernel * C), and the places' shape.

    Channels are innermost, as they lie in memory after the first layer.
    """
    sides, y = len(kernel), x.movedim(2, -1)
    if any(form.padding):
        y = F.pad(y, [0, 0, *(n for p in reversed(form.padding) for n in (p, p))])
    for i, (k, s, d) in enumerate(zip(kernel, form.stride, form.dilation, strict=True)):
        y = y.unfold(2 + i, (k - 1) * d + 1, s)
        y = y if d == 1 else y[..., ::d]
    places = tuple(y.shape[2 : 2 + sides])
    y = y.movedim(2 + sides, -1)
    return y.reshape(len(x), -1, y.shape[2 + sides :].numel()), places


def _matrix(w: Tensor) -> Tensor:
    """Weights (R, O, C, *kernel) as the matrices that columns are multiplied with."""
    return w.movedim(2, -1).flatten(2).transpose(1, 2)


def _products(x: Tensor, w: Tensor, form: Geometry) -> Tensor:
    columns, places = _columns(x, tuple(w.shape[3:]), form)
    y = torch.bmm(columns, _matrix(w))
    return y.view(*x.shape[:2], *places, w.shape[1]).movedim(-1, 2)


def _products_back(
    g: Tensor, x: Tensor, w: Tensor, form: Geometry, deeper: bool
) -> tuple[Tensor | None, Tensor]:
    kernel, channels = tuple(w.shape[3:]), x.shape[2]
    columns, places = _columns(x, kernel, form)
    flat = g.movedim(2, -1).reshape(len(g), -1, g.shape[2])
    dw = torch.bmm(columns.transpose(1, 2), flat)
    dw = dw.view(len(w), *kernel, channels, -1).movedim((-2, -1), (2, 1))
    if not deeper:
        return None, dw
    each = torch.bmm(flat, _matrix(w).transpose(1, 2))
    each = each.view(*x.shape[:2], *places, *kernel, channels)
    fold = _fold_by_reading if form.fused else _fold_by_adding
    return fold(each, tuple(x.shape[3:]), form).movedim(-1, 2), dw


def _at(sides: int, offset: Sequence[int]) -> tuple[slice | int, ...]:
    """Where columns (R, B, *places, *kernel, C) hold what one place of the kernel saw."""
    return (*[slice(None)] * (2 + sides), *offset)


def _fold_by_adding(each: Tensor, size: Ints, form: Geometry) -> Tensor:
    """The sum of what columns (R, B, *places, *kernel, C) add at each place, (R, B, *size, C)."""
    sides = len(size)
    places, kernel = each.shape[2 : 2 + sides], each.shape[2 + sides : 2 + 2 * sides]
    whole = [n + 2 * p for n, p in zip(size, form.padding, strict=True)]
    out = each.new_zeros(*each.shape[:2], *whole, each.shape[-1])
    for offset in product(*map(range, kernel)):
        zipped = zip(offset, form.dilation, form.stride, places, strict=True)
        at = tuple(slice(o * d, o * d + s * (n - 1) + 1, s) for o, d, s, n in zipped)
        out[(slice(None), slice(None), *at)] += each[_at(sides, offset)]
    inner = tuple(slice(p, p + n) for p, n in zip(form.padding, size, strict=True))
    return out[(slice(None), slice(None), *inner)]


def _fold_by_reading(each: Tensor, size: Ints, form: Geometry) -> Tensor:
    """The same; each place reads what it gets, which a compiler makes one pass over memory."""
    sides = len(size)
    places, kernel = each.shape[2 : 2 + sides], each.shape[2 + sides : 2 + 2 * sides]
    total: Tensor | None = None
    for offset in product(*map(range, kernel)):
        part = each[_at(sides, offset)]
        start = [p - o * d for o, p, d in zip(offset, form.padding, form.dilation, strict=True)]
        if max(form.stride) == 1:
            pads = [n for a, m, k in zip(start, size, places, strict=True) for n in (-a, m - k + a)]
            around = [pads[2 * i + j] for i in reversed(range(sides)) for j in (0, 1)]
            part = F.pad(part, [0, 0, *around])
        else:
            for i, (a, s) in enumerate(zip(start, form.stride, strict=True)):
                seen = torch.arange(a, a + size[i], device=each.device)
                at = torch.div(seen, s, rounding_mode="floor")
                good = (seen % s == 0) & (at >= 0) & (at < places[i])
                part = part.index_select(2 + i, at.clamp(0, places[i] - 1))
                part = torch.where(good.view(-1, *[1] * (sides - i)), part, 0.0)
        total = part if total is None else total + part
    assert total is not None
    return total
