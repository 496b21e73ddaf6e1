"""Small models of many kinds, and what autograd gives for each of their rows."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from fedmaba.rows import compile
from fedmaba.rows.base import Layout, RowObjective, Step
from fedmaba.rows.general import LoopRows
from fedmaba.rows.objectives import find
from fedmaba.rows.random import dropout_mask
from fedmaba.rows.traced import TracedRows

R, B, C = 3, 4, 5  # rows, minibatch, classes
FLAT, IMAGE = (6,), (2, 8, 8)
ONE = torch.tensor(1.0)


class Residual(nn.Module):
    """A block as in a ResNet, with GroupNorm."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x):
        return (x + self.norm(self.conv(x))).relu()


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def dense(*inner):
    """Layers between two linear ones."""
    return FLAT, nn.Sequential(nn.Linear(6, 7), *inner, nn.Linear(7, C))


def conv(**how):
    """A convolution and what makes its outputs C numbers."""
    first = nn.Conv2d(2, 4, 3, **how)
    features = first(torch.zeros(1, *IMAGE)).numel()
    return IMAGE, nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(features, C))


def between(layer):
    """A layer without weights between a convolution and linear ones."""
    first = nn.Conv2d(2, 2, 3)
    features = layer(first(torch.zeros(1, *IMAGE))).numel()
    rest = (nn.Flatten(), nn.Linear(features, 6), nn.Tanh(), nn.Linear(6, C))
    return IMAGE, nn.Sequential(first, layer, *rest)


def shared():
    """One layer used twice."""
    layer = nn.Linear(7, 7)
    return dense(layer, nn.ReLU(), layer)


def tied():
    """Two layers with one weight matrix."""
    first, second = (nn.Linear(7, 7, bias=False) for _ in range(2))
    second.weight = first.weight
    return dense(first, nn.ReLU(), second)


FAST = {
    "linear": lambda: (FLAT, nn.Sequential(nn.Linear(6, C))),
    "bare linear": lambda: (FLAT, nn.Linear(6, C)),
    "square bare linear": lambda: ((C,), nn.Linear(C, C)),
    "no bias": lambda: dense(nn.ReLU(), nn.Linear(7, 7, bias=False)),
    "no bias first": lambda: (
        FLAT,
        nn.Sequential(nn.Linear(6, 7, bias=False), nn.ReLU(), nn.Linear(7, C)),
    ),
    "nested": lambda: dense(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(7, 7)))),
    "relu twice": lambda: dense(nn.ReLU(), nn.ReLU()),
    "relu in place": lambda: dense(nn.ReLU(inplace=True)),
    "relu first": lambda: (FLAT, nn.Sequential(nn.ReLU(), nn.Linear(6, C))),
    "relu last": lambda: (FLAT, nn.Sequential(nn.Linear(6, C), nn.ReLU())),
    "two relus, then tanh": lambda: dense(nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Tanh()),
    "sigmoid last": lambda: (FLAT, nn.Sequential(*dense(nn.ReLU())[1], nn.Sigmoid())),
    "identity": lambda: dense(nn.Identity(), nn.ReLU()),
    "dropout": lambda: dense(nn.ReLU(), nn.Dropout(0.4)),
    "dropout, then relu": lambda: dense(nn.Dropout(0.4), nn.ReLU()),
    "two dropouts": lambda: dense(nn.Dropout(0.4), nn.Linear(7, 7), nn.Dropout(0.4)),
    "dropout first": lambda: (FLAT, nn.Sequential(nn.Dropout(0.3), nn.Linear(6, C))),
    "dropout last": lambda: (FLAT, nn.Sequential(nn.Linear(6, C), nn.Dropout(0.3))),
    "all dropped": lambda: dense(nn.Dropout(1.0)),
    "all dropped after relu": lambda: dense(nn.ReLU(), nn.Dropout(1.0)),
    "vectors of vectors": lambda: (
        FLAT,
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 4), nn.Flatten(), nn.Linear(8, C)),
    ),
    "conv": lambda: conv(),
    "conv stride": lambda: conv(stride=2),
    "conv padding": lambda: conv(padding=(2, 1)),
    "conv dilation": lambda: conv(dilation=2),
    "conv no bias": lambda: conv(bias=False, padding=1, stride=(2, 3)),
    "two convs": lambda: (
        IMAGE,
        nn.Sequential(
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Conv2d(3, 4, 2, padding=1),
            nn.Flatten(),
            nn.Dropout(0.4),
            nn.Linear(64, C),
        ),
    ),
    "max pool": lambda: between(nn.MaxPool2d(2)),
    "overlapping max pool": lambda: between(nn.MaxPool2d(3, stride=1, padding=1)),
    "average pool": lambda: between(nn.AvgPool2d(2)),
    "adaptive average": lambda: between(nn.AdaptiveAvgPool2d(4)),
    "adaptive max": lambda: between(nn.AdaptiveMaxPool2d(4)),
    "tanh": lambda: between(nn.Tanh()),
    "sigmoid": lambda: between(nn.Sigmoid()),
    "gelu": lambda: between(nn.GELU()),
    "silu": lambda: between(nn.SiLU()),
    "elu": lambda: between(nn.ELU()),
    "leaky relu": lambda: between(nn.LeakyReLU(0.2)),
    "softplus": lambda: between(nn.Softplus()),
}
VMAP = {
    "residual": lambda: (
        IMAGE,
        nn.Sequential(nn.Conv2d(2, 4, 3), Residual(4), nn.Flatten(), nn.Linear(144, C)),
    ),
    "grouped conv": lambda: conv(groups=2),
    "same padding": lambda: conv(padding="same"),
    "circular padding": lambda: conv(padding=1, padding_mode="circular"),
    "layer norm": lambda: dense(nn.LayerNorm(7)),
    "in place elsewhere": lambda: dense(nn.Identity(), nn.ReLU(inplace=True)),
    "shared layer": shared,
    "tied weights": tied,
    "wrapped": lambda: (FLAT, Wrapped(dense(nn.ReLU())[1])),
}
# reason named by `path`, word for word where a user can act on it
REASONS = {
    "residual": "Residual has no row form",
    "grouped conv": "Conv2d with groups",
    "shared layer": "shared between layers",
    "tied weights": "shared between layers",
    "layer norm": "LayerNorm has no row form",
}
EITHER = {"valid padding": lambda: conv(padding="valid")}
CASES = {**FAST, **VMAP, **EITHER}


