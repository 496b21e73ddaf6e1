"""How long a large table takes to load: 100,000 rows, 50 columns, 1,000 uneven clients.

A CSV file with 40 columns of numbers, 6 of words, a label, a client and a split column and gaps is
read, prepared and divided over its clients, in a process of its own. CPU seconds are measured, so
that a busy machine does not count; the memory is the most that the process ever had.

    python benchmarks/tables.py          prints both; exit code 1 above 10 s or 1 GB
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS, NUMBERS, WORDS, CLIENTS = 100_000, 40, 6, 1_000


def write(path: Path) -> None:
    """The table: clients of log-normal sizes, one cell in fifty empty."""
    rng = np.random.default_rng(0)
    weight = np.exp(1.5 * rng.standard_normal(CLIENTS))
    owner = rng.choice(CLIENTS, ROWS, p=weight / weight.sum())
    numbers = rng.normal(50, 10, (ROWS, NUMBERS))
    gaps = rng.random((ROWS, NUMBERS)) < 0.02
    words = rng.integers(0, 8, (ROWS, WORDS))
    label = np.where(numbers[:, 0] + owner % 3 > 51, "yes", "no")
    split = rng.choice(["train", "validation", "test"], ROWS, p=[0.7, 0.1, 0.2])
    names = [f"n{i}" for i in range(NUMBERS)] + [f"w{i}" for i in range(WORDS)]
    with path.open("w") as out:
        out.write(",".join([*names, "id_of_patient", "client", "split", "label"]) + "\n")
        for i in range(ROWS):
            cells = ["" if g else f"{v:.2f}" for v, g in zip(numbers[i], gaps[i], strict=True)]
            cells += [f"word{w}" for w in words[i]]
            out.write(",".join([*cells, str(i * 7), f"c{owner[i]}", split[i], label[i]]) + "\n")


def load(path: str) -> None:
    """Load it and print CPU seconds and the largest memory in MB."""
    from fedmaba.data import datasets, tables
    from fedmaba.data.federation import Federation

    start = time.process_time()
    data = datasets.load(path, reading=tables.reading(drop=["id_of_patient"]))
    fed = Federation.make(data, "given")
    seconds = time.process_time() - start
    sizes = fed.train.size
    print(f"{fed.n_clients} clients of {sizes.min()} to {sizes.max()} training examples,", end=" ")
    print(f"inputs {fed.data.x.shape}")
    print(f"{seconds:.1f} {most_memory():.0f}")


def most_memory() -> float:
    """The most memory in MB that this process had: ru_maxrss counts that of its parent, too."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024


def measure() -> tuple[float, float, str]:
    """CPU seconds, MB, and what was loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.csv"
        write(path)
        command = [sys.executable, __file__, str(path)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told, numbers = out.strip().splitlines()
    seconds, megabytes = map(float, numbers.split())
    return seconds, megabytes, told


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load(sys.argv[1])
    else:
        seconds, megabytes, told = measure()
        print(f"{told}\n{seconds} CPU seconds, {megabytes:.0f} MB")
        sys.exit(seconds > 10 or megabytes > 1000)
