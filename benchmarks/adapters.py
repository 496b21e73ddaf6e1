"""Memory and speed of LoRA rows: one frozen base for all clients, an adapter for each.

A small GPT (pre-norm blocks, random weights) reads images of 28 lines as 28 tokens. It is trained
twice with the same clients: with its base frozen and adapters at queries and values, and as a
whole. The peak is that of the device's memory in three rounds, less what was there before.

    python benchmarks/adapters.py                      on a GPU: width 768, 12 blocks, 50 rows
    python benchmarks/adapters.py --tiny               a quick look on a CPU

Needs torch and numpy alone. Prints a line per setting and writes adapters.json into --out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmaba import strategies
from fedmaba.adapters import add_lora
from fedmaba.data.datasets import Dataset
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.rows.base import constants
from fedmaba.simulation import engine

TOKENS, FEATURES, CLASSES = 28, 28, 10


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, heads = self.first(x), x.shape[-1] // 64 or 1
        q, k, v = (
            layer(seen).unflatten(-1, (heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.tokens = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def federation(clients: int, each: int) -> Federation:
    """Clients with `each` random images for training and one for test."""
    draw, n = np.random.default_rng(0), clients * (each + 1)
    x = draw.standard_normal((n, TOKENS, FEATURES), np.float32)
    y = draw.integers(CLASSES, size=n)
    rows = np.arange(n).reshape(clients, each + 1)
    nobody = tuple(np.zeros(0, np.int64) for _ in range(clients))
    split = Split(tuple(r[:each] for r in rows), nobody, tuple(r[each:] for r in rows))
    names = tuple(map(str, range(CLASSES)))
    return Federation(Dataset("random", x, y.astype(np.int64), n, names), split)


def measured(how: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One setting: numbers of the model, peak of memory and seconds of a round."""

    def model(shape: tuple[int, ...], classes: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            whole = Transformer(asked.width, asked.blocks)
        return whole if how == "whole" else add_lora(whole, ["q", "v"], rank=8, train=["head"])

    cuda = asked.device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else _resident()
    plan = engine.Plan(
        rounds=asked.rounds, minibatch=asked.minibatch, lr=0.01, eval_every=asked.rounds,
        dtype=asked.dtype, device=asked.device, chunk=asked.clients,
    )  # fmt: skip
    run = engine.Run(strategies.parse("fedavg")[0], 0, federation(asked.clients, asked.each))
    began = time.perf_counter()
    batch = engine.start([run], plan, model)
    seconds = []
    for _ in engine.simulate(batch):
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        print(f"  {how}: round {len(seconds)}, {seconds[-1]:.2f} s", flush=True)
    peak = torch.cuda.max_memory_allocated() if cuda else _resident()
    shapes = batch.rows.layout.shapes
    return {
        "model": how,
        "form": batch.rows.path,
        "rows": batch.progress.chunk,
        "held_once": sum(v.numel() for v in constants(batch.rows.model).values()),
        "in_each_row": sum(shape.numel() for shape in shapes),
        "peak_bytes": peak - before,
        "seconds_a_round": seconds[-1],
        "seconds_first_round": seconds[0],
    }


def _resident() -> int:
    """The most bytes ever in memory."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a quick look")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--each", type=int, default=100, help="training examples of a client")
    parser.add_argument("--minibatch", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bf16")
    asked = parser.parse_args()
    if asked.tiny:
        asked.width, asked.blocks, asked.clients, asked.each = 32, 2, 4, 12
        asked.minibatch, asked.dtype = 6, "float32"
    found = []
    for how in ("adapters", "whole"):  # on a CPU the peak is that of both, so the small one first
        try:
            found.append(measured(how, asked))
        except Exception as error:  # the other setting is measured all the same
            traceback.print_exc()
            found.append({"model": how, "error": f"{type(error).__name__}: {error}"[:300]})
        print(json.dumps(found[-1]), flush=True)
    about = {"asked": vars(asked), "torch": torch.__version__, "found": found}
    Path(asked.out, "adapters.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
