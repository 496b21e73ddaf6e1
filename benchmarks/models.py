"""Models of your own through `engine.simulate`, against the loop that everybody writes.

That loop is `plain.py`. Each model is a class of its own, as a user writes it: a CNN with
GroupNorm, ResNet-8 and ResNet-18 with GroupNorm, a small vision transformer, and LSTMs of 32 and of
80 steps. Five runs train ten clients each (ResNet-18: one run), 500 examples in minibatches of 50.

On CUDA the plain loop is timed on training alone. Ours also does FedMABA's start-loss pass, the
aggregation and an evaluation every 20 rounds. Both run in turn, on the same GPU. Before that, all
models are compiled at the same time, each in a process of its own, into the folder that keeps
compiled kernels; how long that took is part of the result.

    python benchmarks/models.py --out models.json            on CUDA: bf16, then tf32
    python benchmarks/models.py --device cpu                 one CPU core, small sizes, CPU seconds
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.simulation.engine import Plan, Run, simulate, start
from plain import Plain

EVERY = 20  # rounds between evaluations on CUDA; the first 20 are not timed


class GroupNormCNN(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32)
        self.conv2, self.norm2 = nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64)
        self.hidden, self.norm = nn.Linear(4096, 128), nn.LayerNorm(128)
        self.out = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        out: Tensor = self.out(F.gelu(self.norm(self.hidden(x.flatten(1)))))
        return out


class Block(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.GroupNorm(8, width), nn.GroupNorm(8, width)
        plain = stride == 1 and inside == width
        self.short = nn.Identity() if plain else nn.Conv2d(inside, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)))))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...], depth: int, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm, inside, blocks = nn.GroupNorm(8, widths[0]), widths[0], []
        for stage, width in enumerate(widths):
            for number in range(depth):
                blocks.append(Block(inside, width, 2 if stage and not number else 1))
                inside = width
        self.blocks, self.out = nn.Sequential(*blocks), nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        many, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(many, length, 3, self.heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.project(seen.reshape(many, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class ViT(nn.Module):
    """Patches of 4 x 4, four layers of width 128."""

    def __init__(self, width: int = 128, depth: int = 4, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches, self.out = nn.Conv2d(3, width, 4, 4), nn.Linear(width, classes)
        self.place = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        out: Tensor = self.out(self.layers(tokens).mean(1))
        return out


class LineLSTM(nn.Module):
    """An image as 32 lines."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.steps, self.out = nn.LSTM(96, 128, batch_first=True), nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        lines = x.permute(0, 2, 3, 1).reshape(len(x), 32, 96)
        out: Tensor = self.out(self.steps(lines)[0][:, -1])
        return out


class CharacterLSTM(nn.Module):
    """The next of 80 kinds of characters after 80, as in the Shakespeare task."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(80, 8), nn.Linear(128, classes)
        self.steps = nn.LSTM(8, 128, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.steps(self.embed(x.long()))[0][:, -1])
        return out


MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {  # model, runs, bar (updates/s)
    "CNN with GroupNorm": (GroupNormCNN, 5, 900),
    "ResNet-8": (lambda: ResNet((16, 32, 64), 1), 5, 350),
    "ViT": (ViT, 5, 320),
    "LSTM, 32 lines": (LineLSTM, 5, 552),
    "LSTM, 80 characters": (CharacterLSTM, 5, 0),
    "ResNet-18": (lambda: ResNet((64, 128, 256, 512), 2), 1, 46),
}


def examples(name: str, each: int, tested: int, clients: int) -> datasets.Dataset:
    """Random images of CIFAR-10's size, or random characters."""
    rng, n = np.random.default_rng(0), clients * each
    if "characters" in name:
        x = rng.integers(80, size=(n + tested, 80)).astype(np.float32)
        y = np.arange(len(x)) % 80
    else:
        x = rng.standard_normal((n + tested, 3, 32, 32), dtype=np.float32)
        y = np.arange(len(x)) % 10
    return datasets.from_arrays(x[:n], y[:n], x_test=x[n:], y_test=y[n:])


def jobs(name: str, small: bool) -> tuple[list[Run], Callable[..., nn.Module]]:
    """The runs of a model and the factory that makes it."""
    make, many, _ = MODELS[name]
    each = (20 if name == "ResNet-18" else 100, 40, 4) if small else (500, 10_000, 100)
    data = examples(name, *each)
    feds = [
        Federation.make(data, "iid", 4 if small else 100, s) for s in range(1 if small else many)
    ]
    strategy = strategies.parse("fedmaba")[0]
    return [Run(strategy, s, fed) for s, fed in enumerate(feds)], lambda shape, classes: make()


