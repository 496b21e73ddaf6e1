"""Rows against autograd: every form of rows adds the same gradients, row by row, in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedmaba import models, rng
from fedmaba.errors import InputError
from fedmaba.rows import compile
from fedmaba.rows.base import Bent, Layout
from fedmaba.rows.general import LoopRows, VmapRows
from fedmaba.rows.layers import LayerRows
from fedmaba.rows.random import dropout_mask, shuffles, stream

R, B, C = 3, 4, 5  # rows, minibatch, classes
FLAT, IMAGE = (6,), (2, 8, 8)


class Residual(nn.Module):
    """A block as in a ResNet, with GroupNorm."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x):
        return (x + self.norm(self.conv(x))).relu()


class Called(nn.Module):
    """Dropout by function call, which draws from torch's own generator."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 7), nn.Linear(7, C)

    def forward(self, x):
        return self.b(F.dropout(self.a(x).relu(), 0.5, self.training))


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def seq(*layers):
    return lambda: nn.Sequential(*(layer() if isinstance(layer, type) else layer for layer in layers))


def conv(**how):
    """A convolution and what makes its output C numbers."""

    def make():
        first = nn.Conv2d(2, 3, 3, **how)
        side = first(torch.zeros(1, *IMAGE)).shape[-1]
        return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(3 * side * side, C))

    return make


def between(layer, features=18):
    """A layer without weights between a convolution and a linear layer."""

    def make():
        return nn.Sequential(
            nn.Conv2d(2, 2, 3), layer, nn.Flatten(), nn.Linear(features, 6), nn.Tanh(),
            nn.Linear(6, C),
        )  # fmt: skip

    return make


SEQUENTIAL = {
    "linear": (FLAT, seq(nn.Linear(6, C))),
    "bare linear": (FLAT, lambda: nn.Linear(6, C)),
    "square bare linear": ((C,), lambda: nn.Linear(C, C)),
    "no bias": (FLAT, seq(nn.Linear(6, 7, bias=False), nn.ReLU(), nn.Linear(7, C, bias=False))),
    "nested": (FLAT, seq(nn.Sequential(nn.Linear(6, 7), nn.Sequential(nn.ReLU())), nn.Linear(7, C))),
    "relu twice": (FLAT, seq(nn.Linear(6, 7), nn.ReLU(), nn.ReLU(), nn.Linear(7, C), nn.ReLU())),
    "relu first": (FLAT, seq(nn.ReLU(), nn.Linear(6, C))),
    "inplace relu": (FLAT, seq(nn.Linear(6, 7), nn.ReLU(inplace=True), nn.Linear(7, C))),
    "identity": (FLAT, seq(nn.Linear(6, 7), nn.Identity(), nn.ReLU(), nn.Linear(7, C))),
    "dropout last": (FLAT, seq(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, C), nn.Dropout(0.3))),
    "dropout first": (FLAT, seq(nn.Dropout(0.3), nn.Linear(6, 7), nn.Dropout(0.5), nn.Linear(7, C))),
    "all dropped": (FLAT, seq(nn.Linear(6, 7), nn.Dropout(1.0), nn.Linear(7, C))),
    "conv": (IMAGE, conv()),
    "conv stride": (IMAGE, conv(stride=2)),
    "conv padding": (IMAGE, conv(padding=2)),
    "conv no bias": (IMAGE, conv(bias=False, padding=(1, 0), stride=(1, 2))[0] if False else conv(bias=False)),
    "conv dilation": (IMAGE, conv(dilation=2)),
    "conv valid": (IMAGE, conv(padding="valid")),
    "two convs": (
        IMAGE,
        seq(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Flatten(),
            nn.Dropout(0.4), nn.Linear(16, C)),
    ),  # fmt: skip
    "max pool": (IMAGE, between(nn.MaxPool2d(2))),
    "overlapping pool": (IMAGE, between(nn.MaxPool2d(3, stride=1), 32)),
    "average pool": (IMAGE, between(nn.AvgPool2d(2))),
    "adaptive average": (IMAGE, between(nn.AdaptiveAvgPool2d(3))),
    "adaptive max": (IMAGE, between(nn.AdaptiveMaxPool2d(3))),
    **{
        kind.__name__: (IMAGE, between(kind(), 72))
        for kind in (nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus)
    },
    "unflatten": (FLAT, seq(nn.Unflatten(1, (2, 3)), nn.Linear(3, 4), nn.Flatten(), nn.Linear(8, C))),
}  # fmt: skip
GENERAL = {
    "residual": (IMAGE, seq(nn.Conv2d(2, 4, 3), Residual(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                            nn.Linear(4, C))),
    "grouped conv": (IMAGE, conv(groups=1) if False else
                     seq(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, C))),
    "same padding": (IMAGE, conv(padding="same")),
    "circular padding": (IMAGE, conv(padding=1, padding_mode="circular")),
    "layer norm": (FLAT, seq(nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, C))),
    "wrapped": (FLAT, lambda: Wrapped(nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, C)))),
    "inplace elsewhere": (FLAT, seq(nn.Linear(6, 7), nn.Tanh(), nn.ReLU(inplace=True),
                                    nn.Linear(7, C))),
}  # fmt: skip


def shared():
    """One layer used twice."""
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, C))


GENERAL["shared weights"] = (FLAT, shared)
CASES = {**SEQUENTIAL, **GENERAL}


class Case:
    """R models of one kind with their minibatches, padding and keys."""

    def __init__(self, name, seed=0):
        shape, make = CASES[name]
        torch.manual_seed(seed)
        self.models = [fresh(make).double() for _ in range(R)]
        self.x = torch.randn(R, B, *shape, dtype=torch.float64)
        self.y = torch.randint(C, (R, B))
        self.weight = torch.full((R, B), 1 / B, dtype=torch.float64)
        self.weight[1] = torch.tensor([0.5, 0.5, 0, 0])  # a partial minibatch
        self.keys = torch.tensor([11, -5, 2**62])

    def flat(self, layout):
        return torch.stack([layout.pack(m.float()).double() for m in self.models])

    def gradients(self, layout, loss=None, bent=None):
        """By autograd, one model after another: losses (R,) and flat gradients (R, P)."""
        losses, grads = [], []
        for r, model in enumerate(self.models):
            model.double().zero_grad()
            out = masked(model, self.x[r], self.keys[r : r + 1])
            each = F.cross_entropy(out, self.y[r], reduction="none") if loss is None else loss(
                out, self.y[r]
            )
            total = (each * self.weight[r]).sum()
            (total if bent is None else bent(total, r)).backward()
            losses.append(total.detach())
            grads.append(pack(layout, model))
        return torch.stack(losses), torch.stack(grads)


def fresh(make):
    """A model with weights of its own; layers made once are drawn anew."""
    model = make()
    for p in model.parameters():
        nn.init.uniform_(p, -0.7, 0.7)
    import copy

    return copy.deepcopy(model)


def masked(model, x, key):
    """The outputs in training mode with the masks that `dropout_mask` gives."""
    if not isinstance(model, nn.Sequential) or any(type(m) is Residual for m in model.modules()):
        return model(x)
    leaves = []
    stack = [model]
    while stack:
        m = stack.pop(0)
        if type(m) is nn.Sequential:
            stack = [*m, *stack]
        else:
            leaves.append(m)
    for number, layer in enumerate(leaves):
        if isinstance(layer, nn.Dropout):
            x = x * dropout_mask(key, number, (1, *x.shape), layer.p, x.dtype)[0]
        else:
            x = layer(x)
    return x


def pack(layout, model):
    """The gradients of a model as a flat vector, in float64."""
    flat = torch.zeros(1, layout.size, dtype=torch.float64)
    for view, (name, p) in zip(layout.views(flat), model.named_parameters(), strict=True):
        view[0] = p.grad.T if name in layout.flipped else p.grad
    return flat[0]
