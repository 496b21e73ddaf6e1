"""What `fedmaba.rows.dense` computes, by plain operations: a CPU can plan as a GPU does."""

from types import SimpleNamespace

import torch

from fedmaba.rows.base import Rows, Step
from fedmaba.rows.random import dropout_mask


class Kernels:
    """Stands in for the module."""

    MAX_MINIBATCH = 64

    @staticmethod
    def linear(x, w, b, relu, keys, drop, dtype, start=None, inputs=None, owner=None, drift=None):
        assert x[0].is_contiguous()
        x = x if owner is None else x[owner]
        y = x[..., :inputs] @ w[:, :inputs] + b[:, None]
        y = y if start is None else y + start
        if drift is not None:
            still, stored, added = drift
            y = (y - b[:, None]) * stored[:, None, None] + still * added[:, None, None] + b[:, None]
        y = y.relu() if relu else y
        return y if drop is None else y * dropout_mask(keys, drop[1], y.shape, drop[0], y.dtype)

    @staticmethod
    def linear_back(g, x, w, sink, bias, deeper, factor, dtype, drift=None):
        assert g.is_contiguous()
        assert x[0].is_contiguous()
        below = g @ w.transpose(1, 2) if deeper else None
        if drift is not None:
            far, far_bias, keep, give = drift
            sink.mul_(keep[:, None, None]).add_(give[:, None, None] * far)
            bias.mul_(keep[:, None]).add_(give[:, None] * far_bias)
        sink += x.transpose(1, 2) @ g
        bias += g.sum(1)
        return torch.where(x > 0, below * factor, 0.0) if deeper and factor else below

    @staticmethod
    def bias_act(y, b, relu):
        y += b[:, None]
        return y.relu_() if relu else y

    @staticmethod
    def fits_cross_entropy(b, classes):
        return True

    @staticmethod
    def cross_entropy(z, y, weight, scale):
        assert z.is_contiguous()
        step = Step(None, y, weight, scale, None, None)
        loss, g = Rows.usual_loss_and_gradient(SimpleNamespace(loss_fn=None), z.clone(), step)
        z.numpy()[...] = g.numpy()  # as a kernel: autograd does not notice
        return loss
