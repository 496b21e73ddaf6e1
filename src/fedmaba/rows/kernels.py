"""Triton kernels for rows on CUDA: what lies between matrix products, and convolutions as products.

conv + bias + ReLU + 2x2 max pool is one implicit matrix product: nothing is unrolled in memory, the
convolution's output is never written, and backward needs one byte per pooled value, which of the
four positions won (4: none, ReLU cut it). Activations are (row, image, y, x, channel); weights
(row, ky, kx, in, out). Values that meet in a product are bfloat16, alone (PAIR=0) or as a pair
hi + lo of which hi*hi + hi*lo + lo*hi is taken (PAIR=1): on tensor cores, and between bfloat16
and float32 in accuracy (docs/performance.md). Sums are float32. Nothing here uses atomics: the same
inputs give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# ------------------------------------------------------------- between the products


@triton.jit
def _bias_act(y, b, brow, count, O: tl.constexpr, RELU: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * N + tl.arange(0, N)
    ok = e < count
    v = tl.load(y + r * count + e, mask=ok) + tl.load(b + r * brow + e % O, mask=ok)
    tl.store(y + r * count + e, tl.maximum(v, 0.0) if RELU else v, mask=ok)


@triton.jit
def _act_grad(g, y, s, srow, B, O, RELU: tl.constexpr, BB: tl.constexpr, BO: tl.constexpr):
    """g *= (y > 0), and the sum over examples is added to the bias's sink."""
    r = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    total = tl.zeros((BO,), tl.float32)
    for first in range(0, B, BB):
        i = first + tl.arange(0, BB)
        ok = (i < B)[:, None] & (o < O)[None, :]
        at = (r * B + i)[:, None] * O + o[None, :]
        v = tl.load(g + at, mask=ok, other=0.0)
        if RELU:
            v = tl.where(tl.load(y + at, mask=ok, other=0.0) > 0, v, 0.0)
            tl.store(g + at, v, mask=ok)
        total += tl.sum(v, 0)
    ok = o < O
    old = tl.load(s + r * srow + o, mask=ok)
    tl.store(s + r * srow + o, old + total, mask=ok)


