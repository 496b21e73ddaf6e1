"""The round loop of a batch of runs: draws clients, trains them as rows, asks the strategies.

Knows no algorithm, writes no file, prints nothing. `simulate` is a generator: progress bars,
checkpoints and early stops are lines in its consumer's loop. All that survives a round is one
`Progress`; saved and loaded it continues bit for bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba import models, rng
from fedmaba.errors import InputError
from fedmaba.federation import Federation, Part
from fedmaba.local import Job, MetricFn, Pool, evaluate, train
from fedmaba.rows import LossFn, Rows, compile
from fedmaba.rows.base import Bent
from fedmaba.strategy import Bend, Decision, Needs, Replies, State, Strategy
from fedmaba.workers import Workers

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """What all runs of a batch have in common."""

    rounds: int
    participants: int | None = None  #      per round; None: all
    epochs: int = 1  #                      local passes over the data, unless steps says
    steps: int | None = None
    minibatch: int = 50
    lr: float = 0.1
    lr_decay: float = 0.999  #              per round
    momentum: float = 0.0
    weight_decay: float = 0.0
    server_lr: float = 1.0
    server_momentum: float = 0.0
    eval_every: int = 1
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    chunk: int | None = None  #             rows trained at once; None: from the device's memory
    threads: int | None = None  #           cores to use; None: what torch would


@dataclass(frozen=True)
class Run:
    """One strategy on one federation with one seed."""

    strategy: Strategy
    seed: int
    federation: Federation
    deploy: str | None = None  #            which model is handed out; None: the strategy's own

    @property
    def average(self) -> str:
        return self.deploy or self.strategy.deploy


@dataclass(frozen=True)
class Round:
    """What one run's server saw and decided in one round."""

    client: IntArray  # (m,)
    weight: FloatArray  # (m,)
    loss: FloatArray | None  # (m,)
    info: dict[str, float]


@dataclass(frozen=True)
class Scores:
    """How one model serves each client: loss and score (accuracy) on its test examples."""

    loss: FloatArray  # (N,)
    accuracy: FloatArray  # (N,)


# One run's server models on every client. "last" and "deployed" (the one that would be handed out)
# are measured on test examples, "last_validation" and "deployed_validation" where there are such.
Evaluation = dict[str, Scores]


@dataclass
class Progress:
    """All that survives a round. Rows of the matrices are runs."""

    round: int  #                           the next one
    model: Tensor  # (R, P)
    deployed: Tensor  # (R, P)
    best: Tensor  # (R, P)                  model of the best evaluated round
    best_score: FloatArray  # (R,)
    best_round: IntArray  # (R,)
    velocity: Tensor | None  # (R, P)       server momentum
    states: list[State]
    kept: list[Kept]
    diverged: list[str]  #                  why a run ended early; empty while it goes on
    chunk: int

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but round, chunk and diverged, as arrays for a checkpoint."""
        out: dict[str, NDArray[Any]] = {
            name: getattr(self, name).cpu().numpy() for name in ("model", "deployed", "best")
        }
        out |= {"best_score": self.best_score, "best_round": self.best_round}
        if self.velocity is not None:
            out["velocity"] = self.velocity.cpu().numpy()
        for r, (state, kept) in enumerate(zip(self.states, self.kept, strict=True)):
            out |= {f"state/{r}/{name}": value for name, value in state.items()}
            out[f"kept/{r}/change"] = kept.change.cpu().numpy()
            out |= {f"kept/{r}/client": kept.client, f"kept/{r}/round": kept.round}
        return out

    def restore(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        """Go back to where a checkpoint was taken."""

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(arrays[name].copy()).to(self.model)

        self.round, self.chunk = meta["round"], meta["chunk"]
        self.diverged = list(meta["diverged"])
        self.model, self.deployed, self.best = map(tensor, ("model", "deployed", "best"))
        self.best_score, self.best_round = arrays["best_score"].copy(), arrays["best_round"].copy()
        self.velocity = tensor("velocity") if "velocity" in arrays else None
        for r in range(len(self.states)):
            own = f"state/{r}/"
            self.states[r] = {
                name.removeprefix(own): value.copy()
                for name, value in arrays.items()
                if name.startswith(own)
            }
            client, round_ = (arrays[f"kept/{r}/{name}"].copy() for name in ("client", "round"))
            self.kept[r] = Kept(tensor(f"kept/{r}/change"), client, round_)


@dataclass
class Kept:
    """Changes of past rounds that a strategy wants to see again."""

    change: Tensor  # (h, P)
    client: IntArray  # (h,)
    round: IntArray  # (h,)


@dataclass(frozen=True)
class Snapshot:
    """One round of all runs, as it leaves the engine."""

    round: int
    rounds: list[Round | None]  #           None: the run has ended
    evaluations: list[Evaluation | None] | None
    progress: Progress


@dataclass
class Batch:
    """Runs that share data, model and plan, ready to be simulated."""

    runs: Sequence[Run]
    plan: Plan
    rows: Rows
    pool: Pool
    metric: MetricFn | None
    progress: Progress
    train: _Parts
    validation: _Parts
    test: _Parts
    workers: Workers

    def evaluate(self, flat: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and score of each example under each row, (R, n)."""
        budget = 500_000_000 if flat.is_cuda else 4_000_000  # numbers held at a time
        return evaluate(self.rows, flat, index, self.pool, self.metric, budget, self.workers)


