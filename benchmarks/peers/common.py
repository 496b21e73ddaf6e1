"""What every peer's script shares: the job, its data, and a clock that is told of each round.

Run by `benchmarks/peers.py`, in the peer's own environment: FOLDER PARTICIPANTS WARM ROUNDS.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

FOLDER = Path(sys.argv[1])
PARTICIPANTS, WARM, ROUNDS = map(int, sys.argv[2:5])
CLIENTS, EACH, MINIBATCH, LR = 100, 600, 50, 0.1


def data():
    """Images (100, 600, 784) and labels (100, 600) of the clients."""
    return tuple(np.load(FOLDER / f"{name}.npy", allow_pickle=False) for name in "xy")


def mlp():
    """784-200-200-10."""
    from torch import nn

    layers = (nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    return nn.Sequential(*layers)


def cpu_seconds():
    """CPU seconds of this process and of all that it started, which Ray's workers are."""
    parent, used = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parent[int(entry)] = int(fields[1])
            used[int(entry)] = sum(map(int, fields[11:15]))  # own and reaped children's
    total = 0
    for pid in used:
        above = pid
        while above not in (0, os.getpid()):
            above = parent.get(above, 0)
        total += used[pid] if above else 0
    return total / os.sysconf("SC_CLK_TCK")


def define_nms():
    """Let a torchvision that was compiled for another torch be imported; none of it is used."""
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float t) -> Tensor")


class Clock:
    """Starts after the warm rounds; prints client updates a second once all are done."""

    def __init__(self):
        self.round = 0

    def tick(self):
        """A round has ended."""
        self.round += 1
        if self.round == WARM:
            self.begun = cpu_seconds(), time.perf_counter()
        elif self.round == WARM + ROUNDS:
            cpu, wall = cpu_seconds() - self.begun[0], time.perf_counter() - self.begun[1]
            updates = ROUNDS * PARTICIPANTS
            print(json.dumps({"updates_per_cpu_second": updates / cpu, "wall": updates / wall}))
            sys.stdout.flush()