@triton.jit
def _cross_entropy(
    z,
    y,
    weight,
    wrow,
    yrow,
    scale,
    bent,
    loss,
    R,
    B,
    C: tl.constexpr,
    BENT: tl.constexpr,
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
    if BENT:
        room = tl.load(bent + r) - value
        limit = tl.load(bent + R + r)
        inside = tl.where(
            room >= limit, 1.0 / tl.where(room >= limit, room, 1.0), tl.load(bent + 2 * R + r)
        )
        factor *= tl.where(tl.load(bent + r) == float("inf"), 1.0, inside)
    g = (e / total[:, None] - tl.where(hit, 1.0, 0.0)) * (share * factor)[:, None]
    tl.store(z + at, g, mask=ok)
    tl.store(loss + r, value)


def bias_act(y: Tensor, b: Tensor, relu: bool) -> Tensor:
    """y (R, B, O) + b (R, O), then ReLU, in place."""
    rows, count, out = len(y), y[0].numel(), y.shape[-1]
    _bias_act[(triton.cdiv(count, 2048), rows)](y, b, b.stride(0), count, out, relu, 2048)
    return y


def act_grad(g: Tensor, y: Tensor, sink: Tensor, relu: bool) -> Tensor:
    """Backward of `bias_act`, in place of g; adds the bias's gradient to its sink (R, O)."""
    rows, b, out = g.shape
    wide = min(128, triton.next_power_of_2(out))
    grid = (triton.cdiv(out, wide), rows)
    _act_grad[grid](g, y, sink, sink.stride(0), b, out, relu, 32, wide)
    return g


def fits_cross_entropy(b: int, classes: int) -> bool:
    """Whether one program can hold a row's outputs."""
    return bool(triton.next_power_of_2(b) * triton.next_power_of_2(classes) <= 16384)


def cross_entropy(
    z: Tensor, y: Tensor, weight: Tensor, scale: Tensor, bent: Tensor | None
) -> Tensor:
    """Loss (R,) of outputs z (R, B, C), which become scale * their gradient; bent is (3, R)."""
    rows, b, classes = z.shape
    loss = torch.empty(rows, device=z.device, dtype=z.dtype)
    _cross_entropy[(rows,)](
        z,
        y,
        weight,
        weight.stride(0),
        y.stride(0),
        scale,
        loss if bent is None else bent,
        loss,
        rows,
        b,
        classes,
        bent is not None,
        triton.next_power_of_2(b),
        max(16, triton.next_power_of_2(classes)),
    )
    return loss


# ------------------------------------------------------------- convolutions


@triton.jit
def _split(v, PAIR: tl.constexpr):
    hi = v.to(tl.bfloat16)
    lo = hi
    if PAIR:
        lo = (v - hi.to(tl.float32)).to(tl.bfloat16)
    return hi, lo


@triton.jit
def _load(ptr, gap, off, mask, FLOAT: tl.constexpr, PAIR: tl.constexpr):
    """A tile as hi and lo: split from float32, or loaded from a stored pair."""
    if FLOAT:
        hi, lo = _split(tl.load(ptr + off, mask=mask, other=0.0), PAIR)
    else:
        hi = tl.load(ptr + off, mask=mask, other=0.0)
        lo = hi
        if PAIR:
            lo = tl.load(ptr + gap + off, mask=mask, other=0.0)
    return hi, lo


@triton.jit
def _store(ptr, gap, off, v, mask, FLOAT: tl.constexpr, PAIR: tl.constexpr):
    if FLOAT:
        tl.store(ptr + off, v, mask=mask)
    else:
        hi, lo = _split(v, PAIR)
        tl.store(ptr + off, hi, mask=mask)
        if PAIR:
            tl.store(ptr + gap + off, lo, mask=mask)


@triton.jit
def _dot(ah, al, bh, bl, acc, PAIR: tl.constexpr):
    if PAIR:
        acc = tl.dot(al, bh, acc)
        acc = tl.dot(ah, bl, acc)
    return tl.dot(ah, bh, acc)


@triton.jit
def _forward(
    x,
    xgap,
    xrow,
    w,
    wgap,
    wrow,
    b,
    brow,
    y,
    ygap,
    arg,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    LINE: tl.constexpr,
    WIDE: tl.constexpr,
    XF: tl.constexpr,
    YF: tl.constexpr,
    BP: tl.constexpr,
    PAIR: tl.constexpr,
):
    """BP pooled pixels of one row; one accumulator per position of the pooling window.

    LINE: few channels; one step covers the K*C values of a kernel line. Else a step is one tap.
    """
    PH: tl.constexpr = (H - K + 1) // 2
    PW: tl.constexpr = (W - K + 1) // 2
    STEPS: tl.constexpr = K if LINE else K * K
    DEPTH: tl.constexpr = K * C if LINE else C
    m = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    ok = p < B * PH * PW
    px, py, image = p % PW, (p // PW) % PH, p // (PH * PW)
    k = tl.arange(0, WIDE)
    n = tl.arange(0, N)
    mask = ok[:, None] & (k < DEPTH)[None, :]
    corner = m * xrow + ((image * H + 2 * py) * W + 2 * px)[:, None] * C + k[None, :]
    a0 = tl.zeros((BP, N), tl.float32)
    a1 = a0
    a2 = a0
    a3 = a0
    for s in range(STEPS):
        q = corner + (s * W * C if LINE else ((s // K) * W + s % K) * C)
        at = m * wrow + (s * DEPTH + k)[:, None] * N + n[None, :]
        wh, wl = _load(w, wgap, at, (k < DEPTH)[:, None], False, PAIR)
        xh, xl = _load(x, xgap, q, mask, XF, PAIR)
        a0 = _dot(xh, xl, wh, wl, a0, PAIR)
        xh, xl = _load(x, xgap, q + C, mask, XF, PAIR)
        a1 = _dot(xh, xl, wh, wl, a1, PAIR)
        xh, xl = _load(x, xgap, q + W * C, mask, XF, PAIR)
        a2 = _dot(xh, xl, wh, wl, a2, PAIR)
        xh, xl = _load(x, xgap, q + W * C + C, mask, XF, PAIR)
        a3 = _dot(xh, xl, wh, wl, a3, PAIR)
    top = a0
    won = tl.zeros((BP, N), tl.int32)
    won = tl.where(a1 > top, 1, won)
    top = tl.maximum(top, a1)
    won = tl.where(a2 > top, 2, won)
    top = tl.maximum(top, a2)
    won = tl.where(a3 > top, 3, won)
    top = tl.maximum(top, a3) + tl.load(b + m * brow + n)[None, :]
    o = (m * (B * PH * PW) + p)[:, None] * N + n[None, :]
    _store(y, ygap, o, tl.maximum(top, 0.0), ok[:, None], YF, PAIR)
    tl.store(arg + o, tl.where(top > 0, won, 4).to(tl.uint8), mask=ok[:, None])


@triton.jit
def _unpool(
    g,
    ggap,
    arg,
    d,
    dgap,
    count,
    PH: tl.constexpr,
    PW: tl.constexpr,
    C: tl.constexpr,
    GF: tl.constexpr,
    N: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Pooled gradient -> gradient of the convolution's output (2PH x 2PW)."""
    e = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    ok = e < count
    v = tl.load(g + e, mask=ok, other=0.0).to(tl.float32)
    if PAIR and not GF:
        v += tl.load(g + ggap + e, mask=ok, other=0.0).to(tl.float32)
    a = tl.load(arg + e, mask=ok, other=4)
    c, p = e % C, e // C
    px, py, image = p % PW, (p // PW) % PH, p // (PH * PW)
    o = ((image * (2 * PH) + 2 * py) * (2 * PW) + 2 * px) * C + c
    _store(d, dgap, o, tl.where(a == 0, v, 0.0), ok, False, PAIR)
    _store(d, dgap, o + C, tl.where(a == 1, v, 0.0), ok, False, PAIR)
    _store(d, dgap, o + 2 * PW * C, tl.where(a == 2, v, 0.0), ok, False, PAIR)
    _store(d, dgap, o + 2 * PW * C + C, tl.where(a == 3, v, 0.0), ok, False, PAIR)


@triton.jit
def _input_grad(
    d,
    dgap,
    w,
    wgap,
    wrow,
    dx,
    xgap,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    BM: tl.constexpr,
    PAIR: tl.constexpr,
):
    OH: tl.constexpr = (H - K + 1) // 2 * 2
    OW: tl.constexpr = (W - K + 1) // 2 * 2
    m = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = r < B * H * W
    y, x = (r % (H * W)) // W, r % W
    n = tl.arange(0, N)
    c = tl.arange(0, C)
    here = m * (B * OH * OW * N) + ((r // (H * W)) * (OH * OW * N) + (y * OW + x) * N)[:, None]
    here += n[None, :]
    acc = tl.zeros((BM, C), tl.float32)
    for s in range(K * K):
        ky = s // K
        kx = s % K
        inside = ok & (y >= ky) & (y < OH + ky) & (x >= kx) & (x < OW + kx)
        dh, dl = _load(d, dgap, here - (ky * OW + kx) * N, inside[:, None], False, PAIR)
        at = m * wrow + (s * C + c)[:, None] * N + n[None, :]
        wh, wl = _load(w, wgap, at, (c < C)[:, None], False, PAIR)
        acc = _dot(dh, dl, tl.trans(wh), tl.trans(wl), acc, PAIR)
    o = (m * (B * H * W) + r)[:, None] * C + c[None, :]
    _store(dx, xgap, o, acc, ok[:, None], False, PAIR)


@triton.jit
def _add(ptr, at, v):
    tl.store(ptr + at, tl.load(ptr + at) + v)


@triton.jit
def _weight_grad(
    x,
    xgap,
    xrow,
    d,
    dgap,
    sink,
    srow,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    XF: tl.constexpr,
    BK: tl.constexpr,
    PAIR: tl.constexpr,
):
    """The taps of one kernel line of one row: the output gradient is loaded once for all."""
    OH: tl.constexpr = (H - K + 1) // 2 * 2
    OW: tl.constexpr = (W - K + 1) // 2 * 2
    ky = tl.program_id(0)
    m = tl.program_id(1).to(tl.int64)
    n = tl.arange(0, N)
    c = tl.arange(0, C)
    a0 = tl.zeros((C, N), tl.float32)
    a1 = a0
    a2 = a0
    a3 = a0
    a4 = a0
    for first in range(0, B * OH * OW, BK):
        p = first + tl.arange(0, BK)
        ok = (p < B * OH * OW)[:, None]
        dh, dl = _load(d, dgap, (m * (B * OH * OW) + p)[:, None] * N + n[None, :], ok, False, PAIR)
        oy, ox, image = (p // OW) % OH, p % OW, p // (OH * OW)
        q = m * xrow + ((image * H + oy + ky) * W + ox)[:, None] * C + c[None, :]
        xh, xl = _load(x, xgap, q, ok, XF, PAIR)
        a0 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a0, PAIR)
        if K > 1:
            xh, xl = _load(x, xgap, q + C, ok, XF, PAIR)
            a1 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a1, PAIR)
        if K > 2:
            xh, xl = _load(x, xgap, q + 2 * C, ok, XF, PAIR)
            a2 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a2, PAIR)
        if K > 3:
            xh, xl = _load(x, xgap, q + 3 * C, ok, XF, PAIR)
            a3 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a3, PAIR)
        if K > 4:
            xh, xl = _load(x, xgap, q + 4 * C, ok, XF, PAIR)
            a4 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a4, PAIR)
    at = m * srow + (ky * K * C + c)[:, None] * N + n[None, :]
    _add(sink, at, a0)
    if K > 1:
        _add(sink, at + C * N, a1)
    if K > 2:
        _add(sink, at + 2 * C * N, a2)
    if K > 3:
        _add(sink, at + 3 * C * N, a3)
    if K > 4:
        _add(sink, at + 4 * C * N, a4)


@triton.jit
def _line(x, xgap, q, ok, dh, dl, acc, XF: tl.constexpr, PAIR: tl.constexpr):
    xh, xl = _load(x, xgap, q, ok, XF, PAIR)
    return _dot(dh, dl, xh, xl, acc, PAIR)


@triton.jit
def _lines(
    x,
    xgap,
    q,
    ok,
    gh,
    gl,
    a,
    POS: tl.constexpr,
    e0,
    e1,
    e2,
    e3,
    e4,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    XF: tl.constexpr,
    PAIR: tl.constexpr,
):
    zero = gh * 0
    dh = tl.trans(tl.where(a == POS, gh, zero))
    dl = dh
    if PAIR:
        dl = tl.trans(tl.where(a == POS, gl, zero))
    q += (POS // 2) * W * C + (POS % 2) * C
    e0 = _line(x, xgap, q, ok, dh, dl, e0, XF, PAIR)
    if K > 1:
        e1 = _line(x, xgap, q + W * C, ok, dh, dl, e1, XF, PAIR)
    if K > 2:
        e2 = _line(x, xgap, q + 2 * W * C, ok, dh, dl, e2, XF, PAIR)
    if K > 3:
        e3 = _line(x, xgap, q + 3 * W * C, ok, dh, dl, e3, XF, PAIR)
    if K > 4:
        e4 = _line(x, xgap, q + 4 * W * C, ok, dh, dl, e4, XF, PAIR)
    return e0, e1, e2, e3, e4


@triton.jit
def _first_weight_grad(
    x,
    xgap,
    xrow,
    g,
    ggap,
    arg,
    part,
    M,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    WIDE: tl.constexpr,
    S: tl.constexpr,
    XF: tl.constexpr,
    GF: tl.constexpr,
    BK: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Few channels: partial weight gradients of one row over one of S stretches of pixels."""
    PH: tl.constexpr = (H - K + 1) // 2
    PW: tl.constexpr = (W - K + 1) // 2
    LEN: tl.constexpr = (B * PH * PW + S - 1) // S
    DEPTH: tl.constexpr = K * C
    s = tl.program_id(0)
    m = tl.program_id(1).to(tl.int64)
    n = tl.arange(0, N)
    k = tl.arange(0, WIDE)
    e0 = tl.zeros((N, WIDE), tl.float32)
    e1 = e0
    e2 = e0
    e3 = e0
    e4 = e0
    for first in range(0, LEN, BK):
        p = s * LEN + first + tl.arange(0, BK)
        ok = (p < B * PH * PW) & (p < (s + 1) * LEN)
        o = (m * (B * PH * PW) + p)[:, None] * N + n[None, :]
        gh, gl = _load(g, ggap, o, ok[:, None], GF, PAIR)
        a = tl.load(arg + o, mask=ok[:, None], other=4)
        px, py, image = p % PW, (p // PW) % PH, p // (PH * PW)
        q = m * xrow + ((image * H + 2 * py) * W + 2 * px)[:, None] * C + k[None, :]
        inside = ok[:, None] & (k < DEPTH)[None, :]
        e0, e1, e2, e3, e4 = _lines(
            x, xgap, q, inside, gh, gl, a, 0, e0, e1, e2, e3, e4, W, C, K, XF, PAIR
        )
        e0, e1, e2, e3, e4 = _lines(
            x, xgap, q, inside, gh, gl, a, 1, e0, e1, e2, e3, e4, W, C, K, XF, PAIR
        )
        e0, e1, e2, e3, e4 = _lines(
            x, xgap, q, inside, gh, gl, a, 2, e0, e1, e2, e3, e4, W, C, K, XF, PAIR
        )
        e0, e1, e2, e3, e4 = _lines(
            x, xgap, q, inside, gh, gl, a, 3, e0, e1, e2, e3, e4, W, C, K, XF, PAIR
        )
    o = part + (s * M + m) * (K * DEPTH * N) + n[:, None] + k[None, :] * N
    keep = (n[:, None] < N) & (k < DEPTH)[None, :]
    tl.store(o, e0, mask=keep)
    if K > 1:
        tl.store(o + DEPTH * N, e1, mask=keep)
    if K > 2:
        tl.store(o + 2 * DEPTH * N, e2, mask=keep)
    if K > 3:
        tl.store(o + 3 * DEPTH * N, e3, mask=keep)
    if K > 4:
        tl.store(o + 4 * DEPTH * N, e4, mask=keep)


@triton.jit
def _bias_grad(
    g,
    ggap,
    arg,
    part,
    M,
    COUNT: tl.constexpr,
    N: tl.constexpr,
    S: tl.constexpr,
    GF: tl.constexpr,
    BK: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Partial bias gradients: what reached a pooled value that ReLU let through."""
    LEN: tl.constexpr = (COUNT + S - 1) // S
    s = tl.program_id(0)
    m = tl.program_id(1).to(tl.int64)
    n = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for first in range(0, LEN, BK):
        p = s * LEN + first + tl.arange(0, BK)
        ok = ((p < COUNT) & (p < (s + 1) * LEN))[:, None]
        o = (m * COUNT + p)[:, None] * N + n[None, :]
        v = tl.load(g + o, mask=ok, other=0.0).to(tl.float32)
        if PAIR and not GF:
            v += tl.load(g + ggap + o, mask=ok, other=0.0).to(tl.float32)
        total += tl.sum(tl.where(tl.load(arg + o, mask=ok, other=4) < 4, v, 0.0), 0)
    tl.store(part + (s * M + m) * N + n, total)


TILES = {  # block, warps, stages, as measured on an H200: benchmarks/tiles.py
    False: {
        "line": (64, 4, 1),  # forward, few channels
        "tap": (32, 4, 3),  #  forward
        "dx": (128, 4, 3),  #  input gradient
        "dw": (32, 4, 3),  #   weight gradient
        "d1": (128, 4, 1),  #  weight gradient, few channels
    },
    True: {
        "line": (64, 4, 1),
        "tap": (32, 4, 2),
        "dx": (64, 4, 3),
        "dw": (32, 4, 2),
        "d1": (64, 4, 1),
    },
}
STRETCHES = 4


class Stage:
    """One conv + bias + ReLU + pool of all rows; tensors are float32 or bfloat16 (1 or 2, ...)."""

    def __init__(self, h: int, w: int, c: int, k: int, n: int, pair: bool) -> None:
        self.h, self.w, self.c, self.k, self.n, self.pair = h, w, c, k, n, pair
        self.line = c < 16
        self.wide = max(16, triton.next_power_of_2(k * c)) if self.line else c
        self.ph, self.pw = (h - k + 1) // 2, (w - k + 1) // 2
        self.tiles = TILES[pair]

    @staticmethod
    def fits(h: int, w: int, c: int, k: int, n: int) -> bool:
        """Whether the kernels cover a convolution: square, small, channels powers of two."""
        few = k * c <= 64 and c < 16
        return (
            k <= 5 and min(h, w) > k and n in (16, 32, 64, 128) and (few or c in (16, 32, 64, 128))
        )

    def _shape(self, x: Tensor) -> tuple[bool, int, int, int, int]:
        """Whether x is float32; its gap between hi and lo, stride of a row, rows and images."""
        is_float = x.dtype == torch.float32
        body = x if is_float else x[0]
        rows, images = body.shape[:2]
        return is_float, 0 if is_float else body.numel(), body.stride(0), rows, images

    def pack(self, w: Tensor) -> Tensor:
        """Weights (R, k, k, c, n) as bfloat16 (1 or 2, R, k, k, c, n)."""
        hi = w.bfloat16()
        return torch.stack([hi, (w - hi).bfloat16()]) if self.pair else hi[None]

    def forward(self, x: Tensor, w: Tensor, b: Tensor, last: bool) -> tuple[Tensor, Tensor]:
        """Pooled activations, float32 where `last`, and the winners; w is packed."""
        xf, gap, xrow, _, images = self._shape(x)
        rows = w.shape[1]
        shape = (rows, images, self.ph, self.pw, self.n)
        arg = torch.empty(shape, device=w.device, dtype=torch.uint8)
        y = (
            torch.empty(shape, device=w.device)
            if last
            else torch.empty((1 + self.pair, *shape), device=w.device, dtype=torch.bfloat16)
        )
        block, warps, stages = self.tiles["line" if self.line else "tap"]
        _forward[(triton.cdiv(images * self.ph * self.pw, block), rows)](
            x,
            gap,
            xrow,
            w,
            w[0].numel(),
            w.stride(1),
            b,
            b.stride(0),
            y,
            arg.numel(),
            arg,
            images,
            self.h,
            self.w,
            self.c,
            self.k,
            self.n,
            self.line,
            self.wide,
            xf,
            last,
            block,
            self.pair,
            num_warps=warps,
            num_stages=stages,
        )
        return y, arg

    def backward(
        self, g: Tensor, x: Tensor, arg: Tensor, w: Tensor, sink: Tensor, bias: Tensor, deeper: bool
    ) -> Tensor | None:
        """Add the weights' gradients to their sinks; the input's where `deeper`; w is packed."""
        gf, ggap, _, rows, images = self._shape(g)
        xf, xgap, xrow, _, _ = self._shape(x)
        size = images * self.ph * self.pw
        part = torch.empty(STRETCHES, rows, self.n, device=g.device)
        _bias_grad[(STRETCHES, rows)](
            g, ggap, arg, part, rows, size, self.n, STRETCHES, gf, 64, self.pair
        )
        bias.add_(part.sum(0))
        shape = (images, self.h, self.w, self.c, self.k, self.n)
        if self.line:
            block, warps, stages = self.tiles["d1"]
            part = torch.empty(STRETCHES, *w.shape[1:], device=g.device)
            _first_weight_grad[(STRETCHES, rows)](
                x,
                xgap,
                xrow,
                g,
                ggap,
                arg,
                part,
                rows,
                *shape,
                self.wide,
                STRETCHES,
                xf,
                gf,
                block,
                self.pair,
                num_warps=warps,
                num_stages=stages,
            )
            sink.add_(part.sum(0))
            return None
        d = torch.empty(
            (1 + self.pair, rows, images, 2 * self.ph, 2 * self.pw, self.n),
            device=g.device,
            dtype=torch.bfloat16,
        )
        count = rows * size * self.n
        _unpool[(triton.cdiv(count, 2048),)](
            g, ggap, arg, d, d[0].numel(), count, self.ph, self.pw, self.n, gf, 2048, self.pair
        )
        below = None
        if deeper:
            like = (1 + self.pair, rows, images, self.h, self.w, self.c)
            below = torch.empty(like, device=g.device, dtype=torch.bfloat16)
            block, warps, stages = self.tiles["dx"]
            _input_grad[(triton.cdiv(images * self.h * self.w, block), rows)](
                d,
                d[0].numel(),
                w,
                w[0].numel(),
                w.stride(1),
                below,
                below[0].numel(),
                *shape,
                block,
                self.pair,
                num_warps=warps,
                num_stages=stages,
            )
        block, warps, stages = self.tiles["dw"]
        _weight_grad[(self.k, rows)](
            x,
            xgap,
            xrow,
            d,
            d[0].numel(),
            sink,
            sink.stride(0),
            *shape,
            xf,
            block,
            self.pair,
            num_warps=warps,
            num_stages=stages,
        )
        return below
