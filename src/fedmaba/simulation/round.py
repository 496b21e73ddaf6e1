"""One round: draw clients, train them as rows, measure, ask the strategies, take the server's step.

`play_round` is the algorithm, in order. Each function returns a record. Results that a device still
computes are functions (`Host`) that wait when they are called; `pipeline` decides when that is.

    draw     who takes part, with which random streams
    train    the participants' models: summed up where their weights are known, else kept as changes
    measure  the losses, norms and inner products that strategies ask for
    weigh    each strategy's coefficients
    step     the new models of the servers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.errors import NoRoom
from fedmaba.rows.cuda_graphs import send, start_fetch
from fedmaba.simulation import private, server_step, step_search
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.cohort import (
    Cohort,
    Drawn,
    FloatArray,
    IntArray,
    change_factors,
    counted,
    draw,
    job_of,
    not_finite,
    out_of_memory,
    personal_job,
    scale_malicious_updates,
    with_own_parts,
)
from fedmaba.simulation.group_counts import counts_by_group
from fedmaba.simulation.kept_vectors import (
    TrainedClients,
    as_slice,
    full_gradients,
    kept_after,
    new_mean,
    put_rows,
    take_rows,
    vector_pieces,
)
from fedmaba.simulation.local_training import TrainingJob
from fedmaba.simulation.local_training import train_chunk as train_rows
from fedmaba.simulation.measurements import (
    Host,
    change_stats,
    end_losses,
    start_losses,
)
from fedmaba.simulation.state import Round
from fedmaba.strategies import deployed
from fedmaba.strategies.base import (
    PERSONAL,
    PRIVACY_INFO,
    Decision,
    Replies,
    call_weigh,
    client_weights,
)

__all__ = ["Chunk", "Decided", "Measured", "Stepped", "Trained", "draw", "measure", "play_round",
           "rounds_of", "step", "train", "train_chunks", "weigh"]  # fmt: skip


def play_round(batch: Batch, runs: list[int], t: int) -> dict[int, Round]:
    """Play round t of some runs and return what happened; their models and states move on."""
    drawn = draw(batch, runs, t)
    measured = measure(batch, drawn)
    decided = weigh(batch, drawn, measured, when="before training")
    trained = train(batch, drawn, decided)
    measured = measure(batch, drawn, measured, trained)
    decided |= weigh(batch, drawn, measured, when="after training")
    return rounds_of(batch, drawn, trained, decided, step(batch, drawn, trained, decided))


@dataclass(frozen=True)
class Chunk:
    """Rows that were trained at once."""

    rows: IntArray  # (n,)       of the round's table
    model: Tensor  # (n, P)      after training
    summary: Tensor  # (2, n)       each row's mean loss in training, and sum of weights
    own: Tensor  # (n, P - S)       the part of the model that each client keeps, after training
    personal: Tensor | None = None  # (n, P)  the clients' own models, after training
    gradient: Tensor | None = None  # (n, P)  of all of a client's examples, at the server's model
    alone: Tensor | None = None  # (n,)       mean loss of the clients' own models in training


@dataclass
class Trained:
    """The result of training: weighted sums, or changes where the weights come later."""

    delta: Tensor | None  # (R, P)  what is to be added to the models, as far as it is weighed
    changes: Tensor  # (n, P)       of the cohorts whose weights come after training
    whole: Tensor | None = None  # (M, P)   all rows, where one sum can take them all
    summaries: list[tuple[IntArray, Tensor]] = field(default_factory=list)  # by rows
    losses: dict[int, list[tuple[IntArray, Host]]] = field(default_factory=dict)  # run -> places
    alone: dict[int, list[tuple[IntArray, Host]]] = field(default_factory=dict)  # of own models
    vectors: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # what clients keep now
    own: dict[int, Tensor] = field(default_factory=dict)  # (m, P - S) by run, where they keep some

    def change(self, c: Cohort) -> Tensor:
        """(m, P) The changes of a late cohort."""
        return self.changes[c.kept_at : c.kept_at + len(c.client)]


@dataclass(frozen=True)
class Measured:
    """What strategies need to know, by run, maybe still on its way to the host."""

    loss: dict[int, Host]
    changes: dict[int, dict[str, Host]]
    groups: dict[int, IntArray] = field(default_factory=dict)  # (m, G, 2, 2) by run


@dataclass
class Decided:
    """What the strategies decided, by run, and why some runs end instead."""

    decision: dict[int, Decision] = field(default_factory=dict)
    loss: dict[int, FloatArray] = field(default_factory=dict)  # as reported to the server
    ended: dict[int, str] = field(default_factory=dict)
    replies: dict[int, Replies] = field(default_factory=dict)  # of strategies that search steps

    def __ior__(self, other: Decided) -> Decided:
        self.decision |= other.decision
        self.loss |= other.loss
        self.ended |= other.ended
        self.replies |= other.replies
        return self


@dataclass(frozen=True)
class Stepped:
    """The server's step, started: which runs have a finite model afterwards, (R,)."""

    finite: Host
    vectors: dict[int, dict[str, Tensor]]  # of each run, those kept before, where new ones
    means: dict[int, dict[str, Tensor]]  #   have taken their place


