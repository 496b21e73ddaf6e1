"""Rows of convolutions on CUDA: conv + bias + ReLU + 2x2 max pool at once, by kernels of our own.

An implicit matrix product: nothing is unrolled in memory, the convolution's output is never
written, and backward needs one byte per pooled value, which of the four positions won (4: none,
ReLU cut it). Activations are (row, image, y, x, channel); weights (row, ky, kx, in, out).

Values that meet in a product have 16 bits: bfloat16, float16 (10 bits of mantissa, as tf32 has),
or a PAIR of float16, hi + lo, of which hi*hi + hi*lo + lo*hi is taken: 22 bits, near float32's
24. What float16 lacks in range, powers of two make up: one for the inputs, one for each row's
weights and for each row's gradient, from its largest magnitude. Sums are float32. Nothing here
uses atomics: the same inputs give the same bits.
"""

import torch
import triton
from torch import Tensor

from fedmaba.rows import conv_kernels as kernels
from fedmaba.rows.launch import PROGRAMS, launch_kernel

HALF_TYPES = {"float32": torch.float16, "tf32": torch.float16, "bf16": torch.bfloat16}
TileSizes = tuple[int, int, int, int | None]
# Each has a block, warps, stages and the most registers of a thread, as measured on an H200 by
# benchmarks/tiles.py.
KERNEL_TILES: dict[bool, dict[str, TileSizes]] = {
    False: {
        "y1": (64, 4, 3, 168),  #   forward, few channels; so that three programs fit
        "y": (64, 4, 3, None),  #   forward
        "dx": (128, 4, 3, None),  # input gradient
        "dw": (32, 4, 4, None),  #  weight gradient
        "d1": (32, 4, 3, None),  #  weight gradient, few channels
    },
    True: {
        "y1": (64, 4, 1, None),
        "y": (64, 8, 3, None),
        "dx": (128, 8, 3, None),
        "dw": (32, 4, 2, None),
        "d1": (32, 4, 1, None),
    },
}
# A product takes this many values under a pair of outputs, "y1".
VALUES_PER_PRODUCT = {False: 32, True: 128}


def largest_magnitudes(v: Tensor, half: torch.dtype) -> Tensor:
    """(R,) largest magnitude of each row of v (R, ...), which may be rows of a wider matrix.

    bfloat16 has float32's range: there it is 4, which kernels scale by 1.
    """
    if half == torch.bfloat16:
        return torch.full((len(v),), 4.0, device=v.device)
    out: Tensor = torch.linalg.vector_norm(v.flatten(1), torch.inf, dim=1)
    return out


class PackedWeights:
    """A row's weights ready for products, and their largest magnitudes."""

    def __init__(self, lines: Tensor, back: Tensor | None, largest: Tensor) -> None:
        self.lines, self.back, self.largest = lines, back, largest


