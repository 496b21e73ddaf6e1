"""A batch of runs: what the rounds work on, and where each client's examples lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.federation import Part
from fedmaba.local import MetricFn, Pool, evaluate
from fedmaba.ranks import Ranks
from fedmaba.rng import Draws
from fedmaba.rows import Rows
from fedmaba.runs import Plan, Progress, Run
from fedmaba.strategy import Local, Needs
from fedmaba.tape import Tape
from fedmaba.workers import Workers

IntArray = NDArray[np.int64]


class Parts:
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

    def where(self, clients: Sequence[tuple[int, IntArray]]) -> tuple[IntArray, IntArray]:
        """First entry and number of entries of clients of runs, (C, m); 0 for padding."""
        first, size = np.zeros((2, len(clients), max(len(own) for _, own in clients)), np.int64)
        for i, (r, own) in enumerate(clients):
            first[i, : len(own)] = self.base[r] + self.parts[r].start[own]
            size[i, : len(own)] = self.parts[r].size[own]
        return first, size

    def packed(self, entry: Tensor, valid: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Pool rows (C, length) of entries (C, m, n_max) without padding, and where each went."""
        place = (valid.flatten(1).cumsum(1) - 1).clamp_(min=0)
        at = torch.where(valid.flatten(1), place, length)  # padding: one place beyond the end
        index = torch.zeros(len(entry), length + 1, dtype=torch.int64, device=entry.device)
        index.scatter_(1, at, self.entries[entry.flatten(1)])
        return index[:, :length], place.view(valid.shape)


@dataclass
class Batch:
    """Runs that share data, model and plan, ready to be simulated."""

    runs: Sequence[Run]
    plan: Plan
    rows: Rows
    pool: Pool
    metric: MetricFn | None
    progress: Progress
    train: Parts
    validation: Parts
    test: Parts
    workers: Workers
    tape: Tape
    ranks: Ranks = field(default_factory=Ranks)
    draws: Draws = field(default_factory=Draws)

    @cached_property
    def needs(self) -> list[Needs]:
        """What each run's strategy wants to see."""
        return [run.strategy.needs() for run in self.runs]

    @cached_property
    def local(self) -> list[Local]:
        """What each run's strategy asks of its clients."""
        return [run.strategy.local() for run in self.runs]

    @cached_property
    def kind(self) -> IntArray:
        """(R,) Equal for runs whose clients can be trained together.

        A bent full batch is not cut in pieces.
        """
        each = [(o.prox > 0) + 2 * o.full_batch * (1 + (o.bend is not None)) for o in self.local]
        return np.array(each, np.int64)

    @cached_property
    def same(self) -> dict[int, list[int]]:
        """Runs that train alike and differ in the model they hand out alone, by the first of them.

        Only that one is trained.
        """
        found: dict[tuple[object, ...], list[int]] = {}
        alike: Counter[tuple[object, ...]] = Counter()
        for r, run in enumerate(self.runs):
            key = (id(run.strategy), run.seed, id(run.federation))
            nth = alike[*key, run.average]  # one that differs in nothing is trained itself
            found.setdefault((*key, nth), []).append(r)
            alike[*key, run.average] += 1
        return {runs[0]: runs for runs in found.values()}

    @cached_property
    def first(self) -> Tensor | None:
        """(R,) which run is trained for each; None where every run is trained itself."""
        if len(self.same) == len(self.runs):
            return None
        first = torch.arange(len(self.runs))
        for one, runs in self.same.items():
            first[runs] = one
        return first.to(self.pool.x.device)

    def evaluate(
        self, flat: Tensor, index: Tensor, *, scored: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Loss and score of each example under each row, (R, n)."""
        return evaluate(self.rows, flat, index, self.pool, self.workers, self.metric, scored=scored)


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Let products and convolutions on CUDA round to tf32, or not."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = dtype in ("tf32", "bf16")
    try:
        yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.allow_tf32 = was
