"""The bandit's regret: FedMABA's weights against the best fixed weights of the ball.

Theorem 2 of docs/theory/proofs.md, through FedMABA.weigh: with the weights after the update at most
rho / eta_b, with those before it more by eta_b / 8 times the sum of squared ranges, and for cohorts
KL(p || uniform) / eta_b, which sync=mass keeps and sync=overwrite does not.

python examples/theory_regret.py
"""

from collections.abc import Callable
from itertools import combinations

import numpy as np

import theory
from fedmaba.strategies.fedmaba import FedMABA
from fedmaba.strategies.simplex import kl_uniform
from theory import Array


def regret(losses: Callable[[int, Array], Array], rounds: int, n: int, eta_b: float, rho: float):
    """Quotients of the regret and its bound: weights after the update, and before it.

    `losses` sees the round and the present weights, as an adversary would.
    """
    strategy = FedMABA(alpha=1.0, eta_b=eta_b, rho=rho)
    state, total, got, ranges = strategy.init(n), np.zeros(n), np.zeros(2), 0.0
    for t in range(rounds):
        f = losses(t, state["p"])
        before, (coef, state, _) = state["p"], strategy.weigh(state, theory.replies(f))
        got += coef @ f, before @ f
        total, ranges = total + f, ranges + np.ptp(f) ** 2
    bounds = rho / eta_b + np.array([0.0, eta_b / 8 * ranges])
    return (theory.worst(total, rho) @ total - got) / bounds


def constant(rounds: int) -> float:
    """The same losses in each round, so small that the last one meets the ball: the worst case."""
    f = np.array([0.0, 1.0, 2.0, 0.5])
    p = np.exp(f) / np.exp(f).sum()
    return regret(lambda *_: f / rounds, rounds, 4, 1.0, kl_uniform(p))[0]


def sequences(n: int, rounds: int) -> dict[str, Callable[[int, Array], Array]]:
    rng = np.random.default_rng(0)
    random = rng.random((rounds, n))
    walk = np.clip(np.cumsum(rng.normal(size=(rounds, n)) * 0.1, 0) + 0.5, 0, 1)
    return {
        "random": lambda t, _: random[t],
        "walk": lambda t, _: walk[t],
        "switching": lambda t, _: np.eye(n)[t // 7 % n],
        "adversary": lambda _, p: np.eye(n)[p.argmin()],
    }


def in_cohorts(sync: str, rng: np.random.Generator, n=12, m=4, rho=0.4, rounds=60) -> float:
    """Regret over its bound, against weights as sharp as the ball of every cohort allows."""
    mean = rng.random(n) * 10 ** rng.uniform(-1, 0.5)
    all_cohorts, sharp = np.array(list(combinations(range(n), m))), 20.0

    def rival() -> Array:
        return np.exp(sharp * (mean - mean.max())) / np.exp(sharp * (mean - mean.max())).sum()

    def kl(p: Array) -> Array:
        own = np.maximum(p / p.sum(-1, keepdims=True), 1e-300)
        return (own * np.log(m * own)).sum(-1)

    while kl(rival()[all_cohorts]).max() > rho:
        sharp *= 0.9
    p, eta_b, noise = rival(), 10 ** rng.uniform(-1, 1), 0.1 * rng.integers(2)
    strategy = FedMABA(alpha=1.0, eta_b=eta_b, rho=rho, sync=sync)
    state, total = strategy.init(n), 0.0
    for _ in range(rounds):
        who = np.sort(rng.choice(n, m, replace=False))
        f = mean[who] + noise * rng.normal(size=m)
        coef, state, _ = strategy.weigh(state, theory.replies(f, who, n))
        total += (p[who] - p[who].sum() * coef) @ f
    return float(total * eta_b / kl_uniform(p))


if __name__ == "__main__":
    print("regret over its bound, 10 clients, 300 rounds, rho 0.5")
    print("losses     eta_b   after  before")
    for name, losses in sequences(10, 300).items():
        for eta_b in (0.1, 0.5, 5.0):
            after, before = regret(losses, 300, 10, eta_b, 0.5)
            print(f"{name:9} {eta_b:6} {after:7.3f} {before:7.3f}")
    for rounds in (10, 100, 1000):
        print(f"constant losses met in {rounds:4} rounds, after: {constant(rounds):.4f}")
    for sync in ("mass", "overwrite"):
        rng = np.random.default_rng(1)
        ratios = np.array([in_cohorts(sync, rng) for _ in range(300)])
        print(f"cohorts, {sync}: broken {(ratios > 1).sum()} of 300, largest {ratios.max():.2f}")