def start(
    runs: Sequence[Run],
    plan: Plan,
    model: models.Factory | str = "mlp",
    loss: LossFn | None = None,
    metric: MetricFn | None = None,
) -> Batch:
    """A batch at round 0: data on the device, initial models, initial states."""
    _check(runs, plan)
    data = runs[0].federation.data
    make = models.factory(model) if isinstance(model, str) else model
    device, dtype = _device(plan.device), getattr(torch, plan.dtype)
    initial = {
        seed: models.build(make, data.x.shape[1:], len(data.classes), seed)
        for seed in dict.fromkeys(run.seed for run in runs)
    }
    pool = Pool(torch.from_numpy(data.x).to(device, dtype), torch.from_numpy(data.y).to(device))
    template = copy.deepcopy(initial[runs[0].seed]).to(device, dtype)
    rows = compile(template, pool.x[: max(2, min(plan.minibatch, len(pool.x)))], loss)
    flat = torch.stack([rows.layout.pack(initial[r.seed]) for r in runs]).to(device, dtype)
    nobody = np.zeros(0, np.int64)
    progress = Progress(
        round=0,
        model=flat,
        deployed=flat.clone(),
        best=flat.clone(),
        best_score=np.full(len(runs), -np.inf),
        best_round=np.full(len(runs), -1, np.int64),
        velocity=torch.zeros_like(flat) if plan.server_momentum else None,
        states=[r.strategy.init(r.federation.n_clients) for r in runs],
        kept=[Kept(flat[:0], nobody, nobody) for _ in runs],
        diverged=[""] * len(runs),
        chunk=plan.chunk or _chunk(rows, plan, flat),
    )
    trained, validated, tested = (
        _Parts([getattr(run.federation, name) for run in runs], device)
        for name in ("train", "validation", "test")
    )
    count = plan.threads or torch.get_num_threads()
    workers = Workers(count if rows.parallel and device.type == "cpu" else 1)
    parts = (trained, validated, tested)
    return Batch(runs, plan, rows, pool, metric, progress, *parts, workers)


def simulate(batch: Batch) -> Iterator[Snapshot]:
    """The rounds of a batch, one after another, from where its progress stands."""
    plan, at = batch.plan, batch.progress
    while at.round < plan.rounds and not all(at.diverged):
        t = at.round
        with torch.no_grad(), batch.workers.single():
            rounds = _round(batch, t)
            at.round = t + 1
            due = at.round % plan.eval_every == 0 or at.round == plan.rounds
            evaluations = _evaluate(batch) if due else None
        yield Snapshot(t, rounds, evaluations, at)


def averaging(text: str) -> tuple[str, float]:
    """`last`, `average`, `poly:K` or `ema:B` as kind and number."""
    kind, _, number = text.partition(":")
    try:
        value = float(number) if number else math.nan
    except ValueError:
        value = math.nan
    if (
        (kind in ("last", "average") and not number)
        or (kind == "poly" and 0 <= value < math.inf)
        or (kind == "ema" and 0 < value < 1)
    ):
        return kind, value
    raise InputError(
        f"deploy={text!r}: say last, average, poly:K with K of at least 0, or ema:B with 0 < B < 1"
    )