def measure(
    batch: Batch, drawn: Drawn, before: Measured | None = None, trained: Trained | None = None
) -> Measured:
    """Before training, losses at the servers' models; after it, all else that strategies need."""
    if before is None or trained is None:
        both = (("start", batch.train), ("held", batch.validation))
        asking = (([c for c in drawn.cohorts if c.needs.loss == at], part) for at, part in both)
        started = [start_losses(batch, part, cohorts) for cohorts, part in asking]
        return Measured(started[0] | started[1], {}, counts_by_group(batch, drawn))
    if drawn.late:
        batch.ranks.sum(trained.changes)
    loss, changes = dict(before.loss), {}
    for c in drawn.late:
        past = batch.progress.kept[c.r].change
        sent = slice(batch.rows.layout.compared)  # statistics are no direction of a change
        stats = partial(change_stats, layers=batch.layers if c.needs.changes == "layers" else [])
        changes[c.r] = stats(c.needs, trained.change(c)[:, sent], past[:, sent])
        gathered = partial(_gathered, batch, len(c.client))
        if c.needs.alone:
            changes[c.r]["alone"] = partial(gathered, trained.alone.get(c.r, []))
        if c.needs.loss in ("mean", "end"):
            loss[c.r] = partial(gathered, trained.losses.get(c.r, []))
    return Measured(loss, changes, before.groups)


def _gathered(batch: Batch, many: int, parts: list[tuple[IntArray, Host]]) -> FloatArray:
    """(m,) The losses of a cohort, gathered from its chunks on all ranks."""
    out = np.zeros(many)
    for place, value in parts:
        out[place] = value()
    batch.ranks.sum(torch.from_numpy(out))
    return out


