"""One CPU core: the engine against the loop that everybody writes (`plain.py`).

That loop is there twice: with a DataLoader, and with images indexed in tensors, which is quicker.
All do the same rounds of FedMABA, in one process, on one thread, a block of rounds each in turn;
an evaluation ends each block. The figures are medians over blocks of ratios of CPU seconds,
which other work on the machine disturbs less than the clock on the wall. The models of all are
compared first, to 1e-4: after a round, those of the CNN after one step, because in float32 a
pooling window whose winner changes sides soon sets any two computations apart. So that a CNN block
takes minutes and not an hour, it has a twentieth of 20 rounds of 10 clients and 10,000 test images.

`torch.set_num_threads(1)` is not enough for one thread: on ARM oneDNN still wakes a second one, and
its CPU seconds would count against the plain loops. So the command starts itself anew with
OMP_NUM_THREADS=1, which must be there before torch is loaded.

    python benchmarks/cpu.py                 prints a line per job, writes results/cpu-MACHINE.json
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
from collections.abc import Callable
from pathlib import Path

import torch

from engine import examples
from fedmaba import strategies
from fedmaba.data.federation import Federation
from fedmaba.rows import models
from fedmaba.simulation.engine import Plan, Run, simulate, start
from plain import Plain

JOBS = {  # images per client, participants, rounds of a block, test images
    "mlp": (600, 10, 20, 10_000),
    "cnn": (500, 2, 5, 500),
}
LOOPS = {"a DataLoader": True, "tensors": False}  # how the plain loop comes by its images
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
    ours = batch.rows.layout.unpack(batch.progress.model[0])
    apart = []
    for loader in LOOPS.values():
        other = Plain(run, plan, models.find_factory(kind), same_masks=True, loader=loader)
        other.step()
        top = max(float(v.abs().max()) for v in other.server.values())
        apart += [float((ours[k] - v).abs().max()) / top for k, v in other.server.items()]
    return max(apart)


def measure(kind: str, blocks: int) -> dict[str, object]:
    """Blocks of rounds of all sides, in turn."""
    each, participants, block, tested = JOBS[kind]
    fed = Federation.make(examples(kind, each, tested), "shards:2", 100, 0)
    run = Run(strategies.parse("fedmaba")[0], 0, fed)
    apart = gap(kind, run, participants, 1 if kind == "cnn" else None)
    if apart > 1e-4:
        raise SystemExit(f"{kind}: the models differ by {apart:.1e}, more than 1e-4")
    plan = Plan(block * blocks, participants=participants, eval_every=block, threads=1)
    rounds = simulate(start([run], plan, kind))
    sides: dict[str, Callable[[], object]] = {"ours": lambda: next(rounds)}
    for name, loader in LOOPS.items():
        sides[name] = Plain(run, plan, models.find_factory(kind), loader=loader).step
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    wall: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(blocks):
        for name, step in sides.items():
            begun = time.process_time(), time.perf_counter()
            for _ in range(block):
                step()
            cpu[name].append(time.process_time() - begun[0])
            wall[name].append(time.perf_counter() - begun[1])
    rates = {name: block * participants / statistics.median(cpu[name]) for name in sides}
    found: dict[str, object] = {"job": kind, "updates_per_second": rates["ours"]}
    for name in LOOPS:
        ratios, clock = (
            [other / ours for ours, other in zip(side["ours"], side[name], strict=True)]
            for side in (cpu, wall)
        )
        ratio, by_clock = statistics.median(ratios), statistics.median(clock)
        print(
            f"{kind}: {ratio:.2f} x the plain loop with {name} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}; wall {by_clock:.2f}), {rates['ours']:.2f} against "
            f"{rates[name]:.2f} client updates per CPU second",
            flush=True,
        )
        found[name] = {
            "ratio": ratio,
            "ratios": ratios,
            "ratio_wall": by_clock,
            "updates_per_second": rates[name],
        }
    print(f"{kind}: the models differ by {apart:.0e}", flush=True)
    return {**found, "model_gap": apart}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(JOBS))
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--out", default=RESULTS / f"cpu-{platform.machine()}.json", type=Path)
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
