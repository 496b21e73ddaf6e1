"""Times the convolution kernels of the paper's CNN over tile shapes, to choose `kernels.TILES`.

python benchmarks/tiles.py            needs a CUDA device
"""

import torch
import triton

from fedmaba.rows.kernels import Stage

ROWS, IMAGES = 330, 50
SHAPES = {  # block, warps, stages
    "line": [(32, 4, 1), (64, 4, 1), (128, 4, 1), (128, 8, 1)],
    "tap": [(16, 4, 3), (32, 4, 2), (32, 4, 3), (64, 4, 2)],
    "dx": [(64, 4, 3), (128, 4, 2), (128, 4, 3), (128, 8, 2), (256, 8, 2)],
    "dw": [(32, 4, 2), (32, 4, 3), (64, 4, 2), (64, 4, 3)],
    "d1": [(32, 4, 1), (64, 4, 1), (64, 4, 2), (128, 4, 1)],
}


def jobs(pair: bool):
    """Both stages, and for each kind of kernel a call in which it does the most."""
    torch.manual_seed(0)
    first, second = Stage(32, 32, 3, 5, 64, pair), Stage(14, 14, 64, 5, 64, pair)
    x = torch.randn(ROWS, IMAGES, 32, 32, 3, device="cuda")
    bias = torch.zeros(ROWS, 64, device="cuda")
    w1 = first.pack(torch.randn(ROWS, 5, 5, 3, 64, device="cuda") * 0.1)
    w2 = second.pack(torch.randn(ROWS, 5, 5, 64, 64, device="cuda") * 0.03)
    y1, a1 = first.forward(x, w1, bias, False)
    y2, a2 = second.forward(y1, w2, bias, True)
    g2 = torch.randn_like(y2)
    s1, s2 = (torch.zeros(w.shape[1:], device="cuda") for w in (w1, w2))
    g1 = second.backward(g2, y1, a2, w2, s2, bias, True)
    return (first, second), {
        "line": lambda: first.forward(x, w1, bias, False),
        "tap": lambda: second.forward(y1, w2, bias, True),
        "dx": lambda: second.backward(g2, y1, a2, w2, s2, bias, True),
        "dw": lambda: second.backward(g2, y1, a2, w2, s2, bias, False),
        "d1": lambda: first.backward(g1, x, a1, w1, s1, bias, False),
    }


for pair in (True, False):
    stages, calls = jobs(pair)
    for name, shapes in SHAPES.items():
        times = []
        for shape in shapes:
            before = [stage.tiles for stage in stages]
            for stage in stages:
                stage.tiles = {**stage.tiles, name: shape}
            try:
                times.append((triton.testing.do_bench(calls[name], return_mode="median"), shape))
            except triton.runtime.errors.OutOfResources:
                continue
            finally:
                for stage, tiles in zip(stages, before, strict=True):
                    stage.tiles = tiles
        listed = ", ".join(f"{shape} {ms:.2f} ms" for ms, shape in sorted(times))
        print("pair" if pair else "bf16", name, listed, flush=True)
