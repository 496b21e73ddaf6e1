"""Local work of many rows at once: minibatches, SGD, losses. The only hot code besides `rows`.

Knows rows and a pool of examples; no clients, rounds or strategies. What is computed on the device
never waits for the host.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmaba.rows.base import Bent, Block, Inputs, Rows, Step
from fedmaba.rows.random import shuffles
from fedmaba.workers import Workers

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
MetricFn = Callable[[Tensor, Tensor], Tensor]  # outputs (n, C), targets (n,) -> score of each (n,)
MICRO = 500  # examples of a full-batch gradient taken at once
BUDGET = 4_000_000  # numbers of activations held at a time in an evaluation on a CPU
RECORDED = 8  # shapes of work kept ready for replay
STALE = 100  # calls after which one that was not replayed gives way to another
PAYS = 50  # replays that make up for a recording
SHAPES = 10_000  # of work, remembered until they come again
ALIKE = 64  # rows of a block that shares inputs, on average: smaller ones are better on their own
GATHER = 250_000_000  # numbers of a chunk's inputs that may be gathered before its first step


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

    def shape(self) -> tuple[object, ...]:
        """All that decides which operations are done, but not on which numbers."""
        flags = (self.momentum, self.weight_decay, self.prox is None, self.bend is None)
        sizes = (self.size.max(), self.epochs(), self.minibatch, self.full_batch)
        return (*sizes, *flags, self.steps.tobytes())

    def batches(self) -> IntArray:
        """(R,) minibatches in an epoch."""
        return -(-self.size // self.minibatch)

    def epochs(self) -> int:
        return int((-(-self.steps // self.batches())).max())

    def plain(self) -> bool:
        """Whether each step adds its gradient to the weights, and nothing else does."""
        return not (self.full_batch or self.momentum or self.weight_decay or self.prox is not None)

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


class Tape:
    """Runs work on a device; on CUDA, work of a shape seen before is recorded and replayed.

    A replay costs one launch instead of hundreds. What it returns is overwritten by the next.
    """

    def __init__(self, device: torch.device, recordable: bool) -> None:
        self.device = device
        self.on = recordable and device.type == "cuda"
        self.calls = 0
        self.wanted = 2  # times that a shape must come before it is recorded
        self.seen: Counter[int] = Counter()  # of the last shapes, by hash
        self.ready: dict[object, tuple[Any, list[Tensor], list[Tensor], Any, Any]] = {}
        self.used: dict[object, int] = {}  # the call that replayed it last
        self.replays: Counter[object] = Counter()

    def __call__(self, shape: object, work: Callable[..., Any], *arrays: NDArray[Any]) -> Any:
        """work(*arrays on the device); `shape` names all that decides which operations it does."""
        if not self.on:
            return work(*(send(a, self.device) for a in arrays))
        self.calls += 1
        if shape not in self.ready:
            if len(self.seen) > SHAPES:  # of rounds that never come again, as clients of all sizes
                self.seen.clear()
            self.seen[hash(shape)] += 1
            if self.seen[hash(shape)] < self.wanted or not self._room():
                return work(*(send(a, self.device) for a in arrays))
            self.ready[shape] = self._record(work, arrays)
        self.used[shape] = self.calls
        self.replays[shape] += 1
        graph, host, inputs, out, copied = self.ready[shape]
        copied.synchronize()  # what was sent last time has left the host's memory
        for array, pinned, tensor in zip(arrays, host, inputs, strict=True):
            pinned.numpy()[...] = array
            tensor.copy_(pinned, non_blocking=True)
        copied.record()
        graph.replay()
        return out

    def _room(self) -> bool:
        """Whether one more may be kept; one that is no longer used makes room.

        Where that one did not pay, shapes change too often: the next must come twice as often.
        """
        if len(self.ready) < RECORDED:
            return True
        oldest = min(self.used, key=self.used.__getitem__)
        if self.calls - self.used[oldest] <= STALE:
            return False
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        del self.ready[oldest], self.used[oldest]
        self.wanted = 2 if self.replays.pop(oldest) >= PAYS else 2 * self.wanted
        return True

    def forget(self) -> None:
        """Give back the memory of what was recorded."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.ready.clear()
            self.used.clear()
            self.replays.clear()
            self.seen.clear()
            gc.collect()
            torch.cuda.empty_cache()

    def _record(self, work: Callable[..., Any], arrays: tuple[NDArray[Any], ...]) -> Any:
        host = [torch.from_numpy(np.ascontiguousarray(a)).pin_memory() for a in arrays]
        inputs = [h.to(self.device) for h in host]
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # a recording of an earlier run, freed in the middle, would break this one
        try:
            with torch.cuda.graph(graph):
                out = work(*inputs)
        finally:
            if collecting:
                gc.enable()
        return graph, host, inputs, out, torch.cuda.Event()  # type: ignore[no-untyped-call]


