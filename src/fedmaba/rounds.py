"""One round of all runs: draw clients, train them as rows, ask the strategies, move the models.

The order of things serves a device that works while the host goes on: the losses that strategies
weigh by and a round's training are asked for before the host waits for either, and the next round
begins before it waits for the end of the last. Runs whose weights come after training go in a lane
of their own: the device trains the others while the host weighs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from fedmaba import move, weigh
from fedmaba.batch import Batch
from fedmaba.cohort import (
    Begun,
    Drawn,
    FloatArray,
    IntArray,
    diverge,
    draw,
    factors,
    job_of,
    keep,
)
from fedmaba.errors import NoRoom
from fedmaba.local import train
from fedmaba.runs import Round
from fedmaba.tape import Tape, fetch, send


@dataclass(frozen=True)
class Ahead:
    """Lanes whose next round has begun before it was asked for, by round and runs."""

    mark: object  # of the models that it rests on
    lanes: dict[tuple[int, ...], Begun]


def play(batch: Batch, t: int, ahead: Ahead | None) -> tuple[list[Round | None], Ahead]:
    """One round of all live runs; moves their models and states on, and begins the next."""
    at = batch.progress
    lanes = ahead.lanes if ahead and ahead.mark == _mark(at.model) else {}
    after: dict[tuple[int, ...], Begun] = {}
    out: list[Round | None] = [None] * len(batch.runs)
    for runs in _lanes(batch, apart=_hurries(batch)):
        begun = lanes.pop((t, *runs), None) or _begin(batch, runs, t)
        _finish(batch, begun, t, after, out)
    at.chunk = batch.ranks.least(at.chunk)
    return out, Ahead(_mark(at.model), after)


def ready(batch: Batch) -> None:
    """Have the kernels of a round and an evaluation compiled before the first of them."""
    at, once = batch.progress, Tape(batch.pool.x.device, recordable=False)

    def work() -> None:
        for runs in _lanes(batch, apart=_hurries(batch)):
            drawn = draw(batch, runs, at.round)
            for rows in drawn.chunks:
                job = job_of(batch, drawn.cohorts, drawn.table, rows, batch.plan.lr)
                train(batch.rows, batch.pool, at.model, job, once)
        batch.evaluate(at.model, batch.test.union, scored=batch.metric is None)

    try:
        batch.rows.compile(at.model, work)
    except RuntimeError as error:
        if not out_of_memory(error):  # the round itself will take less
            raise


def _mark(model: Tensor) -> object:
    """A model that somebody changed has another one."""
    return model.data_ptr(), model._version


def _hurries(batch: Batch) -> bool:
    """Whether work is asked for ahead: of a device that goes on alone, and alone has all rows."""
    return batch.tape.on and batch.ranks.count == 1


def _lanes(batch: Batch, *, apart: bool) -> list[list[int]]:
    """Live runs to be trained; those whose weights come after training `apart`."""
    alive = [r for r in batch.same if not batch.progress.diverged[r]]
    late = [r for r in alive if apart and not batch.needs[r].early]
    early = [r for r in alive if r not in late]
    return [_in_turn(batch, lane) for lane in (early, late) if lane]


def _in_turn(batch: Batch, runs: list[int]) -> list[int]:
    """One run of each seed, then another of each: rows that share inputs make large blocks."""
    before: Counter[tuple[int, int]] = Counter()
    turn = {}
    for r in runs:
        alike = batch.runs[r].seed, id(batch.runs[r].federation)
        turn[r] = before[alike]
        before[alike] += 1
    return sorted(runs, key=turn.__getitem__)


def _finish(
    batch: Batch,
    begun: Begun,
    t: int,
    after: dict[tuple[int, ...], Begun],
    out: list[Round | None],
) -> None:
    """Take in what was trained, weigh it, move the models; the lane's next round is begun."""
    at, ranks, cohorts = batch.progress, batch.ranks, begun.cohorts
    goes_on = _hurries(batch) and t + 1 < batch.plan.rounds
    runs, chunk, finite = [c.r for c in cohorts], at.chunk, None
    drawn = draw(batch, runs, t + 1) if goes_on else None  # while the device works

    def decide() -> None:
        begun.losses()
        for c in cohorts:
            if c.needs.early:
                weigh.ask(at, c, t, begun.lr)

    whole = len(begun.table.size) if ranks.count == 1 else 0  # rows of a round in one chunk
    decided = False
    for rows, w, told in begun.trained:
        if not decided:  # only now: the device trains while the host waits for losses and weighs
            decide()
            decided = True
        begun.taken.append((rows, told))
        weighed = all(c.decision for c in cohorts)
        if len(rows) == whole and weighed and move.even(begun.table, rows):
            finite = move.whole(batch, cohorts, w, move.shares(batch, cohorts, t))
        else:
            _collect(batch, begun, rows, w, told[0])
    if not decided:  # all was taken in before, or there are fewer rows than ranks
        decide()
    weigh.ask_late(batch, begun, t)
    if finite is None:
        ranks.sum(begun.delta)
        share = send(move.shares(batch, cohorts, t), begun.delta.device)
        finite = move.step(batch, begun.delta, share)
    ended = fetch(finite)
    live = [r for r in runs if not at.diverged[r]]
    if goes_on and live:  # before the host waits for the end
        same = live == runs and at.chunk == chunk
        after[(t + 1, *live)] = _begin(batch, live, t + 1, drawn if same else None)
    _conclude(batch, begun, t, ended().tolist(), out)


