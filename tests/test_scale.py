"""Large federations: memory does not grow with participants, a strategy's step stays quick."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedmaba import strategies
from fedmaba.strategies.base import Replies

MEMORY = Path(__file__).parents[1] / "benchmarks" / "memory.py"


def peak(strategy: str, clients: int, participants: int) -> int:
    asked = [strategy, str(clients), str(participants), "20", "--rounds", "1", "--each", "1"]
    command = [sys.executable, str(MEMORY), "--one", *asked]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout)["peak_above_bytes"])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
@pytest.mark.slow
def test_memory_grows_with_neither_participants_nor_clients():
    """50,000 changes of 224 weights are 45 MB; a strategy that keeps them shows that it counts."""
    few, many = (peak("fedmaba", 50_000, m) for m in (1_000, 50_000))
    assert many - few < 30e6
    assert many < 150e6
    kept = peak("fedmaba:loss_at=end", 50_000, 50_000)
    assert kept - many > 30e6


@pytest.mark.parametrize("spec", ["fedavg", "qffl", "afl", "term", "fedmaba", "propfair"])
def test_a_step_of_a_million_clients_allocates_a_few_vectors(spec):
    n = 10**6
    rng = np.random.default_rng(0)
    (rule,) = strategies.parse(spec)
    needs, state = rule.needs(), rule.init(n)
    loss = None if needs.loss == "none" else rng.lognormal(size=n)
    norms = rng.lognormal(size=n) if needs.changes == "norms" else None
    replies = Replies(0, 0.1, n, np.arange(n), np.full(n, 600), loss, norms)
    tracemalloc.start()
    decision = rule.weigh(state, replies)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decision.coef.shape == (n,)
    assert most < 12 * 8 * n
