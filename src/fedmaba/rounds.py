"""One round of all runs: draw clients, train them as rows, ask the strategies, move the models.

The order of things serves a device that works while the host goes on: the losses that strategies
weigh by and a round's training are asked for before the host waits for either, and the next round
begins before it waits for the end of the last. Runs whose weights come after training go in a lane
of their own: the device trains the others while the host weighs them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba import average, rng
from fedmaba.batch import Batch, precision
from fedmaba.errors import InputError, NoRoom
from fedmaba.local import Job, fetch, send, train
from fedmaba.runs import Kept, Progress, Round, Run
from fedmaba.strategy import Bend, Decision, Needs, Replies, sound

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Host = Callable[[], NDArray[Any]]  # waits for what is copied to the host


@dataclass
class _Cohort:
    """One run's round in the making."""

    r: int
    run: Run
    needs: Needs
    client: IntArray  # (m,)
    rows: slice  #                            its rows in the round's table
    loss: FloatArray | None = None  # (m,)
    change: Tensor | None = None  # (m, P)    kept where the weights come after training
    place: int = 0  #                         its first row among all that are kept
    decision: Decision | None = None


@dataclass(frozen=True)
class _Table:
    """Rows to be trained: participants of all runs, one run after another."""

    cohort: IntArray  # (M,)   whose
    run: IntArray  # (M,)
    first: IntArray  # (M,)    where its training examples begin in batch.train
    size: IntArray  # (M,)     how many they are
    steps: IntArray  # (M,)
    key: IntArray  # (M,)      random stream of this client in this round
    kind: IntArray  # (M,)     rows of one kind can be trained together


@dataclass(frozen=True)
class _Drawn:
    """All of a round that does not depend on the models."""

    clients: list[IntArray]
    table: _Table
    chunks: list[IntArray]  #  rows of the table that this rank trains


@dataclass(frozen=True)
class _Trained:
    """Rows that came back, with what it takes to tell which of them broke."""

    rows: IntArray
    means: Tensor  # (n,)             mean loss they met
    models: Tensor  # (n, P) or (n,)  their weights, or the sums of these


@dataclass
class Begun:
    """A round of a lane that has begun: its losses and its training are asked for."""

    lr: float
    table: _Table
    cohorts: list[_Cohort]
    delta: Tensor  # (R, P)     what is to be added to the models
    kept: Tensor  # (n, P)      changes of the cohorts whose weights come after training
    losses: Callable[[], None]  # waits for the losses at the server's model and hands them out
    trained: Iterator[tuple[IntArray, Tensor, Tensor]]  # rows, their weights, the loss they met
    taken: list[_Trained] = field(default_factory=list)  # those that were taken in
    met: list[tuple[_Cohort, IntArray, Host]] = field(default_factory=list)  # losses of places
    looks: list[dict[str, Host]] | None = None  # what strategies want to know of the changes


@dataclass(frozen=True)
class Ahead:
    """Lanes whose next round has begun before it was asked for, by round and runs."""

    mark: object  # of the models that it rests on
    lanes: dict[tuple[int, ...], Begun]


def play(batch: Batch, t: int) -> list[Round | None]:
    """One round of all live runs; moves their models and states on."""
    at, ahead = batch.progress, batch.ahead
    lanes = ahead.lanes if ahead and ahead.mark == _mark(at.model) else {}
    after: dict[tuple[int, ...], Begun] = {}
    out: list[Round | None] = [None] * len(batch.runs)
    batch.ahead, chunk = None, at.chunk
    for runs in _lanes(batch, apart=_hurries(batch)):
        begun = lanes.pop((t, *runs), None) or _begin(batch, runs, t)
        _finish(batch, begun, t, after, out)
    batch.ahead = Ahead(_mark(at.model), after)
    at.chunk = batch.ranks.least(at.chunk)
    if at.chunk < chunk:
        warnings.warn(f"out of memory: the chunk is {at.chunk} from now on", stacklevel=2)
    return out


