"""Random changes of images: flips and crops, drawn anew in every step.

Which change an example gets is a function of the random stream of its client's step and of its
place in the minibatch. So a run sees the same images alone, beside other runs and after a resume.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedmaba.rows.random import GOLDEN, stream

PURPOSE = GOLDEN >> 1  # It changes a step's key, so that its dropout draws other words.


def take_augmented(
    x: Tensor, index: Tensor, keys: Tensor, axes: tuple[int, int], *, flip: bool, crop: int
) -> Tensor:
    """x[index] with random changes: x is (n, ...), index (..., B), keys (...) of each minibatch.

    `axes` are those of height and width in x, counted from the end.
    """
    words = stream((keys ^ PURPOSE).reshape(-1), index.shape[-1]).reshape(-1)  # one each
    height, width = (x.shape[axis] for axis in axes)
    top, left = (_drawn(words, shift, crop)[:, None] for shift in (16, 32))
    down, right = (torch.arange(side, device=x.device) for side in (height, width))
    down, right = down + top, right.expand(len(words), -1)
    if flip:
        right = torch.where((words & 1)[:, None] == 1, width - 1 - right, right)
    right = right + left
    inside = _along(down, axes[0], x.ndim, height) & _along(right, axes[1], x.ndim, width)
    out = x.index_select(0, index.reshape(-1))
    for where, axis, side in ((down, axes[0], height), (right, axes[1], width)):
        at = _shaped(where.clamp(0, side - 1), axis, x.ndim)
        out = out.take_along_dim(at.expand_as(out), axis)
    return torch.where(inside, out, 0).view(*index.shape, *x.shape[1:])


def _drawn(words: Tensor, shift: int, border: int) -> Tensor:
    """A whole number from -border to border, of 16 bits of each word."""
    return (((words >> shift) & 0xFFFF) * (2 * border + 1) >> 16) - border


def _along(where: Tensor, axis: int, ndim: int, side: int) -> Tensor:
    """Which places (m, side) lie inside the image, shaped to go along one axis of x."""
    return _shaped((where >= 0) & (where < side), axis, ndim)


def _shaped(where: Tensor, axis: int, ndim: int) -> Tensor:
    shape = [len(where)] + [1] * (ndim - 1)
    shape[axis] = where.shape[1]
    return where.view(shape)
