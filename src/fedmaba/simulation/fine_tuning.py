"""Models that clients make of a deployed one by some local steps of their own, to be evaluated.

Nothing of it comes back to the server: the run goes on as if nobody had fine-tuned.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedmaba import rng
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.local_training import TrainingJob, train_chunk
from fedmaba.simulation.part import IntArray
from fedmaba.simulation.parts.own_layers import own_parts


def fine_tuned(batch: Batch, d: int, client: IntArray) -> Tensor:
    """(n, P) Deployed model d after `Plan.finetune` plain local steps of each client.

    The step size is that of the round just played.
    """
    plan, at = batch.plan, batch.progress
    r = int(at.owner[d])
    run = batch.runs[r]
    first, size = (v[0] for v in batch.train.entries_of([(r, client)]))
    key = rng.key(run.seed, "finetune", at.round - 1, client)
    job = TrainingJob(
        run=np.full(len(client), d),
        first=first,
        size=size,
        key=key.view(np.int64),
        steps=np.full(len(client), plan.finetune or 0),
        minibatch=plan.minibatch,
        lr=plan.lr_in_round(at.round - 1),
        optimiser=plan.optimiser,
        schedule=batch.trainer.schedule,
        augment=batch.trainer.augment,
        own=own_parts(batch.trainer, np.full(len(client), r), client),
    )
    w, _ = train_chunk(batch.rows, batch.pool, at.deployed, job, batch.graphs, "fine-tuned")
    return w