def _mark(model: Tensor) -> object:
    """A model that somebody changed has another one."""
    return model.data_ptr(), model._version


def _hurries(batch: Batch) -> bool:
    """Whether work is asked for ahead: of a device that goes on alone, and alone has all rows."""
    return batch.tape.on and batch.ranks.count == 1


def _lanes(batch: Batch, *, apart: bool) -> list[list[int]]:
    """Live runs; those whose weights come after training `apart`."""
    alive = [r for r, why in enumerate(batch.progress.diverged) if not why]
    late = [r for r in alive if apart and not batch.runs[r].strategy.needs().early]
    early = [r for r in alive if r not in late]
    return [lane for lane in (early, late) if lane]


def _finish(
    batch: Batch,
    begun: Begun,
    t: int,
    after: dict[tuple[int, ...], Begun],
    out: list[Round | None],
) -> None:
    """Take in what was trained, weigh it, move the models; the lane's next round is begun."""
    at, ranks, cohorts = batch.progress, batch.ranks, begun.cohorts
    finite = None

    def decide() -> None:
        begun.losses()
        for c in cohorts:
            if c.needs.early:
                _weigh(at, c, t, begun.lr)

    whole = len(begun.table.size) if ranks.count == 1 else 0  # rows of a round in one chunk
    decided = False
    for rows, w, means in begun.trained:
        if not decided:  # only now: the device trains while the host waits for losses and weighs
            decide()
            decided = True
        _remember(batch, begun, rows, w, means)
        weighed = all(c.decision for c in cohorts)
        if len(rows) == whole and weighed and _even(begun.table, rows):
            finite = _add_and_move(batch, cohorts, w, _shares(batch, cohorts, t))
        else:
            _collect(batch, begun, rows, w, means)
    if not decided:  # all was taken in before, or there are fewer rows than ranks
        decide()
    _weigh_changes(batch, begun, t)
    if finite is None:
        ranks.sum(begun.delta)
        finite = _move(batch, begun.delta, send(_shares(batch, cohorts, t), begun.delta.device))
    ended = fetch(finite)
    live = [c.r for c in cohorts if not at.diverged[c.r]]
    if _hurries(batch) and live and t + 1 < batch.plan.rounds:
        after[(t + 1, *live)] = _begin(batch, live, t + 1)  # before the host waits for the end
    _conclude(batch, begun, t, ended().tolist(), out)


def _begin(batch: Batch, runs: list[int], t: int) -> Begun:
    """Draw a lane's round and start to train it; on a device that records, without waiting."""
    plan, at = batch.plan, batch.progress
    lr = plan.lr * plan.lr_decay**t
    drawn = _draw(batch, runs, t)
    cohorts, end = [], 0
    for r, client in zip(runs, drawn.clients, strict=True):
        begin, end = end, end + len(client)
        needs = batch.runs[r].strategy.needs()
        cohorts.append(_Cohort(r, batch.runs[r], needs, client, slice(begin, end)))
        if needs.loss in ("mean", "end"):
            cohorts[-1].loss = np.zeros(len(client))
    kept = _keep(at.model, [c for c in cohorts if not c.needs.early])
    losses = _start_losses(batch, [c for c in cohorts if c.needs.loss == "start"])
    early = any(c.needs.early for c in cohorts)
    factor = _factors(cohorts)

    def work(rows: IntArray) -> tuple[IntArray, Tensor, Tensor]:
        job = _job(batch, cohorts, drawn.table, rows, lr)
        w, means = train(batch.rows, batch.pool, at.model, job, batch.tape, early)
        if factor is not None:
            _overdo(at.model, w, job.run, factor[rows])
        return rows, w, means.clone() if batch.tape.on else means  # a replay would overwrite them

    trained = _trained(batch, work, drawn.chunks)
    if batch.tape.on:
        trained = chain(list(islice(trained, 1)), trained)
    delta = torch.zeros_like(at.model)
    begun = Begun(lr, drawn.table, cohorts, delta, kept, losses, trained)
    if _hurries(batch) and not early:  # nothing of it waits for the host
        for part in trained:
            _remember(batch, begun, *part)
            _collect(batch, begun, *part)
        begun.looks = _looks(at, begun)
    return begun


