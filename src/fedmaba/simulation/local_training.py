"""Local training of many rows at once: minibatches, steps, losses. Hot code, like `rows`.

This module knows rows and a pool of examples, but no clients, rounds, servers or strategies. What a
row does beyond plain SGD comes as numbers and is done here and in `rows`, and nowhere else. Work on
the device never waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.rows import objectives
from fedmaba.rows.base import Inputs, Moves, Rows, Step, StepsAhead
from fedmaba.rows.cuda_graphs import GraphCache, Input, Written
from fedmaba.rows.random import shuffles
from fedmaba.rows.steps import (
    SEEN,
    DeviceChunk,
    RecordedParts,
    StepRule,
    first_models,
    objective_of,
    run_steps,
    take,
)
from fedmaba.simulation.augmentation import Augmentation
from fedmaba.simulation.optimiser import Optimiser, Schedule, step_factors
from fedmaba.strategies.base import Second

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# (into (R, P), factor (R,), towards): writes factor * the constant term of each row's gradient into
# a matrix, plus the model that the row starts from where `towards`
AddedTerms = Callable[[Tensor, FloatArray, bool], object]
FULL_BATCH_PIECE = 500  # examples of a full-batch gradient taken at once


@dataclass(frozen=True)
class Pool:
    """Every example of a federation, on the device, and who trains on which."""

    x: Inputs  # (n, ...)
    y: Tensor  # (n,) or (n, ...)
    entries: Tensor  # (total,) rows of x: the training examples of one client after another


class JobSecond(NamedTuple):
    """The second model of the rows of a job."""

    how: Second
    begin: Callable[[Tensor], object] | None = None  # writes where it starts (R, P); None: at w


class JobObjective(NamedTuple):
    """What the rows of a job minimise in place of the usual loss."""

    name: str
    numbers: Mapping[str, FloatArray]  # (R,) each
    seen: Mapping[str, Callable[[Tensor], object]] = {}  # writes models (R, P) that it also sees


@dataclass(frozen=True)
class TrainingJob:
    """Local work of one chunk of rows, sorted by number of steps, longest first."""

    run: IntArray  # (R,)    row of the matrix of models it starts from
    first: IntArray  # (R,)  where its examples begin in `entries`
    size: IntArray  # (R,)   how many they are
    key: IntArray  # (R,)    random stream of each row in this round
    steps: IntArray  # (R,)  minibatches (full-batch rows: 1)
    minibatch: int
    lr: float
    optimiser: Optimiser = Optimiser()
    schedule: Schedule = Schedule()  # of the step size, over the steps of a row
    augment: Augmentation | None = None
    full_batch: bool = False  #             one step on the gradient of all examples of a row
    pull: FloatArray | None = None  # (R,)  how strongly each row is pulled to where it started
    objective: JobObjective | None = None
    added: AddedTerms | None = None  #      constant terms of the rows' gradients
    own: Tensor | None = None  # (R, P - S)  what clients kept of their last model
    moves: Moves = "all"
    second: JobSecond | None = None
    begin: Callable[[Tensor], object] | None = None  # writes models (R, P) to start from; a pull
    #                                       is towards `run`'s model

    def minibatches(self) -> IntArray:
        """(R,) minibatches in an epoch."""
        return -(-self.size // self.minibatch)

    @property
    def direct(self) -> bool:
        """Whether a step may add its gradient to the weights at once."""
        plain = self.optimiser.plain and self.schedule == Schedule()
        return plain and not self.full_batch and self.moves == "all" and self.second is None


@dataclass(frozen=True)
class TrainSpec:
    """Everything that decides which operations the training of a chunk does."""

    rule: StepRule
    active: tuple[int, ...]  # (K,)  how many rows do each step
    minibatch: int
    full_batch: bool
    optimiser: Optimiser | None  # None: a step adds its gradient to the weights at once
    scheduled: bool  #  whether each step has a size of its own
    epochs: int
    width: int  #       examples of the largest client
    moves: Moves
    second: Second | None


def train_chunk(
    rows: Rows,
    pool: Pool,
    models: Tensor,
    job: TrainingJob,
    graphs: GraphCache,
    result_slot: object = None,
) -> tuple[Tensor, Tensor]:
    """Trained weights (R, P), and the mean loss and the sum of weights of each row, (2, R).

    Where clients have a model of their own by `job.second`, the second models come after, (2R, P).
    A replay overwrites the results of a job of the same shape and `result_slot`.
    """
    given = _given(rows, models, job)
    spec = TrainSpec(
        rule=_rule(rows, models, job, tuple(given)),
        active=tuple(int(n) for n in (job.steps > np.arange(job.steps.max())[:, None]).sum(1)),
        minibatch=job.minibatch,
        full_batch=job.full_batch,
        optimiser=None if job.direct else job.optimiser,
        scheduled=job.schedule != Schedule(),
        epochs=int((-(-job.steps // job.minibatches())).max()),
        width=int(job.size.max()),
        moves=job.moves,
        second=None if job.second is None else job.second.how,
    )
    ints = np.array([job.run, job.first, job.size, job.minibatches(), job.key, job.steps])
    dtype = np.float64 if models.dtype == torch.float64 else np.float32
    floats = np.array(_row_numbers(job), dtype)
    held = (pool.x, pool.y, pool.entries, models)
    out: tuple[Tensor, Tensor] = graphs.run(
        train_rows,
        spec,
        held,
        [ints, floats, *given.values()],
        result_slot=result_slot,
        unrecorded=partial(_train_unrecorded, graphs, result_slot),
    )
    return out


def _rule(rows: Rows, models: Tensor, job: TrainingJob, given: tuple[str, ...]) -> StepRule:
    """How a step of these rows is done."""
    pull, objective, plan = job.pull, job.objective, None
    alone = objective is None or not objectives.find(objective.name).of_outputs
    if job.direct and job.own is None and alone:
        rate = None if pull is None else job.lr * pull
        draws = (job.first, job.key, job.steps, job.minibatch)
        plan = rows.plan(models, StepsAhead(*draws, rate, job.added is not None))
    order: Literal["", "first", "last"] = ""
    if pull is not None:
        late = "added" in given or ("begin" in given and models.is_cuda)
        one = plan is None and len(set(pull)) == 1
        order = "last" if one and late and job.lr * pull[0] < 0.5 else "first"
    return StepRule(
        rows=rows,
        count=len(job.run),
        pull=order,
        objective=() if objective is None else (objective.name, *objective.numbers),
        given=given,
        alike=plan is None and job.own is None and bool((job.run == job.run[0]).all()),
        augment=job.augment,
        plan=plan,
    )


def _row_numbers(job: TrainingJob) -> list[FloatArray]:
    """The numbers that the steps of each row use.

    These are lr, the pull and those of the objective, where there are, then a factor on lr for each
    step.
    """
    numbers = [np.full(len(job.run), job.lr)]
    if job.pull is not None:
        numbers.append(job.pull)
    if job.objective is not None:
        numbers += job.objective.numbers.values()
    if job.schedule != Schedule():
        width = int(job.steps.max())
        factors = [step_factors(job.schedule, int(steps), width) for steps in job.steps]
        numbers += [*np.array(factors).T]
    return numbers


def _given(rows: Rows, models: Tensor, job: TrainingJob) -> dict[str, Input]:
    """The matrices that come besides, see `DeviceChunk.given`."""
    shape, given = (len(job.run), models.shape[1]), dict[str, Input]()
    if job.own is not None:
        given["own"] = job.own
    if job.begin is not None:
        given["begin"] = Written(shape, models.dtype, job.begin)
    if job.second is not None and job.second.begin is not None:
        given["second"] = Written(shape, models.dtype, job.second.begin)
    if job.added is not None:
        write = partial(_write_added, job, job.added, models, rows.layout.shared)
        given["added"] = Written(shape, models.dtype, write)
    for name, see in job.objective.seen.items() if job.objective else ():
        given[SEEN + name] = Written(shape, models.dtype, see)
    return given


def _write_added(
    job: TrainingJob, added: AddedTerms, models: Tensor, shared: int, into: Tensor
) -> None:
    """Write what joins gradients; in direct steps, what each adds, or is pulled towards.

    A step that pulls at a rate adds as much as one that pulls towards a point further away. So
    where there is a pull, what is added becomes a part of it: one pass over the weights, not two.
    """
    if not job.direct:
        added(into, np.ones(len(job.run)), False)
        return
    if job.pull is None:
        added(into, np.full(len(job.run), -job.lr), False)
        return
    added(into, -1 / job.pull, True)  # a step of -lr * added, over the rate lr * pull
    if job.own is not None:  # the part that a client keeps starts where it left it
        run = torch.from_numpy(job.run).to(into.device)
        into[:, shared:] += job.own - models[:, shared:].index_select(0, run)


def train_rows(spec: TrainSpec, *tensors: Any) -> tuple[Tensor, Tensor]:
    """All steps of a chunk; only operations on the device."""
    return _train(spec, None, *tensors)


def _train_unrecorded(
    graphs: GraphCache, result_slot: object, spec: TrainSpec, *tensors: Any
) -> tuple[Tensor, Tensor]:
    """`train_rows`; where shapes of chunks rarely repeat, parts of it are recorded."""
    plain = spec.optimiser is None and {*spec.rule.given} <= {"own"}
    unlike = plain and graphs.shapes_rarely_repeat((spec.rule, result_slot))
    return _train(spec, RecordedParts(graphs, result_slot) if unlike else None, *tensors)


def _train(
    spec: TrainSpec,
    parts: RecordedParts | None,
    x: Inputs,
    y: Tensor,
    entries: Tensor,
    models: Tensor,  # (., P)
    ints: Tensor,  # (6, R)    run, first, size, minibatches in an epoch, key, steps
    floats: Tensor,  # (., R)  see `_row_numbers`
    *given: Tensor,  #         see `_given`
) -> tuple[Tensor, Tensor]:
    run, _, _, _, keys, steps = ints
    chunk = DeviceChunk(
        rule=spec.rule,
        active=spec.active,
        x=x,
        y=y,
        models=models,
        run=run,
        steps=steps,
        streams=keys + torch.arange(len(spec.active), device=keys.device)[:, None],
        numbers=floats,
        given=dict(zip(spec.rule.given, given, strict=True)),
        draw=lambda many: _minibatches(spec, entries, ints[1:5, :many], models.dtype),
        parts=parts,
    )
    if spec.optimiser is None:
        w, met = run_steps(chunk)
        second = None
    else:
        w, met, second = _gradient_steps(spec, spec.optimiser, chunk)
    summary = torch.stack([_summed(met, spec.rule.count) / steps, w.sum(1)])
    return w if second is None else torch.cat([w, second]), summary


def _gradient_steps(
    spec: TrainSpec, optimiser: Optimiser, chunk: DeviceChunk
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Steps that compute the whole gradient first: an optimiser works on it, or it has pieces.

    Returns trained weights, losses of steps, and second models where clients keep them.
    """
    rule, floats = chunk.rule, chunk.numbers
    every, start = first_models(chunk, pulled=bool(rule.pull))
    layout = rule.rows.layout
    moving, end = layout.moving(spec.moves), layout.trained  # beyond it are statistics
    w, added = every[:, moving], chunk.given.get("added")
    start, added = (v if v is None else v[:, moving] for v in (start, added))
    gradient, state = torch.empty_like(every), optimiser.state(w)
    one, down, steps = torch.ones_like(floats[0, 0]), -floats[0, 0], len(spec.active)
    sizes = down * floats[-steps:, :, None] if spec.scheduled else None  # (K, R, 1)
    index, weight = chunk.draw(rule.count)
    drawn, met = (index, chunk.y[index], weight), []
    x = None if spec.second is None else chunk.given.get("second", torch.empty_like(every))
    for k, a in enumerate(spec.active):
        whole = gradient[:a].zero_()
        size = down if sizes is None else sizes[k, :a]
        if spec.second is not None and x is not None:
            second = SecondStep(spec, chunk, spec.second, index, weight, k, one)
            met.append(second.take(every[:a], x[:a], whole, size)[None])
        else:
            for step in _pieces(spec, chunk, [v[:a, k] for v in drawn], chunk.streams[k, :a], one):
                met.append(rule.rows.add_gradients(every[:a], whole, step)[None])
        g = whole[:, moving]
        every[:a, end:].add_(whole[:, end:])
        if optimiser.clip is None:  # first, as version 0.1 does: the order of sums is part of a
            optimiser.decay(g, w[:a])  # run's bits
        if start is not None:
            g.addcmul_(floats[1, :a, None], w[:a] - start[:a])
        if added is not None:
            g.add_(added[:a])
        if optimiser.clip is not None:  # what is shortened is the gradient of the loss
            optimiser.shorten(g)
            optimiser.decay(g, w[:a])
        optimiser.step(w[:a], g, [part[:a] for part in state], size, k)
    return every, met, x if spec.second is not None and spec.second.kept else None


