"""Where FedMABA's weights settle when the losses stay put, and how soon.

The limit, p proportional to exp(F / tau) with KL(p || uniform) = rho, is found apart, by bisection.

python examples/theory_steady.py [FIGURE.svg]
"""

import numpy as np

import theory
from fedmaba.strategies.base import Replies
from fedmaba.strategies.fedmaba import FedMABA

RHO, STEPS = 1.0, (0.1, 0.5, 1.0)


def losses(n: int = 100) -> np.ndarray:
    """Of n clients: most between 0.2 and 1.5, a few far above."""
    return 0.2 - 0.5 * np.log(1 - (np.arange(n) + 0.5) / n)


def limit(f: np.ndarray, rho: float = RHO) -> tuple[np.ndarray, float]:
    """p proportional to exp(F / tau) on the boundary of the ball, and tau."""
    low, high = 1e-6, 1e6
    for _ in range(200):
        tau = np.sqrt(low * high)
        p = np.exp((f - f.max()) / tau)
        p /= p.sum()
        kl = np.log(len(f)) + p @ np.log(np.maximum(p, 1e-300))
        low, high = (tau, high) if kl > rho else (low, tau)
    return p, tau


def play(eta_b: float, f: np.ndarray, p: np.ndarray, rounds: int) -> np.ndarray:
    """(rounds, N) weights of FedMABA, all clients in each round, from weights p."""
    strategy, everyone = FedMABA(eta_b=eta_b, rho=RHO), np.arange(len(f))
    state, path = {"p": p}, []
    for t in range(rounds):
        size = np.ones(len(f), np.int64)
        replies = Replies(t, 0.1, len(f), everyone, size, f)
        state = dict(strategy.weigh(state, replies).state)
        path.append(state["p"])
    return np.array(path)


def measure(eta_b: float, rounds: int = 400) -> dict[str, object]:
    """Rounds to the limit from uniform weights; the decay of the error after the losses moved."""
    f = losses()
    p, tau = limit(f)
    gap = np.abs(play(eta_b, f, np.full(len(f), 1 / len(f)), rounds) - p).max(1)
    old, _ = limit(np.random.default_rng(0).permutation(f))  # other clients were served badly
    after = np.abs(play(eta_b, f, old, rounds) - p).max(1)
    falls = np.flatnonzero((after < 1e-4) & (after > 1e-11))
    rate = np.exp(np.polyfit(falls, np.log(after[falls]), 1)[0])
    first = int(np.argmax(gap < 1e-12)) + 1
    return {"tau": tau, "gap": gap, "after": after, "rate": rate, "first": first}


def draw(left, right, found) -> None:
    for eta_b, f in found.items():
        left.semilogy(np.maximum(f["gap"][:40], 1e-16), label=f"eta_b {eta_b}")
        right.semilogy(np.maximum(f["after"], 1e-16), label=f"eta_b {eta_b}")
    left.set(xlabel="round", ylabel="max |p - limit|", title="from uniform weights")
    right.set(xlabel="round", title="after the losses changed hands")
    left.legend()


if __name__ == "__main__":
    found = {eta_b: measure(eta_b) for eta_b in STEPS}
    print(f"tau {found[0.5]['tau']:.4f}")
    print("eta_b  |p-limit|  rounds from uniform  1/(tau eta_b)  fall per round  1/(1+tau eta_b)")
    for eta_b, f in found.items():
        x = f["tau"] * eta_b
        print(
            f"{eta_b:5} {f['gap'][-1]:10.0e} {f['first']:20} {1 / x:14.2f} {f['rate']:15.4f}"
            f" {1 / (1 + x):16.4f}"
        )
    theory.figure(draw, 2, found)
