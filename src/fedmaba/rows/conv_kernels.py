"""Triton kernels of `conv`: each works on tiles of one row's images. PAIR: values are hi + lo.

Numbers of rows and images change from call to call: no kernel is compiled again for them.
"""

import triton
import triton.language as tl


@triton.jit
def _scale(largest):
    """The power of two that brings a magnitude between 4 and 8."""
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    field = tl.minimum(tl.maximum(256 - exponent, 2), 252)
    return (field << 23).to(tl.float32, bitcast=True)


@triton.jit
def _load(ptr, gap, off, mask, PAIR: tl.constexpr):
    """A tile as hi and lo."""
    hi = tl.load(ptr + off, mask=mask, other=0.0)
    lo = hi
    if PAIR:
        lo = tl.load(ptr + gap + off, mask=mask, other=0.0)
    return hi, lo


@triton.jit
def _store(ptr, gap, off, v, mask, PAIR: tl.constexpr):
    hi = v.to(ptr.dtype.element_ty)
    tl.store(ptr + off, hi, mask=mask)
    if PAIR:
        tl.store(ptr + gap + off, (v - hi.to(tl.float32)).to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _dot(ah, al, bh, bl, acc, PAIR: tl.constexpr):
    if PAIR:
        acc = tl.dot(al, bh, acc)
        acc = tl.dot(ah, bl, acc)
    return tl.dot(ah, bh, acc)


@triton.jit
def pack_lines(
    w,
    wrow,
    largest,
    out,
    gap,
    C: tl.constexpr,
    CP: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    DEEP: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Weights of one row as two outputs side by side see the values under both, (DEEP, 2, N)."""
    LINE: tl.constexpr = (K + 1) * CP
    m = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, east, k = e % N, (e // N) % 2, e // (2 * N)
    c, kx, ky = k % CP, (k % LINE) // CP - east, k // LINE
    inside = (ky < K) & (kx >= 0) & (kx < K) & (c < C)
    v = tl.load(w + m * wrow + ((ky * K + kx) * C + c) * N + n, mask=inside, other=0.0)
    v *= _scale(tl.load(largest + m))
    _store(out, gap, m * (2 * DEEP * N) + e, v, k < DEEP, PAIR)


@triton.jit
def pack_back(
    w,
    wrow,
    largest,
    out,
    gap,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    PAIR: tl.constexpr,
):
    """One tap of one row as gradients under two inputs side by side see it, (K, K + 1, N, 2, C)."""
    m = tl.program_id(1).to(tl.int64)
    east, j, ky = tl.program_id(0) % 2, (tl.program_id(0) // 2) % (K + 1), tl.program_id(0) // 2
    ky, kx = ky // (K + 1), K - 1 + east - j
    c, n = tl.arange(0, C), tl.arange(0, N)
    inside = (c < C)[:, None] & (kx >= 0) & (kx < K)
    at = w + m * wrow + ((ky * K + kx) * C + c)[:, None] * N + n[None, :]
    v = tl.trans(tl.load(at, mask=inside, other=0.0)) * _scale(tl.load(largest + m))
    o = (((m * K + ky) * (K + 1) + j) * N + n)[:, None] * (2 * C) + east * C + c[None, :]
    _store(out, gap, o, v, (n < N)[:, None], PAIR)


@triton.jit
def _lines(k, W: tl.constexpr, CP: tl.constexpr, K: tl.constexpr):
    """Where the k-th value under two outputs side by side lies, from the first on."""
    LINE: tl.constexpr = (K + 1) * CP
    return (k // LINE) * (W * CP) + k % LINE


@triton.jit(do_not_specialize=["B"])
def forward(
    x,
    xgap,
    ximage,
    xrow,
    unit,
    w,
    wgap,
    largest,
    b,
    brow,
    y,
    ygap,
    lift,
    arg,
    B,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    DEEP: tl.constexpr,
    WIDE: tl.constexpr,
    YF: tl.constexpr,
    SAVE: tl.constexpr,
    BP: tl.constexpr,
    PAIR: tl.constexpr,
):
    """BP pooled pixels of one row: product, + bias, ReLU, the largest of four positions.

    The two positions of a line stand side by side in a product over all values under both.
    """
    PH: tl.constexpr = (H - K + 1) // 2
    PW: tl.constexpr = (W - K + 1) // 2
    m = tl.program_id(1).to(tl.int64)
    # Pooled pixels are taken by their upper lines, then by their lower ones.
    r = tl.arange(0, 2 * BP)
    p = tl.program_id(0) * BP + r % BP
    ok = (p < B * PH * PW)[:, None]
    px, py, image = p % PW, (p // PW) % PH, p // (PH * PW)
    base = (m * xrow + image * ximage + ((2 * py + r // BP) * W + 2 * px) * C)[:, None]
    both = tl.arange(0, 2 * N)
    acc = tl.zeros((2 * BP, 2 * N), tl.float32)
    for s in range(DEEP // WIDE):
        k = s * WIDE + tl.arange(0, WIDE)
        at = (m * DEEP + k)[:, None] * (2 * N) + both[None, :]
        wh, wl = _load(w, wgap, at, (k < DEEP)[:, None], PAIR)
        real = ok & (k < K * (K + 1) * C)[None, :]
        xh, xl = _load(x, xgap, base + _lines(k, W, C, K)[None, :], real, PAIR)
        acc = _dot(xh, xl, wh, wl, acc, PAIR)
    above, below = tl.split(tl.permute(tl.reshape(acc, (2, BP, 2, N)), (1, 3, 2, 0)))
    a0, a1 = tl.split(above)
    a2, a3 = tl.split(below)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    ok = (p < B * PH * PW)[:, None]
    won = tl.where(a1 > a0, 1, 0)
    top = tl.where(a1 > a0, a1, a0)
    won = tl.where(a2 > top, 2, won)
    top = tl.where(a2 > top, a2, top)
    won = tl.where(a3 > top, 3, won)
    top = tl.where(a3 > top, a3, top)
    n = tl.arange(0, N)
    o = (m * (B * PH * PW) + p)[:, None] * N + n[None, :]
    top = top * (unit / _scale(tl.load(largest + m))) + tl.load(b + m * brow + n)[None, :]
    value = tl.where(top < 0.0, 0.0, top)  # A value that is not a number stays one.
    if YF:
        tl.store(y + o, value, mask=ok)
    else:
        _store(y, ygap, o, value * lift, ok, PAIR)
    if SAVE:
        tl.store(arg + o, tl.where(top > 0.0, won, 4).to(tl.uint8), mask=ok)


@triton.jit
def unpool(
    g,
    ggap,
    largest,
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
    """Pooled gradient of one row -> gradient of the convolution's output (2PH x 2PW), scaled."""
    m = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * N + tl.arange(0, N)
    ok = e < count
    v = tl.load(g + m * count + e, mask=ok, other=0.0).to(tl.float32)
    if GF:
        v *= _scale(tl.load(largest + m))
    elif PAIR:
        v += tl.load(g + ggap + m * count + e, mask=ok, other=0.0).to(tl.float32)
    a = tl.load(arg + m * count + e, mask=ok, other=4)
    c, p = e % C, e // C
    px, py, image = p % PW, (p // PW) % PH, p // (PH * PW)
    o = 4 * m * count + ((image * (2 * PH) + 2 * py) * (2 * PW) + 2 * px) * C + c
    _store(d, dgap, o, tl.where(a == 0, v, 0.0), ok, PAIR)
    _store(d, dgap, o + C, tl.where(a == 1, v, 0.0), ok, PAIR)
    _store(d, dgap, o + 2 * PW * C, tl.where(a == 2, v, 0.0), ok, PAIR)
    _store(d, dgap, o + 2 * PW * C + C, tl.where(a == 3, v, 0.0), ok, PAIR)


@triton.jit(do_not_specialize=["B"])
def input_grad(
    d,
    dgap,
    w,
    wgap,
    largest,
    dx,
    xgap,
    B,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    BM: tl.constexpr,
    PAIR: tl.constexpr,
):
    """BM pairs of pixels of one row, a line of all images first: kernel lines that reach it."""
    OH: tl.constexpr = (H - K + 1) // 2 * 2
    OW: tl.constexpr = (W - K + 1) // 2 * 2
    PAIRS: tl.constexpr = (W + 1) // 2
    m = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = r < B * H * PAIRS
    y, image, x = r // (B * PAIRS), (r // PAIRS) % B, r % PAIRS * 2
    n = tl.arange(0, N)
    both = tl.arange(0, 2 * C)
    here = ((m * B + image) * (OH * OW * N) + (y * OW + x - K + 1) * N)[:, None] + n[None, :]
    top = tl.program_id(0) * BM // (B * PAIRS)
    bottom = (tl.program_id(0) * BM + BM - 1) // (B * PAIRS)
    first = tl.maximum(top - OH + 1, 0)
    acc = tl.zeros((BM, 2 * C), tl.float32)
    for s in range(first * (K + 1), tl.minimum(bottom + 1, K) * (K + 1)):
        ky = s // (K + 1)
        column = x - K + 1 + s % (K + 1)
        inside = ok & (y >= ky) & (y < OH + ky) & (column >= 0) & (column < OW)
        at = here + (s % (K + 1) - ky * OW) * N
        dh, dl = _load(d, dgap, at, inside[:, None], PAIR)
        at = (m * (K * (K + 1) * N) + s * N + n)[:, None] * (2 * C) + both[None, :]
        wh, wl = _load(w, wgap, at, (n < N)[:, None], PAIR)
        acc = _dot(dh, dl, wh, wl, acc, PAIR)
    o = ((m * B + image) * (H * W) + y * W + x)[:, None] * C + both[None, :]
    real = ok[:, None] & (x[:, None] + both[None, :] // C < W)
    _store(dx, xgap, o, acc / _scale(tl.load(largest + m)), real, PAIR)


@triton.jit
def _add(ptr, at, v):
    tl.store(ptr + at, tl.load(ptr + at) + v)


@triton.jit(do_not_specialize=["B"])
def weight_grad(
    x,
    xgap,
    ximage,
    xrow,
    unit,
    d,
    dgap,
    largest,
    sink,
    srow,
    B,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
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
        dh, dl = _load(d, dgap, (m * (B * OH * OW) + p)[:, None] * N + n[None, :], ok, PAIR)
        oy, ox, image = (p // OW) % OH, p % OW, p // (OH * OW)
        q = m * xrow + (image * ximage + ((oy + ky) * W + ox) * C)[:, None] + c[None, :]
        xh, xl = _load(x, xgap, q, ok, PAIR)
        a0 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a0, PAIR)
        if K > 1:
            xh, xl = _load(x, xgap, q + C, ok, PAIR)
            a1 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a1, PAIR)
        if K > 2:
            xh, xl = _load(x, xgap, q + 2 * C, ok, PAIR)
            a2 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a2, PAIR)
        if K > 3:
            xh, xl = _load(x, xgap, q + 3 * C, ok, PAIR)
            a3 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a3, PAIR)
        if K > 4:
            xh, xl = _load(x, xgap, q + 4 * C, ok, PAIR)
            a4 = _dot(tl.trans(xh), tl.trans(xl), dh, dl, a4, PAIR)
    unit /= _scale(tl.load(largest + m))
    at = m * srow + (ky * K * C + c)[:, None] * N + n[None, :]
    _add(sink, at, a0 * unit)
    if K > 1:
        _add(sink, at + C * N, a1 * unit)
    if K > 2:
        _add(sink, at + 2 * C * N, a2 * unit)
    if K > 3:
        _add(sink, at + 3 * C * N, a3 * unit)
    if K > 4:
        _add(sink, at + 4 * C * N, a4 * unit)


@triton.jit
def _line(x, xgap, at, real, gh, gl, a, LEFT: tl.constexpr, acc, PAIR: tl.constexpr):
    """Values under a line of windows times the gradients that went to its left and right."""
    left, right = a == LEFT, a == LEFT + 1
    zero = gh * 0
    dh = _beside(tl.where(left, gh, zero), tl.where(right, gh, zero))
    dl = dh
    if PAIR:
        dl = _beside(tl.where(left, gl, zero), tl.where(right, gl, zero))
    xh, xl = _load(x, xgap, at, real, PAIR)
    return _dot(tl.trans(xh), tl.trans(xl), dh, dl, acc, PAIR)


@triton.jit
def _beside(left, right):
    """Two of (BK, N) -> (BK, 2N)."""
    both = tl.permute(tl.join(left, right), (0, 2, 1))
    return tl.reshape(both, (left.shape[0], 2 * left.shape[1]))


@triton.jit(do_not_specialize=["M", "B"])
def lines_grad(
    x,
    xgap,
    ximage,
    xrow,
    g,
    ggap,
    largest,
    arg,
    part,
    bias,
    M,
    B,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    DEEP: tl.constexpr,
    WIDE: tl.constexpr,
    S: tl.constexpr,
    GF: tl.constexpr,
    BK: tl.constexpr,
    PAIR: tl.constexpr,
):
    """Few channels: partial gradients of one row over one of S stretches of pooled pixels."""
    PH: tl.constexpr = (H - K + 1) // 2
    PW: tl.constexpr = (W - K + 1) // 2
    CHUNKS: tl.constexpr = DEEP // WIDE
    s = tl.program_id(0) // CHUNKS
    k = (tl.program_id(0) % CHUNKS) * WIDE + tl.arange(0, WIDE)
    m = tl.program_id(1).to(tl.int64)
    count = B * PH * PW
    length = (count + S - 1) // S
    end = tl.minimum((s + 1) * length, count)
    n = tl.arange(0, N)
    acc = tl.zeros((WIDE, 2 * N), tl.float32)
    total = tl.zeros((BK, N), tl.float32)
    for first in range(s * length, end, BK):
        p = first + tl.arange(0, BK)
        ok = (p < end)[:, None]
        o = (m * count + p)[:, None] * N + n[None, :]
        a = tl.load(arg + o, mask=ok, other=4)
        if GF:
            whole = tl.load(g + o, mask=ok, other=0.0) * _scale(tl.load(largest + m))
            gh = whole.to(x.dtype.element_ty)
            gl = (whole - gh.to(tl.float32)).to(x.dtype.element_ty)
        else:
            gh, gl = _load(g, ggap, o, ok, PAIR)
            whole = gh.to(tl.float32)
            if PAIR:
                whole += gl.to(tl.float32)
        total += tl.where(a < 4, whole, 0.0)
        px, py, image = p % PW, (p // PW) % PH, p // (PH * PW)
        at = (m * xrow + image * ximage + (2 * py * W + 2 * px) * C)[:, None]
        at += _lines(k, W, C, K)[None, :]
        real = ok & (k < K * (K + 1) * C)[None, :]
        acc = _line(x, xgap, at, real, gh, gl, a, 0, acc, PAIR)
        acc = _line(x, xgap, at + W * C, real, gh, gl, a, 2, acc, PAIR)
    at = (s * M + m) * (2 * DEEP * N) + k[:, None] * (2 * N) + tl.arange(0, 2 * N)[None, :]
    tl.store(part + at, acc)
    if tl.program_id(0) % CHUNKS == 0:
        tl.store(bias + (s * M + m) * N + n, tl.sum(total, 0))


@triton.jit(do_not_specialize=["M"])
def fold(
    part,
    bias_part,
    largest,
    unit,
    sink,
    srow,
    bias,
    brow,
    M,
    C: tl.constexpr,
    CP: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    DEEP: tl.constexpr,
    S: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add a row's partial gradients of both columns and all stretches to its sinks."""
    m = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < K * K * C * N
    n, c, kx, ky = e % N, (e // N) % C, (e // (N * C)) % K, e // (N * C * K)
    scale = _scale(tl.load(largest + m))
    total = tl.zeros((BLOCK,), tl.float32)
    for s in range(S):
        for east in range(2):
            k = (ky * (K + 1) + kx + east) * CP + c
            at = ((s * M + m) * DEEP + k) * (2 * N) + east * N + n
            total += tl.load(part + at, mask=ok, other=0.0)
    at = sink + m * srow + e
    tl.store(at, tl.load(at, mask=ok, other=0.0) + total * (unit / scale), mask=ok)
    if tl.program_id(0) == 0:
        i = tl.arange(0, N)
        few = tl.zeros((N,), tl.float32)
        for s in range(S):
            few += tl.load(bias_part + (s * M + m) * N + i)
        _add(bias, m * brow + i, few / scale)


@triton.jit
def bias_grad(
    g,
    ggap,
    largest,
    arg,
    bias,
    brow,
    count,
    N: tl.constexpr,
    GF: tl.constexpr,
    BK: tl.constexpr,
    PAIR: tl.constexpr,
):
    """What reached the pooled values of one row that ReLU let through."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, N)
    total = tl.zeros((BK, N), tl.float32)
    for first in range(0, count, BK):
        p = first + tl.arange(0, BK)
        ok = (p < count)[:, None]
        o = (m * count + p)[:, None] * N + n[None, :]
        v = tl.load(g + o, mask=ok, other=0.0).to(tl.float32)
        if PAIR and not GF:
            v += tl.load(g + ggap + o, mask=ok, other=0.0).to(tl.float32)
        total += tl.where(tl.load(arg + o, mask=ok, other=4) < 4, v, 0.0)
    total = tl.sum(total, 0)
    if not GF:
        total /= _scale(tl.load(largest + m))
    _add(bias, m * brow + n, total)
