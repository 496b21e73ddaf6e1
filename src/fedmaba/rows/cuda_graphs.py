"""Record work on a GPU as CUDA graphs and replay it; copy to and from the GPU without waiting.

Recorded work is a module-level function of a frozen spec and tensors. The key of a recording is the
spec, the tensors that stay where they are (`held`) and the shapes of those that change (`inputs`).
So a replay repeats exactly the operations that the caller asks for.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MAX_RECORDINGS = 8  # recordings of whole work kept ready
MAX_PARTS = 512  # This many recordings of parts of work are kept ready.
UNUSED_CALLS = 100  # After this many calls a recording that was not replayed gives way to another.
MIN_REPLAYS = 50  # After this many replays a recording has paid for itself.
MAX_REMEMBERED = 10_000  # This many keys are remembered until they come again.
MANY_SHAPES = 5  # After this many calls of new shapes, parts of the work are recorded instead.
ALIGNED = 256  # An array among several in one memory begins at a multiple of this many bytes.

Held = Tensor | tuple[Tensor, ...] | dict[str, Tensor] | None  # stays where it is
Function = Callable[..., Any]  # function(spec, *held, *inputs) -> a tensor or a tuple of tensors


class Written(NamedTuple):
    """An input that a function writes, right where the work will read it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    write: Callable[[Tensor], object]

    def on(self, device: torch.device) -> Tensor:
        """The input in new memory."""
        into = torch.empty(self.shape, dtype=self.dtype, device=device)
        self.write(into)
        return into


Input = NDArray[Any] | Tensor | Written


class Buffers:
    """Memory on a device for inputs of some shapes; arrays of the host arrive in one copy."""

    def __init__(self, inputs: Sequence[Input], device: torch.device) -> None:
        arrays, cuda = _arrays(inputs), device.type == "cuda"
        size = sum(_padded(a) for a in arrays)
        self.host = torch.empty(size, dtype=torch.uint8, pin_memory=cuda)
        self.device = torch.empty(size, dtype=torch.uint8, device=device)
        self.slots = [part.numpy() for part in _pieces(self.host, arrays)]
        pieces = iter(_pieces(self.device, arrays))
        self.tensors = [
            next(pieces)
            if isinstance(value, np.ndarray)
            else torch.empty(value.shape, dtype=value.dtype, device=device)
            for value in inputs
        ]
        self.sent = torch.cuda.Event() if cuda and arrays else None  # type: ignore[no-untyped-call]

    def fill(self, inputs: Sequence[Input]) -> None:
        """Bring new inputs of the same shapes to the device."""
        if self.sent:
            self.sent.synchronize()  # It waits until the copy of last time has been read.
        for slot, array in zip(self.slots, _arrays(inputs), strict=True):
            slot[...] = array
        if self.slots:
            self.device.copy_(self.host, non_blocking=True)
        for tensor, value in zip(self.tensors, inputs, strict=True):
            if isinstance(value, Tensor):
                tensor.copy_(value)
            elif isinstance(value, Written):
                value.write(tensor)
        if self.sent:
            self.sent.record()


def _arrays(inputs: Sequence[Input]) -> list[NDArray[Any]]:
    """The inputs that are arrays in the host's memory."""
    return [value for value in inputs if isinstance(value, np.ndarray)]


