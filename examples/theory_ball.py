"""The KL ball: what its worst mean stands for, where the weights settle and how long they remember.

docs/theory/proofs.md has the statements; every weight here comes from FedMABA.weigh.

python examples/theory_ball.py [FIGURE.svg]
"""

from itertools import combinations

import numpy as np

import theory
from fedmaba.strategies.fedmaba import FedMABA
from fedmaba.strategies.simplex import kl_uniform
from theory import Array

RADII = 10.0 ** np.arange(0, -6.5, -1)


def families(n: int = 100) -> dict[str, Array]:
    """Losses of n clients: a skewed set, with a few badly served clients, and a symmetric one."""
    u = (np.arange(n) + 0.5) / n
    return {"skewed": -0.5 * np.log(1 - u), "symmetric": 0.5 + 0.4 * np.sin(np.pi * (u - 0.5))}


def theorem1(f: Array, rho: float) -> tuple[float, float]:
    """What the excess over the mean is at least and at most."""
    variance, below, above = f.var(), f.mean() - f.min(), f.max() - f.mean()
    low = np.sqrt(2 * rho * variance + (rho * below) ** 2) - rho * below
    return float(low), float(np.sqrt(2 * rho * variance) + rho * above / 3)


def corollary1b(f: Array) -> float:
    """Up to this radius the excess is at least sqrt((e^rho - 1) Var), so also sqrt(rho Var)."""
    return float(np.log1p(f.var() / (f.mean() - f.min()) ** 2))


def proposition2(p: Array, alpha: float) -> tuple[float, float]:
    """Chi-square of uniform from the mixed weights, and the most that it can be."""
    n, rho = len(p), kl_uniform(p)
    mixed = alpha * p + (1 - alpha) / n
    by_radius = rho * max(4 * alpha**2 / (3 * (1 - alpha)), 2 * alpha / 3)
    return float((1 / n**2 / mixed).sum() - 1), min(alpha / (1 - alpha), by_radius)


def search(trials: int) -> dict[str, float]:
    """The largest quotients of the two sides in random cases; above 1 a statement is false."""
    rng = np.random.default_rng(0)
    found = dict.fromkeys(("Theorem 1, lower", "Theorem 1, upper", "Corollary 1b"), 0.0)
    found["Proposition 2"] = 0.0
    for _ in range(trials):
        n = rng.integers(2, 40)
        f = rng.normal(size=n) ** rng.choice([1, 2, 3]) * (rng.random(n) < rng.uniform(0.3, 1))
        if np.ptp(f) > 1e-3:
            rho = 10 ** rng.uniform(-4, 1)
            low, high = theorem1(f, rho)
            s, near = theory.excess(f, rho), min(rho, corollary1b(f))
            root = np.sqrt(np.expm1(near) * f.var())
            found["Theorem 1, lower"] = max(found["Theorem 1, lower"], low / s)
            found["Theorem 1, upper"] = max(found["Theorem 1, upper"], s / high)
            found["Corollary 1b"] = max(found["Corollary 1b"], root / theory.excess(f, near))
        p = rng.dirichlet(np.full(n, 10 ** rng.uniform(-2, 3)))
        left, right = proposition2(p, rng.uniform(0.01, 0.99))
        found["Proposition 2"] = max(found["Proposition 2"], left / right)
    return found


def in_clients(n: int) -> list[float]:
    """What roots leave of the excess of n skewed losses, times sqrt N, at rho = 1 and at 1/N."""
    f = families(n)["skewed"]
    sd, root = f.std(), np.sqrt(n)
    fixed, small = theory.excess(f, 1.0), theory.excess(f, 1 / n)
    return [root * (fixed - sd), root * (small - np.sqrt(2 / n) * sd), root * small - sd]


def by_cohort(f: Array, rho: float) -> list[float]:
    """The mean over all cohorts of m of their own worst mean, for m = 1, 2, ..., N."""
    n = len(f)
    cohorts = ([f[list(c)] for c in combinations(range(n), m)] for m in range(1, n + 1))
    return [float(np.mean([theory.worst(g, rho) @ g for g in same])) for same in cohorts]


def limit(f: Array, rho: float) -> tuple[Array, float]:
    """Apart from the library: p proportional to exp(F / tau) with KL = rho, and tau."""
    low, high = 1e-6, 1e6
    for _ in range(200):
        tau = np.sqrt(low * high)
        p = np.exp((f - f.max()) / tau)
        p /= p.sum()
        low, high = (tau, high) if kl_uniform(p) > rho else (low, tau)
    return p, tau


def play(strategy: FedMABA, p: Array, f: Array, rounds: int) -> Array:
    """(rounds, N) weights after each round of constant losses, all clients, from weights p."""
    state, path = {"p": p}, []
    for _ in range(rounds):
        state = strategy.weigh(state, theory.replies(f)).state
        path.append(state["p"])
    return np.array(path)


