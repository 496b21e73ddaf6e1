"""A Triton kernel for sums of vectors of many rows on CUDA: each vector is read once."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmaba.rows.launch import launch_kernel

MAX_VECTORS = 5  # vectors in one sum
BLOCK = 1024  # One program takes this many numbers of one row.


@triton.jit(do_not_specialize=["f0", "f1", "f2", "f3", "f4"])
def _write_sum(
    into,
    irow,
    v0,
    r0,
    f0,
    v1,
    r1,
    f1,
    v2,
    r2,
    f2,
    v3,
    r3,
    f3,
    v4,
    r4,
    f4,
    a,
    arow,
    b,
    brow,
    rate,
    width,
    MANY: tl.constexpr,
    DIFFERENCE: tl.constexpr,
    N: tl.constexpr,
):
    """The sum of MANY vectors times their factors; DIFFERENCE: and (a - b) times the row's rate."""
    m = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * N + tl.arange(0, N)
    ok = e < width
    total = tl.zeros((N,), tl.float32)
    if DIFFERENCE:
        first = tl.load(a + m * arow + e, mask=ok)
        total = (first - tl.load(b + m * brow + e, mask=ok)) * tl.load(rate + m)
    if MANY > 0:
        total += f0 * tl.load(v0 + m * r0 + e, mask=ok)
    if MANY > 1:
        total += f1 * tl.load(v1 + m * r1 + e, mask=ok)
    if MANY > 2:
        total += f2 * tl.load(v2 + m * r2 + e, mask=ok)
    if MANY > 3:
        total += f3 * tl.load(v3 + m * r3 + e, mask=ok)
    if MANY > 4:
        total += f4 * tl.load(v4 + m * r4 + e, mask=ok)
    tl.store(into + m * irow + e, total, mask=ok)


def write_sum(
    terms: Sequence[tuple[Tensor, float]],
    difference: tuple[Tensor, Tensor, Tensor] | None,
    into: Tensor,
) -> None:
    """Write the sum of vectors times factors over `into` (m, P); a vector is (m, P) or (1, P).

    `difference` (a, b, rate (m,)) adds (a - b) * rate.
    """
    rows, width = into.shape
    flat: list[Tensor | int | float] = []
    for vector, factor in [*terms, *[(into, 0.0)] * (MAX_VECTORS - len(terms))]:
        flat += [vector, _apart(vector), factor]
    a, b, rate = difference or (into, into, into)
    launch_kernel(
        _write_sum,
        (triton.cdiv(width, BLOCK), rows),
        into,
        into.stride(0),
        *flat,
        a,
        _apart(a),
        b,
        _apart(b),
        rate,
        width,
        len(terms),
        difference is not None,
        BLOCK,
    )


@triton.jit
def _drifting(
    into,
    models,
    run,
    vector,
    share,
    width,
    front,
    PULLED: tl.constexpr,
    N: tl.constexpr,
):
    m = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * N + tl.arange(0, N)
    ok = e < width
    value = tl.load(models + tl.load(run + m) * width + e, mask=ok)
    far = tl.load(vector + m * width + e, mask=e < front, other=0.0)
    if PULLED:
        far = tl.where(e < front, far - value, 0.0)
    tl.store(into + m * width + e, value + tl.load(share + m) * far, mask=ok)


def drifting(
    models: Tensor, run: Tensor, vector: Tensor, share: Tensor, front: int, *, pulled: bool
) -> Tensor:
    """(R, P) Of each row its run's model; `share` (R,) of a vector (R, P) joins its first weights.

    It is added to the first `front` weights, or, where these are pulled, takes the place of as much
    of them.
    """
    rows, width = vector.shape
    into = torch.empty_like(vector)
    launch_kernel(
        _drifting,
        (triton.cdiv(width, BLOCK), rows),
        into,
        models,
        run,
        vector,
        share,
        width,
        front,
        pulled,
        BLOCK,
    )
    return into


def _apart(vector: Tensor) -> int:
    """How far apart the rows of a matrix are; 0 where one row stands for all."""
    return vector.stride(0) if len(vector) > 1 else 0
