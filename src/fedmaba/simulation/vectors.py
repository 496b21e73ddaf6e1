"""Rows of matrices and sums of vectors: in small pieces on a CPU, in one pass on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.rows import kernels
from fedmaba.rows.cuda_graphs import send

PIECE = 2**18  # numbers that are combined at once on a CPU, so that they stay in its cache
EDGE = 1024  # pieces begin at multiples of this, so that sums have the same order in any piece


def vector_pieces(many: int, width: int, device: torch.device) -> list[slice]:
    """Cuts of `many` vectors of a width: on a CPU small ones, elsewhere one of all."""
    most = max(1, PIECE // width) if device.type == "cpu" else many
    return [slice(a, min(a + most, many)) for a in range(0, many, most)]


def weight_pieces(matrix: Tensor) -> list[slice]:
    """Cuts of the columns of a matrix: on a CPU small ones, elsewhere one of all."""
    many, width = matrix.shape
    most = max(1, PIECE // many // EDGE) * EDGE if matrix.device.type == "cpu" else width
    return [slice(a, min(a + most, width)) for a in range(0, width, most)]


def as_slice(index: NDArray[np.int64]) -> slice | None:
    """The slice that takes these rows in this order; None where there is none."""
    first, many = int(index[0]), len(index)
    if int(index[-1]) - first != many - 1 or (np.diff(index) != 1).any():
        return None
    return slice(first, first + many)


def take_rows(matrix: Tensor, index: NDArray[np.int64]) -> Tensor:
    """Some rows of a matrix to read, without a copy where they follow one another."""
    at = as_slice(index)
    return matrix.index_select(0, send(index, matrix.device)) if at is None else matrix[at]


def put_rows(into: Tensor, index: NDArray[np.int64], values: Tensor) -> None:
    """Write some rows of a matrix; the values may be on another device."""
    if (at := as_slice(index)) is not None:
        into[at].copy_(values)
    else:
        into.index_copy_(0, send(index, into.device), values.to(into.device))


class Difference(NamedTuple):
    """A part of a sum of vectors: (a - b) * rate, with nearly equal a and b."""

    a: Tensor  # (m, P), or (1, P) where it is the same for all
    b: Tensor  # as a
    rate: Tensor  # (m, 1)

    def of(self, at: slice) -> Difference:
        """The same of some of the weights."""
        return Difference(self.a[:, at], self.b[:, at], self.rate)


def sum_of_vectors(
    terms: Sequence[tuple[Tensor, float]],  # vectors (m, P), or (1, P), and their factors
    into: Tensor,  #                          (m, P)
    difference: Difference | None = None,
) -> Tensor:  # (m, P)
    """The sum of vectors times their factors, written over `into`: on a GPU in one pass."""
    terms = [(vector, factor) for vector, factor in terms if factor]
    if kernels.can_run(into) and len(terms) <= kernels.vectors.MAX_VECTORS:
        kernels.vectors.write_sum(terms, difference, into)
        return into
    for at in weight_pieces(into):
        part = into[:, at]
        empty = difference is None
        if difference is not None:
            a, b, rate = difference.of(at)
            torch.sub(a, b, out=part).mul_(rate)
        for vector, factor in terms:
            if empty:
                torch.mul(vector[:, at].expand_as(part), factor, out=part)
            else:
                part.add_(vector[:, at], alpha=factor)
            empty = False
        if empty:
            part.zero_()
    return into
