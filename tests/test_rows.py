"""Rows against autograd: every form of rows adds the same gradients, row by row, in float64."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from fedmaba import rng
from fedmaba.errors import InputError
from fedmaba.rows import compile, layers, models
from fedmaba.rows.base import Block, Inputs, Layout, PropFairRows, Pull, Rows, Step
from fedmaba.rows.general import LoopRows, VmapRows
from fedmaba.rows.random import dropout_mask, shuffles, stream
from fedmaba.rows.stack import LayerRows, plan
from kernels import Kernels

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
                view[0] = layout.forms[name].keep(p.grad) if name in layout.forms else p.grad
            grads.append(flat[0])
        return torch.stack(losses), torch.stack(grads)

    def added(self, rows, scale=1.0, propfair=None, sink=None):
        read = self.flat(rows.layout)
        sink = torch.zeros_like(read) if sink is None else read
        one = torch.tensor(scale, dtype=read.dtype)
        step = Step(self.x, self.y, self.weight, one, propfair, self.keys.clone())
        loss = rows.accumulate(read, sink, step)
        return loss, sink


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


# --- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_rows_add_what_autograd_gives_each_row(name):
    case = Case(name)
    rows = compile(case.template, case.x[0])
    if name not in EITHER:
        assert type(rows) is (LayerRows if name in FAST else VmapRows), rows.path
    loss, grads = case.autograd(rows.layout)
    got_loss, got = case.added(rows)
    close(got_loss, loss)
    close(got, grads)
    assert grads.abs().amax(1).min() > 1e-3
    # the same, as a step of SGD folded into the weights that are read
    _, moved = case.added(rows, -0.3, sink="read")
    close(moved, case.flat(rows.layout) - 0.3 * grads)


@pytest.mark.parametrize("name", FAST)
def test_rows_planned_for_kernels_add_what_autograd_gives_each_row(name, kernels):
    test_rows_add_what_autograd_gives_each_row(name)


def test_the_kernel_that_overwrites_outputs_has_them_in_order(kernels):
    case = Case("sigmoid last")
    rows = compile(case.template, case.x[0])
    out = torch.randn(B, R, C).double().transpose(0, 1)
    step = Step(case.x, case.y, case.weight, ONE.double(), None, case.keys)
    before = out.clone()
    for got, want in zip(
        rows.loss_and_gradient(out, step), Rows.loss_and_gradient(rows, out, step), strict=True
    ):
        close(got, want)
    assert torch.equal(out, before)


@pytest.mark.parametrize("name", CASES)
def test_rows_give_the_models_outputs_in_evaluation_mode(name):
    case = Case(name)
    rows = compile(case.template, case.x[0])
    flat = case.flat(rows.layout)
    before = flat.clone(), case.x.clone()
    own = torch.stack(
        [m.double().eval()(x) for m, x in zip(copy.deepcopy(case.models), case.x, strict=True)]
    )
    same = torch.stack([m.double().eval()(case.x[0]) for m in copy.deepcopy(case.models)])
    close(rows.outputs(flat, case.x), own.detach())
    close(rows.outputs(flat, case.x[:1]), same.detach())  # inputs that all rows share
    close(rows.outputs(flat[:1], case.x[:1]), same[:1].detach())
    assert torch.equal(flat, before[0])
    assert torch.equal(case.x, before[1])


@pytest.mark.parametrize("kind", [VmapRows, LoopRows])
@pytest.mark.parametrize("name", ["linear", "conv", "max pool", "residual", "tied weights"])
def test_the_general_forms_agree_with_autograd(name, kind):
    case = Case(name)
    rows = kind(case.template, Layout(case.template), case.x[0], None, "")
    loss, grads = case.autograd(rows.layout)
    got_loss, got = case.added(rows, 2.0)
    close(got_loss, loss)
    close(got, 2.0 * grads)
    flat = case.flat(rows.layout)
    want = torch.stack([m.double()(case.x[0]) for m in copy.deepcopy(case.models)]).detach()
    close(rows.outputs(flat, case.x[:1]), want)


def forms(case, loss=None):
    layout = Layout(case.template)
    yield compile(case.template, case.x[0], loss)
    yield VmapRows(case.template, layout, case.x[0], loss, "")
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


def test_a_loss_of_ones_own_in_every_form():
    case = Case("relu twice")
    for rows in forms(case, squares):
        loss, grads = case.autograd(rows.layout, squares)
        got_loss, got = case.added(rows)
        close(got_loss, loss)
        close(got, grads)
        out = torch.randn(2, 3, C, dtype=torch.float64)
        y = torch.tensor([[0, 1, 2]])  # shared by both rows
        close(rows.losses(out, y)[1], squares(out[1], y[0]))


def test_a_loss_that_cannot_be_vectorised_is_no_obstacle():
    """The choice of a form is for model and loss together."""

    def hot(out, y):
        return (out - F.one_hot(y, C)).square().sum(1)  # one_hot looks at its values

    case = Case("wrapped")
    rows = compile(case.template, case.x[0], hot)
    loss, grads = case.autograd(rows.layout, squares)
    got_loss, got = case.added(rows)
    close(got_loss, loss)
    close(got, grads)


def test_a_bent_loss_in_every_form():
    case = Case("relu twice")
    inf = math.inf
    start, _ = case.autograd(Layout(case.template))
    M = torch.tensor([start[0] + 1.0, start[1] + 0.1, inf], dtype=torch.float64)
    propfair = PropFairRows(M, torch.full((R,), 0.5).double(), torch.full((R,), 7.0).double())

    def bend(loss, r):
        return (-torch.log(M[0] - loss), 7.0 * loss, loss)[r]  # inside, beyond, not propfair

    for rows in forms(case):
        loss, grads = case.autograd(rows.layout, bend=bend)
        got_loss, got = case.added(rows, -0.1, propfair)
        close(got_loss, loss)  # as it was before it was propfair
        close(got, -0.1 * grads)
    own = [case.autograd(r.layout, squares, lambda loss, r: 7 * loss) for r in forms(case, squares)]
    steep = PropFairRows(
        torch.ones(R).double(), torch.ones(R).double(), torch.full((R,), 7.0).double()
    )
    for rows, (_, grads) in zip(forms(case, squares), own, strict=True):
        close(case.added(rows, 1.0, steep)[1], grads)


@pytest.mark.parametrize("name", GROUPED)
def test_steps_in_a_group_are_those_one_after_another(name, kernels):
    torch.manual_seed(1)
    shape, model = GROUPED[name]()
    rows = compile(model, torch.randn(B, *shape), dtype="tf32")
    w = rows.layout.pack(model).double().repeat(R, 1)
    x, y = torch.randn(R, 4, B, *shape).double(), torch.randint(C, (R, 4, B))
    weight = torch.rand(R, 4, B).double()
    weight[:, -1, 1:] = 0  # padding
    propfair = PropFairRows(*torch.tensor([[9.0, math.inf, 0.1], [0.5] * R, [1.0] * R]).double())
    down = torch.tensor(-0.3).double()
    keys = torch.arange(4 * R).view(4, R)
    steps = [Step(x[:, k], y[:, k], weight[:, k], down, propfair, keys[k]) for k in range(4)]
    one, many = w.clone(), w.clone()
    with torch.no_grad():
        losses = [rows.accumulate(one, one, step) for step in steps]
        inputs = Inputs(x, [Block(0, R, 0)])
        close(torch.stack(rows.sweep(many, inputs, steps)), torch.stack(losses))
    close(many, one)
    assert (many - w).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("together", [1, 2, 4])
def test_steps_that_are_pulled_back_in_groups_are_those_of_fedprox(name, together, kernels):
    torch.manual_seed(1)
    shape, model = GROUPED[name]()
    rows = compile(model, torch.randn(B, *shape), dtype="tf32")
    start = rows.layout.pack(model).double() + 0.1 * torch.rand(R, rows.layout.size).double()
    x, y = torch.randn(R, 4, B, *shape).double(), torch.randint(C, (R, 4, B))
    weight, keys = torch.rand(R, 4, B).double(), torch.arange(4 * R).view(4, R)
    down, mu = torch.tensor(-0.3).double(), torch.tensor([0.2, 1.0, 0.0]).double()[:, None]
    steps = [Step(x[:, k], y[:, k], weight[:, k], down, None, keys[k]) for k in range(4)]
    one, many, want, got = start.clone(), start.clone(), [], []
    with torch.no_grad():
        for step in steps:
            gradient = torch.zeros_like(one)
            want.append(rows.accumulate(one, gradient, step))
            one = one + gradient + down * mu * (one - start)
        for k in range(0, 4, together):
            inputs = Inputs(x[:, k : k + together], [Block(0, R, 0)])
            got += rows.sweep(many, inputs, steps[k : k + together], Pull(start, -down * mu))
    close(torch.stack(got), torch.stack(want))
    close(many, one)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("together", [1, 2])
def test_rows_that_share_inputs_are_those_with_copies_of_them(name, together, kernels):
    torch.manual_seed(1)
    shape, model = GROUPED[name]()
    rows = compile(model, torch.randn(B, *shape), dtype="tf32")
    owner = torch.tensor([0, 1, 2, 1, 2, 0])
    w = rows.layout.pack(model).double() + 0.1 * torch.rand(6, rows.layout.size).double()
    x, y = torch.randn(3, 2, B, *shape).double(), torch.randint(C, (6, 2, B))
    weight, keys = torch.rand(6, 2, B).double(), torch.arange(12).view(2, 6)
    down, blocks = torch.tensor(-0.3).double(), [Block(0, 3, 0), Block(3, 5, 1), Block(5, 6, 0)]
    steps = [Step(x[owner, k], y[:, k], weight[:, k], down, None, keys[k]) for k in range(2)]
    one, many, got = w.clone(), w.clone(), []
    with torch.no_grad():
        want = [rows.accumulate(one, one, step) for step in steps]
        for k in range(0, 2, together):
            blind = [step._replace(x=None) for step in steps[k : k + together]]
            got += rows.sweep(many, Inputs(x[:, k : k + together], blocks, owner), blind)
    close(torch.stack(got), torch.stack(want))
    close(many, one)


def test_only_plain_vectors_whose_weights_outgrow_the_cache_go_in_groups(kernels, monkeypatch):
    def asked(name, dtype="tf32", minibatch=5):
        shape, model = {**FAST, "image": image, "sequence": sequence}[name]()
        rows = compile(model, torch.randn(B, *shape), dtype=dtype)
        extra = rows.room(minibatch) - Rows.room(rows, minibatch)
        return rows.group(torch.empty(1, rows.layout.size), R, minibatch), extra

    cache = SimpleNamespace(L2_cache_size=R * 6 * 7 * 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: cache)
    assert asked("dropout") == (1, 40 * (6 + 2 * 7 + 40))  # room for more rows than these
    cache.L2_cache_size -= 1
    assert asked("dropout") == (8, 40 * (6 + 2 * 7 + 40))  # sqrt(250 * 7) examples
    assert asked("image")[0] == 9
    assert asked("dropout", minibatch=Kernels.MOST + 1) == (1, 0)
    assert asked("dropout", "float32") == (1, 0)
    for name in ("no bias first", "sequence", "vectors of vectors", "conv", "relu first"):
        assert asked(name) == (1, 0)


def test_a_row_does_not_see_its_neighbours():
    case = Case("two convs")
    rows = compile(case.template, case.x[0])
    _, before = case.added(rows)
    case.x[2], case.models[2] = 100.0, copy.deepcopy(case.models[0])
    case.x[1, 2:] = 1e6  # padding
    _, after = case.added(rows)
    close(after[:2], before[:2])
    assert not torch.allclose(after[2], before[2])


@pytest.mark.parametrize("wrap", [nn.Sequential, Wrapped])
def test_frozen_weights_stay_or_are_refused(wrap):
    def make(shape, classes):
        model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, classes))
        model[0].requires_grad_(False)
        return wrap(model)

    try:
        model = models.build(make, FLAT, C, 0)
    except InputError:
        return
    rows = compile(model, torch.zeros(2, 6))
    flat = rows.layout.pack(model)[None]
    sink = torch.zeros_like(flat)
    x, y = torch.randn(1, B, 6), torch.zeros(1, B).long()
    step = Step(x, y, torch.full((1, B), 0.25), ONE, None, torch.tensor([1]))
    rows.accumulate(flat, sink, step)
    first, *_, last = rows.layout.views(sink)
    assert last.abs().max() > 0
    assert first.abs().max() == 0


# --- the choice of a form ----------------------------------------------------------------------


@pytest.mark.parametrize("name", VMAP)
def test_a_model_without_a_row_form_is_vectorised_and_the_reason_named(name):
    case = Case(name)
    path = compile(case.template, case.x[0]).path
    assert path.startswith("torch.func.vmap: ")
    assert REASONS.get(name, "no row form") in path


def test_a_model_that_cannot_be_vectorised_is_trained_row_by_row_and_says_why():
    rows = compile(Called(), torch.zeros(2, 6))
    assert type(rows) is LoopRows
    assert rows.path.startswith("one client after another: Called has no row form; ")
    assert "random" in rows.path.split(";")[1]


def test_a_model_that_branches_on_its_data_is_trained_row_by_row():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, C)

        def forward(self, x):
            return self.a(x) if x.sum() > 0 else -self.a(x)

    rows = compile(Branch(), torch.ones(2, 6))
    assert type(rows) is LoopRows
    x = torch.stack([torch.ones(B, 6), -torch.ones(B, 6)])
    flat = rows.layout.pack(rows.model).repeat(2, 1)
    want = rows.model.a(x[0])
    close(rows.outputs(flat, x)[0], want.detach())
    keys = torch.arange(2)
    step = Step(x, torch.zeros(2, B, dtype=torch.int64), torch.full((2, B), 1 / B), ONE, None, keys)
    assert torch.isfinite(rows.accumulate(flat, flat.clone(), step)).all()


def test_a_model_that_vmap_cannot_evaluate_is_trained_row_by_row():
    class Recurrent(nn.Module):  # torch vectorises an LSTM's gradient, but not its forward pass
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, C)

        def forward(self, x):
            return self.b(self.a(x)[0][:, -1])

    rows = compile(Recurrent(), torch.ones(2, 3, 6))
    assert type(rows) is LoopRows
    flat, x = rows.layout.pack(rows.model).repeat(2, 1), torch.randn(1, B, 3, 6)
    with torch.no_grad():
        close(rows.outputs(flat, x)[1], rows.model(x[0]))


def test_the_fast_form_names_its_layers():
    case = Case("two convs")
    path = compile(case.template, case.x[0]).path
    assert path == "fast rows (Conv2d, ReLU, MaxPool2d, Flatten, Dropout, Linear)"


def test_random_layers_follow_the_rows_key_in_the_loop_form():
    torch.manual_seed(0)
    rows = compile(Called().double(), torch.zeros(2, 6).double())
    flat = rows.layout.pack(rows.model.float()).double().expand(3, -1)
    rows.model.double()
    x, y = torch.randn(1, B, 6).double().expand(3, -1, -1), torch.zeros(3, B).long()
    weight = torch.full((3, B), 1 / B).double()

    def gradient(*keys):
        sink = torch.zeros(len(keys), rows.layout.size, dtype=torch.float64)
        n = len(keys)
        key = torch.tensor(keys)
        rows.accumulate(flat[:n], sink, Step(x[:n], y[:n], weight[:n], ONE, None, key))
        return sink

    state = torch.get_rng_state()
    a = gradient(7, 8, 7)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(a[0], a[2])
    assert not torch.equal(a[0], a[1])
    assert torch.equal(gradient(8)[0], a[1])


# --- layout ------------------------------------------------------------------------------------


def test_the_layout_keeps_every_weight_and_pads_with_zeros():
    model = CASES["two convs"]()[1]
    rows = compile(model, torch.zeros(2, *IMAGE))
    flat = rows.layout.pack(model)
    named = rows.layout.unpack(flat)
    assert list(named) == [name for name, _ in model.named_parameters()]
    for name, p in model.named_parameters():
        assert torch.equal(named[name], p)
    assert flat.count_nonzero() == sum(p.count_nonzero() for p in model.parameters())
    assert all(start % 32 == 0 for start in rows.layout.starts)


# --- what models.build refuses -----------------------------------------------------------------


def test_running_statistics_are_refused_with_the_remedy():
    def make(shape, classes):
        norm = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
        return nn.Sequential(norm, nn.Flatten(), nn.Linear(144, classes))

    with pytest.raises(InputError, match=r"layer '0\.1' is a BatchNorm2d .* use GroupNorm"):
        models.build(make, IMAGE, C, 0)


class Counting(nn.Module):
    """Weighs by how often it was called."""

    def __init__(self, classes):
        super().__init__()
        self.a = nn.Linear(6, classes)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("constant", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
        return self.a(x) * self.constant / (1 + self.calls)


@pytest.mark.parametrize(
    ("make", "buffer"),
    [
        (lambda shape, classes: Counting(classes), "calls"),
        (lambda shape, classes: nn.utils.spectral_norm(nn.Linear(6, classes)), "weight_u"),
        (
            lambda shape, classes: nn.utils.parametrizations.spectral_norm(nn.Linear(6, classes)),
            r"parametrizations\.weight\.0\._u",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
def test_a_buffer_that_training_changes_is_refused(make, buffer):
    with pytest.raises(InputError, match=f"training changes the buffer '{buffer}', .* leave out"):
        models.build(make, FLAT, C, 0)


class Mixing(nn.Module):
    """Normalises over a minibatch by hand."""

    def __init__(self, classes, training):
        super().__init__()
        self.a, self.mixes = nn.Linear(6, classes), training

    def forward(self, x):
        y = nn.functional.dropout(self.a(x), 0.3, self.training)
        return y - y.mean(0) if self.training == self.mixes else y


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_mixes_examples_is_refused(training):
    with pytest.raises(InputError, match="depends on the others of the minibatch, which is padded"):
        models.build(lambda shape, classes: Mixing(classes, training), FLAT, C, 0)


def test_constant_buffers_are_accepted_and_the_model_is_left_as_it_is():
    def make(shape, classes):
        model = nn.Sequential(nn.Linear(6, classes), nn.Dropout(0.5))
        model.register_buffer("constant", torch.full((2,), -torch.inf))
        return model

    model = models.build(make, FLAT, C, 0)
    assert not model.training
    assert model.constant.isinf().all()


def tripled(shape, classes):
    first = nn.Linear(6, 6)
    first.register_forward_hook(lambda module, args, out: 3 * out)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(6, classes))


def pruned(shape, classes):
    first = prune.random_unstructured(nn.Linear(6, 6, bias=False), "weight", 0.5)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(6, classes))


@pytest.mark.parametrize("make", [tripled, pruned])
def test_hooks_of_a_model_are_heeded(make):
    model = models.build(make, FLAT, C, 0)
    rows, x = compile(model, torch.zeros(2, 6)), torch.randn(B, 6)
    assert "a model with hooks has no row form" in rows.path
    out = rows.outputs(rows.layout.pack(model)[None], x[None])[0]
    torch.testing.assert_close(out, model(x))


def test_a_group_norm_is_accepted():
    eager = CASES["residual"]()[1]
    assert models.build(lambda shape, classes: eager, IMAGE, C, 0) is eager


def test_lazy_layers_get_their_weights_from_the_seed():
    def make(shape, classes):
        return nn.Sequential(nn.LazyLinear(7), nn.ReLU(), nn.LazyLinear(classes))

    a, b, other = (models.build(make, FLAT, C, seed) for seed in (4, 4, 5))
    assert a[0].weight.shape == (7, 6)
    assert torch.equal(a[2].weight, b[2].weight)
    assert not torch.equal(a[0].weight, other[0].weight)
    assert type(compile(a, torch.zeros(2, *FLAT))) is LayerRows


def test_statistics_over_the_minibatch_are_refused_too():
    """They would mix a client's examples with padding, and there are none to predict with."""

    def make(shape, classes):
        norm = nn.BatchNorm1d(7, track_running_stats=False)
        return nn.Sequential(nn.Linear(6, 7), norm, nn.Linear(7, classes))

    with pytest.raises(InputError, match="GroupNorm"):
        models.build(make, FLAT, C, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s, c: nn.Linear(7, c), r"does not accept inputs of shape \(6,\)"),
        (lambda s, c: nn.Conv2d(3, c, 3), r"does not accept inputs of shape \(6,\)"),
        (lambda s, c: nn.Linear(6, c - 1), r"shape \(4,\) per example, but the data have 5"),
        (
            lambda s, c: nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3))),
            r"gives outputs of shape \(2, 3\)",
        ),
        (lambda s, c: "mlp", "gave a str: return an nn.Module"),
        (lambda s, c: Pair(), "outputs"),
        (lambda s, c: nn.Identity(), "weights|parameters"),
    ],
    ids=["size", "kind", "classes", "shape", "no module", "tuple", "nothing to train"],
)
def test_a_model_that_does_not_fit_the_data_is_refused(make, message):
    with pytest.raises(InputError, match=message) as caught:
        models.build(make, FLAT, C, 0)
    assert "\n" not in str(caught.value)