def _begin(batch: Batch, runs: list[int], t: int, drawn: Drawn | None = None) -> Begun:
    """Start to train a lane's round, drawn if it is not; on a device that records, no waiting."""
    plan, at = batch.plan, batch.progress
    lr = plan.lr * plan.lr_decay**t
    drawn = drawn or draw(batch, runs, t)
    cohorts, table = drawn.cohorts, drawn.table
    kept = keep(at.model, [c for c in cohorts if not c.needs.early])
    losses = weigh.start_losses(batch, [c for c in cohorts if c.needs.loss == "start"])
    early = any(c.needs.early for c in cohorts)
    factor = factors(cohorts)

    def work(rows: IntArray) -> tuple[IntArray, Tensor, Tensor]:
        job = job_of(batch, cohorts, table, rows, lr)
        w, told = train(batch.rows, batch.pool, at.model, job, batch.tape, early)
        if factor is not None:
            _overdo(at.model, w, job.run, factor[rows])
            told = torch.stack([told[0], w.sum(1)])
        return rows, w, told.clone() if batch.tape.on else told  # a replay would overwrite them

    trained = _trained(batch, work, drawn.chunks)
    if batch.tape.on:
        trained = chain(list(islice(trained, 1)), trained)
    begun = Begun(lr, table, cohorts, at.model, kept, losses, trained)
    if _hurries(batch) and not early:  # nothing of it waits for the host
        for rows, w, told in trained:
            begun.taken.append((rows, told))
            _collect(batch, begun, rows, w, told[0])
        begun.looks = weigh.looks(at, begun)
    return begun


def _trained(
    batch: Batch,
    work: Callable[[IntArray], tuple[IntArray, Tensor, Tensor]],
    chunks: list[IntArray],
) -> Iterator[tuple[IntArray, Tensor, Tensor]]:
    """The work of each chunk; from one that does not fit into memory on, in halves."""
    at = batch.progress
    while chunks:
        done = 0
        try:
            for out in batch.workers.map(work, chunks):
                done += 1
                yield out
            return
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        chunks = chunks[done:]
        most = min(at.chunk, max(map(len, chunks)))
        if most == 1:
            raise NoRoom(
                f"{batch.pool.x.device} has no memory for the training of one client: take a "
                "smaller --minibatch or model, or fewer runs at once"
            )
        at.chunk = most // 2
        chunks = [c[a : a + at.chunk] for c in chunks for a in range(0, len(c), at.chunk)]
        batch.tape.forget()


