"""NaN and inf in a client, a loss, a weight or the server's step, at each round: none silent.

Wanted: the run ends in that round, its line names strategy, round and (for a client) the client,
the model stays what it was after the round before, and the other runs of the batch keep their bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from faults.common import Say, Tally, progress
from fedmaba import strategies
from fedmaba.data.federation import Federation
from fedmaba.simulation import client as client_
from fedmaba.simulation import engine, pipeline, server_step

SPECS = ["fedavg", "fedmaba", "fedmaba:loss_at=mean", "qffl", "fedfv", "fedmgda"]
Batch = engine.Batch


def federation() -> Federation:
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(5), (10, 15, 20, 12, 10))
    x = rng.standard_normal((len(owner), 4))
    y = rng.integers(3, size=len(owner))
    return Federation.from_arrays(x, y, owner)


def play(fed: Federation, rounds: int, chunk: int | None) -> tuple[Batch, list[torch.Tensor]]:
    """A batch of all SPECS, and its models before the first round and after each."""
    runs = [engine.Run(strategies.parse(s)[0], 0, fed) for s in SPECS]
    plan = engine.Plan(
        rounds=rounds, participants=4, minibatch=10, lr_decay=1.0, eval_every=rounds, threads=1,
        chunk=chunk,
    )  # fmt: skip
    batch = engine.start(runs, plan, "softmax")
    models = [batch.progress.model.clone()]
    for _ in engine.simulate(batch):
        models.append(batch.progress.model.clone())
    batch.workers.close()
    return batch, models


@contextmanager
def client(run: int, t: int, value: float) -> Iterator[list[int]]:
    """The first weight of one client's model becomes `value` by its training in round t."""
    real, hit = client_.train_chunk, []

    def trained(rows: Any, pool: Any, models: Any, job: Any, *more: Any) -> Any:
        end, summary = real(rows, pool, models, job, *more)
        places = np.flatnonzero(job.run == run)
        if now[0] == t and len(places) and not hit:
            end[places[-1], 0] = value
            summary[1, places[-1]] = end[places[-1]].sum()
            hit.append(int(job.first[places[-1]]))
        return end, summary

    with _round_number() as now:
        client_.train_chunk = trained
        try:
            yield hit
        finally:
            client_.train_chunk = real


@contextmanager
def server(run: int, t: int, value: float) -> Iterator[list[int]]:
    """The server's step of one run becomes `value` in round t."""
    real = server_step.server_step

    def step(spec: Any, model: Any, *rest: Any) -> Any:
        *held, delta, moves, share = rest
        if now[0] == t:
            delta[run, -1] = value
        return real(spec, model, *held, delta, moves, share)

    with _round_number() as now:
        server_step.server_step = step
        try:
            yield []
        finally:
            server_step.server_step = real


@contextmanager
def _round_number() -> Iterator[list[int]]:
    """The round that is being played."""
    real, now = pipeline.play, [-1]

    def counted(batch: Any, t: int, early: Any) -> Any:
        now[0] = t
        return real(batch, t, early)

    pipeline.play = counted
    try:
        yield now
    finally:
        pipeline.play = real


@contextmanager
def weight(run: int, t: int, value: float) -> Iterator[list[int]]:
    """A strategy's weight becomes `value` in round t."""
    kind = type(strategies.parse(SPECS[run])[0])
    label, real = strategies.parse(SPECS[run])[0].label(), kind.weigh

    def weigh(self: Any, state: Any, replies: Any) -> Any:
        decision = real(self, state, replies)
        if replies.round == t and self.label() == label:
            decision.coef[0] = value
        return decision

    kind.weigh = weigh
    try:
        yield []
    finally:
        kind.weigh = real


KINDS: dict[str, Callable[..., Any]] = {"client": client, "server": server, "weight": weight}


def campaign(count: int, seed: int, say: Say) -> Tally:
    """One fault of each kind in each of `count` rounds."""
    tally, fed = Tally(), federation()
    show = progress(say, "nan")
    clean = {chunk: play(fed, count, chunk) for chunk in (None, 3)}
    start = fed.train.start
    for t in range(count):
        for i, (name, fault) in enumerate(KINDS.items()):
            run = (t + i + seed) % len(SPECS)
            value = (math.nan, math.inf, -math.inf)[(t // len(SPECS) + i) % 3]
            chunk = (None, 3)[(t + i) % 2]
            with fault(run, t, value) as hit:
                batch, models = play(fed, count, chunk)
            said = batch.progress.diverged[run]
            label = strategies.parse(SPECS[run])[0].label()
            why = ""
            if not said.startswith(f"{label}, seed 0, diverged in round {t + 1}: "):
                why = f"said {said!r}"
            if name == "client":
                who = int(np.searchsorted(start, hit[0], side="right")) - 1
                if f"client {who} " not in said and not said.endswith(f"client {who}"):
                    why = why or f"client {who} is not named: {said!r}"
            _, want = clean[chunk]
            if not torch.equal(models[-1][run], want[t][run]):
                why = why or "the last good model is not kept"
            others = [r for r in range(len(SPECS)) if r != run]
            if any(batch.progress.diverged[r] for r in others):
                why = why or "another run ended"
            far = float((models[-1][others] - want[-1][others]).abs().max())
            if far > (0.0 if chunk is None else 1e-5):  # in chunks, sums take another order
                why = why or f"other runs changed by {far}"
            tally.check(not why, f"{value} in {name} of {label} in round {t + 1}: {why}")
            tally.counts[name] += 1
            show(tally.tried, 3 * count, tally)
    return tally
