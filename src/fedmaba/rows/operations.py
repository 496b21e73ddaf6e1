"""How the operations of any model are computed for all rows at once.

A model is called inside `torch.func.vmap`, which gives most operations a good form for many rows.
`RowOperations` replaces the rest while the model runs: convolutions become products of matrices,
recurrent layers become steps, and dropout draws its masks from the row's random stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedmaba.rows import recurrent
from fedmaba.rows.convolutions import Way, convolve
from fedmaba.rows.random import dropout_mask, fused_dropout_mask

Ints = tuple[int, ...]
# The gradient of an embedding with up to this many entries is taken as a product.
MAX_ONE_HOT = 4096
OF_FEATURES = (F.dropout1d, F.dropout2d, F.dropout3d)
OVERRIDE_HOOKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@dataclass(frozen=True)
class RowMethod:
    """Which of several equal ways to compute operations is taken."""

    # It says whether many rows are computed at once; one row alone needs only its masks.
    rows: bool
    conv: Way = "each"
    fused: bool = False  # It says whether a compiler will join small operations.
    low: torch.dtype | None = None  # Products take this type in place of float32.


class RowOperations(TorchFunctionMode):
    """While this is entered, torch functions are computed as rows want them.

    Without a key, dropout does nothing.
    """

    def __init__(self, how: RowMethod, key: Tensor | None) -> None:
        super().__init__()
        self.how, self.key, self.masks = how, key, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        replace = REPLACED.get(func)
        if replace is not None:
            found = replace(self, func, *args, **given)
            return func(*args, **given) if found is NotImplemented else found
        if func in COMPOSED:
            with self:  # What is called inside is replaced, too.
                return _body(func)(*args, **given)
        return func(*args, **given)

    def mask(self, like: Tensor, p: float, shape: Ints | None = None) -> Tensor:
        """The next dropout mask of this row: 0 or 1 / (1 - p)."""
        if self.key is None:
            return torch.ones((), dtype=like.dtype, device=like.device)
        number, self.masks = self.masks, self.masks + 1
        size = tuple(like.shape) if shape is None else shape
        given = number, size, p, like.dtype, self.how.fused
        if not self.how.rows:
            return _masks(self.key.view(1), *given)[0]
        mask: Tensor = Mask.apply(self.key, *given)  # type: ignore[no-untyped-call]
        return mask

    def lowered(self, *values: Tensor | None) -> list[Any]:
        """The factors of a product, in the type that products take."""
        low = self.how.low
        return [v if v is None or low is None else v.to(low) for v in values]


def _composed() -> set[Any]:
    """The functions of torch.nn.functional that call others."""
    every = (f for f in vars(F).values() if isinstance(f, FunctionType))
    return {f for f in every if set(OVERRIDE_HOOKS) & set(f.__code__.co_names)}


@cache
def _body(function: FunctionType) -> FunctionType:
    """The function without the override hook, which would call itself forever."""
    names = {**function.__globals__, **dict.fromkeys(OVERRIDE_HOOKS, lambda *_: False)}
    parts = (function.__name__, function.__defaults__, function.__closure__)
    out = FunctionType(function.__code__, names, *parts)
    out.__kwdefaults__ = function.__kwdefaults__
    return out


class Mask(Function):
    """A dropout mask from the row's random stream."""

    @staticmethod
    def forward(
        key: Tensor, number: int, shape: Ints, p: float, dtype: torch.dtype, fused: bool
    ) -> Tensor:
        return _masks(key.view(1), number, shape, p, dtype, fused)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None,) * 6

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        keys: Tensor,
        number: int,
        shape: Ints,
        p: float,
        dtype: torch.dtype,
        fused: bool,
    ) -> tuple[Tensor, int]:
        return _masks(keys, number, shape, p, dtype, fused), 0


def _masks(
    keys: Tensor, number: int, shape: Ints, p: float, dtype: torch.dtype, fused: bool
) -> Tensor:
    make = fused_dropout_mask if fused else dropout_mask
    return make(keys, number, torch.Size((len(keys), *shape)), p, dtype)