class SecondStep(NamedTuple):
    """One step of some rows with their second models, as `Second` says."""

    spec: TrainSpec
    chunk: DeviceChunk
    how: Second
    examples: Tensor  # (R, K, B)  rows of the pool
    weight: Tensor  # (R, K, B)
    k: int
    one: Tensor  # ()

    def take(self, w: Tensor, x: Tensor, whole: Tensor, size: Tensor) -> Tensor:  # (a,)
        """Move x (a, P), and write over `whole` (a, P) the gradient that w takes; its loss at w."""
        how, layout = self.how, self.chunk.rule.rows.layout
        moving, end = layout.moving(self.spec.moves), layout.trained
        if how.kind == "between":
            if self.k == 0:
                self._begin_between(w, x)
            return self._gradient(w, whole, self.k, 0)
        if how.kind == "mixed":
            self._gradient(torch.lerp(w, x, how.mix), whole, self.k, 0)
            x[:, moving].addcmul_(whole[:, moving], size * how.mix)
            return self._gradient(w, whole.zero_(), self.k, 0)
        x.copy_(w)
        rate, losses = how.lr * how.pull, []  # a pull after a step shortens the step, too
        for s in range(how.steps):
            losses.append(self._gradient(x, x, self.k, s, -how.lr / (1 - rate)))
            x[:, moving].lerp_(w[:, moving], rate)
        if how.kind == "ahead":
            self._gradient(x, whole, self.k + 1, how.steps)
        else:
            torch.sub(w[:, moving], x[:, moving], out=whole[:, moving]).mul_(how.pull)
            torch.sub(x[:, end:], w[:, end:], out=whole[:, end:])
        return losses[0]

    def _begin_between(self, w: Tensor, x: Tensor) -> None:
        """Learn how far w goes on the way to the server's model, weight by weight, and go there."""
        own, way = w.clone(), self.chunk.models.index_select(0, self.chunk.run) - w
        gradient = torch.empty_like(w)
        torch.addcmul(own, way, x, out=w)
        for s in range(self.how.steps):
            self._gradient(w, gradient.zero_(), s, s + 1)
            x.addcmul_(gradient, way, value=-self.how.lr).clamp_(0, 1)
            torch.addcmul(own, way, x, out=w)

    def _gradient(
        self, at: Tensor, into: Tensor, k: int, number: int, scale: float = 1.0
    ) -> Tensor:  # (a,)
        """Add the gradient at models (a, P) of minibatch k, times a scale; the loss there.

        After a row's last minibatch comes its first. `number` tells apart random masks of a step.
        """
        chunk, a = self.chunk, len(at)
        place = (k % chunk.steps[:a])[:, None, None].expand(-1, 1, self.weight.shape[2])
        index, weight = (v[:a].gather(1, place)[:, 0] for v in (self.examples, self.weight))
        streams = chunk.streams[self.k, :a] + (number << 32)
        drawn = [index, chunk.y[index], weight]
        (step,) = _pieces(self.spec, chunk, drawn, streams, self.one * scale)
        return chunk.rule.rows.add_gradients(at, into, step)


