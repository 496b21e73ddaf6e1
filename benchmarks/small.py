"""Small tables on one CPU core: the engine against the loop that everybody writes (`plain.py`).

Clients have 100 rows of 20 numbers and all take part; both sides do the same rounds of FedMABA, in
one process and in turn, with start losses and an evaluation every five rounds. A line gives the
median of the ratios of CPU seconds of blocks of five rounds, and their range.

    python benchmarks/small.py           a minute; writes small.json into --out
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from cpu import about
from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.rows import models
from fedmaba.simulation.engine import Plan, Run, simulate, start
from plain import Plain

JOBS = {  # model and clients
    "softmax, 4 clients": ("softmax", 4),
    "softmax, 1,000 clients": ("softmax", 1000),
    "MLP 200-200, 4 clients": ("mlp", 4),
}
ROWS, NUMBERS, CLASSES = 100, 20, 2
EVERY = 5  # rounds of a block; an evaluation ends it


def measure(name: str, blocks: int) -> dict[str, object]:
    """Blocks of rounds of both sides, in turn; the first of each is not counted."""
    model, clients = JOBS[name]
    rng, train, tested = np.random.default_rng(0), clients * ROWS, clients * 20
    x = rng.standard_normal((train + tested, NUMBERS), dtype=np.float32)
    y = np.arange(len(x)) % CLASSES
    data = datasets.from_arrays(x[:train], y[:train], x_test=x[train:], y_test=y[train:])
    run = Run(strategies.parse("fedmaba")[0], 0, Federation.make(data, "iid", clients, 0))
    plan = Plan(EVERY * (blocks + 1), eval_every=EVERY, threads=1)
    played = simulate(start([run], plan, model))
    sides = {
        "ours": lambda: next(played),
        "plain": Plain(run, plan, models.find_factory(model)).step,
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(blocks + 1):
        for side, step in sides.items():
            begun = time.process_time()
            for _ in range(EVERY):
                step()
            seconds[side].append(time.process_time() - begun)
    ratios = [p / o for o, p in zip(seconds["ours"][1:], seconds["plain"][1:], strict=True)]
    ratio = statistics.median(ratios)
    each = {side: statistics.median(v[1:]) / EVERY for side, v in seconds.items()}
    print(
        f"{name}: {ratio:.1f} x the plain loop ({min(ratios):.1f} to {max(ratios):.1f}), "
        f"{1000 * each['ours']:.1f} against {1000 * each['plain']:.1f} ms a round",
        flush=True,
    )
    return {"job": name, "ratio": ratio, "ratios": ratios, "seconds_of_a_round": each}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--out", default=".", type=Path)
    asked = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        again = [sys.executable, *sys.argv]
        os.execve(again[0], again, {**os.environ, "OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    jobs = [measure(name, asked.blocks) for name in JOBS if asked.only in name]
    out = asked.out / "small.json"
    out.write_text(json.dumps({**about(), "jobs": jobs}, indent=2) + "\n")
