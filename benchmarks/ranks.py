"""Client updates per second on one core, on two threads of one process, and on two ranks.

The MLP job (784-200-200-10, 600 images per client, minibatch 50, one epoch), full participation,
through `engine.simulate`, with FedMABA's start-loss pass; the best of the rounds after the first.
Also CPU seconds of all processes per update, which another user of the machine changes less, and
how long the ranks take to add up one round's changes. Prints a line each and writes JSON.

    python benchmarks/ranks.py --out ranks.json
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

WAYS = {
    "1 process, 1 thread": (1, 1),
    "1 process, 2 threads": (1, 2),
    "2 ranks, 1 thread each": (2, 1),
}
SPEC, CLIENTS, ROUNDS = "fedmaba:alpha=[0.5,0.8]", 40, 5


def work(threads: int) -> None:
    """One rank's part; rank 0 prints the figures."""
    import numpy as np
    import torch

    from fedmaba import strategies
    from fedmaba.data import datasets
    from fedmaba.data.federation import Federation
    from fedmaba.simulation import distributed as ranks
    from fedmaba.simulation.engine import Plan, Run, simulate, start

    us = ranks.join()
    rng = np.random.default_rng(0)
    n = 600 * CLIENTS
    x = rng.standard_normal((n + 2000, 1, 28, 28), dtype=np.float32)
    y = np.arange(len(x)) % 10
    data = datasets.from_arrays(x[:n], y[:n], x_test=x[n:], y_test=y[n:])
    fed = Federation.make(data, "shards:2", CLIENTS, 0)
    runs = [Run(s, 0, fed) for s in strategies.parse(SPEC)]
    plan = Plan(ROUNDS, eval_every=ROUNDS, threads=threads)
    batch = start(runs, plan, "mlp", ranks=us)
    times, cpu = [], []
    for _ in simulate(batch):
        times.append(time.perf_counter())
        cpu.append(time.process_time())
    # without the first round and the one with an evaluation
    seconds = min(np.diff(times[:-1]))
    busy = float(us.sum(torch.tensor([cpu[-2] - cpu[0]]))) / (ROUNDS - 2)
    delta = torch.zeros_like(batch.progress.model)
    summed = []
    for _ in range(10):
        us.least(0)
        begun = time.perf_counter()
        us.sum(delta)
        summed.append(time.perf_counter() - begun)
    if us.rank == 0:
        updates = len(runs) * CLIENTS
        out = {"updates_per_second": updates / seconds, "cpu_seconds_per_update": busy / updates}
        if us.count > 1:
            out |= {"sum_seconds": sorted(summed)[5], "sum_bytes": delta.nbytes}
        print(json.dumps(out))


def launch(count: int, threads: int) -> dict[str, float]:
    alone = [sys.executable]
    several = [
        *alone,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(count),
    ]
    done = subprocess.run(
        [*(several if count > 1 else alone), __file__, "--threads", str(threads)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.threads:
        work(asked.threads)
        return
    tried = [{name: launch(*how) for name, how in WAYS.items()} for _ in range(asked.repeats)]
    best = {
        name: max((t[name] for t in tried), key=lambda t: t["updates_per_second"]) for name in WAYS
    }
    for name, figures in best.items():
        print(name, {key: round(value, 4) for key, value in figures.items()}, flush=True)
    if asked.out:
        about = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        asked.out.write_text(json.dumps({**about, "best": best, "tried": tried}, indent=2) + "\n")


if __name__ == "__main__":
    main()
