"""Many rounds in one process with checkpoints: memory, open files and threads stay flat."""

from __future__ import annotations

import gc
import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from faults.common import Say, Tally, make_data, progress, scratch

LIMIT = 1.0  # MB of resident memory per 1,000 rounds


class Slope(NamedTuple):
    """A straight line through samples, with its 95 % interval."""

    value: float
    low: float
    high: float


def slope(x: np.ndarray, y: np.ndarray) -> Slope:
    """Least squares; the interval allows for samples that follow each other (AR(1))."""
    x = x - x.mean()
    value = float(x @ (y - y.mean()) / (x @ x))
    left = y - y.mean() - value * x
    r = float(np.clip(left[1:] @ left[:-1] / max(float(left @ left), 1e-300), 0.0, 0.99))
    spread = math.sqrt(float(left @ left) / max(1, len(x) - 2) / float(x @ x))
    half = 1.96 * spread * math.sqrt((1 + r) / (1 - r))
    return Slope(value, value - half, value + half)


def resident() -> float:
    """MB of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` rounds; sampled after every hundredth of them, the first fifth left out."""
    from fedmaba.experiment import config, opening
    from fedmaba.experiment import session as experiment

    tally, show = Tally(), progress(say, "soak")
    with scratch() as root:
        tree = {"strategies": ["fedavg", "fedmaba", "fedfv"], "seeds": 1, "model": "softmax"}
        for name, value in {
            "data.name": str(make_data(root / "tiny.npz")), "train.rounds": count,
            "train.participants": 4, "train.minibatch": 5, "eval.every": 10,
            "machine.device": "cpu", "machine.threads": 2, "save.every": 50, "train.lr": 0.01,
        }.items():  # fmt: skip
            config.set_key(tree, name, value)
        session = experiment.prepare(config.build(tree))
        opening.open_run_folder(session, root / "run")
        seen = []
        every = max(1, count // 100)
        for snapshot in session.rounds():
            done = snapshot.round + 1
            if done % every == 0:
                gc.collect()
                tables = _bytes(session.history) / 1e6
                handles = len(os.listdir("/proc/self/fd"))
                tasks = len(os.listdir("/proc/self/task"))
                seen.append((done, resident(), handles, tasks, tables))
            show(done, count, tally)
    late = np.array(seen[len(seen) // 5 :], float)
    rounds = late[:, 0] / 1000
    memory = slope(rounds, late[:, 1])
    own = slope(rounds, late[:, 4])
    tally.tried = count
    for name, column in (("open files", 2), ("threads", 3)):
        if late[-1, column] > late[0, column]:
            tally.lose(f"{name} grew from {late[0, column]} to {late[-1, column]}")
    if memory.low > LIMIT:
        tally.lose(f"resident memory grows by {memory.value:.3f} MB per 1,000 rounds")
    tally.figures = {
        "MB per 1,000 rounds": round(memory.value, 3),
        "interval": [round(memory.low, 3), round(memory.high, 3)],
        "of which the client x round tables": round(own.value, 3),
        "MB at the end": round(late[-1, 1], 1),
        "open files": [int(late[:, 2].min()), int(late[:, 2].max())],
        "threads": [int(late[:, 3].min()), int(late[:, 3].max())],
    }
    return tally


def _bytes(history: object) -> int:
    """What the tables in memory must hold."""
    runs = history.runs
    return sum(v.array().nbytes for run in runs for v in run.tables.values())
