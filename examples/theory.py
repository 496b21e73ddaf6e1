"""What the theory_*.py share: small federations in numpy, rounds of a strategy, slopes, figures."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmaba.strategies.base import Replies
from fedmaba.strategies.fedmaba import FedMABA
from fedmaba.strategies.simplex import largest_entry

Array = NDArray[np.float64]


def slopes(x: ArrayLike, y: ArrayLike) -> Array:
    """Least-squares slope of log y over log x, of each column of y."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def replies(losses: Array, who: ArrayLike | None = None, n: int | None = None) -> Replies:
    """A round in which the clients `who` of n, or all of them, report these losses."""
    who = np.arange(len(losses)) if who is None else np.asarray(who)
    return Replies(0, 0.1, n or len(losses), who, np.ones(len(who), np.int64), losses)


def fast(losses: Array) -> float:
    """An eta_b so large that one step from anywhere is the best response to the losses."""
    return 1e7 / max(float(np.ptp(losses)), 1e-9)


def worst(losses: Array, rho: float) -> Array:
    """The weights of the ball with the largest mean: FedMABA's best response."""
    strategy = FedMABA(alpha=1.0, eta_b=fast(losses), rho=rho)
    return strategy.weigh(strategy.init(len(losses)), replies(losses)).coef


def excess(losses: Array, rho: float) -> float:
    """S: how far the largest weighted mean in the ball is above the plain mean."""
    return float(worst(losses, rho) @ (losses - losses.mean()))


def mixture(losses: Array, alpha: float, rho: float) -> float:
    """Psi: the plain mean and alpha times the excess."""
    return float(losses.mean()) + alpha * excess(losses, rho)


def chi2(m: int, rho: float) -> float:
    """The largest chi-square divergence from uniform that m weights in the ball can have."""
    x = largest_entry(m, rho)
    return m * (x**2 + (1 - x) ** 2 / max(m - 1, 1)) - 1


@dataclass(frozen=True)
class Clients:
    """Client i's loss is a_i |w - c_i|^2 / 2 + l_i; with waves a_i sum (1 - cos(w - c_i)) + l_i."""

    a: Array  # (N,) the gradient of client i is a_i-Lipschitz
    c: Array  # (N, d)
    level: Array  # (N,)
    waves: bool = False

    def losses(self, w: Array) -> Array:
        """(N,) at one model, or at a model of each client."""
        away = w - self.c
        return self.a * (1 - np.cos(away) if self.waves else away**2 / 2).sum(-1) + self.level

    def gradients(self, w: Array) -> Array:
        """(N, d) at one model, or at a model of each client."""
        return self.a[:, None] * (np.sin(w - self.c) if self.waves else w - self.c)

    def mean_gradient(self, w: Array) -> float:
        """The squared norm of the mean loss's gradient."""
        return float((self.gradients(w).mean(0) ** 2).sum())


def drawn(n: int, d: int = 5, seed: int = 3, waves: bool = False) -> Clients:
    """Random clients, each with a curvature of at most 1."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n, d))
    return Clients(rng.uniform(0.5, 1.0, n), centres, rng.random(n), waves)


def train(
    clients: Clients,
    strategy: FedMABA,
    w: Array,
    rounds: int,
    step: float,
    local: int = 1,
    rate: float | None = None,
    cohort: int | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> tuple[Array, Array]:
    """The server's models, (rounds + 1, d), and the weights in use, (rounds, N).

    step is eta_s eta_c K and rate is eta_c; gradients have noise of this standard deviation.
    """
    rng, n = np.random.default_rng(seed), len(clients.a)
    rate = rate or step / local
    state, models, weights = strategy.init(n), [w], np.zeros((rounds, n))
    for t in range(rounds):
        who = np.sort(rng.choice(n, cohort, replace=False)) if cohort else np.arange(n)
        x, seen = np.tile(w, (n, 1)), []
        for _ in range(local):
            seen.append(clients.losses(x))
            push = noise * rng.normal(size=x.shape) / np.sqrt(len(w)) if noise else 0.0
            x = x - rate * (clients.gradients(x) + push)
        if strategy.loss_at == "start":
            loss = seen[0]
        else:
            loss = clients.losses(x) if strategy.loss_at == "end" else np.mean(seen, 0)
        coef, state, _ = strategy.weigh(state, replies(loss[who], who, n))
        weights[t, who] = coef
        w = w + step / (rate * local) * (coef @ (x[who] - w))
        models.append(w)
    return np.array(models), weights


def figure(draw: Callable[..., None], panels: int, found: Any) -> None:
    """`python theory_x.py FILE.svg`: hand the panels to `draw` and write them there."""
    if len(sys.argv) < 2:
        return
    if sys.argv[1].startswith("-"):
        sys.exit(f"{sys.argv[1]} is no name of a figure: give FIGURE.svg, or nothing")
    from fedmaba.report import figures

    with figures.style():  # as the figures of runs
        made = figures.canvas((3.4 * panels, 2.9))
        draw(*np.atleast_1d(made.subplots(1, panels)), found)
        Path(sys.argv[1]).write_bytes(figures.encode(made, ".svg"))
