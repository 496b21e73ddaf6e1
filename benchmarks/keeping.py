"""How fast strategies are whose clients or server do more, beside FedAvg, in one process.

The strategies take turns of some rounds each, so that other work on the machine slows all of them
alike. Before the first round of a turn, and not later, a GPU waits for the host: so turns are not
too short. Prints each one's rate of client updates and its ratio to FedAvg's, the median over
turns. On a GPU the jobs are those of `engine.py`, 33 runs at once; on a CPU one run, in processor
time.

    python benchmarks/keeping.py --device cuda --out keeping.json
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

# Of FedAvg's rate. A backward pass takes two forward passes: FedNTD adds one to its three, MOON
# two; FedRep passes over the data twice. Of these, half the rate that their passes would leave.
NEEDED = {"scaffold": 0.7, "feddyn": 0.7, "ditto": 0.4}
NEEDED |= {"fedntd": 0.375, "moon": 0.3, "fedrep:epochs=1": 0.25, "median": 0.5}
SPECS = ("fedavg", *NEEDED, "scaffold:option=I", "fednova", "local", "fedala")
JOBS = {  # model, images per client, runs, participants of 100, precision, rounds of a turn
    "cuda": {
        "mlp, 33 runs x 100 clients": ("mlp", 600, 33, None, "tf32", 15),
        "mlp, 33 runs x 100 clients, float32": ("mlp", 600, 33, None, "float32", 3),
        "cnn, 33 runs x 10 of 100 clients": ("cnn", 500, 33, 10, "tf32", 5),
    },
    "cpu": {
        "mlp, 1 run, 20 of 100 clients": ("mlp", 600, 1, 20, "float32", 1),
        "cnn, 1 run, 4 of 100 clients": ("cnn", 500, 1, 4, "float32", 1),
    },
}
SEEDS = 3  # of the runs of a job; runs of one seed share their minibatches


def clock(device: str) -> float:
    """Seconds of this process on a CPU; on a GPU those on the clock, after all that was asked."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(name: str, specs: tuple[str, ...], device: str, turns: int) -> dict[str, object]:
    """The rates of all strategies on one job; the first two turns are not counted."""
    model, each, many, participants, dtype, rounds = JOBS[device][name]
    data = examples(model, each, 1000)  # enough test images for every client
    seeds = range(min(many, SEEDS))
    feds = [Federation.make(data, "shards:2", 100, seed) for seed in seeds]
    more = {"participants": participants, "dtype": dtype, "device": device}
    plan = Plan((turns + 2) * rounds, eval_every=10**6, **more)
    games = {}
    for spec in specs:
        (strategy,) = strategies.parse(spec)
        runs = [Run(strategy, k % len(feds), feds[k % len(feds)]) for k in range(many)]
        games[spec] = simulate(start(runs, plan, model))
    seconds: dict[str, list[float]] = {spec: [] for spec in specs}
    for _ in range(turns + 2):
        for spec, played in games.items():
            before = clock(device)
            for _ in range(rounds):
                next(played)
            seconds[spec].append(clock(device) - before)
    usual = np.array(seconds["fedavg"][2:])
    found: dict[str, object] = {}
    for spec in specs:
        mine = np.array(seconds[spec][2:])
        rate = many * (participants or 100) * rounds / float(np.median(mine))
        ratio = float(np.median(usual / mine))
        found[spec] = {"updates_per_second": rate, "ratio": ratio, "seconds": mine.tolist()}
        needed = f" (needed: {NEEDED[spec]})" if spec in NEEDED else ""
        print(f"{name}, {dtype}, {spec}: {rate:,.1f} client updates/s, {ratio:.2f} x{needed}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=JOBS, default=usual)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--all", action="store_true", help="strategies without a bound, too")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", default="keeping.json")
    asked = parser.parse_args()
    where = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor()
    specs = SPECS if asked.all else SPECS[: 1 + len(NEEDED)]
    told = {}
    for job in JOBS[asked.device]:
        if asked.only in job:
            told[job] = measure(job, specs, asked.device, asked.turns)
            with open(asked.out, "w") as f:  # after each, so that a run cut short leaves the rest
                json.dump({"device": where, "torch": torch.__version__, "jobs": told}, f, indent=2)