def on_cuda(name: str, dtype: str, rounds: int) -> dict[str, Any]:
    """Client updates per second of both."""
    runs, make = jobs(name, small=False)
    plan = Plan(rounds, participants=10, eval_every=EVERY, dtype=dtype, device="cuda")
    begun = time.perf_counter()
    batch = start(runs, plan, make)
    batch.rows.tell = lambda line: print(f"  {line}", flush=True)
    marks, updates = [], 0
    for snapshot in simulate(batch):
        if snapshot.round == 0:
            first = time.perf_counter() - begun
        updates += sum(len(r.client) for r in snapshot.rounds if r)
        if (snapshot.round + 1) % EVERY == 0:
            marks.append(time.perf_counter())
    found: dict[str, Any] = {"job": name, "dtype": dtype, "path": batch.rows.path}
    found |= {
        "rows": 10 * len(runs),
        "chunk": batch.progress.chunk,
        "seconds_to_first_round": first,
    }
    found["peak_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    if len(marks) > 1:
        parts = np.diff(marks)
        each = 10 * len(runs) * EVERY
        found |= {"updates_per_second": each * len(parts) / parts.sum()}
        found |= {"slowest": each / parts.max(), "fastest": each / parts.min()}
    return found


def plain_on_cuda(name: str, dtype: str) -> float:
    """Client updates per second of the plain loop, training alone."""
    runs, make = jobs(name, small=False)
    low = dtype == "bf16"
    for switch in (torch.backends.cuda.matmul, torch.backends.cudnn):
        switch.allow_tf32 = dtype != "float32"
    other = Plain(runs[0], Plan(1, device="cuda"), make, device="cuda")
    clients = iter(other.train * 2)

    def some(many: int) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            for _ in range(many):
                other.local(*next(clients), 0, 0.1)
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    some(2)
    return 20 / some(20)


def on_cpu(name: str, blocks: int) -> dict[str, Any]:
    """The same rounds by both, in turn, in CPU seconds of one core."""
    runs, make = jobs(name, small=True)
    minibatch = 10 if name == "ResNet-18" else 50
    plan = Plan(2 * blocks + 2, 2, 1, None, minibatch, eval_every=2, threads=1, device="cpu")
    batch = start(runs, plan, make)
    ours, other = simulate(batch), Plain(runs[0], plan, make)
    sides: dict[str, Callable[[], object]] = {"ours": lambda: next(ours), "plain": other.step}
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(blocks + 1):
        for side, step in sides.items():
            begun = time.process_time()
            for _ in range(2):
                step()
            taken[side].append(time.process_time() - begun)
    ratios = [p / o for o, p in zip(taken["ours"][1:], taken["plain"][1:], strict=True)]
    rates = {side: 4 / statistics.median(v[1:]) for side, v in taken.items()}
    found = {"job": name, "path": batch.rows.path, "ratio": statistics.median(ratios)}
    print(f"{name}: {found['ratio']:.2f} x the plain loop ({min(ratios):.2f} to {max(ratios):.2f})")
    return {**found, "ratios": ratios, "updates_per_second": rates}


def compile_all(names: list[str], dtypes: list[str], limit: float) -> dict[str, float]:
    """Compile every model at the same time; how long each took."""
    begun, out = time.perf_counter(), {}
    waiting = {
        (name, dtype): subprocess.Popen(
            [sys.executable, __file__, "--only", name, "--dtype", dtype, "--rounds", "1"],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"},
        )
        for dtype in dtypes
        for name in names
    }
    while waiting and time.perf_counter() - begun < limit:
        for (name, dtype), process in list(waiting.items()):
            if process.poll() is not None:
                out[f"{name}, {dtype}"] = time.perf_counter() - begun
                del waiting[name, dtype]
        time.sleep(0.2)
    for process in waiting.values():
        process.kill()
    print(f"compiled, all at the same time, in {time.perf_counter() - begun:.0f} s", flush=True)
    return out


def all_on_cuda(names: list[str], dtypes: list[str], rounds: int, limit: float) -> dict[str, Any]:
    """Every model in every precision, as long as time allows."""
    begun, found = time.perf_counter(), []
    seconds = compile_all(names, dtypes, 0.45 * limit)
    for dtype in dtypes:
        for name in names:
            if time.perf_counter() - begun > limit:
                print(f"{name}, {dtype}: no time left", flush=True)
                continue
            try:
                job = on_cuda(name, dtype, rounds)
                job["plain"] = plain_on_cuda(name, dtype)
            except Exception as error:  # one failure must not hide the other results
                print(f"{name}, {dtype}: {type(error).__name__}: {error}", flush=True)
                found.append({"job": name, "dtype": dtype, "failed": str(error)[:500]})
                continue
            bar = MODELS[name][2] or 12 * job["plain"]
            rate, other = job["updates_per_second"], job["plain"]
            print(
                f"{name}, {dtype}: {rate:,.0f} client updates/s (bar {bar:,.0f}), the plain loop "
                f"{other:.0f}: {rate / other:.1f} x; first round after "
                f"{job['seconds_to_first_round']:.0f} s, {job['peak_gigabytes']:.1f} GB",
                flush=True,
            )
            found.append({**job, "bar": bar, "ratio": rate / other})
    return {"compiled_together": seconds, "jobs": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--dtype", default="bf16,tf32")
    parser.add_argument("--rounds", type=int, default=2 * EVERY)
    parser.add_argument("--blocks", type=int, default=3, help="on a CPU")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which none begins")
    parser.add_argument("--out", default="models.json")
    asked = parser.parse_args()
    chosen, precisions = [n for n in MODELS if asked.only in n], asked.dtype.split(",")
    if asked.device == "cpu" and os.environ.get("OMP_NUM_THREADS") != "1":
        again = [sys.executable, *sys.argv]
        os.execve(again[0], again, {**os.environ, "OMP_NUM_THREADS": "1"})
    if asked.device == "cpu":
        torch.set_num_threads(1)
        result: dict[str, Any] = {"jobs": [on_cpu(name, asked.blocks) for name in chosen]}
    elif asked.rounds == 1:  # compiles only
        result = {"jobs": [on_cuda(chosen[0], precisions[0], 1)]}
        sys.exit()
    else:
        result = all_on_cuda(chosen, precisions, asked.rounds, asked.limit)
    where = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor()
    with open(asked.out, "w") as f:
        json.dump({"device": where, "torch": torch.__version__, **result}, f, indent=2)
