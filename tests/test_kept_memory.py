"""What clients keep takes N x P numbers once, and its file is whole whenever a site dies."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedmaba import strategies
from fedmaba.data.datasets import Dataset
from fedmaba.data.federation import Federation
from fedmaba.errors import InputError
from fedmaba.simulation import engine, memory

CLIENTS, FEATURES, CLASSES = 400, 50, 10


class Largest(TorchDispatchMode):
    """Notes the largest tensor that an operation makes, beside those that were there before."""

    def __init__(self, known):
        super().__init__()
        self.known, self.numbers = {t.untyped_storage().data_ptr() for t in known}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, torch.Tensor):
                storage = made.untyped_storage()
                if storage.data_ptr() not in self.known:
                    self.numbers = max(self.numbers, storage.nbytes() // 4)
        return out


def test_more_than_the_machine_has_is_refused_before_the_run(monkeypatch, fed):
    monkeypatch.setattr(memory, "host_memory", lambda: 1000)
    run = engine.Run(strategies.parse("ditto:server=scaffold")[0], 0, fed)
    line = (
        r"^ditto: what clients keep takes 0.0 GB, and this machine has 0.0 GB of memory: run fewer"
    )
    with pytest.raises(InputError, match=line):
        engine.start([run], engine.Plan(1), "softmax")
    engine.start([engine.Run(strategies.parse("fedavg")[0], 0, fed)], engine.Plan(1), "softmax")


@pytest.mark.parametrize("spec", ["scaffold", "feddyn", "ditto"])
def test_a_round_copies_the_rows_of_its_participants_alone(spec):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5 * CLIENTS, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, 5 * CLIENTS)
    names = tuple(map(str, range(CLASSES)))
    data = Dataset("own", x, y, len(y), names, client=np.repeat(np.arange(CLIENTS), 5))
    fed = Federation.make(data, "given", test="local")
    (strategy,) = strategies.parse(spec)
    plan = engine.Plan(3, 4, eval_every=3, threads=1)
    batch = engine.start([engine.Run(strategy, 0, fed)], plan, "softmax")
    rounds, kept = engine.simulate(batch), batch.progress.memory.columns[0]
    weights = batch.rows.layout.size
    assert [tuple(v.shape) for v in kept.values()] == [(CLIENTS, weights)]
    with Largest([*kept.values(), batch.pool.x]) as seen:
        next(rounds), next(rounds)  # the third is evaluated, client by client
    assert 4 * weights <= seen.numbers < CLIENTS * weights / 4
    assert sum(int((v != v[0]).any(1).sum()) for v in kept.values()) > 0  # somebody kept something