def weigh(batch: Batch, drawn: Drawn, measured: Measured, when: str) -> Decided:
    """Ask the strategies whose numbers are known; a run with a number that is not finite ends."""
    decided = Decided()
    for c in drawn.cohorts:
        if (when == "before training") != c.needs.early:
            continue
        loss = measured.loss[c.r]() if c.r in measured.loss else None
        seen = {name: value() for name, value in measured.changes.get(c.r, {}).items()}
        mechanism = batch.mechanism(c.r)  # where there is one, no loss breaks a run
        if why := _broken_numbers(c, None if mechanism else loss, seen):
            decided.ended[c.r] = why
            continue
        federation, kept = c.run.federation, batch.progress.kept[c.r]
        if loss is not None and federation.hostile is not None:
            loss, seen = federation.hostile.reported(c.client, loss, seen)
        if loss is not None and mechanism is not None:
            loss = mechanism.released_losses(drawn.round, loss)
        for name in seen.keys() & {"gram", "layer_grams"}:
            seen[name] = (seen[name] + seen[name].swapaxes(-1, -2)) / 2
            seen |= {"past_client": kept.client, "past_round": kept.round}
        if c.r in measured.groups:
            seen["groups"] = measured.groups[c.r]
        size, n = federation.train.size[c.client], federation.n_clients
        if c.needs.steps:
            seen["steps"] = counted(batch.plan, drawn.table.steps[c.rows])
        noise = {} if mechanism is None else {"loss_noise": mechanism.loss_noise}
        told: dict[str, Any] = {**seen, **noise}
        replies = Replies(drawn.round, drawn.lr, n, c.client, size, loss, **told)
        decision = call_weigh(c.run.strategy, batch.progress.states[c.r], replies)
        if not np.isfinite(decision.coef).all():
            decided.ended[c.r] = "the strategy gave a weight that is not finite"
            continue
        if mechanism is not None:
            mechanism.check_weights(c.run.strategy, drawn.round, decision.coef)
        decided.decision[c.r] = decision
        decided.replies |= {c.r: replies} if c.needs.trials else {}
        if loss is not None:
            decided.loss[c.r] = loss
    return decided


def _broken_numbers(c: Cohort, loss: FloatArray | None, seen: dict[str, NDArray[Any]]) -> str:
    """Why a run has diverged, by the first client whose number is not finite; empty if none is."""
    for name, values in seen.items():
        if not np.isfinite(values).all():
            squares = values if values.ndim == 1 else values.diagonal(axis1=-2, axis2=-1)
            own = squares.reshape(-1, squares.shape[-1]).sum(0)[: len(c.client)]
            largest = int(np.argmax(np.nan_to_num(np.abs(own), nan=np.inf)))
            what = "own model" if name == "alone" else "model change"
            return f"the {what} of client {c.client[largest]} is not finite"
    if loss is not None and not np.isfinite(loss).all():
        bad = int(np.flatnonzero(~np.isfinite(loss))[0])
        return f"the training loss of client {c.client[bad]} is {loss[bad]}"
    return ""


def train(
    batch: Batch, drawn: Drawn, decided: Decided, chunks: Iterable[Chunk] | None = None
) -> Trained:
    """Train all rows, or collect `chunks` in training; sum rows up, or keep their changes."""
    at = batch.progress
    kept = sum(len(c.client) for c in drawn.late)
    trained = Trained(None, at.model.new_zeros(kept, at.model.shape[1]))
    fresh = at.model.new_empty if batch.ranks.count == 1 else at.model.new_zeros
    for c in drawn.cohorts:
        new = {n: fresh(len(c.client), at.model.shape[1]) for n in at.vectors[c.r]}
        trained.vectors |= {c.r: new} if new else {}
        if width := at.own[c.r].shape[1]:
            trained.own[c.r] = at.model.new_zeros(len(c.client), width)
    all_decided = batch.ranks.count == 1 and len(decided.decision) == len(drawn.cohorts)
    all_decided = all_decided and not any(_more_than_changes(batch, c) for c in drawn.cohorts)
    for chunk in train_chunks(batch, drawn) if chunks is None else chunks:
        trained.summaries.append((chunk.rows, chunk.summary))
        _keep_vectors(batch, drawn, chunk, trained)
        if all_decided and drawn.rows_in_order_and_equal(chunk.rows):
            trained.whole = chunk.model
        else:
            _collect(batch, drawn, decided, chunk, trained)
    return trained


