"""Fashion-MNIST as in the paper's set-up, all runs as one batch: prints the tables and the time.

100 clients, two label shards each, all of them in each round, one epoch of minibatch 50, step size
0.1 * 0.999^round, three seeds.

    FEDMABA_DATA=... python benchmarks/paper_table.py --rounds 1000 --device cuda
"""

import argparse
import time

import torch

from fedmaba import datasets, strategies
from fedmaba.engine import Plan, Run, simulate, start
from fedmaba.federation import Federation
from fedmaba.history import History, RunHistory
from fedmaba.report.table import plain

ROWS = [
    *("fedavg", "fedsgd", "fedprox:mu=0.1", "qffl:q=0.005", "afl:lam=[0.05,0.5]"),
    *("term:T=0.1", "term:normalise=reference", "propfair:below=scaled", "fedmaba:alpha=[0.5,0.8]"),
]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    asked = parser.parse_args()
    data = datasets.load("fashion-mnist")
    feds = [Federation.make(data, "shards:2", 100, seed) for seed in range(asked.seeds)]
    rules = [rule for spec in ROWS for rule in strategies.parse(spec)]
    runs = [Run(rule, seed, fed) for rule in rules for seed, fed in enumerate(feds)]
    plan = Plan(asked.rounds, eval_every=10, dtype=asked.dtype, device=asked.device)
    batch = start(runs, plan, "mlp")
    sizes = feds[0].test.size
    history = History([RunHistory(r.strategy.label(), r.seed, r.average, sizes) for r in runs])
    begun = time.perf_counter()
    for snapshot in simulate(batch):
        history.add(snapshot)
        if (snapshot.round + 1) % 100 == 0:
            print(f"round {snapshot.round + 1}, {time.perf_counter() - begun:.0f} s", flush=True)
    seconds = time.perf_counter() - begun
    for model in ("deployed", "last"):
        print(plain(history, model))
    print(plain(history, "last", "best"))
    print(f"{len(runs)} runs, {asked.rounds} rounds, {asked.dtype}: {seconds:.0f} s")
