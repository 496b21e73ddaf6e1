"""Memory of a large federation: peak above the data, through `engine.simulate`.

A million clients with two training and one test example of 20 numbers each, softmax regression,
10,000 participants a round, on a CPU. The last two settings have clients that keep a vector as long
as the model of 784 inputs, 7,850 numbers. Each setting is a process of its own. The peak is that of
the resident set after the federation was made, less what it was then.

    python benchmarks/memory.py          prints a line per setting, writes results/memory.json

`--turnout` does the same where clients have chances, speeds and bandwidths (see WHO).
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
CLASSES = 10
WHO = {"available": "p=0.2..0.9", "dropout": "10%", "speed": "lognormal:0.5", "deadline": "1m"}
WHO |= {"bandwidth": "lognormal:1"}
SETTINGS = [  # strategy, clients, participants, inputs
    ("fedavg", 1_000_000, 10_000, 20),
    ("fedmaba", 1_000_000, 10_000, 20),
    ("fedmaba", 1_000_000, 1_000, 20),
    ("fedmaba", 100_000, 10_000, 20),
    ("fedmaba", 100_000, 100_000, 20),
    ("feddyn", 100_000, 100_000, 784),
    ("ditto", 100_000, 100_000, 784),
]


def resident() -> int:
    """Bytes now in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """The most bytes ever in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(
    spec: str, clients: int, participants: int, inputs: int, rounds: int, each: int, turnout: bool
) -> dict[str, object]:
    """One setting, in this process."""
    from fedmaba import strategies
    from fedmaba.data import datasets
    from fedmaba.data.federation import Federation
    from fedmaba.simulation.engine import Plan, Run, simulate, start
    from fedmaba.turnout.plan import Turnout

    rng = np.random.default_rng(0)
    n = clients * (each + 1)
    x = rng.standard_normal((n, inputs), dtype=np.float32)
    y = np.arange(n) % CLASSES
    train = clients * each
    data = datasets.from_arrays(x[:train], y[:train], x_test=x[train:], y_test=y[train:])
    del x, y
    fed = Federation.make(data, "iid", clients, 0)
    run = Run(strategies.parse(spec)[0], 0, fed)
    gc.collect()
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the data
    begun = time.perf_counter()
    who = Turnout.parse(WHO) if turnout else None
    more = {"participants": participants, "eval_every": rounds, "threads": 1, "turnout": who}
    batch = start([run], Plan(rounds, **more), "softmax")
    between = time.perf_counter()
    for _ in simulate(batch):
        pass
    return {
        "strategy": spec,
        "clients": clients,
        "participants": participants,
        "inputs": inputs,
        "examples": n,
        "data_bytes": before,
        "peak_above_bytes": peak() - before,
        "start_seconds": between - begun,
        "round_seconds": (time.perf_counter() - between) / rounds,
    }


def apart(*setting: object) -> dict[str, object]:
    """One setting in a process of its own."""
    command = [sys.executable, __file__, "--one", *map(str, setting)]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(out.stdout))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=4, metavar=("STRATEGY", "CLIENTS", "PARTICIPANTS", "INPUTS"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", type=int, default=2, help="training examples of a client")
    parser.add_argument("--turnout", action="store_true", help="chances, speeds and bandwidths")
    parser.add_argument("--out", default=RESULTS / "memory.json", type=Path)
    asked = parser.parse_args()
    if asked.one:
        spec, *sizes = asked.one
        print(json.dumps(measure(spec, *map(int, sizes), asked.rounds, asked.each, asked.turnout)))
        sys.exit()
    from cpu import about  # here: what is measured shall not hold torch before its own start

    found = []
    for setting in SETTINGS:
        more = ["--turnout"] * asked.turnout
        one = apart(*setting, "--rounds", asked.rounds, "--each", asked.each, *more)
        found.append(one)
        print(
            f"{setting[0]}, {setting[1]:,} clients, {setting[2]:,} a round, "
            f"{setting[3]} inputs: peak "
            f"{one['peak_above_bytes'] / 1e9:.2f} GB above {one['data_bytes'] / 1e9:.2f}, "
            f"{one['round_seconds']:.2f} s a round",
            flush=True,
        )
    asked.out.write_text(json.dumps({**about(), "settings": found}, indent=2) + "\n")
