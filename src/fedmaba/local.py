"""Local work of many rows at once: minibatches, SGD, losses. The only hot code besides `rows`.

Knows rows and a pool of examples; no clients, rounds or strategies. What is computed on the device
never waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmaba.rows.base import Bent, Block, Inputs, Pull, Rows, Step
from fedmaba.rows.random import shuffles
from fedmaba.tape import Tape
from fedmaba.workers import Workers

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
MetricFn = Callable[[Tensor, Tensor], Tensor]  # outputs (n, C), targets (n,) -> score of each (n,)
MICRO = 500  # examples of a full-batch gradient taken at once
BUDGET = 4_000_000  # numbers of activations held at a time in an evaluation on a CPU
ALIKE = 64  # rows of a block that shares inputs, on average: smaller ones are better on their own
GATHER = 250_000_000  # numbers of inputs that may be gathered at once
TOGETHER = 4  # steps recorded at a time, where rounds have no shape that comes again


@dataclass(frozen=True)
class Pool:
    """Every example of a federation, on the device, and who trains on which."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n,)
    entries: Tensor  # (total,) rows of x: the training examples of one client after another


@dataclass(frozen=True)
class Job:
    """Local work of one chunk of rows, sorted by number of steps, longest first."""

    run: IntArray  # (R,)    row of the matrix of models it starts from
    first: IntArray  # (R,)  where its examples begin in `entries`
    size: IntArray  # (R,)   how many they are
    key: IntArray  # (R,)    random stream of each row in this round
    steps: IntArray  # (R,)  minibatches (full-batch rows: 1)
    minibatch: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: FloatArray | None = None  # (R,)    mu
    bend: FloatArray | None = None  # (3, R)  M, epsilon, slope
    full_batch: bool = False

    def kind(self) -> tuple[object, ...]:
        """What decides how a step is done."""
        flags = (self.momentum, self.weight_decay, self.prox is None, self.bend is None)
        return (len(self.run), self.minibatch, self.full_batch, *flags)

    def shape(self) -> tuple[object, ...]:
        """All that decides which operations are done, but not on which numbers."""
        return (*self.kind(), self.size.max(), self.epochs(), self.steps.tobytes())

    def batches(self) -> IntArray:
        """(R,) minibatches in an epoch."""
        return -(-self.size // self.minibatch)

    def epochs(self) -> int:
        return int((-(-self.steps // self.batches())).max())

    def plain(self) -> bool:
        """Whether each step adds its gradient to the weights at once."""
        return not (self.full_batch or self.momentum or self.weight_decay)

    def shared(self) -> tuple[IntArray, list[Block]] | None:
        """Whose inputs each row takes, (R,), where rows share those of the first of them.

        Runs of one seed draw alike: then rows of run after run see the same minibatches in the
        same order, a block of them for each run. None where that does not hold of all rows.
        """
        _, first, place = np.unique(self.key, return_index=True, return_inverse=True)
        owner, rows = first[place], len(self.key)
        blocks = np.split(np.arange(rows), np.flatnonzero(np.diff(owner) != 1) + 1)
        alike = (self.first == self.first[owner]).all() and (self.steps == self.steps[0]).all()
        front = first.max() < len(first)  # each comes once before one comes twice
        if not (alike and front and len(first) < rows and len(blocks) * ALIKE <= rows):
            return None
        return owner, [Block(int(b[0]), int(b[-1]) + 1, int(owner[b[0]])) for b in blocks]


def train(
    rows: Rows, pool: Pool, models: Tensor, job: Job, tape: Tape, apart: object = None
) -> tuple[Tensor, Tensor]:
    """Trained weights (R, P), and of each row the mean loss it met and its weights' sum, (2, R).

    A replay overwrites the results of a job of the same shape, unless it was kept `apart`.
    """
    dtype = np.float64 if models.dtype == torch.float64 else np.float32
    most = rows.group(models, len(job.run), job.minibatch) if job.plain() else 1
    shared = job.shared() if most > 1 else None
    owner, blocks = shared or (np.arange(len(job.run)), [])
    ints = np.array([job.run, job.first, job.size, job.batches(), job.key, job.steps, owner])
    floats = [np.full(len(job.run), job.lr)]
    floats += [] if job.prox is None else [job.prox]
    floats += [] if job.bend is None else list(job.bend)
    kind = ("train", apart, models.data_ptr(), most, *job.kind())

    def work(ints: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
        restless = job.plain() and not blocks and tape.restless(kind)
        lent = Lent(tape, kind) if restless else None
        return _train(rows, pool, models, job, most, blocks, ints, floats, lent)

    shape = (kind, *blocks, *job.shape())
    out: tuple[Tensor, Tensor] = tape(shape, work, ints, np.array(floats, dtype))
    return out


class Lent(NamedTuple):
    """A tape for parts of some work, and what kind of work that is."""

    tape: Tape
    kind: object

    def place(self, name: str, like: Tensor, rows: int) -> Tensor:
        return self.tape.place((self.kind, name), like, rows)


@dataclass(frozen=True)
class Chunk:
    """What the steps of a chunk take and change, on the device."""

    rows: Rows
    pool: Pool
    w: Tensor  # (R, P)
    start: Tensor | None  # (R, P)  w at first, where something needs it
    index: Tensor  # (U, K, B)      rows of the pool, of each minibatch
    weight: Tensor  # (U, K, B)
    streams: Tensor  # (K, R)
    lr: Tensor  # ()
    prox: Tensor | None  # (R,)
    bend: Tensor | None  # (3, R)


def _train(
    rows: Rows,
    pool: Pool,
    models: Tensor,
    job: Job,
    most: int,  # steps in a group
    blocks: list[Block],
    ints: Tensor,  # (7, R)    run, first, size, minibatches in an epoch, key, steps, inputs' owner
    floats: Tensor,  # (., R)  lr, then prox, then the bend, where there are such
    lent: Lent | None,
) -> tuple[Tensor, Tensor]:
    """All steps of a chunk; only operations on the device."""
    run, _, _, _, keys, steps, owner = ints
    many, unlike = len(run), blocks[0].stop if blocks else len(run)
    place = lent.place("end", models, many) if lent else None
    w = torch.index_select(models, 0, run, out=place)
    start = None
    if job.prox is not None:
        start = lent.place("start", models, many).copy_(w) if lent else w.clone()
    index, weight = _minibatches(job, pool, ints[1:5, :unlike], w.dtype)
    streams = keys + torch.arange(index.shape[1], device=w.device)[:, None]
    prox = None if job.prox is None else floats[1]
    bend = None if job.bend is None else floats[-3:]
    chunk = Chunk(rows, pool, w, start, index, weight, streams, floats[0, 0], prox, bend)
    if not job.plain():
        seen = _gradients(chunk, job)
    elif lent:
        seen = _parts(chunk, job, most, lent)
    else:
        seen = _straight(chunk, job, most, blocks, owner if blocks else None)
    even = len(seen[-1]) == len(w)
    met = torch.stack(seen).sum(0) if even else nn.utils.rnn.pad_sequence(seen).sum(1)
    return w, torch.stack([met / steps, w.sum(1)])


def _straight(
    chunk: Chunk, job: Job, most: int, blocks: list[Block], owner: Tensor | None
) -> list[Tensor]:
    """Steps that go straight to the weights; the loss of each row in each of them."""
    index, weight, labels = chunk.index, chunk.weight, chunk.pool.y[chunk.index]
    small = chunk.w.is_cuda and index.numel() * chunk.pool.x[0].numel() <= GATHER
    gathered = _take(chunk.pool.x, index) if small else None
    if owner is not None:
        labels, weight = labels[owner], weight[owner]
    down, rate = -chunk.lr, None if chunk.prox is None else chunk.lr * chunk.prox
    seen = []
    for a, group in _groups(job.steps, most):
        at = slice(group.start, group.stop)
        x = _take(chunk.pool.x, index[:a, at]) if gathered is None else gathered[:a, at]
        inputs = Inputs(x, blocks or [Block(0, a, 0)], owner)
        more = [None if v is None else v[..., :a] for v in (rate, chunk.bend)]
        streams = chunk.streams[at, :a]
        seen += _sweep(chunk, inputs, labels[:a, at], weight[:a, at], streams, down, *more)
    return seen


def _parts(chunk: Chunk, job: Job, most: int, lent: Lent) -> list[Tensor]:
    """`_straight`, a few steps at a time: as many steps of as many rows come again."""
    pool, down = chunk.pool, -chunk.lr
    rate = None if chunk.prox is None else chunk.lr * chunk.prox
    some = [v for v in (rate, chunk.bend) if v is not None]
    room = GATHER // (chunk.index[:, 0].numel() * pool.x[0].numel())
    together = most if most > 1 else max(1, min(TOGETHER, room))  # a group stays whole
    seen: list[Tensor] = []
    for a, group in _groups(job.steps, together):
        at, many = slice(group.start, group.stop), len(group)

        def work(
            index: Tensor, weight: Tensor, streams: Tensor, down: Tensor, *some: Tensor
        ) -> Tensor:
            given = iter(some)
            more = [None if v is None else next(given) for v in (rate, chunk.bend)]
            x, y, out = _take(pool.x, index), pool.y[index], []
            for k in range(0, len(streams), most):
                now = slice(k, k + most)
                inputs = Inputs(x[:, now], [Block(0, len(x), 0)])
                out += _sweep(chunk, inputs, y[:, now], weight[:, now], streams[now], down, *more)
            return torch.stack(out)

        given = (chunk.index[:a, at], chunk.weight[:a, at], chunk.streams[at, :a], down)
        seen += lent.tape.part((lent.kind, a, many), work, *given, *(v[..., :a] for v in some))
    return seen


def _sweep(
    chunk: Chunk,
    inputs: Inputs,
    y: Tensor,  # (a, S, B)
    weight: Tensor,  # (a, S, B)
    streams: Tensor,  # (S, a)
    down: Tensor,  # ()
    rate: Tensor | None,  # (a,)
    bend: Tensor | None,  # (3, a)
) -> list[Tensor]:
    """A group of steps of the first rows."""
    a = len(y)
    bent = None if bend is None else Bent(*bend)
    pull = None
    if rate is not None and chunk.start is not None:
        pull = Pull(chunk.start[:a], rate[:, None])
    steps = [
        Step(inputs.x[:, k], y[:, k], weight[:, k], down, bent, streams[k])
        for k in range(len(streams))
    ]
    return chunk.rows.sweep(chunk.w[:a], inputs, steps, pull)


def _gradients(chunk: Chunk, job: Job) -> list[Tensor]:
    """Steps by a gradient of their own: of more examples than fit at once, or kept for the next."""
    pool, w, index, weight = chunk.pool, chunk.w, chunk.index, chunk.weight
    labels, gradient = pool.y[index], torch.empty_like(w)
    velocity = torch.zeros_like(w) if job.momentum else None
    one, down = torch.ones_like(chunk.lr), -chunk.lr
    seen = []
    for a, group in _groups(job.steps, 1):
        k = group.start
        g, bent = gradient[:a].zero_(), None if chunk.bend is None else Bent(*chunk.bend[:, :a])
        part = MICRO if job.full_batch and bent is None else index.shape[2]  # bent: whole
        for piece, begin in enumerate(range(0, index.shape[2], part)):
            b = slice(begin, begin + part)
            x = _take(pool.x, index[:a, k, b])
            drawn = chunk.streams[k, :a] + (piece << 32)
            step = Step(x, labels[:a, k, b], weight[:a, k, b], one, bent, drawn)
            seen.append(chunk.rows.accumulate(w[:a], g, step))
        if job.weight_decay:
            g.add_(w[:a], alpha=job.weight_decay)
        if chunk.start is not None and chunk.prox is not None:
            g.addcmul_(chunk.prox[:a, None], w[:a] - chunk.start[:a])
        if velocity is not None:
            g = velocity[:a].mul_(job.momentum).add_(g)
        w[:a].addcmul_(g, down)
    return seen


def _groups(steps: IntArray, most: int) -> Iterator[tuple[int, range]]:
    """Steps that the same rows do, at most so many at a time, and how many rows they are."""
    active = (steps > np.arange(steps.max())[:, None]).sum(1)  # of each step
    for same in np.split(np.arange(len(active)), np.flatnonzero(np.diff(active)) + 1):
        for part in np.array_split(same, -(-len(same) // most)):
            yield int(active[part[0]]), range(int(part[0]), int(part[-1]) + 1)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x[index], by the copy that is quickest for whole examples."""
    return x.index_select(0, index.reshape(-1)).view(*index.shape, *x.shape[1:])


def _minibatches(
    job: Job,
    pool: Pool,
    drawn: Tensor,  # (4, R)  first, size, minibatches in an epoch, key
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Pool rows (R, K, B) and weights (R, K, B) of all minibatches; steps a row lacks are void."""
    first, size, batches, keys = drawn
    device, width = first.device, int(job.size.max())
    offset = torch.arange(width, device=device)
    mine = pool.entries[(first[:, None] + offset).clamp_(max=len(pool.entries) - 1)]  # (R, n_max)
    if job.full_batch:
        return mine[:, None], ((offset < size[:, None]).to(dtype) / size[:, None])[:, None]
    epochs = job.epochs()
    order = torch.cat(
        [shuffles(keys + ((1 + e) << 40), size[:, None], width) for e in range(epochs)], dim=1
    )
    mine = mine.gather(1, order)  # (R, epochs * n_max)
    k = torch.arange(int(job.steps.max()), device=device)
    place = (k % batches[:, None] * job.minibatch)[..., None] + offset[: job.minibatch]  # (R, K, B)
    valid = place < size[:, None, None]
    at = torch.where(valid, (k // batches[:, None] * width)[..., None] + place, 0)
    index = mine.gather(1, at.flatten(1).clamp_(max=mine.shape[1] - 1)).view(at.shape)
    return index, valid.to(dtype) / valid.sum(2, keepdim=True).clamp_(min=1)


def evaluate(
    rows: Rows,
    flat: Tensor,  # (R, P)
    index: Tensor,  # (n,) shared by all rows, or (R, n)
    pool: Pool,
    workers: Workers,
    metric: MetricFn | None = None,
    *,
    scored: bool = True,
) -> tuple[Tensor, Tensor]:
    """Loss and score (R, n) of each example; without `scored` the scores are left out."""
    n, shared = index.shape[-1], index.ndim == 1
    budget = BUDGET
    if flat.is_cuda:
        budget = torch.cuda.get_device_properties(flat.device).total_memory // 256
    losses = torch.empty(len(flat), n, device=flat.device, dtype=flat.dtype)
    scores = torch.empty_like(losses) if scored else losses[:, :0]
    group = max(1, min(len(flat), budget // (rows.activations * 1000))) if flat.is_cuda else 1
    step = max(1, budget // (rows.activations * group))

    def piece(a: int) -> None:
        part = index[..., a : a + step]
        if shared:  # gathered once for all rows
            x, y = _take(pool.x, part)[None], pool.y[part][None]
        for r in range(0, len(flat), group):
            if not shared:
                x, y = _take(pool.x, part[r : r + group]), pool.y[part[r : r + group]]
            out = rows.outputs(flat[r : r + group], x)
            target = y.expand(out.shape[:2])
            losses[r : r + group, a : a + step] = rows.losses(out, target)
            if scored and metric is None:
                scores[r : r + group, a : a + step] = out.argmax(-1) == target
            elif scored and metric is not None:
                score = metric(out.flatten(0, 1), target.flatten())
                scores[r : r + group, a : a + step] = score.view(target.shape)

    for _ in workers.map(piece, range(0, n, step)):
        pass
    return losses, scores
