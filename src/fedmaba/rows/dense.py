"""Triton kernels for rows of linear layers on CUDA: few launches, and each weight read once.

Forward is product + bias + ReLU + dropout. Backward reads a block of weights once, for the inputs'
gradient and for its own step. Both take minibatches of at most MAX_MINIBATCH examples.
Nothing here uses atomics, so the same inputs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedmaba import rng
from fedmaba.rows.launch import PROGRAMS, launch_kernel

MAX_MINIBATCH = 64
DOT = {"float32": "tf32x3", "tf32": "tf32", "bf16": "tf32"}  # float32: three products, as exact
BACK: dict[str, tuple[int, int, int, int | None]] = {  # inputs, outputs, stages, most registers of
    "float32": (64, 32, 3, None),  #                      a thread: the quickest on an H200
    "tf32": (32, 64, 3, 168),
    "bf16": (64, 32, 4, 168),
    "few": (32, 64, 2, None),
}
GOLDEN, FIRST, SECOND = (tl.constexpr(word) for word in (rng.GOLDEN, rng.FIRST, rng.SECOND))


@triton.jit
def _kept(key, e, CUT: tl.constexpr):
    """Whether dropout keeps element e of a stream: `rows.random.dropout_mask`, one by one."""
    z = key + (e // 4 + 1).to(tl.uint64) * GOLDEN
    z = (z ^ (z >> 30)) * FIRST
    z = (z ^ (z >> 27)) * SECOND
    z = z ^ (z >> 31)
    draw = (z >> ((e % 4) * 16).to(tl.uint64)).to(tl.int32) & 65535
    return (draw ^ 32768) >= CUT  # The mask compares signed words of 16 bits.


@triton.jit(do_not_specialize=["B", "many"])
def _linear(
    x,
    xrow,
    w,
    wrow,
    b,
    brow,
    z,
    zrow,
    y,
    keys,
    owner,
    still,
    stored,
    added,
    B,
    many,
    I: tl.constexpr,
    O: tl.constexpr,
    START: tl.constexpr,
    DRIFT: tl.constexpr,
    SHARED: tl.constexpr,
    RELU: tl.constexpr,
    LAYER: tl.constexpr,
    CUT: tl.constexpr,
    FACTOR: tl.constexpr,
    BB: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """BO outputs of one row's minibatch, from the first `many` inputs; START: added to z.

    DRIFT: all that times the row's number in `stored`, and `still` times that in `added`.
    SHARED: the inputs are those of `owner`, which several rows may have.
    In tf32x3 the product is taken transposed: then both operands lie as the tensor cores want them.
    """
    FLIP: tl.constexpr = PRECISION == "tf32x3"
    m = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BB)
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    k = tl.arange(0, BI)
    acc = tl.zeros((BO, BB) if FLIP else (BB, BO), tl.float32)
    xm = tl.load(owner + m) if SHARED else m
    for first in range(0, many, BI):
        at = xm * xrow + i[:, None] * I + (first + k)[None, :]
        xs = tl.load(x + at, mask=(i < B)[:, None] & (first + k < I)[None, :], other=0.0)
        at = m * wrow + (first + k)[:, None] * O + o[None, :]
        ws = tl.load(w + at, mask=(first + k < many)[:, None] & (o < O)[None, :], other=0.0)
        if FLIP:
            acc = tl.dot(tl.trans(ws), tl.trans(xs), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(xs, ws, acc, input_precision=PRECISION)
    if FLIP:
        acc = tl.trans(acc)
    e = i[:, None] * O + o[None, :]
    inside = (i < B)[:, None] & (o < O)[None, :]
    if not DRIFT:  # The order of sums is part of a run's bits.
        acc += tl.load(b + m * brow + o, mask=o < O, other=0.0)[None, :]
    if START:
        acc += tl.load(z + m * zrow + e, mask=inside, other=0.0)
    if DRIFT:
        rest = tl.load(still + m * zrow + e, mask=inside, other=0.0)
        acc = acc * tl.load(stored + m) + rest * tl.load(added + m)
        acc += tl.load(b + m * brow + o, mask=o < O, other=0.0)[None, :]
    if RELU:
        acc = tl.where(acc < 0.0, 0.0, acc)
    if CUT > 0:
        key = tl.load(keys + m).to(tl.uint64, bitcast=True) ^ LAYER
        acc = tl.where(_kept(key, e, CUT), acc * FACTOR, 0.0)
    tl.store(y + m * B * O + e, acc, mask=inside)


@triton.jit(do_not_specialize=["B"])
def _linear_back(
    g,
    x,
    xrow,
    w,
    wrow,
    sink,
    srow,
    bias,
    brow,
    below,
    far,
    farbias,
    frow,
    keep,
    give,
    B,
    I: tl.constexpr,
    O: tl.constexpr,
    DRIFT: tl.constexpr,
    SAME: tl.constexpr,
    DEEPER: tl.constexpr,
    FACTOR: tl.constexpr,
    BB: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    PRECISION: tl.constexpr,
    ROUGH: tl.constexpr,
):
    """The weights of BI inputs of one row: their step, and what reaches those inputs.

    DRIFT: the weights are also made into keep * weights + give * far, with two numbers of the row.
    FACTOR > 0: the inputs are another layer's outputs after ReLU and dropout; its gradient is
    handed down with both undone. ROUGH: steps are products of bfloat16, which need not be turned.
    """
    m = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BB)
    k = tl.program_id(0) * BI + tl.arange(0, BI)
    n = tl.arange(0, BO)
    ok = (i < B)[:, None] & (k < I)[None, :]
    xs = tl.load(x + m * xrow + i[:, None] * I + k[None, :], mask=ok, other=0.0)
    xt = tl.trans(xs.to(tl.bfloat16) if ROUGH else xs)
    acc = tl.zeros((BB, BI), tl.float32)
    if DRIFT:
        share, pull = tl.load(keep + m), tl.load(give + m)
    for first in range(0, O, BO):
        o = first + n
        at = m * B * O + i[:, None] * O + o[None, :]
        gs = tl.load(g + at, mask=(i < B)[:, None] & (o < O)[None, :], other=0.0)
        block = (k < I)[:, None] & (o < O)[None, :]
        at = k[:, None] * O + o[None, :]
        near = gs.to(tl.bfloat16) if ROUGH else gs
        change = tl.dot(xt, near, input_precision=PRECISION)
        if DEEPER or SAME:
            ws = tl.load(w + m * wrow + at, mask=block, other=0.0)
        if DEEPER:
            acc = tl.dot(gs, tl.trans(ws), acc, input_precision=PRECISION)
        old = ws if SAME else tl.load(sink + m * srow + at, mask=block, other=0.0)
        if DRIFT:
            aim = tl.load(far + m * frow + at, mask=block, other=0.0)
            old = share * old + pull * aim
        tl.store(sink + m * srow + at, old + change, mask=block)
        if tl.program_id(0) == 0:
            here = bias + m * brow + o
            before = tl.load(here, mask=o < O, other=0.0)
            if DRIFT:
                end = tl.load(farbias + m * frow + o, mask=o < O, other=0.0)
                before = share * before + pull * end
            tl.store(here, before + tl.sum(gs, 0), mask=o < O)
    if DEEPER:
        if FACTOR > 0:
            acc = tl.where(xs > 0.0, acc * FACTOR, 0.0)
        tl.store(below + m * B * I + i[:, None] * I + k[None, :], acc, mask=ok)


def _few(rows: int, size: int) -> bool:
    """Whether programs must be small, so that all of a GPU has work."""
    return bool(rows * triton.cdiv(size, 64) < PROGRAMS)


def _block(size: int, most: int) -> int:
    """How much of an axis one program takes."""
    return int(max(16, min(most, triton.next_power_of_2(size))))


def linear(
    x: Tensor,
    w: Tensor,
    b: Tensor,
    relu: bool,
    keys: Tensor,
    drop: tuple[float, int] | None,
    dtype: str,
    start: Tensor | None = None,
    inputs: int | None = None,
    owner: Tensor | None = None,
    drift: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """act(x (R, B, I) @ w (R, I, O) + b (R, O)); `drop`: share to drop and the layer's number.

    Added to `start` (R, B, O) where it is given; of w only the first `inputs` are read. Where rows
    share x, `owner` (R,) says which of them each takes. With `drift`, all but the bias is
    multiplied by its second part (R,), and its first (R, B, O) times its third (R,) is added.
    """
    many, wide = x.shape[1:]
    rows, _, out = w.shape
    share, number = drop or (0.0, 0)
    y = torch.empty(rows, many, out, device=x.device)
    exact, few = dtype == "float32", _few(rows, out)
    block = _block(out, 32 if few else 64 if exact else 128)  # the quickest on an H200
    launch_kernel(
        _linear,
        (triton.cdiv(out, block), rows),
        x,
        x.stride(0),
        w,
        w.stride(0),
        b,
        b.stride(0),
        y if start is None else start,
        0 if start is None else start.stride(0),
        y,
        keys,
        keys if owner is None else owner,
        *(drift or (y, y, y)),
        many,
        wide if inputs is None else inputs,
        wide,
        out,
        start is not None,
        drift is not None,
        owner is not None,
        relu,
        (number + 1) * rng.GOLDEN & (2**63 - 1),
        min(round(share * 65536), 65535),
        1.0 / (1.0 - share),
        max(16, triton.next_power_of_2(many)),
        32,
        block,
        DOT[dtype],
        num_warps=4 if exact or few else 2,
        num_stages=3,
    )
    return y


def linear_back(
    g: Tensor,
    x: Tensor,
    w: Tensor,
    sink: Tensor,
    bias: Tensor,
    deeper: bool,
    factor: float,
    dtype: str,
    drift: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> Tensor | None:
    """Backward of `linear` from g (R, B, O), gradient before ReLU; adds to sink and bias.

    Returns the inputs' gradient where `deeper`; `factor` undoes ReLU and dropout of the layer
    below. With `drift` (f, fb, keep, give), the sink and the bias are also multiplied by keep (R,),
    and give (R,) times f, or fb, is added to them.
    """
    rows, many, wide = x.shape
    out = w.shape[2]
    below = torch.empty(rows, many, wide, device=x.device) if deeper else None
    few = _few(rows, wide)
    if not (deeper or few or drift or dtype == "float32"):  # then the plain product is quicker
        bias.add_(g.sum(1))
        sink.baddbmm_(x.transpose(1, 2), g)
        return None
    inputs, outputs, stages, registers = BACK["few" if few else dtype]
    block, far = _block(wide, inputs), drift or (g, g, g, g)
    launch_kernel(
        _linear_back,
        (triton.cdiv(wide, block), rows),
        g,
        x,
        x.stride(0),
        w,
        w.stride(0),
        sink,
        sink.stride(0),
        bias,
        bias.stride(0),
        g if below is None else below,
        *(far[:2]),
        far[0].stride(0),
        *far[2:],
        many,
        wide,
        out,
        drift is not None,
        sink.data_ptr() == w.data_ptr(),
        deeper,
        factor,
        max(16, triton.next_power_of_2(many)),
        block,
        _block(out, outputs),
        DOT[dtype],
        dtype == "bf16",
        num_warps=4,
        num_stages=stages,
        maxnreg=registers,
    )
    return below


@triton.jit
def _bias_act(y, b, brow, count, O: tl.constexpr, RELU: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * N + tl.arange(0, N)
    ok = e < count
    v = tl.load(y + r * count + e, mask=ok) + tl.load(b + r * brow + e % O, mask=ok)
    tl.store(y + r * count + e, tl.where(v < 0.0, 0.0, v) if RELU else v, mask=ok)


@triton.jit(do_not_specialize=["B"])
def _cross_entropy(
    z,
    y,
    weight,
    wrow,
    yrow,
    scale,
    loss,
    B,
    C: tl.constexpr,
    BB: tl.constexpr,
    BC: tl.constexpr,
):
    """Loss of one row, and scale * its gradient written over the outputs z."""
    r = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BB)
    c = tl.arange(0, BC)
    ok = (i < B)[:, None] & (c < C)[None, :]
    at = (r * B + i)[:, None] * C + c[None, :]
    v = tl.load(z + at, mask=ok, other=-1e30)
    label = tl.load(y + r * yrow + i, mask=i < B, other=0)
    share = tl.load(weight + r * wrow + i, mask=i < B, other=0.0)
    v -= tl.max(v, 1)[:, None]
    e = tl.exp(v)
    total = tl.sum(e, 1)
    hit = c[None, :] == label[:, None]
    picked = tl.sum(tl.where(hit, v, 0.0), 1)
    value = tl.sum((tl.log(total) - picked) * share)
    factor = tl.load(scale)
    g = (e / total[:, None] - tl.where(hit, 1.0, 0.0)) * (share * factor)[:, None]
    tl.store(z + at, g, mask=ok)
    tl.store(loss + r, value)


def bias_act(y: Tensor, b: Tensor, relu: bool) -> Tensor:
    """y (R, B, O) + b (R, O), then ReLU, in place."""
    rows, count, out = len(y), y[0].numel(), y.shape[-1]
    launch_kernel(
        _bias_act, (triton.cdiv(count, 2048), rows), y, b, b.stride(0), count, out, relu, 2048
    )
    return y


def fits_cross_entropy(b: int, classes: int) -> bool:
    """Whether one program can hold a row's outputs."""
    return bool(triton.next_power_of_2(b) * triton.next_power_of_2(classes) <= 16384)


def cross_entropy(z: Tensor, y: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Loss (R,) of outputs z (R, B, C), which become scale * their gradient."""
    rows, b, classes = z.shape
    loss = torch.empty(rows, device=z.device, dtype=z.dtype)
    launch_kernel(
        _cross_entropy,
        (rows,),
        z,
        y,
        weight,
        weight.stride(0),
        y.stride(0),
        scale,
        loss,
        b,
        classes,
        triton.next_power_of_2(b),
        max(16, triton.next_power_of_2(classes)),
    )
    return loss
