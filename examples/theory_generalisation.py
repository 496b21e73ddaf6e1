"""Bounds of the generalisation error, both sides: the paper's, and those that hold and say more.

The family: one number w on 101 points, loss (w - y)^2, so c = 1; 20 labels y in {0, 1} a client.
Clients are draws from one population, in which one of ten has a rate of 0.8. docs/theory/proofs.md
has Theorems 10 and 11, docs/theory/audit.md what the paper's own statements assume.

python examples/theory_generalisation.py
"""

import numpy as np

import theory
from theory import Array

FAMILY, RATE, DELTA = np.linspace(0, 1, 101), 0.26, 0.05
LEAN, RISK = 1 - 2 * FAMILY, FAMILY**2 + (1 - 2 * FAMILY) * RATE


def draw_clients(rng: np.random.Generator, draws: int, n: int) -> Array:
    """(draws, n) share of ones among each client's labels; F_i(w) = w^2 + (1 - 2 w) share_i."""
    m = np.where(rng.random((draws, n)) < 0.1, 0.8, rng.uniform(0.05, 0.35, (draws, n)))
    return rng.binomial(20, m) / 20


def rademacher(share: Array, rng: np.random.Generator, signs: int = 64) -> float:
    """The complexity of one draw, one sign for each client."""
    tau = rng.choice([-1.0, 1.0], (signs, len(share)))
    plain, by_share = tau.mean(1)[:, None], (tau @ share / len(share))[:, None]
    return float((FAMILY**2 * plain + LEAN * by_share).max(1).mean())


def measure(n: int, draws: int = 300) -> dict[str, float]:
    """Both sides of the paper's two statements and of Theorem 10, and how often they are broken."""
    rng = np.random.default_rng(n)
    share = draw_clients(rng, draws, n)
    empirical = FAMILY**2 + LEAN * share.mean(1)[:, None]
    spread = 2 * (np.abs(LEAN) * share.std(1)[:, None]).max(1)
    complexity = np.array([rademacher(one, rng) for one in share])
    rep, excess = (RISK - empirical).max(1), RISK[empirical.argmin(1)] - RISK.min()
    paper, ours = np.sqrt(2 * np.log(2 / DELTA) / n), np.sqrt(np.log(1 / DELTA) / (2 * n))
    first, first_ours = 2 * complexity + 3 * paper, 2 * complexity + 3 * ours
    second, second_ours = spread + 4 * paper, spread + 1 / np.sqrt(n) + 4 * ours
    finite = spread * np.sqrt(2 * np.log(len(FAMILY)) / n) + 1 / np.sqrt(n) + 4 * ours
    return {
        "Rep 95 %": float(np.quantile(rep, 0.95)),
        "Theorem 1": first.mean(),
        "ours": first_ours.mean(),
        "excess": excess.mean(),
        "Corollary 1": second.mean(),
        "ours ": second_ours.mean(),
        "finite": finite.mean(),
        "broken": float(max((rep > first_ours).mean(), (excess > second_ours).mean())),
    }


def speaks_from(ours: bool) -> int:
    """The fewest clients with which Corollary 1 can be below c, for clients all alike."""
    n = np.arange(1, 1000)
    paper = 4 * np.sqrt(2 * np.log(2 / DELTA) / n)
    return int(n[((1 + 4 * np.sqrt(np.log(1 / DELTA) / 2)) / np.sqrt(n) if ours else paper) < 1][0])


def unlike_clients(n: int, draws: int = 5000) -> tuple[float, float]:
    """How often the paper's statements break, if samples of a client agree but clients do not.

    Nine of ten clients have loss 0 at the first of two models, the tenth 10; all have 0.1 at the
    second. Two samples of a client never differ, so any c > 0 will do.
    """
    rng, c = np.random.default_rng(0), 1e-6
    many = rng.binomial(n, 0.1, draws)
    tau = rng.choice([-1.0, 1.0], (4000, n))
    even = 0.1 * tau.mean(1)
    by_count = [np.maximum(10 * tau[:, :k].sum(1) / n, even).mean() for k in range(n + 1)]
    noise = c * np.sqrt(2 * np.log(2 / DELTA) / n)
    share, mean = many / n, 10 * many / n
    rep, excess = np.maximum(1 - mean, 0), np.where(mean < 0.1, 0.9, 0.0)
    spread = 2 * 10 * np.sqrt(share * (1 - share))
    complexity = np.array(by_count)[many]
    first = (rep > 2 * complexity + 3 * noise).mean()
    return float(first), float((excess > spread + 4 * noise).mean())


def own_spread(n: int, draws: int = 200) -> dict[str, float]:
    """Theorem 11 and the empirical Bernstein bound, all models at once.

    The excess of the losses at w is |1 - 2 w| times that of the shares, or of their negatives.
    """
    share = draw_clients(np.random.default_rng(n), draws, n)
    r = np.log(2 * len(FAMILY) / DELTA) / (n - 1)
    mean = FAMILY**2 + LEAN * share.mean(1)[:, None]
    up, down = (np.array([theory.excess(s * x, r) for x in share])[:, None] for s in (1, -1))
    ours = mean + np.abs(LEAN) * np.where(LEAN > 0, up, down) + 10 / 3 * r
    root = np.abs(LEAN) * np.sqrt(2 * r * share.var(1))[:, None]
    bernstein = mean + root + 7 / 3 * r
    at, each = ours.argmin(1), np.arange(draws)
    return {
        "radius": r,
        "risk": RISK[at].mean(),
        "Theorem 11": ours[each, at].mean(),
        "Bernstein": bernstein[each, at].mean(),
        "gap 95 %": float(np.quantile((RISK - mean).max(1), 0.95)),
        "root": root.max(1).mean(),
        "broken": float((ours < RISK).any(1).mean() + (bernstein < RISK).any(1).mean()),
    }


def one_model(n: int = 300, delta: float = 1e-3, draws: int = 40_000) -> tuple[float, float]:
    """How often w = 0 does worse than mean + sqrt(2 rho Var), and than mean + sqrt(rho Var)."""
    share, radius = draw_clients(np.random.default_rng(1), draws, n), np.log(1 / delta) / n
    miss = (RATE - share.mean(1)) / np.sqrt(radius * share.var(1, ddof=1))
    return float((miss > np.sqrt(2)).mean()), float((miss > 1).mean())


def show(rows: dict[int, dict[str, float]]) -> None:
    print("     N" + "".join(f"{name.strip():>12}" for name in next(iter(rows.values()))))
    for n, row in rows.items():
        print(f"{n:6}" + "".join(f"{value:12.4f}" for value in row.values()))


if __name__ == "__main__":
    show({n: measure(n) for n in (10, 100, 1000)})
    print(f"Corollary 1 says nothing below {speaks_from(False)} clients, ours {speaks_from(True)}")
    for n in (5, 20):
        first, second = unlike_clients(n)
        print(f"unlike clients, N {n}: Theorem 1 broken {first:.3f}, Corollary 1 {second:.3f}")
    show({n: own_spread(n) for n in (10, 30, 100, 300, 1000)})
    two, one = one_model()
    print(f"delta 0.001, w = 0: broken {two:.5f} with sqrt(2 rho Var), {one:.5f} without the 2")
