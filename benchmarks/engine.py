"""Client updates per second through `engine.simulate`, as a user calls it.

A client update is all local steps of one client in one round. Data gathering, FedMABA's start-loss
pass, aggregation and an evaluation every 20 rounds are part of it. Prints a line per job, with the
slowest and the fastest 20 rounds of it, and writes JSON.

    python benchmarks/engine.py --device cuda --out engine.json
"""

import argparse
import json
import platform
import time

import numpy as np
import torch

from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.simulation.engine import Plan, Run, simulate, start

GRID = ("fedmaba:alpha=[0,.1,.2,.3,.4,.5,.6,.7,.8,.9,1]",)
TABLE = (  # the rows of Table II: some are weighed before training, some after
    *("fedavg", "fedsgd", "qffl", "fedmgda:eta=[1,0.1]", "term:normalise=[paper,reference]"),
    *("afl:lam=[0.05,0.5]", "propfair:below=[tangent,scaled]", "fedprox", "fedfv"),
    "fedmaba:alpha=[0.5,0.8]",
)
JOBS = {  # model, images per client, strategies, seeds, participants, precision, rounds
    "mlp, 33 runs x 100 clients": ("mlp", 600, GRID, 3, None, "tf32", 80),
    "mlp, 33 runs x 100 clients, float32": ("mlp", 600, GRID, 3, None, "float32", 60),
    "mlp, 1 run, 10 of 100 clients": ("mlp", 600, ("fedmaba",), 1, 10, "tf32", 4020),
    "cnn, 33 runs x 10 of 100 clients": ("cnn", 500, GRID, 3, 10, "tf32", 60),
    "cnn, 33 runs x 10 of 100 clients, float32": ("cnn", 500, GRID, 3, 10, "float32", 60),
    "cnn, 33 runs x 10 of 100 clients, bf16": ("cnn", 500, GRID, 3, 10, "bf16", 60),
    "mlp, 45 runs, 15 strategies x 100 clients": ("mlp", 600, TABLE, 3, None, "tf32", 60),
    "cnn, 45 runs, 15 strategies x 10 of 100 clients": ("cnn", 500, TABLE, 3, 10, "tf32", 60),
}
EVERY = 20  # rounds between evaluations; the first 20 are not timed: kernels are compiled then


def examples(model: str, each: int, tested: int = 10_000) -> datasets.Dataset:
    """Random images of the size of Fashion-MNIST or CIFAR-10, ten classes, 100 clients' worth."""
    rng = np.random.default_rng(0)
    shape = (1, 28, 28) if model == "mlp" else (3, 32, 32)
    x = rng.standard_normal((100 * each + tested, *shape), dtype=np.float32)
    y = np.arange(len(x)) % 10
    n = 100 * each
    return datasets.from_arrays(x[:n], y[:n], x_test=x[n:], y_test=y[n:])


def measure(name: str, device: str) -> dict[str, object]:
    model, each, specs, seeds, participants, dtype, rounds = JOBS[name]
    data = examples(model, each)
    feds = [Federation.make(data, "shards:2", 100, seed) for seed in range(seeds)]
    chosen = [strategy for spec in specs for strategy in strategies.parse(spec)]
    runs = [Run(strategy, i, fed) for i, fed in enumerate(feds) for strategy in chosen]
    plan = Plan(rounds, participants=participants, eval_every=EVERY, dtype=dtype, device=device)
    batch = start(runs, plan, model)
    updates, marks = 0, []
    for snapshot in simulate(batch):
        if snapshot.round >= EVERY:
            updates += sum(len(r.client) for r in snapshot.rounds if r)
        if (snapshot.round + 1) % EVERY == 0:
            marks.append(time.perf_counter())
    seconds = marks[-1] - marks[0]
    rate, parts = updates / seconds, np.diff(marks)  # a part: EVERY rounds and their evaluation
    slow, fast = (updates / len(parts) / part for part in (parts.max(), parts.min()))
    print(f"{name}, {dtype}: {rate:,.0f} client updates/s ({slow:,.0f} to {fast:,.0f})", flush=True)
    return {
        "job": name,
        "dtype": dtype,
        "updates_per_second": rate,
        "seconds": seconds,
        "slowest": slow,
        "fastest": fast,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--out", default="engine.json")
    asked = parser.parse_args()
    where = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor()
    found = [measure(name, asked.device) for name in JOBS if asked.only in name]
    with open(asked.out, "w") as f:
        json.dump({"device": where, "torch": torch.__version__, "jobs": found}, f, indent=2)