def send(values: NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device, without waiting for what the device is doing."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def fetch(values: Tensor) -> Callable[[], NDArray[Any]]:
    """Start to copy to the host; what is returned waits for that alone, not for later work."""
    if not values.is_cuda:
        return values.numpy
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def wait() -> NDArray[Any]:
        done.synchronize()
        return host.numpy()

    return wait


def train(
    rows: Rows, pool: Pool, models: Tensor, job: Job, tape: Tape, apart: object = None
) -> tuple[Tensor, Tensor]:
    """Trained weights (R, P) and the mean loss of the minibatches seen (R,).

    A replay overwrites the results of a job of the same shape, unless it was kept `apart`.
    """
    dtype = np.float64 if models.dtype == torch.float64 else np.float32
    most = rows.group(models, len(job.run), job.minibatch) if job.plain() else 1
    own = np.arange(len(job.run)), [Block(0, len(job.run), 0)]
    owner, blocks = (job.shared() if most > 1 else None) or own
    ints = np.stack([job.run, job.first, job.size, job.batches(), job.key, job.steps, owner])
    floats = [np.full(len(job.run), job.lr)]
    floats += [] if job.prox is None else [job.prox]
    floats += [] if job.bend is None else list(job.bend)

    def work(ints: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
        return _train(rows, pool, models, job, most, blocks, ints, floats)

    shape = ("train", apart, models.data_ptr(), most, *blocks, *job.shape())
    out: tuple[Tensor, Tensor] = tape(shape, work, ints, np.stack(floats).astype(dtype))
    return out


def _train(
    rows: Rows,
    pool: Pool,
    models: Tensor,
    job: Job,
    most: int,  # steps in a group
    blocks: list[Block],
    ints: Tensor,  # (7, R)    run, first, size, minibatches in an epoch, key, steps, inputs' owner
    floats: Tensor,  # (., R)  lr, then prox, then the bend, where there are such
) -> tuple[Tensor, Tensor]:
    """All steps of a chunk; only operations on the device."""
    run, _, _, _, keys, steps, owner = ints
    lr = floats[0, 0]
    prox = None if job.prox is None else floats[1, :, None]
    bend = None if job.bend is None else floats[-3:]
    w = models.index_select(0, run)
    index, weight = _minibatches(job, pool, ints[1:5, : blocks[0].stop], w.dtype)  # (U, K, B)
    labels = pool.y[index]
    small = w.is_cuda and index.numel() * pool.x[0].numel() <= GATHER and not job.full_batch
    gathered = _take(pool.x, index) if small else None
    shared = owner if len(blocks) > 1 else None
    if shared is not None:
        labels, weight = labels[shared], weight[shared]
    gradient = torch.empty_like(w) if job.full_batch or job.momentum or job.weight_decay else None
    start = None if prox is None else w if gradient is None else w.clone()
    velocity = torch.zeros_like(w) if job.momentum else None
    one, down = torch.ones_like(lr), -lr
    seen = []  # loss of each minibatch
    streams = keys + torch.arange(index.shape[1], device=w.device)[:, None]  # (K, R)
    for a, group in _groups(job.steps, most):
        bent = None if bend is None else Bent(*bend[:, :a])
        if gradient is None:
            at = slice(group.start, group.stop)
            x = _take(pool.x, index[:a, at]) if gathered is None else gathered[:a, at]
            now = [
                Step(x[:, i], labels[:a, k], weight[:a, k], down, bent, streams[k, :a])
                for i, k in enumerate(group)
            ]
            if start is not None and prox is not None:
                pulled = torch.lerp(w[:a], start[:a], lr * prox[:a])
                seen.append(rows.accumulate(w[:a], pulled, now[0]))
                w = pulled if a == len(w) else torch.cat([pulled, w[a:]])
            else:
                inputs = Inputs(x, blocks if shared is not None else [Block(0, a, 0)], shared)
                seen += rows.sweep(w[:a], inputs, now)
            continue
        k = group.start
        stream, g = streams[k, :a], gradient[:a]
        g.zero_()
        part = MICRO if job.full_batch and bent is None else index.shape[2]  # bent: whole
        for piece, begin in enumerate(range(0, index.shape[2], part)):
            b = slice(begin, begin + part)
            x = _take(pool.x, index[:a, k, b])
            drawn = stream + (piece << 32)
            step = Step(x, labels[:a, k, b], weight[:a, k, b], one, bent, drawn)
            seen.append(rows.accumulate(w[:a], g, step))
        if job.weight_decay:
            g.add_(w[:a], alpha=job.weight_decay)
        if start is not None and prox is not None:
            g.addcmul_(prox[:a], w[:a] - start[:a])
        if velocity is not None:
            g = velocity[:a].mul_(job.momentum).add_(g)
        w[:a].addcmul_(g, down)
    if len(seen[-1]) == len(w):
        return w, torch.stack(seen).sum(0) / steps
    return w, nn.utils.rnn.pad_sequence(seen).sum(1) / steps


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
