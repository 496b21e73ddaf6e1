"""One round: draw clients, train them as rows, ask the strategies, take the server's step.

`play_round` is the algorithm, in order. All of a round is in one `Work`. What only some runs have
is done by the parts of the batch, which no step here knows by name. Numbers that a device still
computes are functions (`Host`) that wait when they are called; `pipeline` decides when that is.

    draw     who takes part, with which random streams
    measure  the numbers that strategies ask for
    weigh    each strategy's coefficients
    train    the participants' models: summed up where their weights are known, else kept as changes
    step     the new models of the servers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.errors import NoRoom
from fedmaba.rows.cuda_graphs import send, start_fetch
from fedmaba.simulation import replies, server_step
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, train_clients
from fedmaba.simulation.part import IntArray, Moment
from fedmaba.simulation.state import Round
from fedmaba.simulation.vectors import put_rows, take_rows
from fedmaba.simulation.work import Cohort, Work, chunk_of, draw, not_finite, out_of_memory
from fedmaba.strategies import deployed
from fedmaba.strategies.base import client_weights

Made = TypeVar("Made")
__all__ = ["draw", "measure", "play_round", "rounds_of", "step", "train", "train_chunks", "weigh"]


def play_round(batch: Batch, runs: list[int], t: int) -> dict[int, Round]:
    """Play round t of some runs and return what happened; their models and states move on."""
    work = draw(batch, runs, t)
    measure(batch, work, "before training")
    weigh(batch, work, "before training")
    train(batch, work, train_chunks(batch, work))
    measure(batch, work, "after training")
    weigh(batch, work, "after training")
    step(batch, work)
    return rounds_of(batch, work)


def measure(batch: Batch, work: Work, moment: Moment) -> None:
    """Start to compute the numbers that strategies ask for, as far as they can be known by now."""
    if moment == "after training" and work.late:
        batch.ranks.sum(work.changes)
    for part in batch.parts:
        for r, numbers in part.numbers(batch, work, moment).items():
            work.waiting.setdefault(r, {}).update(numbers)
    if moment == "after training":
        for c in work.late:
            told = {name: work.gathered(c, name, batch.ranks) for name in c.needs.of_training}
            work.waiting.setdefault(c.r, {}).update(told)


def weigh(batch: Batch, work: Work, moment: Moment) -> None:
    """Ask the strategies whose numbers are known; a run with a number that is not finite ends."""
    asked = []
    for c in work.cohorts:
        if (moment == "before training") != c.early:
            continue
        numbers = {name: value() for name, value in work.waiting.get(c.r, {}).items()}
        out = np.zeros(0, np.int64)
        if c.r in work.counting:
            out = np.flatnonzero(~work.counting[c.r]())
        if len(out):
            if len(out) == len(c.client):
                work.ended[c.r] = f"the model change of client {c.client[0]} is not finite"
                continue
            work.change(c)[send(out, work.changes.device)] = 0
            numbers = replies.without(numbers, out)
            c = replace(c, client=np.delete(c.client, out))
        bounded = {name for part in batch.parts_of(c.r) for name in part.bounds}
        known = {name: value for name, value in numbers.items() if name not in bounded}
        if why := replies.broken(c.client, known):
            work.ended[c.r] = why
            continue
        seen = batch.reported(work, c, numbers)
        size, n = c.run.federation.train.size[c.client], c.run.federation.n_clients
        told = replies.make_replies(work.round, work.lr, n, c.client, size, seen)
        decision, why = replies.decide(c.run.strategy, batch.progress.states[c.r], told)
        if why:
            work.ended[c.r] = why
            continue
        work.decision[c.r], work.replies[c.r] = replies.with_zeros(decision, out), told
        asked.append(c.r)
    for part in batch.parts:
        part.decided(batch, work, asked)


def train(batch: Batch, work: Work, chunks: Iterable[Chunk]) -> None:
    """Train all rows, chunk after chunk; sum them up, or keep their changes."""
    model, alone = batch.progress.model, batch.ranks.count == 1
    work.changes = model.new_zeros(sum(len(c.client) for c in work.late), model.shape[1])
    all_weighed = alone and len(work.decision) == len(work.cohorts)
    plain = all_weighed and not any(
        part.joins_step(c.r) for c in work.cohorts for part in batch.parts_of(c.r)
    )
    for chunk in chunks:
        work.checks.append((chunk.rows, chunk.summary))
        work.checks += [(chunk.rows, check[None]) for check in chunk.checks]
        if plain and work.rows_in_order_and_equal(chunk.rows):
            work.whole = chunk.end
        else:
            _collect(batch, work, chunk)


def train_chunks(batch: Batch, work: Work) -> Iterator[Chunk]:
    """Train chunk after chunk."""
    at, trainer = batch.progress, batch.trainer
    for c in work.cohorts:
        work.new[c.r] = at.memory.fresh(c.r, len(c.client), zeros=batch.ranks.count > 1)

    def trained(rows: IntArray) -> Chunk:
        chunk = chunk_of(trainer, work, rows, at.model)
        train_clients(trainer, chunk)
        return chunk

    yield from in_chunks(batch, work.chunks, trained)


def in_chunks(
    batch: Batch, chunks: list[IntArray], work_on: Callable[[IntArray], Made]
) -> Iterator[Made]:
    """Work on chunk after chunk of rows; when one does not fit into memory, halve the chunks."""
    while chunks:
        done = 0
        try:
            for made in batch.workers.map(work_on, chunks):
                done += 1
                yield made
            return
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        chunks = _halved(batch, chunks[done:])


def _halved(batch: Batch, chunks: list[IntArray]) -> list[IntArray]:
    """Chunks of half the size, from now on."""
    at = batch.progress
    most = min(at.chunk, max(map(len, chunks)))
    if most == 1:
        raise NoRoom(
            f"{batch.pool.y.device} has no memory for the training of one client: take a "
            "smaller --minibatch or model, or fewer runs at once"
        )
    at.chunk = most // 2
    batch.graphs.forget()
    return [c[a : a + at.chunk] for c in chunks for a in range(0, len(c), at.chunk)]


def _collect(batch: Batch, work: Work, chunk: Chunk) -> None:
    """Add trained rows up where their weights are known, else keep their changes."""
    rows, w = chunk.rows, chunk.end
    whose = work.table.cohort[rows]
    if (np.diff(whose) < 0).any():  # each cohort's rows together
        order = np.argsort(whose, kind="stable")
        rows, whose, w = rows[order], whose[order], w.index_select(0, send(order, w.device))
    present, first, many = np.unique(whose, return_index=True, return_counts=True)
    here = [
        (work.cohorts[i], slice(a, a + n), rows[a : a + n] - work.cohorts[i].rows.start)
        for i, a, n in zip(present, first, many, strict=True)
    ]
    _add_weighed(batch, work, here, w)
    _keep_changes(batch, work, [part for part in here if part[0].kept_at >= 0], rows, w)
    for c in work.late:
        mine = np.flatnonzero(chunk.run == c.r)
        for name in c.needs.of_training:
            if name in chunk.numbers and len(mine):
                value = start_fetch(take_rows(chunk.numbers[name], mine))
                work.tell(c, name, chunk.place[mine], value)
    for part in batch.parts:
        part.collect(batch, work, chunk)


CohortRows = tuple[Cohort, slice, IntArray]  # which trained rows are a cohort's, and their places


def _add_weighed(batch: Batch, work: Work, here: list[CohortRows], w: Tensor) -> None:
    """Add the rows of cohorts whose weights are known to their runs' steps."""
    weighed = [k for k, (c, *_) in enumerate(here) if c.r in work.decision]
    if not weighed:
        return
    nothing = np.zeros(len(w))
    coef = [
        work.decision[c.r].coef[place] if c.r in work.decision else nothing[own]
        for c, own, place in here
    ]
    total, weight = server_step.weighted_sums(w, coef)
    runs, took = np.array([here[k][0].r for k in weighed]), np.array(weighed)
    delta = work.step_of(batch)
    change = take_rows(total, took)
    change -= take_rows(weight, took) * take_rows(batch.progress.model, runs)
    put_rows(delta, runs, change.add_(take_rows(delta, runs)))