def averaging_step(text: str, t: int) -> float:
    """The share of the new model in the deployed one after round t = 0, 1, ..."""
    kind, value = averaging(text)
    if kind == "poly":
        return (value + 1) / (t + 1 + value)
    if kind == "average":
        return 1 / (t + 1)
    return 1.0 if kind == "last" or t == 0 else 1 - value


class _Parts:
    """One part (train, validation or test) of every run's federation, on the device."""

    def __init__(self, parts: Sequence[Part], device: torch.device) -> None:
        self.parts = parts
        distinct = list({id(part): part for part in parts}.values())
        ends = np.cumsum([0, *(len(part.index) for part in distinct)])
        base = {id(part): int(end) for part, end in zip(distinct, ends, strict=False)}
        self.base = [base[id(part)] for part in parts]  # where a run's entries begin
        entries = np.concatenate([part.index for part in distinct])
        union, place = np.unique(entries, return_inverse=True)
        self.entries = torch.from_numpy(entries).to(device)  # rows of the pool
        self.union = torch.from_numpy(union).to(device)  # rows of the pool, each once
        self.host_place = place  # (entries,)       entry -> its place in the union
        self.place = torch.from_numpy(place).to(device)

    def of(self, r: int, client: IntArray) -> tuple[Tensor, Tensor]:
        """Entries (m, n_max) of clients of run r, padded, and which of them count."""
        part = self.parts[r]
        first = torch.from_numpy(self.base[r] + part.start[client]).to(self.entries.device)
        size = torch.from_numpy(part.size[client]).to(self.entries.device)
        offset = torch.arange(int(part.size[client].max()), device=size.device)
        valid = offset < size[:, None]
        return torch.where(valid, first[:, None] + offset, 0), valid


@dataclass
class _Cohort:
    """One run's round in the making."""

    r: int
    run: Run
    needs: Needs
    client: IntArray  # (m,)
    seen: Tensor  # (m,)                      mean loss of the minibatches
    change: Tensor  # (m, P)                  kept where the weights come after training
    loss: FloatArray | None = None  # (m,)
    decision: Decision | None = None


def _round(batch: Batch, t: int) -> list[Round | None]:
    """One round of all live runs; moves their models and states on."""
    plan, at = batch.plan, batch.progress
    lr = plan.lr * plan.lr_decay**t
    cohorts = [_draw(batch, r, t) for r, why in enumerate(at.diverged) if not why]
    _start_losses(batch, [c for c in cohorts if c.needs.loss == "start"])
    for c in cohorts:
        if c.needs.early:
            _weigh(at, c, t, lr)
    cohorts = [c for c in cohorts if not at.diverged[c.r]]
    delta = torch.zeros_like(at.model)
    _train(batch, cohorts, t, lr, delta)
    for c in cohorts:
        if not c.needs.early:
            _weigh_changes(at, c, c.change, t, lr, delta)
    _move(batch, cohorts, t, delta)
    out: list[Round | None] = [None] * len(batch.runs)
    for c in cohorts:
        if c.decision is not None:
            coef = c.decision.coef[: len(c.client)]
            out[c.r] = Round(c.client, coef, c.loss, dict(c.decision.info))
    return out


def _draw(batch: Batch, r: int, t: int) -> _Cohort:
    run = batch.runs[r]
    n = run.federation.n_clients
    client = rng.sample_clients(run.seed, t, n, batch.plan.participants or n)
    needs, model = run.strategy.needs(), batch.progress.model
    change = model.new_empty(0 if needs.early else len(client), model.shape[1])
    return _Cohort(r, run, needs, client, model.new_zeros(len(client)), change)


def _weigh(at: Progress, c: _Cohort, t: int, lr: float, **changes: Any) -> None:
    """Ask the strategy, unless a report says that the run has diverged."""
    if c.loss is not None and not np.isfinite(c.loss).all():
        bad = int(np.flatnonzero(~np.isfinite(c.loss))[0])
        _diverge(at, c, t, f"the training loss of client {c.client[bad]} is {c.loss[bad]}")
        return
    fed = c.run.federation
    size = fed.train.size[c.client]
    replies = Replies(t, lr, fed.n_clients, c.client, size, c.loss, **changes)
    decision = c.run.strategy.weigh(at.states[c.r], replies)
    if np.isfinite(decision.coef).all():
        c.decision = decision
    else:
        _diverge(at, c, t, "the strategy gave a weight that is not finite")


