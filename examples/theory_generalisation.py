"""Both sides of a generalisation bound with the variance over clients, on a small convex family.

A client has its own rate m and 20 labels y in {0, 1} drawn with it; the model is one number w, the
loss (w - y)^2 in [0, 1], the family 101 values of w. Clients are draws from one population (one in
ten has m = 0.8), so their losses F_i(w) are independent and, by the empirical Bernstein bound
(Maurer and Pontil 2009, Theorem 4) and a union bound, with probability 1 - delta for every w

    risk of a new client <= mean F + sqrt(2 rho Var F) + 7 N rho / (3 (N - 1)),
    rho = log(2 * 101 / delta) / N.

python examples/theory_generalisation.py [FIGURE.svg]
"""

import numpy as np

import theory
from fedmaba.strategies.simplex import tilt

FAMILY, RATE, DELTA, ALPHA = np.linspace(0, 1, 101), 0.26, 0.05, 0.5
SIZES = (10, 30, 100, 300, 1000, 3000)


def draw_clients(rng: np.random.Generator, trials: int, n: int) -> np.ndarray:
    """(trials, n) share of ones among each client's labels; F_i(w) = w^2 + (1 - 2 w) share_i."""
    m = np.where(rng.random((trials, n)) < 0.1, 0.8, rng.uniform(0.05, 0.35, (trials, n)))
    return rng.binomial(20, m) / 20


def measure(n: int, trials: int = 2000) -> dict[str, float]:
    """Both sides at the saddle's model, and how often any w of the family breaks the bound."""
    share = draw_clients(np.random.default_rng(n), trials, n)
    radius, lean = np.log(2 * len(FAMILY) / DELTA) / n, 1 - 2 * FAMILY
    mean = FAMILY**2 + lean * share.mean(1)[:, None]
    spread = np.abs(lean) * np.sqrt(2 * radius * share.var(1, ddof=1))[:, None]
    bound = mean + spread + 7 * n * radius / (3 * (n - 1))
    risk = FAMILY**2 + lean * RATE
    # the saddle for rho = 1: the sup's excess is that of the shares, up to the sign of lean
    up, down = (np.array([tilt(1e6 * s * x, 1.0).p @ x * s for x in share]) for s in (1, -1))
    excess = np.where(lean > 0, (up - share.mean(1))[:, None], (down + share.mean(1))[:, None])
    chosen = (mean + ALPHA * np.abs(lean) * excess).argmin(1)
    each = np.arange(trials)
    return {
        "radius": radius,
        "risk": risk[chosen].mean(),
        "bound": bound[each, chosen].mean(),
        "gap": float(np.quantile((risk - mean).max(1), 1 - DELTA)),
        "sqrt term": spread.max(1).mean(),
        "all terms": (bound - mean).max(1).mean(),
        "broken": float((risk > bound).any(1).mean()),
    }


def coverage(n: int = 300, delta: float = 1e-3, trials: int = 40_000) -> tuple[float, float]:
    """How often w = 0 does worse than mean + sqrt(2 rho Var), and than mean + sqrt(rho Var)."""
    share, radius = draw_clients(np.random.default_rng(1), trials, n), np.log(1 / delta) / n
    miss = (RATE - share.mean(1)) / np.sqrt(radius * share.var(1, ddof=1))
    return float((miss > np.sqrt(2)).mean()), float((miss > 1).mean())


def draw(left, right, found) -> None:
    n = list(found)
    for name, style in (("bound", "C0o-"), ("risk", "ko-")):
        left.loglog(n, [f[name] for f in found.values()], style, ms=3, label=name)
    for name, style in (("all terms", "C0o-"), ("sqrt term", "C1o--"), ("gap", "ko-")):
        right.loglog(n, [f[name] for f in found.values()], style, ms=3, label=name)
    for ax, label in ((left, "at the saddle's model"), (right, "over the mean, worst w")):
        ax.set(xlabel="clients N", ylabel=label)
        ax.legend()


if __name__ == "__main__":
    found = {n: measure(n) for n in SIZES}
    print("    N  radius    risk   bound     gap  sqrt term  all terms  broken")
    for n, f in found.items():
        print(
            f"{n:5} {f['radius']:7.4f} {f['risk']:7.4f} {f['bound']:7.4f} {f['gap']:7.4f}"
            f" {f['sqrt term']:10.4f} {f['all terms']:10.4f} {f['broken']:7.4f}"
        )
    late = SIZES[2:]
    for name in ("gap", "sqrt term", "all terms"):
        print(f"slope of {name}: {theory.slopes(late, [found[n][name] for n in late]):.2f}")
    two, one = coverage()
    print(
        f"delta 0.001, w = 0: broken {two:.5f} with sqrt(2 rho Var), {one:.5f} with sqrt(rho Var)"
    )
    theory.figure(draw, 2, found)