def _keep_changes(
    batch: Batch, work: Work, late: list[CohortRows], rows: IntArray, w: Tensor
) -> None:
    """Keep the changes of rows whose weights come later."""
    if not late:
        return
    into = send(np.concatenate([c.kept_at + place for c, _, place in late]), w.device)
    mine = np.concatenate([np.arange(own.start, own.stop) for _, own, _ in late])
    change = w.index_select(0, send(mine, w.device))
    model = batch.progress.model
    change -= model.index_select(0, send(work.table.run[rows][mine], w.device))
    work.changes.index_copy_(0, into, change)


def step(batch: Batch, work: Work) -> None:
    """Take the servers' steps as decided; runs that end keep their last model."""
    for r, why in work.ended.items():
        _end(batch, r, work.round, why)
    layout, ranks = batch.rows.layout, batch.ranks
    spec = server_step.StepSpec(batch.plan.server_lr, layout.compared, layout.shared)
    held, moves, share = server_step.held_by_step(batch), *_shares(batch, work)
    for columns in work.new.values():
        for rows in columns.values():
            ranks.sum(rows)
    work.means = {c.r: {} for c in work.cohorts}
    if work.whole is not None:
        coef = np.stack([work.decision[c.r].coef for c in work.cohorts]).astype(share.dtype)
        inputs = (coef, np.array(work.runs), moves, share)
        function, whole = server_step.aggregate_whole_round, work.whole
        finite = batch.graphs.run(function, spec, (whole, *held), inputs)
    else:
        delta = _summed_step(batch, work)
        sent = (send(values, delta.device) for values in (moves, share))
        finite = server_step.server_step(spec, *held, delta, *sent)
    for c in work.cohorts:
        if c.r in work.decision:
            kept = work.new[c.r], work.means[c.r]
            batch.progress.memory.write(c.r, c.client, *kept, finite[c.r])
    work.finite = start_fetch(finite)


