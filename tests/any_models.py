"""Random small models: chains, residual sums, branches and loops of every kind of layer."""

import random

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 3
KINDS = ("vector", "image", "sequence", "tokens", "volume")


class Sum(nn.Module):
    """x + f(x), and x alone where f changes its shape."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        y = self.inner(x)
        return x + y if x.shape == y.shape else y


class Branches(nn.Module):
    """Two ways side by side, joined on an axis, or their difference gated by a weight."""

    def __init__(self, a, b, axis=None):
        super().__init__()
        self.a, self.b, self.axis = a, b, axis
        self.gate = nn.Parameter(torch.tensor([0.3]))

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        return a * self.gate - b if self.axis is None else torch.cat([a, b], self.axis)


class Loop(nn.Module):
    """One layer, several times."""

    def __init__(self, inner, times):
        super().__init__()
        self.inner, self.times = inner, times

    def forward(self, x):
        for _ in range(self.times):
            x = torch.tanh(self.inner(x))
        return x


class Positions(nn.Module):
    """Weights that are used directly: positions and a class token."""

    def __init__(self, length, width):
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, length, width))
        self.token = nn.Parameter(torch.randn(1, 1, width))

    def forward(self, x):
        x = x + self.place[:, : x.shape[1]]
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1)[:, : x.shape[1]]


class Recurrent(nn.Module):
    def __init__(self, layer, first):
        super().__init__()
        self.layer, self.first = layer, first

    def forward(self, x):
        y = self.layer(x if self.first else x.transpose(0, 1))[0]
        return y if self.first else y.transpose(0, 1)


class Cells(nn.Module):
    """A cell of a recurrent layer, stepped by hand."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state, out = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            out.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(out, 1)


class Attention(nn.Module):
    def __init__(self, width, heads, **how):
        super().__init__()
        self.need = how.pop("need")
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True, **how)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=self.need)[0]


class OwnAttention(nn.Module):
    """Attention by torch's function, with or without a look ahead."""

    def __init__(self, width, causal, dropout):
        super().__init__()
        self.q, self.causal, self.dropout = nn.Linear(width, 3 * width), causal, dropout

    def forward(self, x):
        q, k, v = self.q(x).chunk(3, -1)
        p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=p)


