"""Ours: FedAvg through engine.simulate."""

import torch
from common import EACH, LR, MINIBATCH, PARTICIPANTS, ROUNDS, WARM, Clock, data

from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.simulation.engine import Plan, Run, simulate, start

torch.set_num_threads(1)
x, y = data()
n = x.shape[0] * EACH
pool = datasets.from_arrays(x.reshape(n, -1), y.reshape(-1), x_test=x[0], y_test=y[0])
own = [range(c * EACH, (c + 1) * EACH) for c in range(len(x))]
split = Split(
    tuple(torch.tensor(list(r)).numpy() for r in own),
    tuple(torch.zeros(0, dtype=torch.int64).numpy() for _ in own),
    tuple(torch.arange(n + 6 * c, n + 6 * c + 6).numpy() for c in range(len(x))),
)
run = Run(strategies.parse("fedavg")[0], 0, Federation(pool, split))
plan = Plan(
    *(WARM + ROUNDS, PARTICIPANTS), minibatch=MINIBATCH, lr=LR, lr_decay=1.0, eval_every=10_000,
    threads=1,
)  # fmt: skip
clock = Clock()
for _ in simulate(start([run], plan, "mlp")):
    clock.tick()
