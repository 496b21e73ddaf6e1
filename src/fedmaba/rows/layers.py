"""Sequential models layer by layer: weights per row, backward by hand, the update fused into it.

The step size is folded into the output gradient, so each weight gradient is added to its weights
by the matrix product itself. A layer without weights is the same function for every row: rows and
examples are one axis, and autograd gives its backward. On CUDA, `dense` does linear layers with
their ReLU and dropout, and `conv` the convolutions that it covers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmaba.rows.base import Form, Layout, LossFn, Rows, Step
from fedmaba.rows.random import dropout_mask

try:
    from fedmaba.rows import conv, dense
except ImportError:  # no Triton: the plain operations serve
    conv = dense = None  # type: ignore[assignment]

BALANCE = 250  # products that a GPU does while its memory moves a number: 4 to 5 steps of 50 at 200

STATELESS = (
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    *(nn.Flatten, nn.Unflatten, nn.Identity),
)


def _fast(x: Tensor) -> bool:
    """Whether the kernels serve this tensor: float32 on a GPU that has tf32."""
    if dense is None or not x.is_cuda or x.dtype != torch.float32:
        return False
    return torch.cuda.get_device_capability(x.device) >= (8, 0)


class Layer(ABC):
    """One layer of all rows, or several that belong together."""

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

    The layer above hands down a gradient with both undone: `undone` is what this layer does for the
    one below, 1 / (1 - its dropout), or 0 where its inputs are no such outputs.
    """

    weights = 2

    def __init__(self, relu: bool, drop: tuple[float, int] | None, undo: float, dtype: str) -> None:
        self.relu, self.drop, self.undone, self.dtype = relu, drop, undo, dtype
        self.factor = 1.0 / (1.0 - drop[0] if drop else 1.0) if relu else 0.0

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        flat = x.flatten(1, -2)
        if keys is not None and flat.shape[1] <= dense.MOST:
            if not flat[0].is_contiguous():  # the kernels want each row's examples in order
                flat = flat.contiguous()
            y = dense.linear(flat, w[0], w[1], self.relu, keys, self.drop, self.dtype)
        else:
            y = dense.bias_act(torch.bmm(flat, w[0]), w[1], self.relu)
            if keys is not None and self.drop is not None:
                y *= dropout_mask(keys, self.drop[1], y.shape, self.drop[0], y.dtype)
        return y.view(*x.shape[:-1], -1), flat

    def corrected(
        self, z: Tensor, gram: Tensor, moved: Tensor, past: int, bias: Tensor, keys: Tensor
    ) -> Tensor:
        """Outputs from x W (R, B, out) and what the steps of `past` examples did to W."""
        act = (bias, self.relu, keys, self.drop, self.dtype)
        return dense.linear(gram, moved, *act, start=z, inputs=past)

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        x: Tensor = saved
        flat = g.flatten(1, -2).contiguous()
        if x.shape[1] <= dense.MOST:
            below = dense.linear_back(
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
            bias = w[1] if self.weights == 2 else [None] * rows
            y = torch.stack([self._conv(x[r], w[0][r], bias[r], 1) for r in range(rows)])
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
        return torch.stack(each) if deeper else None

    def _conv(self, x: Tensor, w: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        return F.conv2d(x, w, bias, self.stride, self.padding, self.dilation, groups)

    def _gradient(
        self, g: Tensor, x: Tensor, w: Tensor, groups: int, deeper: bool
    ) -> tuple[Tensor, Tensor]:
        if self._turned(x):  # images as channels: one product of Fourier transforms
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
        for stage in self.stages[1:]:  # activations of large images, too, must fit float16
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
        top = conv.largest(g)
        g = g.contiguous().view(*g.shape[:2], last.ph, last.pw, last.n)
        for i in reversed(range(len(self.stages))):
            own = (*saved[i], sink[2 * i], sink[2 * i + 1])
            g = self.stages[i].backward(g, top, *own, i > 0)
        return None


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
        return g.mul_(saved) if g.is_contiguous() else g * saved


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
        leaf, y = saved
        (below,) = torch.autograd.grad(y, leaf, g.flatten(0, 1))
        return _rows(below, g)


class Halve(Layer):
    """MaxPool2d(2) on a CPU, by slices: torch's own looks at one number at a time."""

    def forward(
        self, x: Tensor, w: list[Tensor], keys: Tensor | None, save: bool
    ) -> tuple[Tensor, Any]:
        height, width = x.shape[-2] // 2, x.shape[-1] // 2
        even = x[..., : 2 * height, : 2 * width]
        if not save:
            tall = torch.maximum(even[..., 0::2, :], even[..., 1::2, :])
            return torch.maximum(tall[..., 0::2], tall[..., 1::2]), None
        left, right = even[..., 0::2], even[..., 1::2]
        wide = torch.maximum(left, right)
        top, bottom = wide[..., 0::2, :], wide[..., 1::2, :]
        # which of the four won, as torch has it: the first of equals, left to right, then down
        east, south = (right > left).view(torch.int8), (bottom > top).view(torch.int8)
        above, below = east[..., 0::2, :], east[..., 1::2, :]
        east = (below - above).mul_(south).add_(above)
        rows, columns = (torch.arange(0, 2 * n, 2, device=x.device) for n in (height, width))
        won = (rows[:, None] * x.shape[-1] + columns) + east
        won += south.to(torch.int64).mul_(x.shape[-1])
        return torch.maximum(top, bottom), (x, won)

    def backward(
        self, g: Tensor, saved: Any, w: list[Tensor], sink: list[Tensor], deeper: bool
    ) -> Tensor | None:
        x, won = (t.flatten(0, 1) for t in saved)
        how = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        undo = torch.ops.aten.max_pool2d_with_indices_backward
        return _rows(undo(g.flatten(0, 1), x, *how, won), g)


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


class Plan:
    """The row form of a sequential model: its layers, and how their weights are stored."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.forms: dict[str, Form] = {}
        self.kinds: list[str] = []
        self.refusal = ""


def plan(model: nn.Module, example: Tensor, dtype: str) -> Plan:
    """The row form of each layer; `refusal` names the one that has none."""
    out = Plan()
    leaves = list(_leaves(model))
    out.kinds = [type(module).__name__ for _, module in leaves]
    fast = _fast(example)
    done = _front(out, leaves, example, dtype) if fast else 0
    while done < len(leaves):
        number = done
        name, module = leaves[number]
        kind = type(module)
        done += 1
        follows = done < len(leaves) and type(leaves[done][1]) is nn.ReLU
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            taken = _dense(out, leaves[number:], number, dtype) if fast else 0
            if not taken:
                out.layers.append(Linear(module, follows))
            done = number + max(1, taken)
            size = (module.out_features, module.in_features)
            out.forms.setdefault(f"{name}.weight".lstrip("."), Form(size, (1, 0), size[::-1]))
        elif isinstance(module, nn.Conv2d) and kind is nn.Conv2d:
            if module.groups != 1 or module.padding_mode != "zeros" or module.padding == "same":
                out.refusal = "Conv2d with groups or special padding has no row form"
                return out
            out.layers.append(Conv2d(module, follows))
        elif isinstance(module, nn.Dropout) and kind is nn.Dropout:
            out.layers.append(Dropout(module, number))
        elif (
            kind is nn.ReLU and out.layers and type(leaves[number - 1][1]) in (nn.Linear, nn.Conv2d)
        ):
            continue  # part of the layer before it
        elif isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
            out.layers.append(Flatten())
        elif isinstance(module, nn.MaxPool2d) and not example.is_cuda and _halves(module):
            out.layers.append(Halve())
        elif kind in STATELESS and not getattr(module, "inplace", False):
            out.layers.append(Stateless(module))
        else:
            out.refusal = f"{kind.__name__} has no row form"
            return out
    if len(list(model.parameters())) != sum(layer.weights for layer in out.layers):
        out.refusal = "weights shared between layers have no row form"
    return out


def _dense(out: Plan, leaves: list[tuple[str, nn.Module]], number: int, dtype: str) -> int:
    """Plan a Linear with its ReLU and Dropout for the kernels; returns how many leaves it takes."""
    modules = [module for _, module in leaves]
    taken = _takes(modules)
    if not taken:
        return 0
    last, below = modules[taken - 1], out.layers[-1] if out.layers else None
    drop = (last.p, number + 2) if isinstance(last, nn.Dropout) and last.p else None
    undo = below.factor if isinstance(below, Dense) else 0.0
    out.layers.append(Dense(taken > 1, drop, undo, dtype))
    return taken


def _takes(modules: list[nn.Module]) -> int:
    """How many modules a Dense layer would do, 0 where the first is no such layer.

    Its ReLU and dropout are undone by the layer above, which must be another.
    """
    kinds = [type(module) for module in modules[:3]]
    if kinds[:1] != [nn.Linear] or modules[0].bias is None:
        return 0
    if kinds[1:2] != [nn.ReLU]:
        return 1
    taken = 3 if kinds[2:] == [nn.Dropout] else 2
    dropped = taken == 3 and modules[2].p == 1.0  # all of it: nothing would be left to undo
    return 0 if dropped or not _takes(modules[taken:]) else taken


def _front(out: Plan, leaves: list[tuple[str, nn.Module]], example: Tensor, dtype: str) -> int:
    """Plan the convolutions that the kernels cover; returns how many leaves that takes."""
    stages: list[Any] = []
    shape, at = tuple(example.shape[1:]), 0
    while at + 2 < len(leaves) and type(leaves[at][1]) is nn.Conv2d and len(shape) == 3:
        (name, module), (_, pool) = leaves[at], leaves[at + 2]
        c, h, w = shape
        assert isinstance(module, nn.Conv2d)
        k, n = module.kernel_size[0], module.out_channels
        plain = (module.stride, module.padding, module.dilation) == ((1, 1), (0, 0), (1, 1))
        square = module.kernel_size == (k, k) and module.groups == 1 and module.bias is not None
        pooled = isinstance(pool, nn.MaxPool2d) and _halves(pool)
        fits = conv.Stage.fits(h, w, c, k, n) and (c >= 16 or not stages)
        if not (plain and square and pooled and fits) or type(leaves[at + 1][1]) is not nn.ReLU:
            return 0
        stages.append(conv.Stage(h, w, c, k, n, dtype, first=not stages))
        out.forms[f"{name}.weight"] = Form((n, c, k, k), (2, 3, 1, 0), (k, k, c, n))
        shape = (n, stages[-1].ph, stages[-1].pw)
        at += 3
    rest = [type(module) for _, module in leaves[at:]]
    if not stages or rest[:2] != [nn.Flatten, nn.Linear]:
        out.forms.clear()
        return 0
    name, linear = leaves[at + 1]
    assert isinstance(linear, nn.Linear)
    size = linear.in_features, linear.out_features
    out.forms[f"{name}.weight"] = Form((size[1], *shape), (2, 3, 1, 0), size)
    out.layers.append(ConvStages(stages))
    return at + 1


def _halves(pool: nn.MaxPool2d) -> bool:
    """Whether it is MaxPool2d(2) and nothing else."""
    usual = "kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False"
    return type(pool) is nn.MaxPool2d and pool.extra_repr() == usual and not pool.return_indices


def _leaves(model: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    if type(model) is not nn.Sequential:
        return [(name, model)]
    inside = ((f"{name}.{n}" if name else n, child) for n, child in model._modules.items())
    return [leaf for n, child in inside if child is not None for leaf in _leaves(child, n)]


class LayerRows(Rows):
    """Rows of a sequential model."""

    parallel = True

    def __init__(self, model: nn.Module, how: Plan, example: Tensor, loss: LossFn | None) -> None:
        kinds = ", ".join(dict.fromkeys(how.kinds))
        super().__init__(model, Layout(model, how.forms), example, loss, f"fast rows ({kinds})")
        self.layers, self.vectors = how.layers, example.ndim == 2
        self.first = next((i for i, layer in enumerate(self.layers) if layer.weights), 0)
        if self.layers and isinstance(self.layers[0], ConvStages):  # outputs are pooled at once
            self.activations = 4 * example[0].numel() + self.layers[0].size

    def prepare(self, x: Tensor) -> Tensor:
        front = self.layers[0] if self.layers else None
        return front.prepare(x) if isinstance(front, ConvStages) else x

    def _weights(self, flat: Tensor) -> list[list[Tensor]]:
        views = iter(self.layout.views(flat))
        return [[next(views) for _ in range(layer.weights)] for layer in self.layers]

    def accumulate(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        w = self._weights(read)
        into = w if sink is read else self._weights(sink)
        x = step.x
        for layer in self.layers[: self.first]:
            x, _ = layer.forward(x, [], step.keys, False)
        return self._there_and_back(x, w, into, step, self.first, False)[0]

    def _there_and_back(
        self,
        x: Tensor,
        w: list[list[Tensor]],
        into: list[list[Tensor]],
        step: Step,
        first: int,
        deeper: bool,
    ) -> tuple[Tensor, Tensor]:
        """From the inputs of a layer to the loss, and the gradient down to it or to its inputs."""
        saved = []
        for layer, own in zip(self.layers[first:], w[first:], strict=True):
            x, kept = layer.forward(x, own, step.keys, True)
            saved.append(kept)
        loss, g = self.loss_and_gradient(x, step)
        for i in reversed(range(first, len(self.layers))):
            below = self.layers[i].backward(g, saved.pop(), w[i], into[i], deeper or i > first)
            if below is not None:
                g = below
        return loss, g

    def group(self, w: Tensor, minibatch: int) -> int:
        many = self._many(minibatch)
        if many == 1:
            return 1
        cache = torch.cuda.get_device_properties(w.device).L2_cache_size
        return many if len(w) * self.layout.shapes[0].numel() * w.element_size() > cache else 1

    def room(self, minibatch: int) -> int:
        many = self._many(minibatch)
        if many == 1:
            return super().room(minibatch)
        (inputs, out), examples = self.layout.shapes[0], many * minibatch
        return super().room(minibatch) + examples * (inputs + 2 * out + examples)

    def _many(self, minibatch: int) -> int:
        """Steps in a group where the first layer's weights outgrow the cache.

        A group takes the products of its examples with each other, but the bus sees the weights
        once a group instead of once a step: the best size is where both cost the same. More than
        one only where inputs reach those weights as plain vectors, in products that are quick.
        """
        *below, front = self.layers[: self.first + 1]
        plain = all(isinstance(layer, Flatten) for layer in below) and (below or self.vectors)
        quick = isinstance(front, Dense) and front.dtype != "float32" and minibatch <= dense.MOST
        if not (plain and quick):
            return 1
        return max(1, int(math.sqrt(BALANCE * self.layout.shapes[0][1]) / minibatch))

    def sweep(self, w: Tensor, x: Tensor, steps: list[Step]) -> list[Tensor]:
        """The first layer's weights move once, at the end: until then its outputs are corrected.

        A step adds x'g to W, so later outputs x W change by (x x') g.
        """
        if len(steps) == 1:
            return super().sweep(w, x, steps)
        own, front = self._weights(w), self.layers[self.first]
        assert isinstance(front, Dense)
        inputs = x.flatten(3).flatten(1, 2)  # (R, S * B, in)
        weights, bias = own[self.first]
        products = torch.bmm(inputs, weights)
        gram = torch.bmm(inputs, inputs.transpose(1, 2))
        moved = torch.zeros_like(products)  # what each example adds: its gradient times scale
        many, losses = x.shape[2], []
        for k, step in enumerate(steps):
            now = slice(k * many, (k + 1) * many)
            before = (products[:, now], gram[:, now], moved, k * many)
            y = front.corrected(*before, bias, step.keys)
            loss, g = self._there_and_back(y, own, own, step, self.first + 1, True)
            losses.append(loss)
            moved[:, now] = g
            bias.add_(g.sum(1))
        weights.baddbmm_(inputs.transpose(1, 2), moved)
        return losses

    def loss_and_gradient(self, out: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        if self.loss_fn is None and _fast(out) and dense.fits_cross_entropy(*out.shape[1:]):
            bent = None if step.bent is None else torch.stack(step.bent)
            if not isinstance(self.layers[-1], Dense):  # other layers may need their outputs again
                out = out.clone(memory_format=torch.contiguous_format)
            return dense.cross_entropy(out, step.y, step.weight, step.scale, bent), out
        return super().loss_and_gradient(out, step)

    def outputs(self, flat: Tensor, x: Tensor) -> Tensor:
        x = x.expand(len(flat), *x.shape[1:])
        for layer, own in zip(self.layers, self._weights(flat), strict=True):
            x, _ = layer.forward(x, own, None, False)
        return x
