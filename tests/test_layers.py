"""Pooling and convolutions of rows equal torch's own, on every path."""

import pytest
import torch
from torch import nn

from fedmaba.rows import layers


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
    pool = layers.MaxPoolTwo(relu)
    if last:
        x = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(2, 3, 4, *size)
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


@pytest.mark.parametrize("padding", [0, 2])
def test_weight_gradient_as_a_convolution_is_autograds(padding, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # as `workers` has it on ARM
    module = nn.Conv2d(16, 5, 3, padding=padding)
    layer = layers.Conv2d(module, False)
    x = torch.randn(2, 6, 16, 11, 12)
    w, b = torch.randn(2, 5, 16, 3, 3), torch.randn(2, 5)
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
