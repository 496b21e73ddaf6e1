"""The paper's Theorem 2 on the quadratic problem of theory_convex, with the theorem's step sizes.

eta_c = 1 / (sqrt(T) K L), eta_s = sqrt(N K), minibatches of 10, eta_b = 10, three seeds; L is the
largest curvature of a client's loss. The theorem bounds the least E |gradient of f|^2 of T rounds
by a multiple of 1/sqrt(N K T) + 1/T and does not say what f is: here both the mixture
alpha sup + (1 - alpha) mean and the plain mean of the clients' losses, FedAvg's objective.

python examples/theory_theorem2.py [FIGURE.svg]
"""

import numpy as np
import torch

import theory
import theory_convex as convex

HORIZONS, LOCAL, SEEDS, ETA_B, MINIBATCH = (100, 400, 1600), (1, 5), 3, 10.0, 10
SCAN_T, SCAN = 400, ((4, 1), (16, 1), (64, 1), (16, 4), (16, 16))  # (N, K)


def largest_curvature(problem: convex.Problem) -> float:
    """L: of any client's loss."""
    return float(torch.linalg.eigvalsh(problem.H).max())


def norms(clients: int, K: int, T: int, L: float | None = None) -> np.ndarray:
    """(2, T) |gradient|^2 of the mixture and of the mean after each round, mean over seeds."""
    fed = convex.federation(clients)
    problem = convex.Problem(fed)
    lr = 1 / (np.sqrt(T) * K * (L or largest_curvature(problem)))
    plan = {"rounds": T, "steps": K, "lr": lr, "minibatch": MINIBATCH}
    last, _ = convex.run(fed, (ETA_B,), range(SEEDS), eta_s=np.sqrt(clients * K), **plan)
    of_mean = problem.H.mean(0) @ last - problem.G.mean(0)
    both = torch.stack([problem.gradient(last), of_mean])
    return both.square().sum((-2, -1)).mean(-1).numpy()


def measure(horizons=HORIZONS, local=LOCAL) -> dict[tuple[int, int], np.ndarray]:
    """By (K, T): the least of the mixture's, of the mean's, and the mixture's mean over rounds."""
    found = {}
    for K in local:
        for T in horizons:
            mixture, mean = norms(12, K, T)
            found[K, T] = np.array([mixture.min(), mean.min(), mixture.mean()])
    return found


def at_saddle() -> float:
    """|gradient of the mean|^2 at the saddle of the mixture."""
    problem = convex.Problem(convex.federation())
    w, _ = problem.saddle()
    return float((problem.H.mean(0) @ w - problem.G.mean(0)).square().sum())


def scan(pairs=SCAN, T=SCAN_T) -> dict[tuple[int, int], tuple[float, float]]:
    """By (N, K): the mixture's least and mean over rounds; one L, the largest, for all."""
    sizes = {n for n, _ in pairs}
    L = max(largest_curvature(convex.Problem(convex.federation(n))) for n in sizes)
    found = {}
    for n, K in pairs:
        mixture = norms(n, K, T, L)[0]
        found[n, K] = float(mixture.min()), float(mixture.mean())
    return found


def draw(ax, found) -> None:
    for i, K in enumerate(LOCAL):
        rows = np.array([found[K, T] for T in HORIZONS])
        for j, name in enumerate(("$f$ the mixture", "$f$ the mean")):
            ax.loglog(HORIZONS, rows[:, j], f"C{i}{'-:'[j]}o", ms=3, label=f"{name}, $K$ = {K}")
    T = np.array(HORIZONS)
    ax.loglog(T, 5e-3 * (T[0] / T), "k--", lw=0.8, label="$1/T$")
    ax.set(xlabel="rounds $T$", ylabel="least squared gradient")
    ax.set_ylim(1e-6, None)  # room for the legend
    ax.legend(fontsize=7, loc="lower left")


if __name__ == "__main__":
    found = measure()
    print("  K      T  f the mixture: least  mean over rounds  f the mean: least")
    for (K, T), (least, plain, mean) in found.items():
        print(f"{K:3} {T:6} {least:21.1e} {mean:17.1e} {plain:18.1e}")
    for K in LOCAL:
        least, plain, mean = theory.slopes(HORIZONS, [found[K, T] for T in HORIZONS])
        print(f"slope in T, K = {K}: mixture {least:.2f} (mean {mean:.2f}), mean {plain:.2f}")
    print(f"at the saddle the mean's squared gradient is {at_saddle():.1e}")
    print(f"  N   K  f the mixture, T = {SCAN_T}: least  mean over rounds")
    grown = scan()
    for (n, K), (least, mean) in grown.items():
        print(f"{n:3} {K:3} {least:30.1e} {mean:17.1e}")
    for name, same in (("N", lambda nk: nk[1] == 1), ("K", lambda nk: nk[0] == 16)):
        at = [nk for nk in grown if same(nk)]
        slope = theory.slopes([n * K for n, K in at], [grown[nk][1] for nk in at])
        print(f"slope in {name} of the mean over rounds: {slope:.2f}")
    theory.figure(draw, 1, found)
