"""Differential privacy in a round: changes are clipped as rows, noise joins their weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import Mechanism, mechanism, refused_rule
from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.state import Plan, Run

if TYPE_CHECKING:
    from fedmaba.rows.base import Layout


def mechanisms(runs: Sequence[Run], plan: Plan, layout: Layout) -> list[Mechanism | None]:
    """The mechanism of each run; None where the plan asks for none."""
    asked = plan.privacy
    if asked is None:
        return [None] * len(runs)
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


def add_noise(delta: Tensor, found: Mechanism, t: int, shared: int) -> None:
    """Add the noise of round t to the weighted sum (P,) of one run, in place."""
    noise = torch.from_numpy(found.noise_on_sum(t, shared))
    delta[:shared] += noise.to(delta.device, delta.dtype)
