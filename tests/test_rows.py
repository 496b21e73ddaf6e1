"""Rows against autograd: every form of rows adds the same gradients, in float64."""

import copy

import pytest
import torch
from torch.nn import functional as F

from fedmaba.rows import compile
from fedmaba.rows.base import Layout, Rows, Step
from fedmaba.rows.stack import LayerRows
from kernels import Kernels
from row_cases import (
    CASES,
    EITHER,
    FAST,
    IMAGE,
    ONE,
    B,
    C,
    Case,
    R,
    close,
    forms,
    objective,
    squares,
)


@pytest.mark.parametrize("name", CASES)
def test_rows_add_what_autograd_gives_each_row(name):
    case = Case(name)
    rows = compile(case.template, case.x[0])
    if name not in EITHER:
        assert (type(rows) is LayerRows) == (name in FAST), rows.path
    loss, grads = case.autograd(rows.layout)
    got_loss, got = case.added(rows)
    close(got_loss, loss)
    close(got, grads)
    assert grads.abs().amax(1).min() > 1e-3
    # the same, as a step of SGD folded into the weights that are read
    _, moved = case.added(rows, -0.3, sink="read")
    close(moved, case.flat(rows.layout) - 0.3 * grads)


@pytest.mark.parametrize("name", FAST)
def test_rows_planned_for_kernels_add_what_autograd_gives_each_row(name, kernels, monkeypatch):
    used, plain = [], Kernels.cross_entropy
    spy = staticmethod(lambda *given: used.append(name) or plain(*given))
    monkeypatch.setattr(Kernels, "cross_entropy", spy)
    test_rows_add_what_autograd_gives_each_row(name)
    assert used  # the plan has the kernels in it


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


def test_your_own_loss_in_every_form():
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


def test_propfairs_loss_in_every_form():
    case = Case("relu twice")
    start, _ = case.autograd(Layout(case.template))
    M = [float(start[0]) + 1.0, float(start[1]) + 0.1, float(start[2]) + 5.0]
    bent = objective("propfair", M=M, epsilon=[0.5] * R, slope=[7.0] * R)

    def bend(loss, r):  # beyond the bound in the second row
        return 7.0 * loss if r == 1 else -torch.log(M[r] - loss)

    for rows in forms(case):
        loss, grads = case.autograd(rows.layout, bend=bend)
        got_loss, got = case.added(rows, -0.1, bent)
        close(got_loss, loss)  # as it was before it was propfair
        close(got, -0.1 * grads)
    own = [case.autograd(r.layout, squares, lambda loss, r: 7 * loss) for r in forms(case, squares)]
    steep = objective("propfair", M=[1.0] * R, epsilon=[1.0] * R, slope=[7.0] * R)
    for rows, (_, grads) in zip(forms(case, squares), own, strict=True):
        close(case.added(rows, 1.0, steep)[1], grads)


def test_a_row_does_not_see_its_neighbours():
    case = Case("two convs")
    rows = compile(case.template, case.x[0])
    _, before = case.added(rows)
    case.x[2], case.models[2] = 100.0, copy.deepcopy(case.models[0])
    case.x[1, 2:] = 1e6  # padding
    _, after = case.added(rows)
    close(after[:2], before[:2])
    assert not torch.allclose(after[2], before[2])


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