def _diverge(at: Progress, c: _Cohort, t: int, why: str) -> None:
    label = c.run.strategy.label()
    at.diverged[c.r] = f"{label}, seed {c.run.seed}, diverged in round {t + 1}: {why}"


@dataclass(frozen=True)
class _Table:
    """Rows to be trained: participants of all runs."""

    cohort: IntArray  # (M,)   whose
    place: IntArray  # (M,)    which of its participants
    first: IntArray  # (M,)    where its training examples begin in batch.train
    size: IntArray  # (M,)     how many they are
    steps: IntArray  # (M,)
    key: IntArray  # (M,)      random stream of this client in this round
    kind: IntArray  # (M,)     rows of one kind can be trained together

    def take(self, rows: IntArray) -> _Table:
        return _Table(*(getattr(self, f.name)[rows] for f in fields(self)))


def _table(batch: Batch, cohorts: list[_Cohort], t: int) -> _Table:
    plan, columns = batch.plan, []
    for i, c in enumerate(cohorts):
        part, local = c.run.federation.train, c.run.strategy.local()
        size = part.size[c.client]
        epoch = -(-size // plan.minibatch)
        steps = np.full_like(size, plan.steps) if plan.steps else plan.epochs * epoch
        columns.append(
            (
                np.full_like(size, i),
                np.arange(len(size)),
                batch.train.base[c.r] + part.start[c.client],
                size,
                np.ones_like(size) if local.full_batch else steps,
                rng.key(c.run.seed, "local", t, c.client).view(np.int64),
                np.full_like(size, 2 * local.full_batch + (local.prox > 0)),
            )
        )
    return _Table(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _train(batch: Batch, cohorts: list[_Cohort], t: int, lr: float, delta: Tensor) -> None:
    """Train every participant of every run, a chunk of rows at a time, and add up the changes."""
    if not cohorts:
        return
    at, table = batch.progress, _table(batch, cohorts, t)
    order = np.lexsort((-table.size, -table.steps, table.kind))  # of one kind, longest first
    chunks = [
        table.take(group[a : a + at.chunk])
        for group in np.split(order, np.flatnonzero(np.diff(table.kind[order])) + 1)
        for a in range(0, len(group), at.chunk)
    ]

    def work(chunk: _Table) -> tuple[_Table, Tensor, Tensor]:
        run = torch.tensor([cohorts[i].r for i in chunk.cohort], device=delta.device)
        job = _job(batch, cohorts, chunk, lr)
        return chunk, *train(batch.rows, at.model[run], job, batch.pool)

    for chunk, w, seen in batch.workers.map(work, chunks):
        for i in np.unique(chunk.cohort):
            mine = np.flatnonzero(chunk.cohort == i)
            rows = torch.from_numpy(mine).to(delta.device)
            _collect(batch, cohorts[i], chunk.place[mine], w[rows], seen[rows], delta)


def _job(batch: Batch, cohorts: list[_Cohort], chunk: _Table, lr: float) -> Job:
    """The local work of a chunk of rows of one kind."""
    plan, device, dtype = batch.plan, batch.pool.x.device, batch.pool.x.dtype
    locals_ = [cohorts[i].run.strategy.local() for i in chunk.cohort]
    offset = np.arange(chunk.size.max())
    entry = np.where(offset < chunk.size[:, None], chunk.first[:, None] + offset, 0)

    def tensor(values: list[float]) -> Tensor:
        return torch.tensor(values, device=device, dtype=dtype)

    bends = [o.bend or Bend(math.inf, 1.0, 1.0) for o in locals_]
    bent = Bent(*(tensor([getattr(b, f.name) for b in bends]) for f in fields(Bend)))
    return Job(
        index=batch.train.entries[torch.from_numpy(entry).to(device)],
        size=chunk.size,
        steps=chunk.steps,
        minibatch=plan.minibatch,
        keys=torch.from_numpy(chunk.key).to(device),
        lr=lr,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        prox=tensor([o.prox for o in locals_])[:, None] if locals_[0].prox > 0 else None,
        bent=bent if any(o.bend for o in locals_) else None,
        full_batch=locals_[0].full_batch,
    )


def _collect(
    batch: Batch, c: _Cohort, place: IntArray, w: Tensor, seen: Tensor, delta: Tensor
) -> None:
    """Take in trained rows of one run: add them up, or keep them until they can be weighed."""
    model = batch.progress.model[c.r]
    here = torch.from_numpy(place).to(w.device)
    c.seen[here] = seen
    if c.decision is not None:
        coef = torch.from_numpy(c.decision.coef[place]).to(w)
        delta[c.r] += coef @ w - coef.sum() * model
        return
    c.change[here] = w - model
    if c.needs.loss in ("mean", "end"):
        if c.loss is None:
            c.loss = np.zeros(len(c.client))
        values = seen if c.needs.loss == "mean" else _own_losses(batch, c, place, w)
        c.loss[place] = values.double().cpu().numpy()


def _start_losses(batch: Batch, cohorts: list[_Cohort]) -> None:
    """The training loss of each participant at its run's model: the run is the row."""
    if not cohorts:
        return
    device = batch.pool.x.device
    model = batch.progress.model[[c.r for c in cohorts]]
    entries = [batch.train.of(c.r, c.client) for c in cohorts]
    if all(len(c.client) == c.run.federation.n_clients for c in cohorts):  # share the examples
        losses, _ = batch.evaluate(model, batch.train.union)
        for c, values, (entry, valid) in zip(cohorts, losses, entries, strict=True):
            c.loss = _means(values[batch.train.place[entry]], valid)
        return
    flat = [entry[valid] for entry, valid in entries]  # each run's own examples, without padding
    index = torch.zeros(len(flat), max(map(len, flat)), dtype=torch.int64, device=device)
    for row, entry in zip(index, flat, strict=True):
        row[: len(entry)] = batch.train.entries[entry]
    losses, _ = batch.evaluate(model, index)
    for c, values, (_, valid) in zip(cohorts, losses, entries, strict=True):
        padded = torch.zeros(valid.shape, device=device, dtype=values.dtype)
        padded[valid] = values[: int(valid.sum())]
        c.loss = _means(padded, valid)


def _own_losses(batch: Batch, c: _Cohort, place: IntArray, w: Tensor) -> Tensor:
    """The training loss of trained rows, each on its own client's examples."""
    entry, valid = batch.train.of(c.r, c.client[place])
    losses, _ = batch.evaluate(w, batch.train.entries[entry])
    return (losses * valid).sum(1) / valid.sum(1)


def _means(values: Tensor, valid: Tensor) -> FloatArray:
    """Mean over the valid entries of each row of a padded matrix."""
    total = torch.where(valid, values.double(), 0.0).sum(1) / valid.sum(1)
    return total.cpu().numpy()


def _weigh_changes(
    at: Progress, c: _Cohort, change: Tensor, t: int, lr: float, delta: Tensor
) -> None:
    """Ask a strategy that wants to see norms, inner products or losses after training."""
    kept = at.kept[c.r]
    many = torch.cat([change, kept.change]) if len(kept.client) else change
    seen: dict[str, Any] = {}
    if c.needs.changes == "norms":
        seen["norms"] = change.double().square().sum(1).cpu().numpy()
    if c.needs.changes == "gram":
        gram = (many @ many.T).double().cpu().numpy()
        seen["gram"] = (gram + gram.T) / 2
        seen["past_client"], seen["past_round"] = kept.client, kept.round
    if not all(np.isfinite(v).all() for v in seen.values()):
        finite = change.isfinite().all(1).cpu().numpy()
        bad = c.client[np.flatnonzero(~finite)] if not finite.all() else c.client
        _diverge(at, c, t, f"the model change of client {bad[0]} is not finite")
        return
    _weigh(at, c, t, lr, **seen)
    if c.decision is None:
        return
    coef = torch.from_numpy(c.decision.coef).to(many)
    delta[c.r] = coef @ many[: len(coef)]
    if c.needs.keep_rounds:
        stays = (kept.round > t - c.needs.keep_rounds) & ~np.isin(kept.client, c.client)
        rows = torch.from_numpy(np.flatnonzero(stays)).to(change.device)
        at.kept[c.r] = Kept(
            torch.cat([kept.change[rows], change]),
            np.concatenate([kept.client[stays], c.client]),
            np.concatenate([kept.round[stays], np.full(len(c.client), t)]),
        )


def _move(batch: Batch, cohorts: list[_Cohort], t: int, delta: Tensor) -> None:
    """The server's step of every run whose new model is finite; the others keep their last."""
    plan, at = batch.plan, batch.progress
    if at.velocity is not None:
        at.velocity.mul_(plan.server_momentum).add_(delta)
        delta = at.velocity
    new = at.model + plan.server_lr * delta
    finite = new.isfinite().all(1).tolist()
    for c in cohorts:
        if at.diverged[c.r] or c.decision is None:
            continue
        if not finite[c.r]:
            _diverge(at, c, t, _culprit(c))
            c.decision = None
            continue
        at.model[c.r] = new[c.r]
        at.states[c.r] = c.decision.state
        share = averaging_step(c.run.average, t)
        at.deployed[c.r] += share * (new[c.r] - at.deployed[c.r])


def _culprit(c: _Cohort) -> str:
    """Which client's training broke the model, where its losses tell."""
    lost = np.flatnonzero(~np.isfinite(c.seen.cpu().numpy()))
    return f"the model of client {c.client[lost[0]]}" if len(lost) else "the server's model"


def _evaluate(batch: Batch) -> list[Evaluation | None]:
    """Every live run's models on every client; remembers the best round's last model."""
    at = batch.progress
    alive = [r for r, why in enumerate(at.diverged) if not why]
    averaged = [r for r in alive if batch.runs[r].average != "last"]
    found: dict[int, Evaluation] = {r: {} for r in alive}
    for parts, suffix in ((batch.test, ""), (batch.validation, "_validation")):
        last = _scores(batch, parts, at.model, alive)
        deployed = last | _scores(batch, parts, at.deployed, averaged)
        for r in last:
            found[r] |= {"last" + suffix: last[r], "deployed" + suffix: deployed[r]}
    for r in alive:
        judged = found[r].get("last_validation", found[r]["last"])
        score = float(np.nanmean(judged.accuracy))
        if score > at.best_score[r]:
            at.best_score[r], at.best_round[r] = score, at.round - 1
            at.best[r] = at.model[r]
    return [found.get(r) for r in range(len(batch.runs))]


def _scores(batch: Batch, parts: _Parts, flat: Tensor, runs: list[int]) -> dict[int, Scores]:
    """Loss and score of each client under its run's model."""
    runs = [r for r in runs if len(parts.parts[r].index)]
    if not runs:
        return {}
    found = batch.evaluate(flat[runs], parts.union)
    out = {}
    for r, loss, score in zip(runs, *(v.double().cpu().numpy() for v in found), strict=True):
        part = parts.parts[r]
        place = parts.host_place[parts.base[r] : parts.base[r] + len(part.index)]
        out[r] = Scores(part.means(loss[place]), part.means(score[place]))
    return out


def _check(runs: Sequence[Run], plan: Plan) -> None:
    if not runs:
        raise InputError("no runs: name at least one strategy and one seed")
    for run in runs:
        if run.federation.data is not runs[0].federation.data:
            raise InputError("runs of one batch must share one data set: simulate them apart")
        m, n = plan.participants, run.federation.n_clients
        if m is not None and not 1 <= m <= n:
            raise InputError(
                f"participants={m}, but the federation has {n} clients: lower it or say 'all'"
            )
        averaging(run.average)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"device={name!r}: {reason}: say auto, cpu, cuda or cuda:N") from error
    return device


def _chunk(rows: Rows, plan: Plan, flat: Tensor) -> int:
    """Rows trained at once: what fits a CPU's cache, or part of a GPU's free memory."""
    size = flat.element_size()
    if not flat.is_cuda:
        return max(1, int(8e6 / (rows.layout.size * size)))
    each = size * (4 * rows.layout.size + 3 * rows.activations * plan.minibatch)
    return max(1, int(0.4 * torch.cuda.mem_get_info(flat.device)[0] / each))