def _pieces(
    spec: TrainSpec,
    chunk: DeviceChunk,
    drawn: Sequence[Tensor],  # (a, B) each: rows of the pool, labels, weights
    streams: Tensor,  # (a,)
    scale: Tensor,
) -> Iterator[Step]:
    """The minibatches of one step; a full batch is cut where that changes no gradient."""
    rule, a, size = chunk.rule, *drawn[0].shape
    objective = objective_of(rule, chunk.numbers[:, :a], chunk.seen)
    linear = objective is None or objective.seen is not None  # in the loss of each example
    cut = spec.full_batch and linear and not rule.rows.mixes_examples
    piece = FULL_BATCH_PIECE if cut else size
    for number, begin in enumerate(range(0, size, piece)):
        index, labels, weight = (v[:, begin : begin + piece] for v in drawn)
        keys = streams + (number << 32)
        x = take(rule, chunk.x, index, keys)
        yield Step(x, labels, weight, scale, objective, keys, rule.count)


def _summed(met: list[Tensor], count: int) -> Tensor:
    """(R,) The sum of each row's losses; rows that did fewer steps come last."""
    if len(met[-1][0]) == count:
        return torch.cat(met).sum(0)
    padded = [torch.nn.functional.pad(part, (0, count - part.shape[1])) for part in met]
    return torch.cat(padded).T.contiguous().sum(1)