def _summed_step(batch: Batch, work: Work) -> Tensor:  # (R, P)
    """What joins the models: weighted changes of all ranks, and what parts add."""
    delta = work.step_of(batch)
    for c in work.late:
        if c.r in work.decision and not batch.ranks.rank:  # each rank has all changes
            coef = work.decision[c.r].coef[..., : len(c.client)]
            delta[c.r] = server_step.weighted(coef, work.change(c), batch.layers)
    batch.ranks.sum(delta)
    for c in work.cohorts:
        for part in batch.parts_of(c.r):
            part.add(batch, work, c, delta[c.r])
    return delta


def _shares(batch: Batch, work: Work) -> tuple[NDArray[Any], NDArray[Any]]:
    """(R,) 1 for runs that move, and (D,) the weight of the new model in each deployed average."""
    dtype = np.float64 if batch.progress.model.dtype == torch.float64 else np.float32
    moves = np.zeros(len(batch.runs), dtype)
    moves[list(work.decision)] = 1
    share = [
        deployed.new_model_share(rule, work.round) if moves[r] else 0.0
        for r, (_, rule) in zip(batch.progress.owner, batch.handed_out, strict=True)
    ]
    return moves, np.array(share, dtype)


def rounds_of(batch: Batch, work: Work) -> dict[int, Round]:
    """Store the new states, end runs whose model is not finite, and return the round's records."""
    assert work.finite is not None  # the step was taken
    finite, at, out = work.finite(), batch.progress, {}
    for c in work.cohorts:
        if c.r not in work.decision:
            continue
        decision, whole = work.decision[c.r], bool(finite[c.r])
        at.memory.settle(c.r, stays=whole)
        if not whole:
            broken = not_finite(work.checks, len(work.table.size))
            batch.ranks.sum(torch.from_numpy(broken))
            lost = np.flatnonzero(broken[c.rows])
            what = f"the model of client {c.client[lost[0]]}" if len(lost) else "the server's model"
            _end(batch, c.r, work.round, f"{what} is not finite")
            continue
        at.states[c.r] = decision.state
        client = work.replies[c.r].client  # all that count
        coef = client_weights(c.needs, decision.coef, len(c.client))[np.isin(c.client, client)]
        info = dict(decision.info)
        for part in batch.parts_of(c.r):
            info |= part.info(work, c.r)
        out[c.r] = Round(client, coef, work.replies[c.r].loss, info)
    for part in batch.parts:
        part.recorded(batch, work, out)
    return out


def _end(batch: Batch, r: int, t: int, why: str) -> None:
    run = batch.runs[r]
    where = f"{run.strategy.label()}, seed {run.seed}, diverged in round {t + 1}"
    advice = "" if "the strategy gave" in why else ": lower --lr"
    batch.progress.diverged[r] = f"{where}: {why}{advice}"