def train_chunks(batch: Batch, drawn: Drawn) -> Iterator[Chunk]:
    """Train chunk after chunk; when one does not fit into memory, halve the chunks."""
    at, factor = batch.progress, change_factors(drawn.cohorts)
    shared = batch.rows.layout.shared
    slot = any(c.needs.early for c in drawn.cohorts)

    def work(rows: IntArray) -> Chunk:
        job = job_of(batch, drawn, rows)
        w, summary, personal, alone = train_models(batch, drawn, rows, job, slot)
        gradient = None
        if batch.gradients[int(job.run[0])]:  # rows of one chunk are of one kind
            gradient = full_gradients(batch.rows, batch.pool, at.model, job, batch.graphs, slot)
        if factor is not None:
            scale_malicious_updates(at.model, w, job.run, factor[rows])
            summary = torch.stack([summary[0], w.sum(1)])
        if batch.plan.privacy is not None:
            private.clip_changes(at.model, w, job.run, batch.plan.privacy.clip, shared)
            summary = torch.stack([summary[0], w.sum(1)])
        if personal is not None:  # its sum says, too, whether the client's models are finite
            summary = torch.stack([summary[0], summary[1] + personal.sum(1)])
        own = w[:, shared:]
        if own.shape[1]:  # what a client keeps is no change that the server sees
            own = own.clone()
            w[:, shared:] = at.model[:, shared:].index_select(0, send(job.run, w.device))
        told = summary.clone() if batch.graphs.on else summary  # which a replay overwrites
        return Chunk(rows, w, told, own, personal, gradient, alone)

    chunks = drawn.chunks
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
        chunks = _halved(batch, chunks[done:])