class Pair(nn.Module):
    """Gives two tensors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, C)

    def forward(self, x):
        return self.layer(x), x


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mpl", "did you mean 'mlp'"),
        ("no.such.module:make", "No module named 'no'"),
        ("math:no_such", "no_such"),
        ("math:pi", "is no factory"),
    ],
)
def test_a_model_name_that_leads_nowhere_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        models.factory(name)


@pytest.mark.parametrize("name", ["mlp", "cnn", "softmax"])
def test_the_papers_models_take_the_fast_form(name):
    shape = (3, 16, 16)
    model = models.build(models.factory(name), shape, 10, 0)
    assert compile(model, torch.zeros(2, *shape)).path.startswith("fast rows")
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b, other = (models.build(models.softmax, FLAT, C, seed)[1].weight for seed in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, b)
    assert not torch.equal(a, other)


# --- dropout masks -----------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_a_mask_has_the_right_rate_and_scale(p):
    mask = dropout_mask(torch.arange(20), 3, torch.Size((20, 50, 101)), p, torch.float64)
    assert set(mask.unique().tolist()) <= {0.0, 1 / (1 - p)}
    n = mask.numel()
    zeros = int((mask == 0).sum())
    assert abs(zeros - p * n) <= 5 * math.sqrt(n * p * (1 - p))
    assert dropout_mask(torch.arange(2), 0, torch.Size((2, 3)), 1.0, torch.float32).sum() == 0


def test_masks_of_rows_steps_and_layers_have_nothing_in_common():
    key = torch.from_numpy(rng.key(0, "local", 3, np.arange(2)).view(np.int64))
    keys = torch.cat([key, key + 1, key + 2])  # two rows, three steps
    size = torch.Size((6, 4000))
    masks = torch.cat([dropout_mask(keys, layer, size, 0.5, torch.float64) for layer in (0, 1, 9)])
    correlation = torch.corrcoef(masks)
    off = correlation - torch.eye(len(masks))
    assert off.abs().max() < 5 / math.sqrt(4000)
    ahead = torch.corrcoef(torch.stack([masks[0, 1:], masks[0, :-1]]))[0, 1]
    assert abs(ahead) < 5 / math.sqrt(4000)


def test_a_mask_does_not_depend_on_neighbours_or_padding():
    keys = torch.tensor([5, 6, 7])
    wide = dropout_mask(keys, 1, torch.Size((3, 10, 7)), 0.5, torch.float32)
    narrow = dropout_mask(keys[1:2], 1, torch.Size((1, 6, 7)), 0.5, torch.float32)
    assert torch.equal(wide[1, :6], narrow[0])


# --- shuffles ----------------------------------------------------------------------------------


def test_shuffles_are_permutations_the_same_alone_and_in_a_batch():
    keys = torch.from_numpy(rng.key(1, "local", 0, np.arange(40)).view(np.int64))
    sizes = torch.arange(1, 41)[:, None]
    order = shuffles(keys, sizes, 40)
    for r in range(40):
        assert sorted(order[r, : r + 1].tolist()) == list(range(r + 1))
        alone = shuffles(keys[r : r + 1], sizes[r : r + 1], r + 1)
        assert torch.equal(alone[0], order[r, : r + 1])
    assert len({tuple(order[r, :5].tolist()) for r in range(20, 40)}) > 15


def test_every_order_is_about_as_likely():
    n = 24_000
    keys = torch.from_numpy(rng.key(2, "local", np.arange(n)).view(np.int64))
    order = shuffles(keys, torch.full((n, 1), 4), 4)
    count = torch.unique(order, dim=0, return_counts=True)[1].double()
    assert len(count) == 24
    assert ((count - n / 24) ** 2 / (n / 24)).sum() < 60  # chi-square, 23 degrees: p = 4e-5


def test_the_stream_is_the_same_in_numpy_and_torch():
    key = rng.key(3, "x", 4)
    with np.errstate(over="ignore"):
        want = rng.mix(key + np.arange(1, 6, dtype=np.uint64) * np.uint64(rng.GOLDEN))
    got = stream(torch.from_numpy(key.view(np.int64)), 5)
    assert got[0].numpy().view(np.uint64).tolist() == want.tolist()


# --- rng ---------------------------------------------------------------------------------------


def test_keys_differ_in_every_word():
    words = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 1), (0, "a", 1), (0, "a")]
    assert len({int(rng.key(*w)[0]) for w in words}) == len(words)
    both = rng.key(0, "a", 1, np.array([2, 3]))
    assert both.tolist() == [int(rng.key(0, "a", 1, c)[0]) for c in (2, 3)]


def test_clients_are_drawn_uniformly_without_replacement_in_order():
    count = np.zeros(10)
    for t in range(600):
        drawn = rng.sample_clients(5, t, 10, 3)
        assert len(set(drawn.tolist())) == 3
        assert drawn.tolist() == sorted(drawn.tolist())
        count[drawn] += 1
    assert ((count - 180) ** 2 / 180).sum() < 35
    column = np.arange(3)[:, None]
    for n, many in ((10, 3), (4, 4)):
        rows = rng.sample_clients(5, column, n, many)
        assert rows.tolist() == [rng.sample_clients(5, t, n, many).tolist() for t in range(3)]
    assert rng.sample_clients(5, 0, 4, 4).tolist() == [0, 1, 2, 3]
    assert rng.sample_clients(5, 7, 10, 3).tolist() == rng.sample_clients(5, 7, 10, 3).tolist()


@pytest.mark.parametrize(("n", "many"), [(10, 3), (4, 4), (60_000, 2)])
def test_participants_of_a_round_are_those_drawn_for_it_alone(n, many):
    draws = rng.Draws()
    for t in (0, 1, 31, 32, 70, 31):
        clients, keys = draws(5, t, n, many)
        assert clients.tolist() == rng.sample_clients(5, t, n, many).tolist()
        assert keys.tolist() == rng.key(5, "local", t, clients).tolist()
        clients[:], keys[:] = 0, 0  # a caller's own
        again, streams = draws(5, t, n, many)
        assert again.any()
        assert streams.any()
    assert len(draws.newest) == 1
    draws(6, 0, n, many)
    assert len(draws.newest) == 2  # of each seed the newest


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("size", [(8, 6), (7, 9), (2, 3)])
def test_pooling_is_torchs(size, last, relu):
    """Also with equal numbers in a window, where a row or column is left over, and after a ReLU."""
    x = torch.randint(-2, 3, (2, 3, 4, *size)).float()
    leaf = x.flatten(0, 1).requires_grad_()
    plain = nn.functional.max_pool2d(leaf.relu() if relu else leaf, 2)
    g = torch.randn_like(plain)
    (below,) = torch.autograd.grad(plain, leaf, g)
    pool = layers.Halve(relu)
    x = layers._channels_last(x) if last else x
    y, saved = pool.forward(x, [], None, True)
    assert torch.equal(y.flatten(0, 1), plain)
    assert torch.equal(pool.forward(x, [], None, False)[0], y)
    found = pool.backward(g.view(y.shape), saved, [], [], True)
    assert torch.equal(found.flatten(0, 1), below)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("relu", [False, True])
def test_convolutions_with_channels_last_are_autograds(rows, relu, monkeypatch):
    """As oneDNN has them; outputs stay in that order, so that the layers above are quick."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    layer = layers.Conv2d(nn.Conv2d(3, 5, 3, stride=2, padding=1), relu)
    x = torch.randn(rows, 6, 3, 11, 12)
    w, b = torch.randn(rows, 5, 3, 3, 3), torch.randn(rows, 5)
    y, saved = layer.forward(x, [w, b], None, True)
    assert y.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    g = torch.randn(y.shape)
    sink = [torch.zeros_like(w), torch.zeros_like(b)]
    below = layer.backward(g, saved, [w, b], sink, True)
    for r in range(rows):
        leaves = [t.double().requires_grad_() for t in (x[r], w[r], b[r])]
        out = nn.functional.conv2d(*leaves, stride=2, padding=1)
        out = out.relu() if relu else out
        assert torch.allclose(y[r].double(), out, rtol=1e-5, atol=1e-5)
        wanted = torch.autograd.grad(out, leaves, g[r].double())
        for one, other in zip((below[r], sink[0][r], sink[1][r]), wanted, strict=True):
            assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-4)