def _padded(array: NDArray[Any]) -> int:
    """Bytes from where an array begins to where the next one may."""
    return -(-array.nbytes // ALIGNED) * ALIGNED


def _pieces(buffer: Tensor, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
    """Pieces of a buffer of bytes that can hold these arrays."""
    out, begin = [], 0
    for array in arrays:
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        out.append(buffer[begin : begin + array.nbytes].view(kind).view(array.shape))
        begin += _padded(array)
    return out


class RecordingKey(NamedTuple):
    """Everything that decides which operations a call does, and on which memory."""

    function: Function
    spec: Hashable
    held: tuple[int, ...]  # These identify what stays where it is.
    inputs: tuple[tuple[Any, ...], ...]  # shapes and types
    result_slot: Hashable


@dataclass
class Recording:
    """A call that can be replayed."""

    graph: Any
    inputs: Buffers
    out: Any  # what a replay overwrites
    held: tuple[Held, ...]  # They are kept alive, so that no other tensor gets their identity.
    last_call: int = 0
    replays: int = 0


class GraphCache:
    """Runs functions on a device; on CUDA, calls that came before are recorded and replayed.

    A replay costs one launch instead of hundreds.
    """

    def __init__(self, device: torch.device, recordable: bool) -> None:
        self.device = device
        self.on = recordable and device.type == "cuda"
        self.calls = 0
        self.wanted = 2  # A call must come this often before it is recorded.
        self.seen: Counter[int] = Counter()  # of the last keys, by hash
        self.recordings: dict[RecordingKey, Recording] = {}
        self.parts: dict[RecordingKey, Recording] = {}
        self.recording = False
        # This is work that was not replayed, by its kind.
        self.unlike: Counter[Hashable] = Counter()
        self.buffers: dict[Hashable, Tensor] = {}
        self.pool: Any = None  # Parts share this memory, because one ends before the next begins.

    def run(
        self,
        function: Function,
        spec: Hashable,
        held: Sequence[Held],
        inputs: Sequence[Input],
        *,
        result_slot: Hashable = None,
        unrecorded: Function | None = None,
    ) -> Any:
        """function(spec, *held, *inputs on the device).

        A replay overwrites the result of the call before with the same key; `result_slot` tells
        apart calls whose results must live side by side. `unrecorded` is called in place of the
        function where nothing is recorded or replayed.
        """
        plainly = unrecorded or function
        if not self.on:
            return plainly(spec, *held, *self._sent(inputs))
        self.calls += 1
        key = _key(function, spec, held, inputs, result_slot)
        if key not in self.recordings:
            if self._times(key) < self.wanted or not self._make_room():
                return plainly(spec, *held, *self._sent(inputs))
            self.recordings[key] = self._record(function, spec, held, inputs)
        found = self.recordings[key]
        found.last_call = self.calls
        found.replays += 1
        found.inputs.fill(inputs)
        found.graph.replay()
        return found.out

    def run_part(
        self,
        function: Function,
        spec: Hashable,
        held: Sequence[Held],
        inputs: Sequence[Tensor],
    ) -> Tensor:
        """function(spec, *held, *inputs), a part of some work; its result is never overwritten."""
        key = _key(function, spec, held, inputs)
        if key not in self.parts:
            if len(self.parts) == MAX_PARTS or self._times(key) < 2:
                out: Tensor = function(spec, *held, *inputs)
                return out
            self.parts[key] = self._record_part(function, spec, held, inputs)
        found = self.parts[key]
        found.inputs.fill(inputs)
        found.graph.replay()
        again: Tensor = found.out.clone()
        return again

    def shapes_rarely_repeat(self, kind: Hashable) -> bool:
        """Count a call that was not replayed; whether calls of this kind often have new shapes."""
        if not self.on or self.recording:
            return False
        self.unlike[kind] += 1
        return self.unlike[kind] > MANY_SHAPES

    def buffer(self, name: Hashable, like: Tensor, rows: int) -> Tensor:
        """A matrix of `rows` rows as wide as `like`; the same memory each time."""
        if name not in self.buffers:
            self.buffers[name] = like.new_empty(rows, like.shape[1])
        return self.buffers[name]

    def forget(self) -> None:
        """Give back the memory of what was recorded."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            for kept in (self.recordings, self.parts, self.buffers, self.seen, self.unlike):
                kept.clear()
            self.wanted, self.pool = 2, None
            gc.collect()
            torch.cuda.empty_cache()

    def _sent(self, inputs: Sequence[Input]) -> list[Tensor]:
        return [
            send(v, self.device)
            if isinstance(v, np.ndarray)
            else v.on(self.device)
            if isinstance(v, Written)
            else v
            for v in inputs
        ]

    def _times(self, key: RecordingKey) -> int:
        """How often a key was asked for, this call included."""
        if len(self.seen) > MAX_REMEMBERED:  # Most are shapes of rounds that never come again.
            self.seen.clear()
        self.seen[hash(key)] += 1
        return self.seen[hash(key)]

    def _make_room(self) -> bool:
        """Whether one more recording may be kept; the oldest is dropped if it is no longer used.

        Where the dropped one was rarely replayed, shapes change too often: from then on a call must
        come twice as often before it is recorded.
        """
        if len(self.recordings) < MAX_RECORDINGS:
            return True
        oldest = min(self.recordings, key=lambda key: self.recordings[key].last_call)
        if self.calls - self.recordings[oldest].last_call <= UNUSED_CALLS:
            return False
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        paid = self.recordings.pop(oldest).replays >= MIN_REPLAYS
        self.wanted = 2 if paid else 2 * self.wanted
        return True

    def _record(
        self,
        function: Function,
        spec: Hashable,
        held: Sequence[Held],
        inputs: Sequence[Input],
    ) -> Recording:
        buffers, graph = Buffers(inputs, self.device), torch.cuda.CUDAGraph()
        buffers.fill(inputs)
        with self._recorded(), torch.cuda.graph(graph):
            out = function(spec, *held, *buffers.tensors)
        return Recording(graph, buffers, out, tuple(held))

    def _record_part(
        self,
        function: Function,
        spec: Hashable,
        held: Sequence[Held],
        inputs: Sequence[Tensor],
    ) -> Recording:
        """As torch.cuda.graph does it, but without giving all free memory back first."""
        buffers, graph = Buffers(inputs, self.device), torch.cuda.CUDAGraph()
        buffers.fill(inputs)
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with self._recorded(), torch.cuda.stream(stream):
            graph.capture_begin(pool=self.pool)
            try:
                out = function(spec, *held, *buffers.tensors)
            finally:
                graph.capture_end()
        return Recording(graph, buffers, out, tuple(held))

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        collecting, self.recording = gc.isenabled(), True
        gc.disable()  # Freeing a recording of an earlier run in the middle would break this one.
        try:
            yield
        finally:
            self.recording = False
            if collecting:
                gc.enable()


def _key(
    function: Function,
    spec: Hashable,
    held: Sequence[Held],
    inputs: Sequence[Input],
    result_slot: Hashable = None,
) -> RecordingKey:
    shapes = tuple((tuple(v.shape), v.dtype) for v in inputs)
    return RecordingKey(function, spec, tuple(map(id, held)), shapes, result_slot)


def send(values: NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device, without waiting for what the device is doing."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def start_fetch(values: Tensor) -> Callable[[], NDArray[Any]]:
    """Start a copy to the host; the function that is returned waits for this copy only."""
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
