"""The paper's Theorem 1 and Corollary 1, both sides, on the family of theory_generalisation.

One number w on 101 points, loss (w - y)^2, so c = 1; 20 labels a client; N clients are independent
draws from one population. F_D is the risk, F_S the mean over the clients, tau_i a fair sign for
each client, sd_w the standard deviation of the clients' losses at w:

    R = E_tau sup_w (1/N) sum tau_i F_i(w),  noise = sqrt(2 ln(2 / delta) / N)
    Theorem 1    sup_w F_D - F_S            <= 2 R + 3 c noise,           but for 2 delta of draws
    Corollary 1  F_D(argmin F_S) - min F_D  <= 2 sup_w sd_w + 4 c noise,  but for 3 delta

python examples/theory_theorem1.py [FIGURE.svg]
"""

import numpy as np

import theory
from theory_generalisation import DELTA, FAMILY, RATE, draw_clients

SIZES = {10: 500, 100: 500, 1000: 500, 10_000: 100}  # clients: draws of them
SIGNS = 64  # random vectors of signs that the expectation over tau is the mean of


def rademacher(share: np.ndarray, rng: np.random.Generator) -> float:
    """R of one draw of clients; F_i(w) = w^2 + (1 - 2 w) share_i."""
    tau = rng.integers(0, 2, (SIGNS, len(share)), dtype=np.int8) * np.int8(2) - np.int8(1)
    plain, by_share = tau.mean(1)[:, None], (tau @ share / len(share))[:, None]
    return float((FAMILY**2 * plain + (1 - 2 * FAMILY) * by_share).max(1).mean())


def measure(n: int, draws: int) -> dict[str, float]:
    """Both sides of both statements, and how often the left one is larger."""
    rng = np.random.default_rng(n)
    share = draw_clients(rng, draws, n)
    noise, lean = np.sqrt(2 * np.log(2 / DELTA) / n), 1 - 2 * FAMILY
    empirical = FAMILY**2 + lean * share.mean(1)[:, None]
    risk = FAMILY**2 + lean * RATE
    R = np.array([rademacher(one, rng) for one in share])
    spread = (np.abs(lean) * share.std(1)[:, None]).max(1)
    rep, first = (risk - empirical).max(1), 2 * R + 3 * noise
    excess, second = risk[empirical.argmin(1)] - risk.min(), 2 * spread + 4 * noise
    proved = spread + empirical.max(1) / np.sqrt(n)  # what Cauchy and Schwarz give for R
    return {
        "rep": float(np.quantile(rep, 0.95)),
        "first": first.mean(),
        "first broken": float((rep > first).mean()),
        "excess": excess.mean(),
        "second": second.mean(),
        "second broken": float((excess > second).mean()),
        "spread": spread.mean(),
        "R": R.mean(),
        "step broken": float((proved < R).mean()),
    }


def alike(n: int = 100) -> float:
    """R where all clients have the same losses, so that every sd_w is 0."""
    return rademacher(np.full(n, RATE), np.random.default_rng(0))


def useless(delta: float = DELTA) -> int:
    """The largest N at which Corollary 1's last term alone is at least c."""
    return int(32 * np.log(2 / delta))


def draw(left, right, found) -> None:
    n = list(found)
    for ax, names in (
        (left, {"first": "2 R + 3 c noise", "rep": "sup F_D - F_S, 95 %"}),
        (right, {"second": "2 sup sd + 4 c noise", "excess": "excess risk, mean"}),
    ):
        for (name, label), style in zip(names.items(), ("C0o-", "ko-"), strict=True):
            y = [f[name] or np.nan for f in found.values()]
            ax.loglog(n, y, style, ms=3, label=label)
        ax.axhline(1, color="C3", lw=0.8, ls=":", label="c: no loss differs by more")
        ax.set(xlabel="clients N")
        ax.legend(fontsize=7)


if __name__ == "__main__":
    found = {n: measure(n, draws) for n, draws in SIZES.items()}
    print("     N  draws  Rep 95 %  Theorem 1  broken  excess risk  Corollary 1  broken  2 sup sd")
    for n, f in found.items():
        print(
            f"{n:6} {SIZES[n]:6} {f['rep']:9.4f} {f['first']:10.3f} {f['first broken']:7.3f}"
            f" {f['excess']:12.1e} {f['second']:12.3f} {f['second broken']:7.3f}"
            f" {2 * f['spread']:9.3f}"
        )
    print(f"Corollary 1 says nothing for N of {useless()} or fewer")
    print(f"its last term with 100 clients: {4 * np.sqrt(2 * np.log(2 / DELTA) / 100):.3f} c")
    print(f"100 clients all alike: R {alike():.3f}, sup sd 0.000")
    broken = max(f["step broken"] for f in found.values())
    print(f"R above sup sd + (largest mean loss)/sqrt N: {broken:.3f} of the draws")
    theory.figure(draw, 2, found)
