"""Ours on a GPU: FedAvg through engine.simulate. HOW is the precision."""

import numpy as np
from gpu_common import Turns, asked, job, model, read

from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.simulation.engine import Plan, Run, simulate, start

name, dtype, folder, device, small = asked()
it = job(name, small)
x, y = map(np.array, read(name, folder))
n = it.clients * it.each
task, classes = "sequence" if y.ndim > 1 else "classify", list(map(str, range(it.classes)))
tested = {"x_test": x[n:], "y_test": y[n:]}
pool = datasets.from_arrays(x[:n], y[:n], **tested, classes=classes, task=task)
own = tuple(np.arange(c * it.each, (c + 1) * it.each) for c in range(it.clients))
none = tuple(np.zeros(0, np.int64) for _ in own)
split = Split(own, none, tuple(np.array_split(np.arange(n, len(x)), it.clients)))
run = Run(strategies.parse("fedavg")[0], 0, Federation(pool, split))
plan = Plan(
    *(1_000_000, it.participants), epochs=it.epochs, minibatch=it.minibatch, lr=it.lr,
    lr_decay=1.0, eval_every=it.eval_every, dtype=dtype, device=device,
)  # fmt: skip
batch = start([run], plan, lambda shape, classes: model(name))
turns = Turns(it.warm, it.participants * it.epochs, device, batch.rows.path)
for snapshot in simulate(batch):
    if why := snapshot.progress.diverged[0]:
        raise SystemExit(why)
    turns.tick()
