"""One CPU core: the engine against the loop that everybody writes (`plain.py`).

Both do the same rounds of FedMABA, in one process, on one thread, a block of rounds each in turn;
an evaluation ends each block. The figure is the median over blocks of the ratio of CPU seconds,
which other work on the machine disturbs less than the clock on the wall. The models of both are
compared first, to 1e-4: after a round, those of the CNN after one step, because in float32 a
pooling window whose winner changes sides soon sets any two computations apart. So that a CNN block
takes minutes and not an hour, it has a twentieth of 20 rounds of 10 clients and 10,000 test images.

`torch.set_num_threads(1)` is not enough for one thread: on ARM oneDNN still wakes a second one, and
its CPU seconds would count against the plain loop. So the command starts itself anew with
OMP_NUM_THREADS=1, which must be there before torch is loaded.

    python benchmarks/cpu.py                 prints a line per job, writes results/cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from engine import examples
from fedmaba import models, strategies
from fedmaba.engine import Plan, Run, simulate, start
from fedmaba.federation import Federation
from plain import Plain

JOBS = {  # images per client, participants, rounds of a block, test images
    "mlp": (600, 10, 20, 10_000),
    "cnn": (500, 2, 5, 500),
}
RESULTS = Path(__file__).parent / "results"


def about() -> dict[str, str]:
    """What the figures depend on."""
    name = platform.processor() or platform.machine()
    if shutil.which("lscpu"):
        listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"Model name:\s*(.+)", listed)
        name = found[1] if found else name
    blas = "MKL" if torch.backends.mkl.is_available() else "OpenBLAS"
    return {"cpu": name, "torch": torch.__version__, "blas": blas}


def gap(kind: str, run: Run, participants: int, steps: int | None) -> float:
    """The largest difference of the models after one round, relative to the largest weight."""
    plan = Plan(1, participants=participants, steps=steps, threads=1)
    batch = start([run], plan, kind)
    next(simulate(batch))
    other = Plain(run, plan, models.factory(kind), same_masks=True)
    other.step()
    ours = batch.rows.layout.unpack(batch.progress.model[0])
    top = max(float(v.abs().max()) for v in other.server.values())
    return max(float((ours[k] - v).abs().max()) for k, v in other.server.items()) / top


def measure(kind: str, blocks: int) -> dict[str, object]:
    """Blocks of rounds of both sides, in turn."""
    each, participants, block, tested = JOBS[kind]
    fed = Federation.make(examples(kind, each, tested), "shards:2", 100, 0)
    run = Run(strategies.parse("fedmaba")[0], 0, fed)
    apart = gap(kind, run, participants, 1 if kind == "cnn" else None)
    if apart > 1e-4:
        raise SystemExit(f"{kind}: the two models differ by {apart:.1e}, more than 1e-4")
    plan = Plan(block * blocks, participants=participants, eval_every=block, threads=1)
    rounds = simulate(start([run], plan, kind))
    other = Plain(run, plan, models.factory(kind), same_masks=False)
    cpu, wall = [], []  # (ours, plain) seconds of each block
    for _ in range(blocks):
        begun = time.process_time(), time.perf_counter()
        for _ in range(block):
            next(rounds)
        between = time.process_time(), time.perf_counter()
        for _ in range(block):
            other.step()
        ended = time.process_time(), time.perf_counter()
        for seconds, a, b, c in zip((cpu, wall), begun, between, ended, strict=True):
            seconds.append((b - a, c - b))
    ratios = [plain / ours for ours, plain in cpu]
    rates = [block * participants / statistics.median(side) for side in zip(*cpu, strict=True)]
    ratio, clock = (statistics.median(p / o for o, p in pairs) for pairs in (cpu, wall))
    print(
        f"{kind}: {ratio:.2f} x the plain loop ({min(ratios):.2f} to {max(ratios):.2f}; wall "
        f"{clock:.2f}), {rates[0]:.2f} against {rates[1]:.2f} client updates per CPU second; the "
        f"models differ by {apart:.0e}",
        flush=True,
    )
    return {
        "job": kind,
        "ratio": ratio,
        "ratios": ratios,
        "ratio_wall": clock,
        "updates_per_second": rates[0],
        "plain_updates_per_second": rates[1],
        "model_gap": apart,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(JOBS))
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--out", default=RESULTS / "cpu.json", type=Path)
    asked = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        again = [sys.executable, *sys.argv]
        os.execve(again[0], again, {**os.environ, "OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    before = json.loads(asked.out.read_text())["jobs"] if asked.only and asked.out.exists() else []
    found = {job["job"]: job for job in before}
    found |= {kind: measure(kind, asked.blocks) for kind in JOBS if asked.only in (None, kind)}
    jobs = [found[kind] for kind in JOBS if kind in found]
    asked.out.write_text(json.dumps({**about(), "jobs": jobs}, indent=2) + "\n")
