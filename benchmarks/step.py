"""Seconds of one strategy step: numbers in, coefficients out, nothing trained.

Every strategy at 100 clients, and those that need no inner products at a million; losses and norms
are log-normal. The median CPU time of many calls, each on the state that the last one left.

    python benchmarks/step.py            prints a line per size, writes results/step.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does
import numpy as np

from cpu import RESULTS, about
from fedmaba import strategies
from fedmaba.strategies.base import Replies, Strategy

SPECS = [
    *("fedavg", "fedsgd", "fedprox", "qffl", "afl", "term", "propfair"),
    *("fedmaba", "fedmaba:rho=0.1", "fedmaba:ball=global", "fedfv", "fedmgda"),
]


def seconds(rule: Strategy, n: int, participants: int, calls: int) -> float:
    """The median time of a call."""
    rng = np.random.default_rng(0)
    needs, state, times = rule.needs(), rule.init(n), []
    for t in range(calls + 1):  # the first warms up
        client = np.sort(rng.choice(n, participants, replace=False)) if participants < n else None
        client = np.arange(n) if client is None else client
        loss = rng.lognormal(size=participants) if needs.loss != "none" else None
        seen = {}
        if needs.changes == "norms":
            seen["norms"] = rng.lognormal(size=participants)
        if needs.changes == "gram":
            change = rng.normal(size=(participants, 2 * participants))
            nobody = np.zeros(0, np.int64)
            seen |= {"gram": change @ change.T, "past_client": nobody, "past_round": nobody}
        size = np.full(participants, 600)
        replies = Replies(t, 0.1, n, client, size, loss, **seen)
        begun = time.process_time()
        decision = rule.weigh(state, replies)
        times.append(time.process_time() - begun)
        state = decision.state
    return statistics.median(times[1:])


def measure(n: int, calls: int) -> list[dict[str, object]]:
    out = []
    for spec in SPECS:
        (rule,) = strategies.parse(spec)
        if n > 10_000 and rule.needs().changes == "gram":
            continue  # a matrix of n x n
        found = seconds(rule, n, n, calls)
        out.append({"strategy": spec, "clients": n, "seconds": found})
        print(f"{spec}, {n:,} clients: {1e3 * found:.3f} ms", flush=True)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=RESULTS / "step.json", type=Path)
    asked = parser.parse_args()
    found = [*measure(100, 301), *measure(1_000_000, 7)]
    asked.out.write_text(json.dumps({**about(), "steps": found}, indent=2) + "\n")