class Turned(nn.Module):
    """A layer over the other axis."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Head(nn.Module):
    """Means over all axes but the first two or the last, then one linear layer."""

    def __init__(self, body, width, kind):
        super().__init__()
        self.body, self.kind = body, kind
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        y = self.body(x)
        if self.kind in ("image", "volume"):
            y = y.reshape(y.shape[0], y.shape[1], -1).mean(2)
        elif self.kind == "sequence":
            y = y.mean(1)
        return self.out(y)


def activation(draw):
    kinds = (nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, nn.Sigmoid, nn.Softplus)
    return draw.choice(kinds)()


def vector_layer(draw, width):
    to = draw.choice((4, 6))
    same = nn.Linear(width, width, bias=draw.random() < 0.7)
    choice = draw.randrange(8)
    if choice == 0:
        return nn.LayerNorm(width, elementwise_affine=draw.random() < 0.7), width
    if choice == 1:
        return Sum(nn.Sequential(same, activation(draw))), width
    if choice == 2:
        return Branches(same, nn.Linear(width, width)), width
    if choice == 3:
        return Branches(same, nn.Linear(width, 2), -1), width + 2
    if choice == 4:
        return Loop(same, 3), width
    if choice == 5:
        return nn.Dropout(0.4), width
    if choice == 6:
        return nn.RMSNorm(width), width
    return nn.Sequential(nn.Linear(width, to), activation(draw)), to


def conv(draw, dims, width, to, same=False):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    groups = draw.choice((1, 1, 2)) if width % 2 == 0 and to % 2 == 0 else 1
    how = {"groups": groups, "bias": draw.random() < 0.6}
    if same or dims == 3:
        return kind(width, to, 3, padding=1, **how)
    size = draw.choice((1, 2, 3))
    more = draw.randrange(4)
    if more == 0:
        return kind(width, to, size, padding="same", **how)
    if more == 1:
        mode = draw.choice(("circular", "reflect", "replicate"))
        return kind(width, to, 3, padding=1, padding_mode=mode, **how)
    stride, spread = draw.choice(((1, 1), (2, 1), (1, 2), (3, 1)))
    return kind(width, to, size, stride, draw.choice((1, 2)), spread, **how)


def space_layer(draw, width, dims):
    to = draw.choice((4, 6))
    choice = draw.randrange(8)
    if choice == 0:
        return nn.GroupNorm(2, width, affine=draw.random() < 0.8), width
    if choice == 1:
        return Sum(nn.Sequential(conv(draw, dims, width, width, True), activation(draw))), width
    if choice == 2:
        both = (conv(draw, dims, width, 2, True), conv(draw, dims, width, 4, True))
        return Branches(*both, 1), 6
    if choice == 3 and dims == 2:
        kind = draw.choice((nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(3, 1, 1)))
        return kind, width
    if choice == 4:
        kind = draw.choice((nn.Dropout(0.3), nn.Dropout2d(0.4) if dims == 2 else nn.Dropout3d(0.4)))
        return kind, width
    return nn.Sequential(conv(draw, dims, width, to), activation(draw)), to


def sequence_layer(draw, width):
    choice, drop = draw.randrange(12), draw.choice((0.0, 0.3))
    if choice < 3:
        kind = draw.choice((nn.LSTM, nn.GRU, nn.RNN))
        both, first = draw.random() < 0.4, draw.random() < 0.5
        how = {"num_layers": draw.choice((1, 2)), "bidirectional": both, "batch_first": first}
        how |= {"bias": draw.random() < 0.7}
        how |= {"dropout": drop} if how["num_layers"] == 2 else {}
        how |= {"nonlinearity": draw.choice(("tanh", "relu"))} if kind is nn.RNN else {}
        return Recurrent(kind(width, 2 if both else 4, **how), first), 4
    if choice == 3:
        kind = draw.choice((nn.LSTMCell, nn.GRUCell, nn.RNNCell))
        return Cells(kind(width, 4, bias=draw.random() < 0.7)), 4
    if choice == 4:
        return Sum(Attention(width, 2, need=draw.random() < 0.5, dropout=drop)), width
    if choice == 5:
        how = {"batch_first": True, "norm_first": draw.random() < 0.5}
        return nn.TransformerEncoderLayer(width, 2, 5, drop, **how), width
    if choice == 6:
        return Sum(OwnAttention(width, draw.random() < 0.5, drop)), width
    if choice == 7:
        return Positions(9, width), width
    if choice == 8:
        return Turned(nn.Conv1d(width, 4, 3, padding=1)), 4
    return vector_layer(draw, width) if choice != 9 else (nn.LayerNorm(width), width)


def random_model(seed):
    """A model and inputs of three examples."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kind = KINDS[seed % len(KINDS)]
    examples = {
        "vector": lambda: torch.randn(3, 6),
        "image": lambda: torch.randn(3, 2, 7, 6),
        "sequence": lambda: torch.randn(3, 5, 4),
        "tokens": lambda: torch.randint(9, (3, 5)),
        "volume": lambda: torch.randn(3, 2, 4, 3, 4),
    }[kind]()
    width = {"vector": 6, "sequence": 4, "tokens": 4}.get(kind, 2)
    layers = []
    if kind == "tokens":
        kind = "sequence"
        layers.append(nn.Embedding(9, width, padding_idx=draw.choice((None, 2))))
    for _ in range(draw.randrange(2, 5)):
        if kind == "vector":
            layer, width = vector_layer(draw, width)
        elif kind == "sequence":
            layer, width = sequence_layer(draw, width)
            while width % 2:
                layer, width = nn.Sequential(layer, nn.Linear(width, 4)), 4
        else:
            layer, width = space_layer(draw, width, 2 if kind == "image" else 3)
        layers.append(layer)
    return Head(nn.Sequential(*layers), width, kind), examples
