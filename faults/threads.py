"""The same experiment with 1 and 2 threads, in fresh processes: the same hashes where promised."""

from __future__ import annotations

import os
from pathlib import Path

from faults import process
from faults.common import STRATEGIES, Say, Tally, differ, hashes, scratch

OWN = """
from torch import nn

def make(shape, classes):
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.LazyLinear(classes)
    )
"""
CASES = [
    ("mlp", [*STRATEGIES, "--model", "mlp", "--rounds", "2", "--steps", "2"]),
    ("softmax", [*STRATEGIES, "--model", "softmax", "--rounds", "3"]),
    ("cnn", ["fedavg", "fedmaba", "--model", "cnn", "--rounds", "1", "--steps", "2"]),
    ("own model", ["fedavg", "fedfv", "--model", "own_model:make", "--rounds", "2"]),
]


def campaign(count: int, seed: int, say: Say) -> Tally:
    """The first `count` cases."""
    tally = Tally()
    cores = os.cpu_count() or 1
    with scratch() as root:
        for name, words in CASES[:count]:
            say(f"threads: {name}")
            found = []
            for threads in (1, 2):
                here = root / f"{name}-{threads}"
                here.mkdir()
                (here / "own_model.py").write_text(OWN)
                base = ["compare", *words, "--data", "sample", "--partition", "iid", "--seeds", "1"]
                base += ["--device", "cpu", "--quiet", "--out", "run", "--participants", "5"]
                pid = process.spawn([*base, "--threads", str(threads)], here)
                code = process.wait(pid, 600)
                if code:
                    raise SystemExit(f"{name}: {code}: {(here / 'log').read_text()}")
                found.append(_bits(here / "run"))
            wrong = differ(*found)
            tally.check(not wrong, f"{name}: differ between 1 and 2 threads: {wrong}")
            tally.counts[name] = len(found[0])
    tally.figures = {"cores": cores}
    return tally


def _bits(folder: Path) -> dict[str, str]:
    """All but the files that say how many threads were asked for."""
    return {
        name: digest
        for name, digest in hashes(folder).items()
        if Path(name).name != "experiment.toml"
    }
