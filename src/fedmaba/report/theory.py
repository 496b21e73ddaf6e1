"""What docs/theory.md says of finished runs: how uneven their weights were, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba import strategies
from fedmaba.errors import InputError
from fedmaba.report.document import Cell, Document, Grid, number
from fedmaba.results.history import History
from fedmaba.results.run_history import RunHistory
from fedmaba.strategies.fedmaba import FedMABA

FloatArray = NDArray[np.float64]
Labels = Mapping[int, NDArray[np.int64]]  # (N, C) training examples of each client, by seed
DELTA, MODELS = 0.05, 2  # of the bound for new clients: the fewest models that one can choose from
HEAD = (
    "strategy",
    "participants",
    "floor",
    "floor at most",
    "noise",
    "KL",
    "lambda",
    "limit reached %",
)
WORDS = (
    "floor: how far weights are from equal ones, (sum of |q - 1/m|)², the mean over rounds. The "
    "squared gradient of the mean loss stays above 0 by up to this times ζ², and 2.2 times as "
    "much with several local steps; ζ is the most that a client's gradient differs from the mean "
    "gradient",
    "noise: the factor by which weights raise the noise of the clients' gradients, m times the sum "
    "of q²",
)


class Unevenness(NamedTuple):
    """How far a run's weights are from equal ones, means over its rounds."""

    participants: float
    floor: float
    noise: float


def unevenness(run: RunHistory) -> Unevenness:
    """Of the shares that clients had in each round."""
    rounds = [share for row in run.column("weight") if len(share := _shares(row))]
    many = [len(share) for share in rounds]
    apart = [float(np.abs(share - 1 / len(share)).sum()) ** 2 for share in rounds]
    squares = [len(share) * float(share @ share) for share in rounds]
    return Unevenness(*(float(np.mean(v)) if v else math.nan for v in (many, apart, squares)))


def _shares(weights: FloatArray) -> FloatArray:
    """Weights of those who took part, as shares of their sum; none if that is not above 0."""
    known = weights[np.isfinite(weights)]
    return known / total if (total := known.sum()) > 0 else known[:0]


def document(history: History, labels: Labels, title: str) -> Document:
    """The table of all strategies; then, for each FedMABA, what its radius and alpha mean."""
    groups: dict[str, list[RunHistory]] = {}
    for run in history.runs:
        if len(run.tables.get("weight", ())):
            groups.setdefault(run.label, []).append(run)
    if not groups:
        raise InputError(
            f"{title} holds no weights of clients: name a run folder, after its first round"
        )
    rows = [_row(label, runs) for label, runs in groups.items()]
    page = Document(title, grids=[Grid("theory", "unevenness of weights", HEAD, rows)])
    page.foot += WORDS
    for label, runs in groups.items():
        if (strategy := _fedmaba(label)) is not None:
            page.foot += [f"{label}: {line}" for line in _advice(strategy, runs, labels)]
    return page


def _fedmaba(label: str) -> FedMABA | None:
    """The strategy of a label, if FedMABA is; a class of the user's is not imported."""
    spec, _, _ = label.partition(", ")  # then come the settings in which a folder's parts differ
    if spec.partition(":")[0] != FedMABA.name:
        return None
    (found,) = strategies.parse(spec)
    return found if isinstance(found, FedMABA) else None


def _row(label: str, runs: Sequence[RunHistory]) -> list[Cell]:
    many, floor, noise = np.array([unevenness(run) for run in runs]).T
    strategy = _fedmaba(label)
    if strategy is None:
        most = kl = pull = reached = math.nan
    else:
        bounded = strategy.ball != "global"  # which bounds all weights, and no round's
        most = floor_bound(strategy.alpha, strategy.rho) if bounded else math.nan
        kl = _mean([_mean(run.column("info.kl")) for run in runs])
        pull = _mean([_mean(run.column("info.lambda")) for run in runs])
        reached = 100 * _mean([_mean(1.0 * (run.column("info.lambda") > 0)) for run in runs])
    return [
        Cell(label),
        number(_mean(many), digits=0),
        *(number(value, digits=3) for value in (_mean(floor), most, _mean(noise), kl, pull)),
        number(reached, digits=0),
    ]


def _mean(values: Sequence[float] | NDArray[Any]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def floor_bound(alpha: float, rho: float) -> float:
    """The largest floor of weights alpha p + (1 - alpha) u with KL(p || u) up to rho (Pinsker)."""
    return alpha**2 * min(2 * rho, 4.0)


def alpha_of_rate(work: float, rounds: int) -> float:
    """The order of alpha for the rate; work is clients x steps, or participants of many clients."""
    return float((work * rounds) ** -0.25)


def radius_for_new_clients(clients: int) -> float:
    """What alpha² rho has to be at least, for clients that are drawn from one population."""
    return math.log(2 * MODELS / DELTA) / (clients - 1)


def _advice(strategy: FedMABA, runs: Sequence[RunHistory], labels: Labels) -> list[str]:
    """What theory says of a FedMABA's alpha and rho, in sentences."""
    run = runs[0]
    n, m = run.n_clients, round(unevenness(run).participants)
    lines = [*strategy.doubts(n, m)]
    steps, rounds = _local_steps(run, labels), len(run.column("round"))
    if m < n:
        work, words = float(m), f"{m} of {n} clients in {rounds} rounds"
    else:
        work, words = n * (steps or 1), f"all {n} clients in {rounds} rounds"
        words += (
            " of local steps unknown, taken as one"
            if steps is None
            else f" of {steps:g} local steps"
        )
    lines.append(
        f"alpha={strategy.alpha:g}; with {words}, an alpha of the order "
        f"{alpha_of_rate(work, rounds):.2g} makes the floor fall as fast as the rest of the bound"
    )
    if n > 1:
        here, least = strategy.alpha**2 * strategy.rho, radius_for_new_clients(n)
        judged = "enough" if here >= least else "less than that"
        lines.append(
            f"to bound the loss of new clients, alpha² rho has to be at least {least:.2g} "
            f"(two models, 95 %); it is {here:.2g}, {judged}"
        )
    return lines


def _local_steps(run: RunHistory, labels: Labels) -> float | None:
    """Mean local steps of a client in a round; None where the run does not say."""
    train = run.origin.settings.get("train", {})
    if train.get("steps"):
        return float(train["steps"])
    if run.seed not in labels or not train.get("minibatch"):
        return None
    sizes = labels[run.seed].sum(1)
    return float(train["epochs"] * np.ceil(sizes / train["minibatch"]).mean())