def train_models(
    batch: Batch, drawn: Drawn, rows: IntArray, job: TrainingJob, slot: object
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Train the models that a chunk's clients send, and those of their own, where they have such.

    Returns sent models (n, P) with their summary (2, n), own ones (n, P) with their losses (n,).
    """
    at, own = batch.progress, batch.local[int(job.run[0])].personal
    if own is None:
        w, summary = train_rows(batch.rows, batch.pool, at.model, job, batch.graphs, slot)
        return w, summary, None, None
    mine = personal_job(batch, drawn, rows, job)
    apart = ("personal", slot)
    personal, summary = train_rows(batch.rows, batch.pool, at.model, mine, batch.graphs, apart)
    alone = summary[0].clone()  # before a replay overwrites it
    if own.only:
        sent = at.model.index_select(0, send(job.run, at.model.device))
        w = with_own_parts(batch, sent, job.run, drawn.table.client[rows])
        return w, torch.stack([alone, w.sum(1)]), personal, alone
    w, summary = train_rows(batch.rows, batch.pool, at.model, job, batch.graphs, slot)
    return w, summary, personal, alone


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


def _collect(batch: Batch, drawn: Drawn, decided: Decided, chunk: Chunk, trained: Trained) -> None:
    """Add trained rows up where their weights are known, else keep their changes."""
    model, rows, w, means = batch.progress.model, chunk.rows, chunk.model, chunk.summary[0]
    parts, alone = chunk.own, means if chunk.alone is None else chunk.alone
    whose = drawn.table.cohort[rows]
    if (np.diff(whose) < 0).any():  # each cohort's rows together
        order = np.argsort(whose, kind="stable")
        rows, whose, at = rows[order], whose[order], send(order, w.device)
        w, means, parts, alone = (v.index_select(0, at) for v in (w, means, parts, alone))
    present, first, many = np.unique(whose, return_index=True, return_counts=True)
    here = [
        (drawn.cohorts[i], slice(a, a + n), rows[a : a + n] - drawn.cohorts[i].rows.start)
        for i, a, n in zip(present, first, many, strict=True)
    ]
    weighed = [k for k, (c, *_) in enumerate(here) if c.r in decided.decision]
    if weighed:
        nothing = np.zeros(len(rows))
        coef = [
            decided.decision[c.r].coef[place] if c.r in decided.decision else nothing[own]
            for c, own, place in here
        ]
        total, weight = server_step.weighted_sums(w, coef)
        runs = send(np.array([here[k][0].r for k in weighed]), w.device)
        took = send(np.array(weighed), w.device)
        if trained.delta is None:
            trained.delta = torch.zeros_like(model)
        trained.delta[runs] += total[took] - weight[took] * model[runs]
        _add_first_steps(batch, drawn, decided, chunk, trained.delta)
    late = [(c, own, place) for c, own, place in here if c.kept_at >= 0]
    if late:
        into = send(np.concatenate([c.kept_at + place for c, _, place in late]), w.device)
        mine = np.concatenate([np.arange(own.start, own.stop) for _, own, _ in late])
        change = w.index_select(0, send(mine, w.device))
        change -= model.index_select(0, send(drawn.table.run[rows][mine], w.device))
        trained.changes.index_copy_(0, into, change)
    for c, own, place in late:
        if c.needs.alone:
            trained.alone.setdefault(c.r, []).append((place, start_fetch(alone[own])))
        if c.needs.loss in ("mean", "end"):
            after = c.needs.loss == "end"
            value = means[own]
            if after:
                whole = torch.cat([w[own, : batch.rows.layout.shared], parts[own]], 1)
                value = end_losses(batch, c, place, whole)
            trained.losses.setdefault(c.r, []).append((place, start_fetch(value)))


def _add_first_steps(
    batch: Batch, drawn: Drawn, decided: Decided, chunk: Chunk, delta: Tensor
) -> None:
    """Add a chunk's weighted first steps, for strategies that ask for these, to delta (R, P)."""
    weights = slice(batch.rows.layout.compared)
    for c in drawn.cohorts:
        mine = np.flatnonzero(drawn.table.run[chunk.rows] == c.r)
        if chunk.gradient is None or not c.needs.first_steps or not len(mine):
            continue
        if c.r in decided.decision:
            place = chunk.rows[mine] - c.rows.start
            coef = -drawn.lr * decided.decision[c.r].coef[len(c.client) + place]
            if (factor := change_factors([c])) is not None:
                coef = coef * factor[place]
            here = send(mine, delta.device)
            first = chunk.gradient.index_select(0, here)[:, weights]
            delta[c.r, weights] += server_step.combine_changes(coef, first, first[:0])


def _keep_vectors(batch: Batch, drawn: Drawn, chunk: Chunk, trained: Trained) -> None:
    """Compute what clients keep after training, vectors and parts of the model; `step` stores it.

    To a client, the model is the server's with the part of its own.
    """
    at, table, device = batch.progress, drawn.table, chunk.model.device
    shared = batch.rows.layout.shared
    if not (trained.vectors or trained.own):
        return
    steps = drawn.lr * counted(batch.plan, table.steps[chunk.rows])
    all_moved = send(steps, device).to(at.model.dtype)[:, None]
    for c in drawn.cohorts:
        if c.r not in trained.vectors and c.r not in trained.own:
            continue
        mine = np.flatnonzero(table.run[chunk.rows] == c.r)
        if not len(mine):
            continue
        place, client = chunk.rows[mine] - c.rows.start, table.client[chunk.rows[mine]]
        if c.r in trained.own:
            put_rows(trained.own[c.r], place, take_rows(chunk.own, mine))
        if c.r not in trained.vectors:
            continue
        if chunk.personal is not None:
            put_rows(trained.vectors[c.r][PERSONAL], place, take_rows(chunk.personal, mine))
        keep = batch.local[c.r].keep
        if not keep:
            continue
        moved = take_rows(all_moved, mine)
        for part in vector_pieces(len(mine), at.model.shape[1], device):
            here, who = mine[part], client[part]
            start, end = at.model[c.r][None], take_rows(chunk.model, here)
            if c.r in trained.own:
                own = take_rows(at.own[c.r], who)
                start = torch.cat([start[:, :shared].expand(len(here), -1), own], 1)
                end = torch.cat([end[:, :shared], take_rows(chunk.own, here)], 1)
            gradient = None if chunk.gradient is None else take_rows(chunk.gradient, here)
            known = TrainedClients(start, end, moved[part], gradient)
            for name, rule in keep.items():
                new, to = trained.vectors[c.r][name], as_slice(place[part])
                before = take_rows(at.vectors[c.r][name], who).to(device)
                into = torch.empty_like(before) if to is None else new[to]
                after = kept_after(rule, known, before, at.means[c.r].get(name), into)
                if to is None:
                    put_rows(new, place[part], after)


def step(batch: Batch, drawn: Drawn, trained: Trained, decided: Decided) -> Stepped:
    """Take the servers' steps as decided; runs that end keep their last model."""
    at, ranks, t = batch.progress, batch.ranks, drawn.round
    for r, why in decided.ended.items():
        _end(batch, r, t, why)
    changes = {c.r: trained.change(c) for c in drawn.late if c.r in decided.replies}
    decided.decision |= step_search.search_steps(batch, drawn, changes, decided)
    layout = batch.rows.layout
    spec = server_step.StepSpec(batch.plan.server_lr, layout.compared, layout.shared)
    held, moves, share = server_step.held_by_step(batch), *_shares(batch, decided, t)
    for vectors in trained.vectors.values():
        for vector in vectors.values():
            ranks.sum(vector)
    means: dict[int, dict[str, Tensor]] = {}
    if trained.whole is not None:
        coef = np.stack([decided.decision[c.r].coef for c in drawn.cohorts]).astype(share.dtype)
        inputs = (coef, np.array(drawn.runs), moves, share)
        function, whole = server_step.aggregate_whole_round, trained.whole
        finite = batch.graphs.run(function, spec, (whole, *held), inputs)
    else:
        delta = torch.zeros_like(at.model) if trained.delta is None else trained.delta
        for c in drawn.late:
            if c.r in decided.decision:
                _weigh_changes(batch, c, decided.decision[c.r], trained.change(c), delta, t)
        ranks.sum(delta)
        for c in drawn.cohorts:
            means[c.r] = _new_means(batch, c, trained)
            _add_to_step(batch, c, trained, means[c.r], delta[c.r])
            if (mechanism := batch.mechanism(c.r)) is not None:
                last = t + 1 == batch.plan.rounds
                normals = batch.noise(c.run.seed, t, layout.shared, last, delta.device)
                private.add_noise(delta[c.r], mechanism, normals)
        sent = (send(values, delta.device) for values in (moves, share))
        finite = server_step.server_step(spec, *held, delta, *sent)
    replaced: dict[int, dict[str, Tensor]] = {}
    replaced_means: dict[int, dict[str, Tensor]] = {}
    for c in drawn.cohorts:
        for name, new in trained.vectors.get(c.r, {}).items() if c.r in decided.decision else ():
            kept = at.vectors[c.r][name]
            everyone = as_slice(c.client) == slice(0, len(kept))
            if everyone and kept.device == new.device:  # `rounds_of` may put the old one back
                replaced.setdefault(c.r, {})[name] = kept
                at.vectors[c.r][name] = new
            elif at.model.is_cuda:  # which is not waited for
                old = take_rows(kept, c.client).to(new.device)
                put_rows(kept, c.client, torch.where(finite[c.r], new, old, out=new))
            elif finite[c.r]:
                put_rows(kept, c.client, new)
        if means.get(c.r) and c.r in decided.decision:
            replaced_means[c.r] = at.means[c.r]
            at.means[c.r] = at.means[c.r] | means[c.r]
        if c.r in trained.own and c.r in decided.decision:
            new, kept, who = trained.own[c.r], at.own[c.r], send(c.client, at.model.device)
            kept[who] = torch.where(finite[c.r], ranks.sum(new), kept[who])
    return Stepped(start_fetch(finite), replaced, replaced_means)


def _more_than_changes(batch: Batch, c: Cohort) -> bool:
    """Whether more than the changes of models decides on the server's step of a run."""
    local, mechanism = batch.local[c.r], batch.mechanism(c.r)
    more = local.personal is not None or c.needs.first_steps or mechanism is not None
    return bool(local.means) or more


def _new_means(batch: Batch, c: Cohort, trained: Trained) -> dict[str, Tensor]:
    """(P,) each: the means of kept vectors over all clients, after this round."""
    out, at, n = {}, batch.progress, c.run.federation.n_clients
    for name in batch.local[c.r].means:
        both = trained.vectors[c.r][name], at.vectors[c.r][name]
        out[name] = new_mean(at.means[c.r][name], *both, c.client, n)
    return out


def _add_to_step(
    batch: Batch, c: Cohort, trained: Trained, means: dict[str, Tensor], delta: Tensor
) -> None:
    """Add what the server adds besides changes (P,); nan where a client's own model is broken."""
    local, weights = batch.local[c.r], slice(batch.rows.layout.compared)
    for name, factor in local.server_adds.items():
        delta[weights] += factor * means[name][weights]
    if local.personal is not None:
        whole = torch.stack(trained.vectors[c.r][PERSONAL].aminmax()).isfinite().all()
        delta.add_(torch.where(whole, 0.0, torch.nan).to(delta.dtype))


def _weigh_changes(
    batch: Batch, c: Cohort, decision: Decision, change: Tensor, delta: Tensor, t: int
) -> None:
    """Add a late cohort's weighted changes, and keep those that its strategy needs again."""
    kept = batch.progress.kept[c.r]
    if not batch.ranks.rank:  # each rank has the whole sum
        delta[c.r] = server_step.weighted_changes(decision.coef, change, kept.change, batch.layers)
    if c.needs.keep_rounds:
        change[:, batch.rows.layout.compared :] = 0  # statistics of past rounds do not come again
        batch.progress.kept[c.r] = server_step.kept_changes(kept, c, change, t)


def _shares(batch: Batch, decided: Decided, t: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(R,) 1 for runs that move, and (D,) the weight of the new model in each deployed average."""
    dtype = np.float64 if batch.progress.model.dtype == torch.float64 else np.float32
    moves = np.zeros(len(batch.runs), dtype)
    moves[list(decided.decision)] = 1
    share = [
        deployed.new_model_share(rule, t) if moves[r] else 0.0
        for r, (_, rule) in zip(batch.progress.owner, batch.handed_out, strict=True)
    ]
    return moves, np.array(share, dtype)


def rounds_of(
    batch: Batch, drawn: Drawn, trained: Trained, decided: Decided, stepped: Stepped
) -> dict[int, Round]:
    """Store the new states, end runs whose model is not finite, and return the round's records."""
    finite, out = stepped.finite().tolist(), {}
    for c in drawn.cohorts:
        if c.r not in decided.decision:
            continue
        decision = decided.decision[c.r]
        if not finite[c.r]:
            batch.progress.vectors[c.r].update(stepped.vectors.get(c.r, {}))
            batch.progress.means[c.r].update(stepped.means.get(c.r, {}))
            broken = not_finite(trained.summaries, len(drawn.table.size))
            batch.ranks.sum(torch.from_numpy(broken))
            lost = np.flatnonzero(broken[c.rows])
            what = f"the model of client {c.client[lost[0]]}" if len(lost) else "the server's model"
            _end(batch, c.r, drawn.round, f"{what} is not finite")
            continue
        batch.progress.states[c.r] = decision.state
        coef = client_weights(c.needs, decision.coef, len(c.client))
        info = dict(decision.info)
        if (mechanism := batch.mechanism(c.r)) is not None:
            told = (mechanism.spent(drawn.round), mechanism.asked.delta)
            info |= dict(zip(PRIVACY_INFO, told, strict=True))
        out[c.r] = Round(c.client, coef, decided.loss.get(c.r), info)
    return out


def _end(batch: Batch, r: int, t: int, why: str) -> None:
    run = batch.runs[r]
    where = f"{run.strategy.label()}, seed {run.seed}, diverged in round {t + 1}"
    batch.progress.diverged[r] = f"{where}: {why}"