class Case:
    """R models of one kind with their minibatches, padding and keys."""

    def __init__(self, name):
        torch.manual_seed(0)
        self.models = []
        for _ in range(R):
            shape, model = CASES[name]()
            for p in model.parameters():
                nn.init.uniform_(p, -0.7, 0.7)
            self.models.append(model)
        self.x = torch.randn(R, B, *shape, dtype=torch.float64)
        self.y = torch.randint(C, (R, B))
        self.weight = torch.full((R, B), 1 / B, dtype=torch.float64)
        self.weight[1] = torch.tensor([0.5, 0.5, 0, 0])  # a partial minibatch
        self.keys = torch.tensor([11, -5, 2**62])
        self.template = copy.deepcopy(self.models[0]).double()

    def flat(self, layout):
        return torch.stack([layout.pack(m) for m in self.models]).double()

    def autograd(self, layout, each=None, bend=None):
        """One model after another: losses (R,) and flat gradients (R, P)."""
        each = each or (lambda out, y: F.cross_entropy(out, y, reduction="none"))
        losses, grads = [], []
        for r in range(R):
            model = copy.deepcopy(self.models[r]).double()
            out = masked(model, self.x[r], self.keys[r : r + 1])
            loss = (each(out, self.y[r]) * self.weight[r]).sum()
            (loss if bend is None else bend(loss, r)).backward()
            losses.append(loss.detach())
            flat = torch.zeros(1, layout.size, dtype=torch.float64)
            for view, (name, p) in zip(layout.views(flat), model.named_parameters(), strict=True):
                view[0] = layout.forms[name].to_stored(p.grad) if name in layout.forms else p.grad
            grads.append(flat[0])
        return torch.stack(losses), torch.stack(grads)

    def added(self, rows, scale=1.0, objective=None, sink=None):
        read = self.flat(rows.layout)
        sink = torch.zeros_like(read) if sink is None else read
        one = torch.tensor(scale, dtype=read.dtype)
        step = Step(self.x, self.y, self.weight, one, objective, self.keys.clone())
        loss = rows.add_gradients(read, sink, step)
        return loss, sink


def objective(name, **numbers):
    """An objective of R rows."""
    named = {n: torch.tensor(v, dtype=torch.float64) for n, v in numbers.items()}
    return RowObjective(find(name).function, named)


def leaves(model):
    if type(model) is not nn.Sequential:
        return [model]
    return [leaf for child in model for leaf in leaves(child)]


def masked(model, x, key):
    """The outputs in training mode, with the masks of a key's stream."""
    for number, layer in enumerate(leaves(model)):
        if isinstance(layer, nn.Dropout):
            x = x * dropout_mask(key, number, (1, *x.shape), layer.p, x.dtype)[0]
        else:
            x = layer(x)
    return x


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def forms(case, loss=None):
    layout = Layout(case.template)
    yield compile(case.template, case.x[0], loss)
    yield TracedRows(case.template, layout, case.x[0], loss, "")
    yield LoopRows(case.template, layout, case.x[0], loss, "")


def image():
    inner = (nn.Linear(128, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU())
    return IMAGE, nn.Sequential(nn.Flatten(), *inner, nn.Linear(7, C))


def sequence():
    head = (nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Flatten(), nn.Linear(4, C))
    return (2, 3), nn.Sequential(*head)


GROUPED = {
    "linear": FAST["linear"],
    "tanh": lambda: dense(nn.Tanh()),
    "dropout": FAST["dropout"],
    "image": image,
}


def squares(out, y):
    return (out - (y[:, None] == torch.arange(C)).to(out)).square().sum(1)
