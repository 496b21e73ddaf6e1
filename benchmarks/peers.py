"""One CPU core: the MLP job against other simulators, each in an environment of its own.

784-200-200-10, 100 clients with 600 images each, minibatch 50, one epoch, FedAvg, no evaluation;
all clients a round, and 10 of 100. Each script under `peers/` calls its simulator as its own
examples do. Start-up, loading and the first rounds are not timed; what is counted are CPU seconds,
of all processes that the simulator started. Ours runs before and after each peer.

    python benchmarks/peers.py           makes the environments, prints a table, writes JSON
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from cpu import RESULTS, about

HERE = Path(__file__).parent / "peers"
PEERS = {  # what to install beside torch
    "flower": ["flwr[simulation]==1.41.0"],
    "pfl": ["pfl==0.6.0"],
    "flgo": ["flgo==0.4.4"],
    "fedlab": ["fedlab==1.3.0"],
    "fluke": ["fluke-fl==0.8.1"],
    "fedjax": ["fedjax==0.0.17"],
}
CASES = {"10 of 100": (10, 1, 6), "all 100": (100, 1, 1)}  # participants, warm rounds, rounds


def write(path: Path, array: np.ndarray) -> None:
    """An .npy file that the scripts can map."""
    np.lib.format.open_memmap(path, "w+", array.dtype, array.shape)[:] = array


def environment(name: str, cache: Path, torch: str) -> Path | str:
    """The interpreter of a peer's environment, made where there is none; or why there is none."""
    python = cache / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", cache / name], check=True)
        wanted = PEERS[name] + ([] if name == "fedjax" else [f"torch=={torch}"])
        asked = [python, "-m", "pip", "install", "--quiet", *wanted]
        done = subprocess.run(asked, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    return python


def rate(python: Path | str, name: str, folder: Path, case: str) -> float | str:
    """Client updates per CPU second, or why there are none."""
    command = [python, HERE / f"{name}_.py", folder, *map(str, CASES[case])]
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    pin = (
        ["taskset", "-c", str(max(os.sched_getaffinity(0)))] if platform.system() == "Linux" else []
    )
    try:
        done = subprocess.run(
            [*pin, *command], capture_output=True, text=True, env={**os.environ, **one}, timeout=900
        )
    except subprocess.TimeoutExpired:
        return "more than 15 minutes"
    for line in done.stdout.splitlines():
        if line.startswith('{"updates_per_cpu_second"'):
            return float(json.loads(line)["updates_per_cpu_second"])
    return (done.stderr.strip() or "no output").splitlines()[-1]


def measure(name: str, python: Path | str, folder: Path) -> list[dict[str, object]]:
    """Ours, the peer, ours: for each case."""
    out = []
    version = PEERS[name][0].split("==")[1]
    for case in CASES:
        row: dict[str, object] = {"peer": name, "version": version, "case": case}
        if isinstance(python, str):
            out.append({**row, "not_run": python})
            continue
        ours = [rate(sys.executable, "fedmaba", folder, case)]
        theirs = rate(python, name, folder, case)
        ours.append(rate(sys.executable, "fedmaba", folder, case))
        if isinstance(theirs, str):
            out.append({**row, "not_run": theirs})
            print(f"{name} {version}, {case}: not run: {theirs}", flush=True)
            continue
        mean = statistics.mean(ours)
        out.append({**row, "updates_per_second": theirs, "ours": mean, "ratio": mean / theirs})
        print(
            f"{name} {version}, {case}: {theirs:.1f} updates per CPU second, ours {mean:.1f}: "
            f"{mean / theirs:.2f} x",
            flush=True,
        )
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(PEERS), nargs="*")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "fedmaba-peers")
    own = RESULTS / f"peers-{platform.machine()}.json"
    parser.add_argument("--out", default=own, type=Path)
    asked = parser.parse_args()
    folder = Path(__file__).parents[1] / "build" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    asked.cache.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    write(folder / "x.npy", rng.standard_normal((100, 600, 784), dtype=np.float32))
    write(folder / "y.npy", rng.integers(10, size=(100, 600)))
    found = json.loads(asked.out.read_text())["peers"] if asked.out.exists() and asked.only else []
    for name in asked.only or PEERS:
        python = environment(name, asked.cache, about()["torch"])
        found = [row for row in found if row["peer"] != name] + measure(name, python, folder)
        asked.out.write_text(json.dumps({**about(), "peers": found}, indent=2) + "\n")
