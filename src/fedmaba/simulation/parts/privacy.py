"""Differential privacy in a round: changes are clipped as rows, noise joins their weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import Mechanism, mechanism, normals_of_sum, refused_rule
from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk, Trainer
from fedmaba.simulation.part import Part, Setting
from fedmaba.simulation.state import Plan, Run
from fedmaba.simulation.work import Cohort, Work
from fedmaba.strategies.base import PRIVACY_INFO

if TYPE_CHECKING:
    from fedmaba.rows.base import Layout


class PrivateRounds(Part):
    """All runs of a plan that promises something."""

    bounds = ("loss",)

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        assert setting.plan is not None
        self.mechanisms = _mechanisms(setting.runs, setting.plan, setting.layout)
        self.noise = NoiseDraws()

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.plan is not None and setting.plan.privacy is not None

    def joins_step(self, r: int) -> bool:
        return True

    def finish(self, trainer: Trainer, chunk: Chunk) -> None:
        clip = self.mechanisms[0].asked.clip
        shared = trainer.rows.layout.shared
        clip_changes(chunk.models, chunk.end, chunk.run, clip, shared)
        chunk.summary = torch.stack([chunk.summary[0], chunk.end.sum(1)])

    def report(self, batch: Batch, work: Work, c: Cohort, seen: dict[str, Any]) -> None:
        found = self.mechanisms[c.r]
        if "loss" in seen:
            seen["loss"] = found.released_losses(work.round, seen["loss"])
        seen["loss_noise"] = found.loss_noise

    def decided(self, batch: Batch, work: Work, runs: Sequence[int]) -> None:
        for r in runs:
            strategy, coef = batch.runs[r].strategy, work.decision[r].coef
            self.mechanisms[r].check_weights(strategy, work.round, coef)

    def add(self, batch: Batch, work: Work, c: Cohort, delta: Tensor) -> None:
        t, shared = work.round, batch.rows.layout.shared
        normals = self.noise(c.run.seed, t, shared, t + 1 == batch.plan.rounds, delta.device)
        delta[:shared] += (self.mechanisms[c.r].sum_noise * normals).to(delta.dtype)

    def info(self, work: Work, r: int) -> Mapping[str, float]:
        found = self.mechanisms[r]
        return dict(zip(PRIVACY_INFO, (found.spent(work.round), found.asked.delta), strict=True))


def mechanisms_of(batch: Batch) -> Sequence[Mechanism]:
    """What makes each run private; nothing where nothing is promised."""
    return next((part.mechanisms for part in batch.parts if isinstance(part, PrivateRounds)), ())


def _mechanisms(runs: Sequence[Run], plan: Plan, layout: Layout) -> list[Mechanism]:
    """The mechanism of each run."""
    asked = plan.privacy
    assert asked is not None
    if layout.compared < layout.shared:
        raise InputError(
            "dp: batchnorm='average' sends statistics, which noise would break: choose "
            "--batchnorm group, local or frozen"
        )
    for rule in (rule for run in runs for rule in run.rules):
        if why := refused_rule(rule):
            raise InputError(why)
    return [
        mechanism(
            asked,
            run.strategy,
            run.seed,
            plan.rounds,
            plan.participants or run.federation.n_clients,
            run.federation.train.size,
        )
        for run in runs
    ]


def clip_changes(
    model: Tensor,  # (R, P)
    w: Tensor,  # (n, P)
    run: NDArray[np.int64],  # (n,)
    clip: float,
    shared: int,  # what lies beyond this clients do not send
) -> None:
    """Shorten changes to the norm `clip`, in place; one that is not finite becomes no change.

    A change within the bound keeps its bits.
    """
    start = model.index_select(0, send(run, w.device))[:, :shared]
    change = w[:, :shared] - start
    norm = torch.linalg.vector_norm(change, dim=1, dtype=torch.float64)[:, None]
    shorter = start + (clip / norm).to(w.dtype) * change
    inside = torch.where(norm > clip, shorter, w[:, :shared])
    w[:, :shared] = torch.where(norm.isfinite(), inside, start)


class NoiseDraws:
    """The normals behind each round's noise; threads draw those of the next round ahead.

    Runs with one seed share them, so they are drawn and sent once.
    """

    def __init__(self) -> None:
        self.round = -1
        self.ready: dict[int, Future[NDArray[np.float64]]] = {}  # by seed, of this round
        self.sent: dict[int, Tensor] = {}  # by seed, of this round
        self.ahead: dict[int, Future[NDArray[np.float64]]] = {}  # by seed, of the next one
        self.threads = ThreadPoolExecutor(thread_name_prefix="noise")

    def __call__(
        self, seed: int, t: int, many: int, last: bool, device: torch.device
    ) -> Tensor:  # (many,) float64
        """The standard normals of round t; the next round's are begun unless this is the last."""
        if t != self.round:
            self.ready = self.ahead if t == self.round + 1 else {}
            self.round, self.sent, self.ahead = t, {}, {}
        if seed not in self.sent:
            begun = self.ready.pop(seed, None)
            drawn = normals_of_sum(seed, t, many) if begun is None else begun.result()
            self.sent[seed] = send(drawn, device)
            if not last:
                self.ahead[seed] = self.threads.submit(normals_of_sum, seed, t + 1, many)
        return self.sent[seed]