def settle(eta_b: float, rho: float = 1.0, rounds: int = 400) -> tuple[float, int, float, float]:
    """Error at the end, rounds until there is none, its fall a round after a shift, and tau."""
    f = families()["skewed"] + 0.2
    (p, tau), strategy = limit(f, rho), FedMABA(eta_b=eta_b, rho=rho)
    gap = np.abs(play(strategy, np.full(len(f), 1 / len(f)), f, rounds) - p).max(1)
    old, _ = limit(np.random.default_rng(0).permutation(f), rho)  # others were served badly
    after = np.abs(play(strategy, old, f, rounds) - p).max(1)
    falls = np.flatnonzero((after < 1e-4) & (after > 1e-11))
    fall = np.exp(np.polyfit(falls, np.log(after[falls]), 1)[0])
    return gap[-1], int(np.argmax(gap < 1e-12)) + 1, float(fall), tau


def memory(n: int, rho: float, quiet: int) -> int:
    """Rounds until a client that becomes the worst outweighs the one that was it for `quiet`."""
    strategy = FedMABA(alpha=0.5, eta_b=0.5, rho=rho)
    first = play(strategy, np.full(n, 1 / n), np.eye(n)[0], quiet)[-1]
    path = play(strategy, first, np.eye(n)[-1], 200)
    return int(np.argmax(path[:, -1] > path[:, 0])) + 1


def draw(left, right, found) -> None:
    for ax, (name, rows) in zip((left, right), found.items(), strict=True):
        s, low, high = np.array(rows).T
        ax.fill_between(RADII, low, high, alpha=0.3, label="Theorem 1")
        ax.loglog(RADII, s, "ko-", ms=3, label="sup - mean")
        sd = families()[name].std()
        ax.loglog(RADII, np.sqrt(RADII) * sd, "C3:", label="sqrt(rho Var)")
        ax.set(xlabel="rho", title=f"{name} losses")
        ax.legend()


if __name__ == "__main__":
    found = {
        name: [(theory.excess(f, rho), *theorem1(f, rho)) for rho in RADII]
        for name, f in families().items()
    }
    for name, rows in found.items():
        print(f"{name} losses\n    rho  at least  sup-mean   at most  over sqrt(2 rho Var)")
        for rho, (s, low, high) in zip(RADII, rows, strict=True):
            root = np.sqrt(2 * rho) * families()[name].std()
            print(f"{rho:7.0e} {low:9.5f} {s:9.5f} {high:9.5f} {s / root:21.4f}")
    print("skewed losses: what is left of sup - mean, times sqrt N")
    print("     N  rho 1: sqrt(rV)  rho 1/N: sqrt(2rV)  rho 1/N: sqrt(rV)")
    for n in 10 ** np.arange(1, 6):
        fixed, two, one = in_clients(int(n))
        print(f"{n:6} {fixed:16.2f} {two:19.4f} {one:18.4f}")
    levels = np.array([1.0] * 95 + [0.0] * 5)
    print(f"95 clients at 1, 5 at 0: upper bound of sqrt(rho Var) up to {corollary1b(levels):.4f}")
    for rho in (0.02, corollary1b(levels), 1.0):
        root = np.sqrt(rho * levels.var())
        print(f"rho {rho:.4f}: sup - mean {theory.excess(levels, rho):.4f}, root {root:.4f}")
    print("largest quotient of both sides in 2000 random cases")
    for name, ratio in search(2000).items():
        print(f"{name}: {ratio:.3f}")
    for name, p, alpha in (
        ("alpha 1/3, a tiny radius", np.array([0.5005, 0.4995]), 1 / 3),
        ("one client has all, N 1000", np.eye(1000)[0], 0.5),
    ):
        left, right = proposition2(p, alpha)
        print(f"Proposition 2, {name}: {left / right:.4f}")
    f = families(8)["skewed"]
    print("cohorts of 1 to 8 of 8, rho 0.5: mean of their sup, less the mean loss")
    print(" ".join(f"{v - f.mean():.3f}" for v in by_cohort(f, 0.5)))
    print("eta_b  |p-limit|  rounds from uniform  1/(tau eta_b)  fall per round  1/(1+tau eta_b)")
    for eta_b in (0.1, 0.5, 1.0):
        gap, rounds, fall, tau = settle(eta_b)
        x = tau * eta_b
        print(f"{eta_b:5} {gap:10.0e} {rounds:20} {1 / x:14.2f} {fall:15.4f} {1 / (1 + x):16.4f}")
    print("rounds to answer a shift after 10, 100 and 1000 quiet ones, eta_b 0.5")
    for n, rho in ((2, 1.0), (2, 0.5), (10, 1.0), (10, 2.5)):
        answers = " ".join(f"{memory(n, rho, quiet):5}" for quiet in (10, 100, 1000))
        print(f"N {n:2}, rho {rho}, log N {np.log(n):.2f}: {answers}")
    theory.figure(draw, 2, found)