def _overdo(model: Tensor, w: Tensor, run: IntArray, factor: FloatArray) -> None:
    """Multiply the changes of some trained rows."""
    rows = np.flatnonzero(factor != 1)
    if len(rows):
        at, start = send(rows, w.device), model.index_select(0, send(run[rows], w.device))
        many = send(factor[rows, None], w.device).to(w.dtype)
        w.index_copy_(0, at, start + many * (w.index_select(0, at) - start))


def _collect(batch: Batch, begun: Begun, rows: IntArray, w: Tensor, means: Tensor) -> None:
    """Take in trained rows: add them up where they can be weighed, else keep their changes."""
    model, cohorts, run = batch.progress.model, begun.cohorts, begun.table.run[rows]
    whose = begun.table.cohort[rows]
    if (np.diff(whose) < 0).any():  # each cohort's rows together
        order = np.argsort(whose, kind="stable")
        rows, run, whose = rows[order], run[order], whose[order]
        at = send(order, w.device)
        w, means = w.index_select(0, at), means.index_select(0, at)
    present, first, many = np.unique(whose, return_index=True, return_counts=True)
    here = [
        (cohorts[i], slice(a, a + n), rows[a : a + n] - cohorts[i].rows.start)
        for i, a, n in zip(present, first, many, strict=True)
    ]
    weighed = [k for k, (c, *_) in enumerate(here) if c.decision]
    if weighed:
        nothing = np.zeros(len(rows))
        total, weight = move.weighted(
            w, [c.decision.coef[p] if c.decision else nothing[own] for c, own, p in here]
        )
        runs = send(np.array([here[k][0].r for k in weighed]), w.device)
        took = send(np.array(weighed), w.device)
        begun.delta[runs] += total[took] - weight[took] * model[runs]
    late = [(c, own, place) for c, own, place in here if c.change is not None]
    if late:
        into = send(np.concatenate([c.place + place for c, _, place in late]), w.device)
        mine = np.concatenate([np.arange(own.start, own.stop) for _, own, _ in late])
        change = w.index_select(0, send(mine, w.device))
        change -= model.index_select(0, send(run[mine], w.device))
        begun.kept.index_copy_(0, into, change)
    for c, own, place in late:
        if c.needs.loss == "mean":
            begun.met.append((c, place, fetch(means[own])))
        elif c.needs.loss == "end":
            begun.met.append((c, place, fetch(weigh.own_losses(batch, c, place, w[own]))))


def _conclude(
    batch: Batch, begun: Begun, t: int, finite: list[bool], out: list[Round | None]
) -> None:
    """Move the states on, end the runs whose model broke, and tell what happened."""
    at, cohorts = batch.progress, begun.cohorts
    for c in cohorts:
        if c.decision is None:
            continue
        if not finite[c.r]:
            broken = _broken(begun.taken, cohorts[-1].rows.stop)
            batch.ranks.sum(torch.from_numpy(broken))
            lost = np.flatnonzero(broken[c.rows])
            what = f"the model of client {c.client[lost[0]]}" if len(lost) else "the server's model"
            diverge(at, c, t, f"{what} is not finite")
            continue
        coef = c.decision.coef[: len(c.client)]
        happened = Round(c.client, coef, c.loss, dict(c.decision.info))
        for r in c.same:
            at.states[r], out[r] = c.decision.state, happened


def _broken(taken: list[tuple[IntArray, Tensor]], many: int) -> IntArray:
    """1 for each row of a round's table that ended with a loss or model that is not finite."""
    out = np.zeros(many, np.int64)
    for rows, told in taken:
        out[rows] = (~told.isfinite().all(0)).cpu().numpy()
    return out


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error comes of too little memory, on a GPU or a CPU."""
    if error is None:
        return False
    cpu = "DefaultCPUAllocator" in str(error)
    return cpu or isinstance(error, torch.OutOfMemoryError) or out_of_memory(error.__context__)