def _minibatches(
    spec: TrainSpec,
    entries: Tensor,
    drawn: Tensor,  # (4, R)  first, size, minibatches in an epoch, key
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Pool rows (R, K, B) and weights (R, K, B) of all minibatches; some are unused."""
    first, size, batches, keys = drawn
    device, width, minibatch = first.device, spec.width, spec.minibatch
    offset = torch.arange(width, device=device)
    mine = entries[(first[:, None] + offset).clamp_(max=len(entries) - 1)]  # (R, n_max)
    if spec.full_batch:
        return mine[:, None], ((offset < size[:, None]).to(dtype) / size[:, None])[:, None]
    order = torch.cat(
        [shuffles(keys + ((1 + e) << 40), size[:, None], width) for e in range(spec.epochs)], dim=1
    )
    mine = mine.gather(1, order)  # (R, epochs * n_max)
    k = torch.arange(len(spec.active), device=device)
    place = (k % batches[:, None] * minibatch)[..., None] + offset[:minibatch]  # (R, K, B)
    valid = place < size[:, None, None]
    at = torch.where(valid, (k // batches[:, None] * width)[..., None] + place, 0)
    index = mine.gather(1, at.flatten(1).clamp_(max=mine.shape[1] - 1)).view(at.shape)
    return index, valid.to(dtype) / valid.sum(2, keepdim=True).clamp_(min=1)
