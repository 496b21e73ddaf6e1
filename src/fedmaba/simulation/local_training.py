"""Local training of many rows at once: minibatches, SGD, losses. Hot code, like `rows`.

This module knows rows and a pool of examples, but no clients, rounds or servers. What a client does
beyond plain SGD comes as data (`Local`, `Optimiser`) and is done here and nowhere else. Work on the
device never waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.data import trees
from fedmaba.rows.base import (
    Drift,
    Inputs,
    PropFairRows,
    ProxPull,
    RowBlock,
    Rows,
    SharedInputs,
    Shift,
    Step,
)
from fedmaba.rows.cuda_graphs import GraphCache, Held, Input, Written
from fedmaba.rows.images import take_augmented
from fedmaba.rows.random import shuffles
from fedmaba.simulation.augmentation import Augmentation
from fedmaba.simulation.optimiser import Optimiser, Schedule, step_factors
from fedmaba.strategies.base import Local, PropFairLoss

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# (into (R, P), factor (R,), towards): writes factor * the constant term of each row's gradient into
# a matrix, plus the model that the row starts from where `towards`
AddedTerms = Callable[[Tensor, FloatArray, bool], object]
FULL_BATCH_PIECE = 500  # examples of a full-batch gradient taken at once
MIN_SHARED_ROWS = 64  # of a block that shares inputs, on average: smaller ones are slower so
MAX_GATHERED = 250_000_000  # numbers of inputs that may be gathered at once
LEAST_STORED = 2.0**-40  # of weights that a pull has left after all steps taken in groups
STEPS_IN_PART = 4  # recorded at a time, where no round has the shape of another
PLAIN_LOSS = PropFairLoss(np.inf, 1.0, 1.0)


@dataclass(frozen=True)
class Pool:
    """Every example of a federation, on the device, and who trains on which."""

    x: Inputs  # (n, ...)
    y: Tensor  # (n,) or (n, ...)
    entries: Tensor  # (total,) rows of x: the training examples of one client after another


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
    local: tuple[Local, ...] = (Local(),)  # what clients do
    whose: IntArray | None = None  # (R,)   which of these a row does; None: the first
    added: AddedTerms | None = None  #      constant terms of the rows' gradients
    own: Tensor | None = None  # (R, P - S)  what clients kept of their last model
    begin: Callable[[Tensor], object] | None = None  # writes models (R, P) to start from; a pull
    #                                       is towards `run`'s model

    def rules(self) -> list[Local]:
        """(R,) What each row does."""
        whose = np.zeros(len(self.run), np.int64) if self.whose is None else self.whose
        return [self.local[i] for i in whose]

    def pulls(self) -> list[float]:
        """(R,) How strongly each row is pulled towards where it started."""
        return [local.pull for local in self.rules()]

    def minibatches(self) -> IntArray:
        """(R,) minibatches in an epoch."""
        return -(-self.size // self.minibatch)

    def shared(self) -> tuple[IntArray, tuple[RowBlock, ...]] | None:
        """Whose inputs each row takes, (R,), where rows share those of the first of them.

        Runs of one seed draw alike: then rows of run after run see the same minibatches in the
        same order, a block of them for each run. None where that does not hold of all rows.
        """
        _, first, place = np.unique(self.key, return_index=True, return_inverse=True)
        owner, rows = first[place], len(self.key)
        blocks = np.split(np.arange(rows), np.flatnonzero(np.diff(owner) != 1) + 1)
        alike = (self.first == self.first[owner]).all() and (self.steps == self.steps[0]).all()
        front = first.max() < len(first)  # each comes once before one comes twice
        many = len(blocks) * MIN_SHARED_ROWS <= rows
        if not (alike and front and len(first) < rows and many):
            return None
        return owner, tuple(RowBlock(int(b[0]), int(b[-1]) + 1, int(owner[b[0]])) for b in blocks)


class Group(NamedTuple):
    """Steps that the same rows do together."""

    rows: int  # the first so many
    start: int
    steps: int


@dataclass(frozen=True)
class RowRule:
    """How a step of some rows is done."""

    rows: Rows
    count: int  #            of the rows
    minibatch: int
    full_batch: bool
    optimiser: Optimiser
    direct: bool  #          whether a step may add its gradient to the weights at once
    prox: bool  #            whether rows are pulled towards where they started
    pull_last: bool  #       whether the pull may come after the gradient's step
    propfair: bool  #        whether rows have PropFair's loss
    own: bool  #             whether clients kept a part of their last model
    begins: bool  #          whether rows start from models of their own
    added: bool  #           whether something constant is added to gradients
    drifts: bool  #          whether weights are stored so that only gradients move them
    scheduled: bool  #       whether each step has a size of its own
    alike: bool  #           whether all rows are pulled towards one model
    augment: Augmentation | None
    group: int  #            steps that `run_steps` is given at a time


@dataclass(frozen=True)
class TrainSpec:
    """Everything that decides which operations the training of a chunk does."""

    rule: RowRule
    groups: tuple[Group, ...]
    steps: int  #  of the longest row
    epochs: int
    width: int  #  examples of the largest client
    blocks: tuple[RowBlock, ...]  # rows that share inputs; none: each has its own


@dataclass(frozen=True)
class PortionSpec:
    """Groups of steps whose inputs are gathered at once."""

    rule: RowRule
    groups: tuple[int, ...]  # steps of each
    blocks: tuple[RowBlock, ...]


def train_chunk(
    rows: Rows,
    pool: Pool,
    models: Tensor,
    job: TrainingJob,
    graphs: GraphCache,
    result_slot: object = None,
) -> tuple[Tensor, Tensor]:
    """Trained weights (R, P), and the mean loss and the sum of weights of each row, (2, R).

    A replay overwrites the results of a job of the same shape and `result_slot`.
    """
    rules, pulls, count = job.rules(), job.pulls(), len(job.run)
    full_batch, added, prox = rules[0].full_batch, job.added is not None, pulls[0] > 0
    scheduled = job.schedule != Schedule()
    direct = job.optimiser.plain and not (full_batch or scheduled)
    few = not direct or job.own is not None or _strong_pull(job, pulls)
    group = 1 if few else rows.group(models, count, job.minibatch)
    one_by_one = group == 1 and len(set(pulls)) == 1
    late = one_by_one and (added or (job.begin is not None and models.is_cuda))
    rule = RowRule(
        rows=rows,
        count=count,
        minibatch=job.minibatch,
        full_batch=full_batch,
        optimiser=job.optimiser,
        direct=direct,
        prox=prox,
        pull_last=late and job.lr * pulls[0] < 0.5,
        propfair=any(local.loss is not None for local in rules),
        own=job.own is not None,
        begins=job.begin is not None,
        added=added,
        drifts=group > 1 and (prox or added),
        scheduled=scheduled,
        alike=group == 1 and job.own is None and bool((job.run == job.run[0]).all()),
        augment=job.augment,
        group=group,
    )
    shared = job.shared() if rule.group > 1 else None
    owner, blocks = shared or (np.arange(count), ())
    spec = TrainSpec(
        rule=rule,
        groups=tuple(_groups(job.steps, rule.group)),
        steps=int(job.steps.max()),
        epochs=int((-(-job.steps // job.minibatches())).max()),
        width=int(job.size.max()),
        blocks=blocks,
    )
    ints = np.array([job.run, job.first, job.size, job.minibatches(), job.key, job.steps, owner])
    dtype = np.float64 if models.dtype == torch.float64 else np.float32
    floats = np.array(_row_numbers(rule, job, rules), dtype)
    held = (pool.x, pool.y, pool.entries, models)
    inputs: list[Input] = [ints, floats]
    inputs += [job.own] if job.own is not None else []
    for write in (job.begin, _vector_of(rule, job, models)):
        inputs += [Written((count, models.shape[1]), models.dtype, write)] if write else []
    out: tuple[Tensor, Tensor] = graphs.run(
        train_rows,
        spec,
        held,
        inputs,
        result_slot=result_slot,
        unrecorded=partial(_train_unrecorded, graphs, result_slot),
    )
    return out


def _row_numbers(rule: RowRule, job: TrainingJob, rules: Sequence[Local]) -> list[Sequence[float]]:
    """The numbers that the steps of each row use.

    These are lr, then prox and PropFair's where needed, then a factor on lr for each step.
    """
    numbers: list[Sequence[float]] = [[job.lr] * rule.count]
    if rule.prox:
        numbers.append(job.pulls())
    if rule.propfair:
        propfair = [local.loss or PLAIN_LOSS for local in rules]
        numbers += [[getattr(b, f.name) for b in propfair] for f in fields(PropFairLoss)]
    if rule.scheduled:
        width = int(job.steps.max())
        factors = [step_factors(job.schedule, int(steps), width) for steps in job.steps]
        numbers += zip(*factors, strict=True)
    return numbers


def _strong_pull(job: TrainingJob, pulls: Sequence[float]) -> bool:
    """Whether pulls leave too little of where a row was for `Drift`, which divides by that."""
    rate = job.lr * max(pulls)
    return rate >= 1 or bool((1 - rate) ** int(job.steps.max()) < LEAST_STORED)


def _vector_of(
    rule: RowRule, job: TrainingJob, models: Tensor
) -> Callable[[Tensor], object] | None:
    """Writes (R, P) what joins gradients; in direct steps, what each adds, or is pulled towards.

    A step that pulls at a rate adds as much as one that pulls towards a point further away. So
    where there is a pull, what is added becomes a part of it: one pass over the weights, not two.
    """
    add, own = job.added, job.own
    if add is None:
        return None
    towards = rule.direct and rule.prox
    factor = np.full(rule.count, -job.lr if rule.direct else 1.0)
    if towards:  # a step of -lr * added, over the rate lr * prox
        factor = -1 / np.array(job.pulls())

    def write(into: Tensor) -> None:
        add(into, factor, towards)
        if towards and own is not None:  # the part that a client keeps starts where it left it
            kept = slice(rule.rows.layout.shared, None)
            run = torch.from_numpy(job.run).to(into.device)
            into[:, kept] += own - models[:, kept].index_select(0, run)

    return write


def train_rows(spec: TrainSpec, *tensors: Any) -> tuple[Tensor, Tensor]:
    """All steps of a chunk; only operations on the device."""
    return _train(spec, None, *tensors)


class RecordedParts(NamedTuple):
    """Where parts of training are recorded, and for which results."""

    graphs: GraphCache
    result_slot: object

    def buffer(self, name: str, like: Tensor, spec: TrainSpec) -> Tensor:
        """Memory for the rows of a chunk, the same each time."""
        key = (name, spec.rule, self.result_slot)
        return self.graphs.buffer(key, like, spec.rule.count)


def _train_unrecorded(
    graphs: GraphCache, result_slot: object, spec: TrainSpec, *tensors: Any
) -> tuple[Tensor, Tensor]:
    """`train_rows`; where shapes of chunks rarely repeat, parts of it are recorded."""
    direct = spec.rule.direct and not (spec.blocks or spec.rule.begins or spec.rule.added)
    unlike = direct and graphs.shapes_rarely_repeat((spec.rule, result_slot))
    return _train(spec, RecordedParts(graphs, result_slot) if unlike else None, *tensors)


def _train(
    spec: TrainSpec,
    parts: RecordedParts | None,
    x: Inputs,
    y: Tensor,
    entries: Tensor,
    models: Tensor,  # (., P)
    ints: Tensor,  # (7, R)    run, first, size, minibatches in an epoch, key, steps, inputs' owner
    floats: Tensor,  # (., R)  see `_row_numbers`
    *more: Tensor,  #          what clients kept (R, P - S), begin with (R, P), see `_vector_of`
) -> tuple[Tensor, Tensor]:
    rule, (_, _, _, _, keys, steps, owner) = spec.rule, ints
    vector = more[-1] if rule.added else None
    w, start = _first_models(spec, parts, models, ints, floats, more)
    unlike = spec.blocks[0].stop if spec.blocks else rule.count
    index, weight = _minibatches(spec, entries, ints[1:5, :unlike], w.dtype)
    streams = keys + torch.arange(index.shape[1], device=w.device)[:, None]
    if not rule.direct:
        met = _gradient_steps(spec, x, y, w, start, index, weight, streams, floats, vector)
    else:
        met, vector = [], start if vector is None else vector
        drift = _drift_numbers(spec, floats, steps) if rule.drifts else None
        run_part = _run_inline if parts is None else parts.graphs.run_part
        for a, at, groups in _portions(spec, x, index, parts is not None):
            part = PortionSpec(rule, groups, spec.blocks)
            given = [index[:a, at], weight[:a, at], streams[at, :a], floats[:, :a]]
            given += [] if drift is None else [drift[:, at.start : at.stop + 1, :a]]
            given += [owner] if spec.blocks else []
            met.append(run_part(run_portion, part, (x, y, w, vector), given))
    return w, torch.stack([_summed(met, rule.count) / steps, w.sum(1)])


def _first_models(
    spec: TrainSpec,
    parts: RecordedParts | None,
    models: Tensor,
    ints: Tensor,
    floats: Tensor,
    more: Sequence[Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Where each row starts, (R, P), and what it is pulled towards; (1, P) if that is one model.

    Where weights drift, they are as they are stored for that.
    """
    rule, run = spec.rule, ints[0]
    if rule.drifts and rule.added:
        share = _drift_share(rule, floats, ints[5])
        pull = rule.prox
        return rule.rows.models_that_drift(models, run, more[-1], share, pulled=pull), None
    pulled = rule.prox and not (rule.direct and rule.added)  # else more[-1] is pulled towards
    if rule.begins and not pulled:
        return more[rule.own], None
    if parts is None:
        w = models.index_select(0, run[:1] if rule.begins and rule.alike else run)
    else:  # in memory that recorded parts know
        w = parts.buffer("end", models, spec)
        torch.index_select(models, 0, run, out=w)
    if rule.own:
        w[:, rule.rows.layout.shared :] = more[0]
    if rule.begins:
        if rule.drifts:
            share = _drift_share(rule, floats, ints[5])
            rule.rows.begin_drift(more[rule.own], w, share, pulled=True)
        return more[rule.own], w
    if not pulled:
        return w, None
    if parts is not None:
        return w, parts.buffer("start", models, spec).copy_(w)
    return w, models.index_select(0, run[:1]) if rule.alike else w.clone()


