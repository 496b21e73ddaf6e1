"""A batch of runs that are simulated together, and where each client's examples lie in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.data.federation import ClientRows
from fedmaba.rng import ParticipantDraws
from fedmaba.rows import Rows
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.rows.workers import Workers
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.client import Trainer
from fedmaba.simulation.distributed import Ranks
from fedmaba.simulation.evaluation import MetricFn, evaluate
from fedmaba.simulation.local_training import Pool
from fedmaba.simulation.optimiser import parse_schedule
from fedmaba.simulation.part import Part
from fedmaba.simulation.state import Plan, Progress, Run
from fedmaba.strategies.base import Local, Needs, layers_of, optimiser_of_server
from fedmaba.strategies.server_optimisers import numbers_by_run

if TYPE_CHECKING:
    from fedmaba.simulation.work import Cohort, Work

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class RunParts:
    """The training, validation or test examples of every run's clients, on the device.

    An entry is one example of one client. The entries of federations that several runs share are
    stored once.
    """

    def __init__(self, parts: Sequence[ClientRows], device: torch.device) -> None:
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

    def entries_of(self, clients: Sequence[tuple[int, IntArray]]) -> tuple[IntArray, IntArray]:
        """First entry and number of entries of some clients of some runs, (C, m); 0 for padding."""
        first, size = np.zeros((2, len(clients), max(len(own) for _, own in clients)), np.int64)
        for i, (r, own) in enumerate(clients):
            first[i, : len(own)] = self.base[r] + self.parts[r].start[own]
            size[i, : len(own)] = self.parts[r].size[own]
        return first, size


@dataclass
class Batch:
    """Runs that share data, model and plan, ready to be simulated."""

    runs: Sequence[Run]
    plan: Plan
    rows: Rows
    pool: Pool
    metric: MetricFn | None
    progress: Progress
    train: RunParts
    validation: RunParts
    test: RunParts
    workers: Workers
    graphs: GraphCache
    ranks: Ranks = field(default_factory=Ranks)
    lower_is_better: bool = False  # of two scores
    client_metric: Callable[[Any, Any], float] | None = None  # of all predictions of a client
    judges_groups: bool = False  # whether evaluations count predictions by group of people
    draws: ParticipantDraws = field(default_factory=ParticipantDraws)
    parts: tuple[Part, ...] = ()  # what some of the runs have besides plain training

    @cached_property
    def trainer(self) -> Trainer:
        """What clients train with, and what they keep."""
        plan = self.plan
        return Trainer(
            self.rows,
            self.pool,
            self.graphs,
            self.local,
            self.progress.memory,
            self.parts,
            plan.minibatch,
            plan.optimiser,
            parse_schedule(plan.step_schedule, "step_schedule"),
            None if plan.augment is None else parse_augment(plan.augment),
        )

    def parts_of(self, r: int) -> list[Part]:
        """The parts of one run, in the order in which a round meets them."""
        return self._parts_of[r]

    @cached_property
    def _parts_of(self) -> list[list[Part]]:
        return [[p for p in self.parts if r in p.runs] for r in range(len(self.runs))]

    def reported(self, work: Work, c: Cohort, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """What a cohort tells the server, where these numbers are true."""
        seen = dict(numbers)
        for part in self.parts_of(c.r):
            part.report(self, work, c, seen)
        return seen

    @cached_property
    def needs(self) -> list[Needs]:
        """What each run's strategy needs to know."""
        return [run.strategy.needs() for run in self.runs]

    @cached_property
    def early(self) -> list[bool]:
        """Whether the weights of each run are known, and used, before local training ends."""
        return [
            needs.early and not any(part.takes_changes(r) for part in self.parts_of(r))
            for r, needs in enumerate(self.needs)
        ]

    @cached_property
    def local(self) -> list[Local]:
        """What each run's strategy asks of its clients."""
        return [self.plan.local(run.strategy) for run in self.runs]

    @cached_property
    def layers(self) -> list[slice]:
        """(L,) Where each layer of the model lies in its flat vector."""
        layout = self.rows.layout
        compared = [a for a in layout.starts if a < layout.compared]
        first = [compared[part[0]] for part in layers_of(layout.names[: len(compared)])]
        return [slice(a, b) for a, b in itertools.pairwise([*first, layout.compared])]

    @cached_property
    def optimiser_numbers(self) -> Tensor:
        """(9, R, 1) The numbers of each run's server optimiser, on the device."""
        optimisers = [optimiser_of_server(run.strategy) for run in self.runs]
        numbers = numbers_by_run(optimisers, self.plan.server_momentum)
        return torch.from_numpy(numbers).to(self.progress.model)

    @cached_property
    def kinds(self) -> list[IntArray]:
        """(N,) by run: clients with equal numbers can be trained together."""
        size = [run.federation.n_clients for run in self.runs]
        alike = [
            np.concatenate([np.broadcast_to(part.alike(r), n) for r, n in enumerate(size)])
            for part in self.parts
        ]
        everyone = np.stack([np.zeros(sum(size), np.int64), *alike], 1)
        kind = np.unique(everyone, axis=0, return_inverse=True)[1].reshape(-1)
        return np.split(kind, np.cumsum(size)[:-1])

    @cached_property
    def handed_out(self) -> list[tuple[Run, str]]:
        """(D,) The run and the rule of each deployed model."""
        return [(run, rule) for run in self.runs for rule in run.rules]

    @cached_property
    def owner(self) -> Tensor:
        """(D,) The run of each deployed model, on the device."""
        return torch.from_numpy(self.progress.owner).to(self.pool.y.device)

    def evaluate(
        self, flat: Tensor, index: Tensor, *, scored: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Loss and score of each example under each row, (R, n)."""
        pool, workers = self.pool, self.workers
        return evaluate(self.rows, flat, index, pool.x, pool.y, workers, self.metric, scored=scored)


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Within this context, let products and convolutions on CUDA round to tf32, or forbid it."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = dtype in ("tf32", "bf16")
    try:
        yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.allow_tf32 = was
