"""Work on a device that goes on while the host does: recorded and replayed, sent and fetched."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RECORDED = 8  # shapes of work kept ready for replay
STALE = 100  # calls after which one that was not replayed gives way to another
PAYS = 50  # replays that make up for a recording
SHAPES = 10_000  # of work, remembered until they come again
RESTLESS = 5  # times that work came in a shape of its own before its parts are recorded
PARTS = 512  # shapes of parts kept ready for replay
ALIGNED = 256  # bytes: where an array begins in memory that several share


class Mail:
    """Arrays of some shapes on their way to a device, time after time: one copy for all of them."""

    def __init__(self, arrays: Sequence[NDArray[Any]], device: torch.device) -> None:
        cuda, size = device.type == "cuda", sum(_padded(a) for a in arrays)
        self.host = torch.empty(size, dtype=torch.uint8, pin_memory=cuda)
        self.there = torch.empty(size, dtype=torch.uint8, device=device)
        self.slots = [part.numpy() for part in _parts(self.host, arrays)]
        self.inputs = _parts(self.there, arrays)
        self.left = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]

    def send(self, arrays: Sequence[NDArray[Any]]) -> None:
        if self.left:
            self.left.synchronize()  # what was sent last time has left the host's memory
        for slot, array in zip(self.slots, arrays, strict=True):
            slot[...] = array
        self.there.copy_(self.host, non_blocking=True)
        if self.left:
            self.left.record()


def _padded(array: NDArray[Any]) -> int:
    """Bytes from where an array begins to where the next one may."""
    return -(-array.nbytes // ALIGNED) * ALIGNED


def _parts(buffer: Tensor, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
    """Pieces of a buffer of bytes that can hold these arrays."""
    out, begin = [], 0
    for array in arrays:
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        out.append(buffer[begin : begin + array.nbytes].view(kind).view(array.shape))
        begin += _padded(array)
    return out


@dataclass
class Recording:
    """Work of one shape, ready for replay."""

    graph: Any
    mail: Mail
    out: Any  # what a replay overwrites
    used: int = 0  # the call that replayed it last
    replays: int = 0


class Tape:
    """Runs work on a device; on CUDA, work of a shape seen before is recorded and replayed.

    A replay costs one launch instead of hundreds. What it returns is overwritten by the next. Where
    hardly any work has the shape of another, as with clients of all sizes, its parts may.
    """

    def __init__(self, device: torch.device, recordable: bool) -> None:
        self.device = device
        self.on = recordable and device.type == "cuda"
        self.calls = 0
        self.wanted = 2  # times that a shape must come before it is recorded
        self.seen: Counter[int] = Counter()  # of the last shapes, by hash
        self.ready: dict[object, Recording] = {}
        self.recording = False
        self.came: Counter[object] = Counter()  # work that was not replayed, by its kind
        self.parts: dict[object, tuple[Any, list[Tensor], Tensor]] = {}
        self.places: dict[object, Tensor] = {}
        self.pool: Any = None  # memory that parts share: one ends before the next begins

    def __call__(self, shape: object, work: Callable[..., Any], *arrays: NDArray[Any]) -> Any:
        """work(*arrays on the device); `shape` names all that decides which operations it does."""
        if not self.on:
            return work(*(send(a, self.device) for a in arrays))
        self.calls += 1
        if shape not in self.ready:
            if self._times(shape) < self.wanted or not self._room():
                return work(*(send(a, self.device) for a in arrays))
            self.ready[shape] = self._record(work, arrays)
        found = self.ready[shape]
        found.used = self.calls
        found.replays += 1
        found.mail.send(arrays)
        found.graph.replay()
        return found.out

    def restless(self, kind: object) -> bool:
        """Whether work of a kind, which comes once more, has often had a shape of its own."""
        if not self.on or self.recording:
            return False
        self.came[kind] += 1
        return self.came[kind] > RESTLESS

    def part(self, shape: object, work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """work(*tensors), a part of some work; all else that it uses must stay where it is."""
        shape = (shape, *(t.shape for t in tensors))
        if shape not in self.parts:
            if len(self.parts) == PARTS or self._times(shape) < 2:
                return work(*tensors)
            self.parts[shape] = self._record_part(work, tensors)
        graph, inputs, out = self.parts[shape]
        for mine, given in zip(inputs, tensors, strict=True):
            mine.copy_(given)
        graph.replay()
        return out.clone()

    def place(self, name: object, like: Tensor, rows: int) -> Tensor:
        """Room for so many rows like those of a matrix, the same each time."""
        if name not in self.places:
            self.places[name] = like.new_empty(rows, like.shape[1])
        return self.places[name]

    def _times(self, shape: object) -> int:
        """How often a shape has come, with this time."""
        if len(self.seen) > SHAPES:  # of rounds that never come again
            self.seen.clear()
        self.seen[hash(shape)] += 1
        return self.seen[hash(shape)]

    def _room(self) -> bool:
        """Whether one more may be kept; one that is no longer used makes room.

        Where that one did not pay, shapes change too often: the next must come twice as often.
        """
        if len(self.ready) < RECORDED:
            return True
        oldest = min(self.ready, key=lambda shape: self.ready[shape].used)
        if self.calls - self.ready[oldest].used <= STALE:
            return False
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.wanted = 2 if self.ready.pop(oldest).replays >= PAYS else 2 * self.wanted
        return True

    def forget(self) -> None:
        """Give back the memory of what was recorded."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            for kept in (self.ready, self.parts, self.places, self.seen, self.came):
                kept.clear()
            self.wanted, self.pool = 2, None
            gc.collect()
            torch.cuda.empty_cache()

    def _record(self, work: Callable[..., Any], arrays: tuple[NDArray[Any], ...]) -> Recording:
        mail, graph = Mail(arrays, self.device), torch.cuda.CUDAGraph()
        mail.send(arrays)
        with self._recorded(), torch.cuda.graph(graph):
            out = work(*mail.inputs)
        return Recording(graph, mail, out)

    def _record_part(self, work: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> Any:
        """As torch.cuda.graph does it, but without giving all free memory back first."""
        inputs = [t.clone(memory_format=torch.contiguous_format) for t in tensors]
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with self._recorded(), torch.cuda.stream(stream):
            graph.capture_begin(pool=self.pool)
            try:
                out = work(*inputs)
            finally:
                graph.capture_end()
        return graph, inputs, out

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        collecting, self.recording = gc.isenabled(), True
        gc.disable()  # a recording of an earlier run, freed in the middle, would break this one
        try:
            yield
        finally:
            self.recording = False
            if collecting:
                gc.enable()


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