def _dropout(
    mode: RowOperations,
    func: Any,
    x: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """Dropout of numbers, or of whole features."""
    if not training or p == 0.0:
        return x
    whole = func in OF_FEATURES
    if whole and x.dim() < 3:
        raise NotImplementedError(f"{func.__name__} without a minibatch has no row form")
    mask = mode.mask(x, p, (*x.shape[:2], *[1] * (x.dim() - 2)) if whole else None)
    return x.mul_(mask) if inplace else x * mask


def _linear(
    mode: RowOperations, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Any:
    if mode.how.low is None:
        return NotImplemented
    return func(*mode.lowered(x, weight, bias))


def _product(mode: RowOperations, func: Any, *args: Any, **kwargs: Any) -> Any:
    if mode.how.low is None or not all(_float(v) for v in args):
        return NotImplemented
    return func(*mode.lowered(*args), **kwargs)


def _float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _conv(
    mode: RowOperations,
    func: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    x, weight, bias = mode.lowered(input, weight, bias)
    if not mode.how.rows:
        if x.dim() == 4 and torch.backends.mkldnn.enabled:
            x = x.contiguous(memory_format=torch.channels_last)
        return func(x, weight, bias, stride, padding, dilation, groups)
    how = (stride, padding, dilation, groups, mode.how.conv, mode.how.fused)
    return convolve(x, weight, bias, *how)


def _view(mode: RowOperations, func: Any, x: Tensor, *shape: Any) -> Any:
    """Numbers may lie in memory in another order than the model expects."""
    return NotImplemented if isinstance(shape[0], torch.dtype) else x.reshape(*shape)


def crashes_backward(x: Tensor) -> bool:
    """Whether torch's GroupNorm ends the process when it takes the gradients of its weights.

    It does on a CPU for images with channels last whose own gradient nobody asks for.
    """
    return x.dim() == 4 and not x.is_cuda and not x.requires_grad and not x.is_contiguous()


def _group_norm(
    mode: RowOperations,
    func: Any,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """Sums over each group, which a compiler joins in the order in which numbers lie in memory."""
    if not (mode.how.fused or mode.how.low):
        if crashes_backward(input):
            return func(input.contiguous(), num_groups, weight, bias, eps)
        return NotImplemented
    size = (len(input), num_groups, -1, *input.shape[2:])
    y = input.reshape(size).to(_exact(input))
    var, mean = torch.var_mean(y, list(range(2, y.dim())), correction=0, keepdim=True)
    y = ((y - mean) * torch.rsqrt(var + eps)).flatten(1, 2)
    shape = (-1, *[1] * (input.dim() - 2))
    y = y if weight is None else y * weight.view(shape)
    y = y if bias is None else y + bias.view(shape)
    return y.to(input.dtype)


def _layer_norm(
    mode: RowOperations,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if mode.how.low is None:
        return NotImplemented
    x = input.to(_exact(input))
    return func(x, normalized_shape, weight, bias, eps).to(input.dtype)


def _rms_norm(
    mode: RowOperations,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if not mode.how.rows and mode.how.low is None:
        return NotImplemented
    x = input.to(_exact(input))
    small = torch.finfo(input.dtype).eps if eps is None else eps
    axes = list(range(-len(normalized_shape), 0))
    y = x * torch.rsqrt(x.square().mean(axes, keepdim=True) + small)
    return (y if weight is None else y * weight).to(input.dtype)


def _exact(x: Tensor) -> torch.dtype:
    """The type in which means and variances are taken."""
    return torch.promote_types(x.dtype, torch.float32)


class Lookup(Function):
    """An embedding whose gradient is a product with ones and zeros: sums in a fixed order."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.size = len(inputs[0])
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (ids,), g = ctx.saved_tensors, grads[0]
        place = torch.arange(ctx.size, device=ids.device)
        hot = (ids.flatten()[:, None] == place).to(g.dtype)
        return hot.t() @ g.flatten(0, -2), None


def _embedding(
    mode: RowOperations,
    func: Any,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NotImplementedError(
            "an Embedding with max_norm, scale_grad_by_freq or sparse has no row form"
        )
    if not mode.how.rows or not input.is_cuda or len(weight) > MAX_ONE_HOT:
        return NotImplemented
    if padding_idx is not None:  # its vector is never trained
        fixed = torch.arange(len(weight), device=weight.device)[:, None] == padding_idx
        weight = torch.where(fixed, weight.detach(), weight)
    return Lookup.apply(weight, input)  # type: ignore[no-untyped-call]


def _attention(
    mode: RowOperations,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    query, key, value = mode.lowered(query, key, value)
    if not mode.how.rows and (dropout_p == 0.0 or mode.key is None):
        how = {"scale": scale} | ({"enable_gqa": True} if enable_gqa else {})
        return func(query, key, value, attn_mask, 0.0, is_causal, **how)
    if enable_gqa:
        key, value = (v.repeat_interleave(query.size(-3) // v.size(-3), -3) for v in (key, value))
    factor = query.size(-1) ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1).to(value.dtype)
    if dropout_p > 0.0:
        weights = weights * mode.mask(weights, dropout_p)
    return weights @ value


def _recurrent(mode: RowOperations, func: Any, *args: Any) -> Any:
    drops = mode.key is not None and len(args) == 9 and args[5] > 0.0 and args[6]
    # cuDNN's own form looks at the memory of the weights, which a recording cannot hold.
    if not (mode.how.rows or mode.how.low or mode.how.fused or drops or args[0].is_cuda):
        return NotImplemented
    if len(args) == 9 and isinstance(args[3], Sequence):
        raise NotImplementedError("packed sequences have no row form")
    return recurrent.layer(func, mode.mask, mode.how.low, *args)


def _cell(mode: RowOperations, func: Any, *args: Any) -> Any:
    if not (mode.how.rows or mode.how.low or mode.how.fused):
        return NotImplemented
    return recurrent.cell(func, mode.how.low, *args)


COMPOSED = _composed()
REPLACED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.dropout, torch.dropout, *OF_FEATURES), _dropout),
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), _conv),
    Tensor.view: _view,
    F.linear: _linear,
    **dict.fromkeys(
        (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm),
        _product,
    ),
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.embedding: _embedding,
    F.scaled_dot_product_attention: _attention,
    **dict.fromkeys(recurrent.STEPS, _recurrent),
    **dict.fromkeys(recurrent.LAYER_OF_CELL, _cell),
}