def _draw(batch: Batch, alive: list[int], t: int) -> _Drawn:
    """Who takes part in a round, with which random streams, in which chunks."""
    plan, clients, columns = batch.plan, [], []
    same: dict[tuple[int, int], tuple[IntArray, IntArray]] = {}  # runs of one seed draw alike
    for i, r in enumerate(alive):
        run = batch.runs[r]
        n, part, local = run.federation.n_clients, run.federation.train, run.strategy.local()
        if (run.seed, n) not in same:
            drawn = rng.sample_clients(run.seed, t, n, plan.participants or n)
            key = rng.key(run.seed, "local", t, drawn).view(np.int64)
            same[run.seed, n] = (drawn, key)
        client, key = same[run.seed, n]
        size = part.size[client]
        epoch = -(-size // plan.minibatch)
        steps = np.full_like(size, plan.steps) if plan.steps else plan.epochs * epoch
        clients.append(client)
        columns.append(
            (
                np.full_like(size, i),
                np.full_like(size, r),
                batch.train.base[r] + part.start[client],
                size,
                np.ones_like(size) if local.full_batch else steps,
                key,
                np.full_like(size, 2 * local.full_batch + (local.prox > 0)),
            )
        )
    table = _Table(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    order = np.lexsort((-table.size, -table.steps, table.kind))  # of one kind, longest first
    order = order[batch.ranks.mine]
    groups = np.split(order, np.flatnonzero(np.diff(table.kind[order])) + 1)
    most = batch.progress.chunk
    chunks = [group[a : a + most] for group in groups for a in range(0, len(group), most)]
    return _Drawn(clients, table, chunks)


def _keep(model: Tensor, late: list[_Cohort]) -> Tensor:
    """Room for the changes of all cohorts whose weights come after training; each has its part."""
    room = model.new_zeros(sum(len(c.client) for c in late), model.shape[1])
    end = 0
    for c in late:
        begin, end = end, end + len(c.client)
        c.change, c.place = room[begin:end], begin
    return room


def _start_losses(batch: Batch, cohorts: list[_Cohort]) -> Callable[[], None]:
    """Begin to compute each participant's training loss at its run's model; the run is the row.

    What is returned waits for the result and hands it to the cohorts.
    """
    if not cohorts:
        return lambda: None
    runs, parts, ranks = np.array([c.r for c in cohorts]), batch.train, batch.ranks
    first, size = parts.where([(c.r, c.client) for c in cohorts])
    found = np.zeros(first.shape)
    first, size = first[:, ranks.mine], size[:, ranks.mine]
    model = batch.progress.model
    whole = ranks.count == 1
    everyone = whole and all(len(c.client) == c.run.federation.n_clients for c in cohorts)
    width, length = int(size.max(initial=0)), int(size.sum(1).max())

    def work(runs: Tensor, first: Tensor, size: Tensor) -> Tensor:
        offset = torch.arange(width, device=first.device)
        valid = offset < size[..., None]  # (C, m, n_max)
        entry = torch.where(valid, first[..., None] + offset, 0)
        if everyone:  # one set of examples for all runs
            index, place = parts.union, parts.place[entry]
        else:  # each run's own, without padding
            index, place = parts.packed(entry, valid, length)
        losses, _ = batch.evaluate(model[runs], index, scored=False)
        values = losses.gather(1, place.flatten(1)).view(place.shape)
        return torch.where(valid, values.double(), 0.0).sum(2) / valid.sum(2)

    shape = ("losses", model.data_ptr(), everyone, size.shape, width, length)
    nothing = torch.zeros(size.shape)  # a rank without a client
    means = batch.tape(shape, work, runs, first, size) if size.size else nothing
    means_here = fetch(means)

    def hand_out() -> None:
        found[:, ranks.mine] = means_here()
        ranks.sum(torch.from_numpy(found))
        for c, value in zip(cohorts, found, strict=True):
            c.loss = value[: len(c.client)].copy()

    return hand_out


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


def _job(batch: Batch, cohorts: list[_Cohort], table: _Table, rows: IntArray, lr: float) -> Job:
    """The local work of a chunk of rows of one kind."""
    plan, whose = batch.plan, table.cohort[rows]
    local = [c.run.strategy.local() for c in cohorts]
    one = local[whose[0]]
    bends = [o.bend or Bend(math.inf, 1.0, 1.0) for o in local]
    bend = np.array([[getattr(b, f.name) for b in bends] for f in fields(Bend)])
    return Job(
        run=table.run[rows],
        first=table.first[rows],
        size=table.size[rows],
        key=table.key[rows],
        steps=table.steps[rows],
        minibatch=plan.minibatch,
        lr=lr,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        prox=np.array([o.prox for o in local])[whose] if one.prox > 0 else None,
        bend=bend[:, whose] if any(local[i].bend for i in np.unique(whose)) else None,
        full_batch=one.full_batch,
    )


def _factors(cohorts: list[_Cohort]) -> FloatArray | None:
    """How many times its change each row sends; None where all are honest in that."""
    hostile = [c.run.federation.hostile for c in cohorts]
    if all(lies is None or lies.attack.update == 1 for lies in hostile):
        return None
    both = zip(cohorts, hostile, strict=True)
    return np.concatenate(
        [lies.factor(c.client) if lies else np.ones(len(c.client)) for c, lies in both]
    )


def _overdo(model: Tensor, w: Tensor, run: IntArray, factor: FloatArray) -> None:
    """Multiply the changes of some trained rows."""
    rows = np.flatnonzero(factor != 1)
    if len(rows):
        at, start = send(rows, w.device), model.index_select(0, send(run[rows], w.device))
        many = send(factor[rows, None], w.device).to(w.dtype)
        w.index_copy_(0, at, start + many * (w.index_select(0, at) - start))


def _remember(batch: Batch, begun: Begun, rows: IntArray, w: Tensor, means: Tensor) -> None:
    """Keep what tells which of the trained rows broke."""
    alone = len(rows) == len(begun.table.size)
    models = w if alone and not batch.tape.on else w.sum(1)  # a replay would overwrite them
    begun.taken.append(_Trained(rows, means, models))


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
        total, weight = _weighted(
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
            begun.met.append((c, place, fetch(_own_losses(batch, c, place, w[own]))))


def _weighted(w: Tensor, coef: list[FloatArray]) -> tuple[Tensor, Tensor]:
    """coef @ w of one cohort's rows after another's, (C, P), and the sum of each coef, (C, 1)."""
    many = [len(v) for v in coef]
    share = send(np.concatenate(coef), w.device).to(w.dtype)
    if min(many) == max(many):
        return _summed(share.view(len(coef), -1), w)
    parts = zip(torch.split(share, many), torch.split(w, many), strict=True)
    total, weight = zip(*(_summed(v[None], rows) for v, rows in parts), strict=True)
    return torch.cat(total), torch.cat(weight)


def _summed(coef: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """coef (C, m) @ w (C * m, P) of each cohort, and the sum of its coef, (C, 1)."""
    with precision("float32"):
        total = torch.bmm(coef[:, None], w.view(*coef.shape, -1))[:, 0]
    return total, coef.sum(1, keepdim=True)


def _weigh(at: Progress, c: _Cohort, t: int, lr: float, **changes: Any) -> None:
    """Ask the strategy, unless a report says that the run has diverged."""
    if c.loss is not None and not np.isfinite(c.loss).all():
        bad = int(np.flatnonzero(~np.isfinite(c.loss))[0])
        _diverge(at, c, t, f"the training loss of client {c.client[bad]} is {c.loss[bad]}")
        return
    fed = c.run.federation
    if c.loss is not None and fed.hostile is not None:
        c.loss = fed.hostile.said(c.client, c.loss)
    size = fed.train.size[c.client]
    replies = Replies(t, lr, fed.n_clients, c.client, size, c.loss, **changes)
    decision = c.run.strategy.weigh(at.states[c.r], replies)
    coef: Any = getattr(decision, "coef", None)
    m, shape = len(c.client), np.shape(coef)
    if shape not in ((m,), (m + len(changes.get("past_client", ())),)):
        raise InputError(
            f"{c.run.strategy.name}: weigh() gave coefficients of shape {shape} for {m} clients: "
            "return Decision(coef, state) with one for each"
        )
    sound(c.run.strategy, decision.state, decision.info)
    if np.isfinite(decision.coef).all():
        c.decision = decision
    else:
        _diverge(at, c, t, "the strategy gave a weight that is not finite")


def _weigh_changes(batch: Batch, begun: Begun, t: int) -> None:
    """Ask the strategies that want to see norms, inner products or losses after training."""
    at, ranks, delta = batch.progress, batch.ranks, begun.delta
    late = [(c, c.change) for c in begun.cohorts if c.change is not None]
    if late:
        ranks.sum(begun.kept)
    looks = _looks(at, begun) if begun.looks is None else begun.looks
    for c, place, value in begun.met:
        if c.loss is not None:
            c.loss[place] = value()
    for (c, change), found in zip(late, looks, strict=True):
        kept = at.kept[c.r]
        if c.loss is not None and c.needs.loss in ("mean", "end"):
            ranks.sum(torch.from_numpy(c.loss))
        seen = {name: value() for name, value in found.items()}
        if not all(np.isfinite(v).all() for v in seen.values()):
            largest = int(change.abs().nan_to_num(torch.inf).amax(1).argmax())
            _diverge(at, c, t, f"the model change of client {c.client[largest]} is not finite")
            continue
        if "gram" in seen:
            seen["gram"] = (seen["gram"] + seen["gram"].T) / 2
            seen |= {"past_client": kept.client, "past_round": kept.round}
        _weigh(at, c, t, begun.lr, **seen)
        if c.decision is None:
            continue
        if not ranks.rank:  # each rank has the whole sum
            coef = send(c.decision.coef, change.device).to(change.dtype)
            now, past = coef[: len(change)], coef[len(change) :]
            with precision("float32"):
                delta[c.r] = now @ change
                if len(past):
                    delta[c.r] += past @ kept.change
        if c.needs.keep_rounds:
            stays = (kept.round > t - c.needs.keep_rounds) & ~np.isin(kept.client, c.client)
            rows = send(np.flatnonzero(stays), change.device)
            at.kept[c.r] = Kept(
                torch.cat([kept.change[rows], change]),
                np.concatenate([kept.client[stays], c.client]),
                np.concatenate([kept.round[stays], np.full(len(c.client), t)]),
            )


def _looks(at: Progress, begun: Begun) -> list[dict[str, Host]]:
    """Ask for what strategies want to know of changes: for all, before the host waits for one."""
    late = [(c, c.change) for c in begun.cohorts if c.change is not None]
    return [_look(c, change, at.kept[c.r].change) for c, change in late]


def _look(c: _Cohort, change: Tensor, kept: Tensor) -> dict[str, Host]:
    """What a strategy asks of a cohort's changes and of those kept from rounds before."""
    if c.needs.changes == "norms":
        norms = torch.linalg.vector_norm(change, dim=1, dtype=torch.float64)
        return {"norms": fetch(norms.square())}
    if c.needs.changes == "gram":
        with precision("float32"):
            gram = change @ change.T
            if len(kept):
                across = change @ kept.T
                below = torch.cat([across.T, kept @ kept.T], 1)
                gram = torch.cat([torch.cat([gram, across], 1), below])
        return {"gram": fetch(gram.double())}
    return {}


def _own_losses(batch: Batch, c: _Cohort, place: IntArray, w: Tensor) -> Tensor:
    """The training loss of trained rows, each on its own client's examples."""
    part = c.run.federation.train
    first, size = batch.train.base[c.r] + part.start[c.client[place]], part.size[c.client[place]]
    offset = torch.arange(int(size.max()), device=w.device)
    valid = offset < send(size, w.device)[:, None]
    entry = torch.where(valid, send(first, w.device)[:, None] + offset, 0)
    losses, _ = batch.evaluate(w, batch.train.entries[entry], scored=False)
    return torch.where(valid, losses.double(), 0.0).sum(1) / valid.sum(1)


def _shares(batch: Batch, cohorts: list[_Cohort], t: int) -> NDArray[Any]:
    """(R,) share of each run's new model in its deployed one; 0 for runs that do not move."""
    double = batch.progress.model.dtype == torch.float64
    share = np.zeros(len(batch.runs), np.float64 if double else np.float32)
    for c in cohorts:
        if not batch.progress.diverged[c.r]:
            share[c.r] = average.share(c.run.average, t)
    return share


def _even(table: _Table, rows: IntArray) -> bool:
    """Whether rows are in order, with as many for each run."""
    many = np.bincount(table.cohort)
    return bool((many == many[0]).all() and (rows == np.arange(len(rows))).all())


def _add_and_move(batch: Batch, cohorts: list[_Cohort], w: Tensor, share: NDArray[Any]) -> Tensor:
    """Weigh a whole round's rows at once and take the server's step."""
    model = batch.progress.model

    def work(coef: Tensor, runs: Tensor, share: Tensor) -> Tensor:
        total, weight = _summed(coef, w)
        delta = torch.zeros_like(model)
        delta[runs] = total - weight * model[runs]
        return _move(batch, delta, share)

    coef = np.stack([c.decision.coef for c in cohorts if c.decision]).astype(share.dtype)
    runs = np.array([c.r for c in cohorts])
    shape = ("move", w.data_ptr(), model.data_ptr(), coef.shape, runs.tobytes())
    out: Tensor = batch.tape(shape, work, coef, runs, share)
    return out


def _move(batch: Batch, delta: Tensor, share: Tensor) -> Tensor:
    """The server's step of each run whose new model is finite, (R,); the others keep their last."""
    plan, at = batch.plan, batch.progress
    asked = share > 0
    if at.velocity is not None:
        pushed = plan.server_momentum * at.velocity + delta
        delta = at.velocity.copy_(torch.where(asked[:, None], pushed, at.velocity))
    new = at.model + plan.server_lr * delta
    finite = new.isfinite().all(1)
    moved = (finite & asked)[:, None]
    averaged = at.deployed + share[:, None] * (new - at.deployed)
    at.model.copy_(torch.where(moved, new, at.model))
    at.deployed.copy_(torch.where(moved, averaged, at.deployed))
    return finite


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
            _diverge(at, c, t, f"{what} is not finite")
            continue
        at.states[c.r] = c.decision.state
        coef = c.decision.coef[: len(c.client)]
        out[c.r] = Round(c.client, coef, c.loss, dict(c.decision.info))


def _broken(trained: list[_Trained], many: int) -> IntArray:
    """1 for each row of a round's table that ended with a loss or model that is not finite."""
    out = np.zeros(many, np.int64)
    for done in trained:
        models = done.models if done.models.ndim == 1 else done.models.sum(1)
        out[done.rows] = (~(done.means.isfinite() & models.isfinite())).cpu().numpy()
    return out


def _diverge(at: Progress, c: _Cohort, t: int, why: str) -> None:
    label = c.run.strategy.label()
    at.diverged[c.r] = f"{label}, seed {c.run.seed}, diverged in round {t + 1}: {why}"
    c.decision = None


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error comes of too little memory, on a GPU or a CPU."""
    if error is None:
        return False
    cpu = "DefaultCPUAllocator" in str(error)
    return cpu or isinstance(error, torch.OutOfMemoryError) or out_of_memory(error.__context__)