def _run_inline(
    function: Callable[..., Tensor],
    spec: PortionSpec,
    held: Sequence[Held],
    inputs: Sequence[Tensor],
) -> Tensor:
    return function(spec, *held, *inputs)


def _portions(
    spec: TrainSpec, x: Inputs, index: Tensor, in_parts: bool
) -> Iterator[tuple[int, slice, tuple[int, ...]]]:
    """Groups of steps whose inputs are gathered at once: how many rows, which steps, by group."""
    example = sum(v[0].numel() for v in trees.leaves(x))
    each = index[:, 0].numel() * example  # numbers of a step
    most = MAX_GATHERED // each if index.is_cuda else 1
    if in_parts:
        most = spec.rule.group if spec.rule.group > 1 else min(STEPS_IN_PART, MAX_GATHERED // each)
    held: list[Group] = []
    for group in (*spec.groups, None):
        many = sum(g.steps for g in held)
        if held and (group is None or group.rows != held[0].rows or many + group.steps > most):
            at = slice(held[0].start, held[0].start + many)
            yield held[0].rows, at, tuple(g.steps for g in held)
            held = []
        held += [group] if group else []


def run_portion(
    spec: PortionSpec,
    x: Inputs,
    y: Tensor,
    w: Tensor,  # (R, P)
    vector: Tensor | None,  # (R, P), or (1, P)  what steps pull the weights towards, or add to them
    index: Tensor,  # (U, S, B)    rows of the pool, of each minibatch
    weight: Tensor,  # (U, S, B)
    streams: Tensor,  # (S, a)
    floats: Tensor,  # (., a)
    *more: Tensor,  #              `_drift_numbers` of these steps (2, S + 1, a), and owner (a,)
) -> Tensor:
    """Steps of the first rows that add to the weights directly; the loss of each row, (S, a)."""
    a, labels, owner = streams.shape[1], y[index], more[-1] if spec.blocks else None
    inputs = _take(spec.rule, x, index, streams[:, : len(index)].T)
    if owner is not None:
        labels, weight = labels[owner], weight[owner]
    down, propfair = -floats[0, 0], _propfair(spec.rule, floats)
    rate = floats[0, 0] * floats[1] if spec.rule.prox else None
    if rate is not None and spec.rule.pull_last:  # a pull after the step shortens the step, too
        down = down / (1 - rate[0])
    blocks = spec.blocks or (RowBlock(0, a, 0),)
    met: list[Tensor] = []
    whole = spec.rule.count
    for many in spec.groups:
        at = slice(len(met), len(met) + many)
        own = trees.mapped(lambda v: v[:, at], inputs)  # noqa: B023
        steps = [
            Step(_at(inputs, k), labels[:, k], weight[:, k], down, propfair, streams[k], whole)
            for k in range(at.start, at.stop)
        ]
        besides: ProxPull | Shift | Drift | None = None
        if vector is not None and spec.rule.drifts:
            stored, added = more[0][:, at.start : at.stop + 1]
            keep, give = (torch.ones_like(stored[0]),) * 2 if rate is None else (1 - rate, rate)
            besides = Drift(vector[:a], keep, give, stored, added)
        elif vector is not None and rate is not None:
            besides = ProxPull(vector[:a], rate[:, None], spec.rule.pull_last)
        elif vector is not None:
            besides = Shift(vector[:a])
        shared = SharedInputs(own, blocks, owner)
        met += spec.rule.rows.run_steps(w[:a], shared, steps, besides)
    return torch.stack(met)


def _drift_numbers(spec: TrainSpec, floats: Tensor, steps: Tensor) -> Tensor:  # (2, K + 1, R)
    """`Drift.stored` and `Drift.added` before each step, and after the last."""
    ahead = torch.arange(spec.steps + 1, device=steps.device)[:, None] - steps  # up to 0
    if not spec.rule.prox:
        return torch.stack([torch.ones_like(ahead), ahead]).to(floats.dtype)
    left = ahead * torch.log1p(-floats[0, 0] * floats[1])  # logarithm of `stored`
    return torch.stack([left.exp(), -left.expm1()])


def _drift_share(rule: RowRule, floats: Tensor, steps: Tensor) -> Tensor:  # (R,)
    """How much of the drift's vector joins a row's weights in all of its steps."""
    if not rule.prox:
        return steps.to(floats.dtype)
    return -torch.expm1(steps * torch.log1p(-floats[0, 0] * floats[1]))


def _at(inputs: Inputs, k: int) -> Inputs:
    """The inputs (U, B, ...) of one step."""
    return trees.mapped(lambda v: v[:, k], inputs)


def _propfair(rule: RowRule, floats: Tensor) -> PropFairRows | None:
    first = 1 + rule.prox
    return PropFairRows(*floats[first : first + 3]) if rule.propfair else None


def _gradient_steps(
    spec: TrainSpec,
    x: Inputs,
    y: Tensor,
    w: Tensor,  # (R, P)
    start: Tensor | None,  # (R, P)
    index: Tensor,  # (R, K, B)
    weight: Tensor,  # (R, K, B)
    streams: Tensor,  # (K, R)
    floats: Tensor,  # (., R)
    added: Tensor | None,  # (R, P)
) -> list[Tensor]:
    """Steps that compute the whole gradient first: it has pieces, or something is added to it."""
    rule, labels, gradient = spec.rule, y[index], torch.empty_like(w)
    every, end = w, rule.rows.layout.trained  # beyond it are statistics, which no gradient moves
    w = w[:, :end]
    start, added = (v if v is None else v[:, :end] for v in (start, added))
    optimiser, clipped = rule.optimiser, rule.optimiser.clip is not None
    state = optimiser.state(w)
    one, down = torch.ones_like(floats[0, 0]), -floats[0, 0]
    sizes = down * floats[-spec.steps :, :, None] if rule.scheduled else None  # (K, R, 1)
    met = []
    for a, k, _ in spec.groups:
        whole, propfair = gradient[:a].zero_(), _propfair(rule, floats[:, :a])
        cut = rule.full_batch and propfair is None and not rule.rows.mixes_examples
        piece = FULL_BATCH_PIECE if cut else index.shape[2]
        for number, begin in enumerate(range(0, index.shape[2], piece)):
            b = slice(begin, begin + piece)
            drawn = streams[k, :a] + (number << 32)
            own = _take(rule, x, index[:a, k, b], drawn)
            given = labels[:a, k, b], weight[:a, k, b]
            step = Step(own, *given, one, propfair, drawn, rule.count)
            met.append(rule.rows.add_gradients(every[:a], whole, step)[None])
        g = whole[:, :end]
        every[:a, end:].add_(whole[:, end:])
        if not clipped:  # first, as version 0.1 does: the order of sums is part of a run's bits
            optimiser.decay(g, w[:a])
        if start is not None:
            g.addcmul_(floats[1, :a, None], w[:a] - start[:a])
        if added is not None:
            g.add_(added[:a])
        if clipped:  # what is shortened is the gradient of the loss
            optimiser.shorten(g)
            optimiser.decay(g, w[:a])
        size = down if sizes is None else sizes[k, :a]
        optimiser.step(w[:a], g, [part[:a] for part in state], size, k)
    return met


def _summed(met: list[Tensor], count: int) -> Tensor:
    """(R,) The sum of each row's losses; rows that did fewer steps come last."""
    if len(met[-1][0]) == count:
        return torch.cat(met).sum(0)
    padded = [torch.nn.functional.pad(part, (0, count - part.shape[1])) for part in met]
    return torch.cat(padded).T.contiguous().sum(1)


def _groups(steps: IntArray, most: int) -> Iterator[Group]:
    """Steps that the same rows do, at most so many at a time."""
    active = (steps > np.arange(steps.max())[:, None]).sum(1)  # of each step
    for same in np.split(np.arange(len(active)), np.flatnonzero(np.diff(active)) + 1):
        for part in np.array_split(same, -(-len(same) // most)):
            yield Group(int(active[part[0]]), int(part[0]), len(part))


def _take(rule: RowRule, x: Inputs, index: Tensor, keys: Tensor) -> Inputs:
    """The inputs x[index] of steps with random streams `keys`, changed as the rule says."""
    if rule.augment is None or not isinstance(x, Tensor):  # only images are augmented
        return take_examples(x, index)
    flip, crop = rule.augment.flip, rule.augment.crop
    return take_augmented(x, index, keys, rule.rows.image_axes, flip=flip, crop=crop)


def take_examples(x: Inputs, index: Tensor) -> Inputs:
    """x[index], by the copy that is fastest for whole examples."""
    flat = index.reshape(-1)
    return trees.mapped(lambda v: v.index_select(0, flat).view(*index.shape, *v.shape[1:]), x)


def _minibatches(
    spec: TrainSpec,
    entries: Tensor,
    drawn: Tensor,  # (4, R)  first, size, minibatches in an epoch, key
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Pool rows (R, K, B) and weights (R, K, B) of all minibatches; some are unused."""
    first, size, batches, keys = drawn
    device, width, minibatch = first.device, spec.width, spec.rule.minibatch
    offset = torch.arange(width, device=device)
    mine = entries[(first[:, None] + offset).clamp_(max=len(entries) - 1)]  # (R, n_max)
    if spec.rule.full_batch:
        return mine[:, None], ((offset < size[:, None]).to(dtype) / size[:, None])[:, None]
    order = torch.cat(
        [shuffles(keys + ((1 + e) << 40), size[:, None], width) for e in range(spec.epochs)], dim=1
    )
    mine = mine.gather(1, order)  # (R, epochs * n_max)
    k = torch.arange(spec.steps, device=device)
    place = (k % batches[:, None] * minibatch)[..., None] + offset[:minibatch]  # (R, K, B)
    valid = place < size[:, None, None]
    at = torch.where(valid, (k // batches[:, None] * width)[..., None] + place, 0)
    index = mine.gather(1, at.flatten(1).clamp_(max=mine.shape[1] - 1)).view(at.shape)
    return index, valid.to(dtype) / valid.sum(2, keepdim=True).clamp_(min=1)
