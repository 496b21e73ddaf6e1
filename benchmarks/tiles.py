"""Times the kernels of `mlp` and `cnn` over tile shapes, to choose `conv.KERNEL_TILES`.

python benchmarks/tiles.py            needs a CUDA device
"""

import torch
import triton

from fedmaba.rows import conv, dense
from fedmaba.rows.layers import ConvStages

ROWS, IMAGES = 330, 50
SHAPES = {  # block, warps, stages, most registers of a thread
    "y1": [(64, 4, 1, None), (64, 4, 3, None), (64, 4, 3, 168), (64, 4, 4, 168), (128, 8, 1, None)],
    "y": [(64, 4, 3, None), (64, 4, 3, 168), (64, 8, 3, None), (128, 8, 3, None)],
    "dx": [(64, 4, 3, None), (128, 4, 3, None), (128, 8, 3, None), (256, 8, 3, None)],
    "dw": [(32, 4, 2, None), (32, 4, 3, None), (32, 4, 4, None), (64, 8, 3, None)],
    "d1": [(32, 4, 1, None), (32, 4, 3, None), (16, 4, 4, 168), (64, 8, 2, None)],
}


def jobs(dtype: str):
    """Both stages, and for each kind of kernel a call in which it does the most."""
    torch.manual_seed(0)
    first = conv.Stage(32, 32, 3, 5, 64, dtype, first=True)
    second = conv.Stage(14, 14, 64, 5, 64, dtype, first=False)
    images = torch.randn(ROWS * IMAGES, 3, 32, 32, device="cuda")
    x = ConvStages([first, second]).prepare(images)
    x = x.view(ROWS, IMAGES, *x.shape[1:])
    bias = torch.zeros(ROWS, 64, device="cuda")
    w1 = first.pack(torch.randn(ROWS, 5, 5, 3, 64, device="cuda") * 0.1, False)
    w2 = second.pack(torch.randn(ROWS, 5, 5, 64, 64, device="cuda") * 0.03, True)
    y1, a1 = first.forward(x, w1, bias, 1.0, True)
    y2, a2 = second.forward(y1, w2, bias, None, True)
    g2 = torch.randn_like(y2)
    top = conv.largest_magnitudes(g2, second.half)
    s1, s2 = (torch.zeros(ROWS, 5, 5, c, 64, device="cuda") for c in (3, 64))
    g1 = second.backward(g2, top, y1, a2, w2, s2, bias, True)
    return (first, second), {
        "y1": lambda: first.forward(x, w1, bias, 1.0, True),
        "y": lambda: second.forward(y1, w2, bias, None, True),
        "dx": lambda: second.backward(g2, top, y1, a2, w2, s2, bias, True),
        "dw": lambda: second.backward(g2, top, y1, a2, w2, s2, bias, False),
        "d1": lambda: first.backward(g1, top, x, a1, w1, s1, bias, False),
    }


def convolutions() -> None:
    for dtype in ("float32", "tf32", "bf16"):
        stages, calls = jobs(dtype)
        for name, shapes in SHAPES.items():
            times = []
            for shape in shapes:
                before = [stage.tiles for stage in stages]
                for stage in stages:
                    stage.tiles = {**stage.tiles, name: shape}
                try:
                    ms = triton.testing.do_bench(calls[name], 10, 40, return_mode="median")
                    times.append((ms, shape))
                except triton.runtime.errors.OutOfResources:
                    continue
                finally:
                    for stage, tiles in zip(stages, before, strict=True):
                        stage.tiles = tiles
            listed = ", ".join(f"{shape} {ms:.2f}" for ms, shape in sorted(times))
            print(dtype, name, "ms:", listed, flush=True)


def products() -> None:
    """Linear layers of the MLP and the CNN, against torch's."""
    for shape in ((3300, 784, 200), (3300, 200, 200), (10, 784, 200), (330, 1600, 384)):
        for dtype in ("float32", "tf32"):
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            times = [triton.testing.do_bench(call, 10, 40) for call in linear(*shape, dtype)]
            listed = " ".join(f"{ms:.3f}" for ms in times)
            print(*shape, dtype, "ms: forward, torch, backward, torch", listed, flush=True)


def linear(rows: int, wide: int, out: int, dtype: str):
    x = torch.rand(rows, IMAGES, wide, device="cuda")
    w = torch.randn(rows, wide, out, device="cuda") * 0.01
    b = torch.zeros(rows, out, device="cuda")
    g = torch.randn(rows, IMAGES, out, device="cuda") * 1e-6
    keys = torch.arange(rows, device="cuda")

    def torch_backward():
        torch.bmm(g, w.transpose(1, 2))
        w.baddbmm_(x.transpose(1, 2), g)

    return (
        lambda: dense.linear(x, w, b, True, keys, None, dtype),
        lambda: torch.bmm(x, w),
        lambda: dense.linear_back(g, x, w, w, b, True, 1.0, dtype),
        torch_backward,
    )


if __name__ == "__main__":
    products()
    convolutions()
