"""How fast strategies are whose clients keep something, beside FedAvg, in one process.

The strategies take turns of a few rounds each, so that other work on the machine slows all of them
alike. Prints each one's rate of client updates and its ratio to FedAvg's, the median over turns.

    python benchmarks/keeping.py --device cpu --out keeping.json
"""

import argparse
import json
import platform
import time

import numpy as np
import torch

from engine import examples
from fedmaba import strategies
from fedmaba.data.federation import Federation
from fedmaba.simulation.engine import Plan, Run, simulate, start

SPECS = ("fedavg", "scaffold", "scaffold:option=I", "feddyn", "fednova", "ditto", "local")
JOBS = {"mlp": (600, 20), "cnn": (500, 4)}  # images per client, participants of 100
TURNS, ROUNDS = 7, 4  # the first turn is not counted


def measure(model: str, device: str, turns: int) -> dict[str, dict[str, float]]:
    each, participants = JOBS[model]
    fed = Federation.make(examples(model, each, 100), "shards:2", 100, 0)
    plan = Plan(turns * ROUNDS, participants=participants, eval_every=10**6, device=device)
    games = {}
    for spec in SPECS:
        (strategy,) = strategies.parse(spec)
        games[spec] = simulate(start([Run(strategy, 0, fed)], plan, model))
    seconds: dict[str, list[float]] = {spec: [] for spec in SPECS}
    for _ in range(turns):
        for spec, rounds in games.items():
            before = time.process_time() if device == "cpu" else time.perf_counter()
            for _ in range(ROUNDS):
                next(rounds)
            now = time.process_time() if device == "cpu" else time.perf_counter()
            seconds[spec].append(now - before)
    usual = np.array(seconds["fedavg"][1:])
    found = {}
    for spec in SPECS:
        mine = np.array(seconds[spec][1:])
        rate = participants * ROUNDS / float(np.median(mine))
        found[spec] = {"updates_per_second": rate, "ratio": float(np.median(usual / mine))}
        print(f"{model}, {spec}: {rate:,.1f} client updates/s, {found[spec]['ratio']:.2f} x FedAvg")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="mlp or cnn")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", default="keeping.json")
    asked = parser.parse_args()
    jobs = [model for model in JOBS if asked.only in model]
    told = {model: measure(model, asked.device, asked.turns) for model in jobs}
    with open(asked.out, "w") as f:
        json.dump({"device": platform.processor(), "torch": torch.__version__, "jobs": told}, f)