def test_relu_goes_behind_the_pool_it_stands_before():
    """Where a convolution is pooled at once; elsewhere it stays where it is."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(18, 3)),
    )
    made = plan(model, torch.zeros(1, 1, 24, 24), "float32")
    kinds = [(type(layer).__name__, getattr(layer, "relu", None)) for layer in made.layers]
    front = [("Conv2d", False), ("Halve", True), ("Conv2d", True), ("Conv2d", False)]
    assert kinds == [*front, ("Halve", False), ("Flatten", None), ("Linear", False)]


@pytest.mark.parametrize("padding", [0, 2])
def test_weight_gradient_as_a_convolution_is_autograds(padding, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # as `workers` has it on ARM
    module = nn.Conv2d(16, 5, 3, padding=padding)
    layer = layers.Conv2d(module, False)
    x = torch.randn(2, 6, 16, 11, 12)
    w, b = torch.randn(2, 5, 16, 3, 3), torch.randn(2, 5)
    assert layer._turned(x[0])
    y, saved = layer.forward(x, [w, b], None, True)
    g = torch.randn_like(y)
    sink = [torch.zeros_like(w), torch.zeros_like(b)]
    below = layer.backward(g, saved, [w, b], sink, True)
    for r in range(2):
        leaves = [t.double().requires_grad_() for t in (x[r], w[r], b[r])]
        out = nn.functional.conv2d(*leaves, padding=padding)
        wanted = torch.autograd.grad(out, leaves, g[r].double())
        for one, other in zip((below[r], sink[0][r], sink[1][r]), wanted, strict=True):
            assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-4)