class Stage:
    """One conv + bias + ReLU + pool of all rows.

    Inputs are images of 16 bits (R, B, pieces, H, W, cp) times `scale`, or what the stage before
    put out, (pieces, R, B, H, W, C).
    """

    def __init__(self, h: int, w: int, c: int, k: int, n: int, dtype: str, *, first: bool) -> None:
        self.h, self.w, self.c, self.k, self.n, self.first = h, w, c, k, n, first
        self.pair, self.half, self.scale = dtype == "float32", HALF_TYPES[dtype], 1.0
        self.few = c < 16
        # This pads the channels of images, so that loads are aligned.
        self.cp = triton.next_power_of_2(c)
        size = k * (k + 1) * self.cp
        self.wide = min(128, max(16, triton.next_power_of_2(size))) if self.few else min(64, c)
        self.deep = triton.cdiv(size, self.wide) * self.wide
        self.ph, self.pw = (h - k + 1) // 2, (w - k + 1) // 2
        self.tiles = KERNEL_TILES[self.pair]

    @staticmethod
    def fits(h: int, w: int, c: int, k: int, n: int) -> bool:
        """Whether the kernels cover a convolution: square, small, channels powers of two."""
        sizes = (16, 32, 64, 128)
        return k <= 5 and min(h, w) > k and n in sizes and (c < 16 or c in sizes)

    def pack(self, w: Tensor, back: bool) -> PackedWeights:
        """Weights (R, k, k, c, n), scaled, in 16 bits; where `back`, also for input gradients."""
        rows, top = len(w), largest_magnitudes(w, self.half)
        pieces = 1 + self.pair
        lines = torch.empty(pieces, rows, self.deep, 2 * self.n, device=w.device, dtype=self.half)
        sizes = (self.c, self.cp, self.k, self.n, self.deep, 1024, self.pair)
        where = (w, w.stride(0), top, lines, lines[0].numel())
        launch_kernel(
            kernels.pack_lines, (triton.cdiv(lines[0, 0].numel(), 1024), rows), *where, *sizes
        )
        if not back:
            return PackedWeights(lines, None, top)
        size = (pieces, rows, self.k * (self.k + 1) * self.n, 2 * self.c)
        turned = torch.empty(size, device=w.device, dtype=self.half)
        launch_kernel(
            kernels.pack_back,
            (2 * self.k * (self.k + 1), rows),
            *(w, w.stride(0), top, turned, turned[0].numel()),
            *(self.c, self.k, self.n, self.pair),
        )
        return PackedWeights(lines, turned, top)

    def _place(self, x: Tensor) -> tuple[int, int, int]:
        """Steps from hi to lo, from image to image and from row to row of inputs."""
        if self.first:
            return x.stride(2), x.stride(1), x.stride(0)
        return x.stride(0), x.stride(2), x.stride(1)

    def forward(
        self, x: Tensor, w: PackedWeights, b: Tensor, lift: float | None, save: bool
    ) -> tuple[Tensor, Tensor]:
        """Pooled activations, in 16 bits times `lift` or float32; the winners too where `save`."""
        rows, images = len(w.largest), x.shape[1 if self.first else 2]
        shape = (rows, images, self.ph, self.pw, self.n)
        arg = torch.empty(shape if save else 0, device=b.device, dtype=torch.uint8)
        y = (
            torch.empty(shape, device=b.device)
            if lift is None
            else torch.empty((1 + self.pair, *shape), device=b.device, dtype=self.half)
        )
        block, warps, stages, registers = self.tiles["y1" if self.few else "y"]
        wide = min(VALUES_PER_PRODUCT[self.pair], self.wide) if self.few else self.wide
        launch_kernel(
            kernels.forward,
            (triton.cdiv(images * self.ph * self.pw, block), rows),
            x,
            *self._place(x),
            1.0 / self.scale,
            w.lines,
            w.lines[0].numel(),
            w.largest,
            b,
            b.stride(0),
            y,
            y[0].numel(),
            lift or 1.0,
            arg,
            images,
            *(self.h, self.w, self.cp, self.k, self.n),
            *(self.deep, wide, lift is None, save),
            block,
            self.pair,
            num_warps=warps,
            num_stages=stages,
            maxnreg=registers,
        )
        return y, arg

    def backward(
        self,
        g: Tensor,
        top: Tensor,
        x: Tensor,
        arg: Tensor,
        w: PackedWeights,
        sink: Tensor,
        bias: Tensor,
        deeper: bool,
    ) -> Tensor | None:
        """Add the weights' gradients to their sinks; the input's, scaled, where `deeper`.

        g is float32 (R, B, ph, pw, n), or what the stage above gave; top are its magnitudes (R,).
        """
        whole = g.dtype == torch.float32
        rows, images = arg.shape[:2]
        gap = arg.numel()
        shape = (images, self.h, self.w, self.cp, self.k, self.n)
        if self.few:
            self._lines_backward(g, top, x, arg, sink, bias, shape)
            return None
        count = arg[0].numel()
        launch_kernel(
            kernels.bias_grad,
            (rows,),
            *(g, gap, top, arg, bias, bias.stride(0)),
            *(count // self.n, self.n, whole, 128, self.pair),
        )
        d = torch.empty(1 + self.pair, 4 * gap, device=g.device, dtype=self.half)
        launch_kernel(
            kernels.unpool,
            (triton.cdiv(count, 2048), rows),
            *(g, gap, top, arg, d, 4 * gap, count),
            *(self.ph, self.pw, self.n, whole, 2048, self.pair),
        )
        below = None
        if deeper and w.back is not None:
            like = (1 + self.pair, rows, images, self.h, self.w, self.c)
            below = torch.empty(like, device=g.device, dtype=self.half)
            block, warps, stages, registers = self.tiles["dx"]
            pairs = images * self.h * ((self.w + 1) // 2)
            launch_kernel(
                kernels.input_grad,
                (triton.cdiv(pairs, block), rows),
                *(d, 4 * gap, w.back, w.back[0].numel(), w.largest, below, below[0].numel()),
                *(*shape, block, self.pair),
                num_warps=warps,
                num_stages=stages,
                maxnreg=registers,
            )
        block, warps, stages, registers = self.tiles["dw"]
        launch_kernel(
            kernels.weight_grad,
            (self.k, rows),
            *(x, *self._place(x), 1.0 / self.scale, d, 4 * gap, top, sink, sink.stride(0)),
            *(*shape, block, self.pair),
            num_warps=warps,
            num_stages=stages,
            maxnreg=registers,
        )
        return below

    def _lines_backward(
        self,
        g: Tensor,
        top: Tensor,
        x: Tensor,
        arg: Tensor,
        sink: Tensor,
        bias: Tensor,
        shape: tuple[int, ...],
    ) -> None:
        rows = len(arg)
        stretches = 4 if 4 * rows >= PROGRAMS else 8
        part = torch.empty(stretches, rows, self.deep, 2 * self.n, device=g.device)
        bias_part = torch.empty(stretches, rows, self.n, device=g.device)
        block, warps, stages, registers = self.tiles["d1"]
        launch_kernel(
            kernels.lines_grad,
            (stretches * (self.deep // self.wide), rows),
            *(x, *self._place(x), g, arg.numel(), top, arg, part, bias_part, rows),
            *(*shape, self.deep, self.wide, stretches, g.dtype == torch.float32, block, self.pair),
            num_warps=warps,
            num_stages=stages,
            maxnreg=registers,
        )
        launch_kernel(
            kernels.fold,
            (triton.cdiv(sink[0].numel(), 1024), rows),
            *(
                part,
                bias_part,
                top,
                1.0 / self.scale,
                sink,
                sink.stride(0),
                bias,
                bias.stride(0),
                rows,
            ),
            *(self.c, self.cp, self.k, self.n, self.deep, stretches, 1024),
        )
