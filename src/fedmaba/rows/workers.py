"""Pieces of work in parallel on a CPU: one piece per core, each on one thread, results in order.

Matrix products of one row are too small to be split over cores, so each core gets pieces of its
own. What a piece computes and the order of the results do not depend on the number of workers, so
one thread gives the same bits as many.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

# oneDNN takes over products with a transposed operand and convolutions. On ARM each call costs it
# 50 microseconds more, or 150 where it wakes threads of its own, whatever torch was told;
# OpenBLAS and NNPACK do them up to several times as fast.
ARM = platform.machine() in ("aarch64", "arm64")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """An ordered map over threads; with one worker it is the built-in map."""

    def __init__(self, count: int, torch_threads: int = 1) -> None:
        self.count, self.torch_threads = count, torch_threads
        self.pool = ThreadPoolExecutor(count, initializer=_alone) if count > 1 else None

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results of `work` for each item, in order; at most two per worker are waiting."""

        def quiet(item: Item) -> Result:
            with torch.no_grad():
                return work(item)

        if self.pool is None:
            yield from map(quiet, items)
            return
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(self.pool.submit(quiet, item))
            if len(waiting) > 2 * self.count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Give torch as many threads of its own as each piece may use; see `ARM`."""
        before = torch.get_num_threads(), torch.backends.mkldnn.enabled
        torch.set_num_threads(self.torch_threads)
        if ARM and self.torch_threads == 1:
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.backends.mkldnn.enabled = before[1]

    def close(self) -> None:
        """End the threads."""
        if self.pool is not None:
            self.pool.shutdown()


def _alone() -> None:
    torch.set_num_threads(1)
