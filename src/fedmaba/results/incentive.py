"""What each client gains by staying in the federation, over training alone. No torch.

The row `local` of the same seed says what a client reaches alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.results.run_history import At, Model, RunHistory, common_unit

ALONE = "local"  # Under the strategy with this label every client trains alone.


class Incentive(NamedTuple):
    """One strategy beside training alone, over clients and seeds."""

    label: str
    seeds: int
    better: float  # This is the share of clients that are better off than alone.
    equal: float  # This is the share of clients that are exactly as well off.
    gain: float  # This is the mean over clients, in points of the score, of which more is better.
    least: float  #  of the client that gains the least


def gains_at(
    runs: Sequence[RunHistory], run: RunHistory, model: Model = "deployed", at: At = "last"
) -> NDArray[np.float64] | None:
    """(N,) How much better each client's score is than alone; None where nobody trained alone.

    Scores where lower is better are turned round. A client without a score has none here (nan).
    """
    alone = _alone(runs, run)
    if alone is None:
        return None
    theirs, ours = (r.accuracy(model)[r.chosen(at, model)].mean(axis=0) for r in (alone, run))
    unit = common_unit(runs)
    return np.asarray(unit.sign * unit.scale * (ours - theirs), dtype=np.float64)


def gains_over_rounds(
    runs: Sequence[RunHistory], run: RunHistory, model: Model = "personal"
) -> NDArray[np.float64] | None:
    """(E, N) How much better each client's score is than alone at each evaluation, not in percent.

    None where nobody trained alone, or was evaluated in other rounds.
    """
    alone = _alone(runs, run)
    if alone is None or not np.array_equal(alone.evaluated, run.evaluated):
        return None
    return np.asarray(common_unit(runs).sign * (run.accuracy(model) - alone.accuracy(model)))


def _alone(runs: Sequence[RunHistory], run: RunHistory) -> RunHistory | None:
    """The run of the same seed in which everybody trains alone, where both can be compared."""
    for other in runs:
        if other.label == ALONE and other.seed == run.seed and run.label != ALONE:
            whole = all("evaluated" in r.tables and not r.diverged for r in (other, run))
            if whole and other.n_clients == run.n_clients:
                return other
    return None


def incentives(
    runs: Sequence[RunHistory], model: Model = "deployed", at: At = "last"
) -> list[Incentive]:
    """Each strategy beside training alone; empty where no row `local` is there."""
    found: dict[str, list[NDArray[np.float64]]] = {}
    for run in runs:
        gain = gains_at(runs, run, model, at)
        if gain is not None and not np.isnan(gain).all():
            found.setdefault(run.label, []).append(gain[~np.isnan(gain)])
    out = []
    for label, each in found.items():
        better, equal, mean, least = np.mean(
            [[(g > 0).mean(), (g == 0).mean(), g.mean(), g.min()] for g in each], axis=0
        )
        numbers = map(float, (better, equal, mean, least))
        out.append(Incentive(label, len(each), *numbers))
    return out
