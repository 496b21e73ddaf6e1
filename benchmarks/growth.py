"""How time grows with clients, runs, parameters and rounds: slopes in log-log, with a plot.

Each axis is varied alone; a slope of 1 is proportional, above it something grows too fast. The time
is CPU seconds on one core, or with --device cuda seconds on the wall, the shortest of three; the
first rounds, in which things are made, compiled and recorded, are not counted.

    python benchmarks/growth.py          prints slopes, writes JSON and docs/images/growth-*.svg
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cpu import RESULTS, about
from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.simulation.engine import Plan, Run, simulate, start

BASE = {"clients": 200, "runs": 1, "width": 64}
ROUNDS = {"cpu": 8, "cuda": 32}
FIRST = {"cpu": 1, "cuda": 4}  # rounds that are not counted
TIMES = 3
AXES = {  # all clients in each round; parameters grow with the square of the hidden layers' width
    "cpu": {
        "clients": (250, 1_000, 4_000, 16_000),
        "runs": (1, 2, 4, 8, 16),
        "width": (64, 128, 256, 512),
        "rounds": (8, 16, 32, 64),
    },
    "cuda": {
        "clients": (1_000, 4_000, 16_000, 64_000),
        "runs": (4, 16, 64, 256),
        "width": (256, 512, 1_024, 2_048),
        "rounds": (64, 128, 256, 512),
    },
}


def seconds(device: str, clients: int, runs: int, width: int, rounds: int) -> tuple[float, int]:
    """Time of the rounds after the first, and the number of parameters."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5 * clients, 32), dtype=np.float32)
    y = np.arange(5 * clients) % 10
    data = datasets.from_arrays(
        x[: 4 * clients], y[: 4 * clients], x_test=x[4 * clients :], y_test=y[4 * clients :]
    )
    fed = Federation.make(data, "iid", clients, 0)

    def model(shape, classes):
        inner = (nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        return nn.Sequential(*inner, nn.Linear(width, classes))

    specs = [f"fedmaba:alpha={(1 + i) / (1 + runs)}" for i in range(runs)]
    batch = start(
        [Run(strategies.parse(spec)[0], 0, fed) for spec in specs],
        Plan(rounds + FIRST[device], minibatch=2, eval_every=8, device=device, threads=1),
        model,
    )
    clock = time.process_time if device == "cpu" else time.perf_counter
    begun = 0.0
    for snapshot in simulate(batch):
        if snapshot.round + 1 == FIRST[device]:
            begun = clock()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - begun, batch.rows.layout.size


def slope(x: list[float], y: list[float]) -> float:
    """Of a straight line through the upper half of the points, in log-log."""
    half = len(x) // 2
    return float(np.polyfit(np.log(x[half:]), np.log(y[half:]), 1)[0])


def measure(device: str) -> dict[str, dict[str, object]]:
    base = BASE | {"rounds": ROUNDS[device]}
    seconds(device, **base)  # warms up
    out: dict[str, dict[str, object]] = {}
    for axis, values in AXES[device].items():
        setting = base | ({"clients": 50} if axis == "width" else {})
        points = [
            min(seconds(device, **(setting | {axis: value})) for _ in range(TIMES))
            for value in values
        ]
        times = [t for t, _ in points]
        name = "parameters" if axis == "width" else axis
        at = [float(p) for _, p in points] if axis == "width" else [float(v) for v in values]
        out[name] = {"at": at, "seconds": times, "slope": slope(at, times)}
        listed = ", ".join(f"{a:,.0f}: {t:.2f} s" for a, t in zip(at, times, strict=True))
        print(f"{name}: slope {out[name]['slope']:.2f} ({listed})", flush=True)
    return out


def plot(device: str, found: dict[str, dict[str, object]]) -> None:
    """Time against each axis, both logarithmic, beside a line of slope 1."""
    from matplotlib.ticker import EngFormatter, NullFormatter

    from fedmaba.report import figures

    with figures.style():
        figure = figures.canvas((2.3 * len(found), 2.2))
        axes = figure.subplots(1, len(found), sharey=True)  # one range, so that they compare
        for axis, (name, one) in zip(axes, found.items(), strict=True):
            x, y = np.array(one["at"]), np.array(one["seconds"])
            axis.loglog(x, y[-1] * x / x[-1], color=figures.SOFT, lw=0.8, ls=(0, (3, 3)))
            axis.loglog(x, y, marker="o", markersize=4)
            axis.set(xlabel=name, title=f"slope {one['slope']:.2f}", xticks=x)
            axis.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.yaxis.set_minor_formatter(NullFormatter())
        axes[0].set_ylabel("seconds; dashed: slope 1")
        images = RESULTS.parents[1] / "docs" / "images"
        (images / f"growth-{device}.svg").write_bytes(figures.encode(figure, ".svg"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, metavar="JSON", help="only draw what is in a file")
    asked = parser.parse_args()
    if asked.plot is None:
        where = platform.machine() if asked.device == "cpu" else asked.device
        asked.plot = asked.out or RESULTS / f"growth-{where}.json"
        torch.set_num_threads(1)
        found = {**about(), "device": asked.device, "axes": measure(asked.device)}
        asked.plot.write_text(json.dumps(found, indent=2) + "\n")
    found = json.loads(asked.plot.read_text())
    plot(found["device"], found["axes"])
