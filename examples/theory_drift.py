"""K local steps move FedMABA's fixed point away from the saddle, by a multiple of (K - 1) eta_c.

Full batches; eta_s makes up for a smaller eta_c, so that only the local drift changes.

python examples/theory_drift.py [FIGURE.svg]
"""

import numpy as np

import theory
import theory_convex as convex

LOCAL, RATES, MOVE = (1, 2, 5, 10), (0.04, 0.02, 0.01, 0.005), 0.4  # MOVE = K eta_c eta_s


def measure(local=LOCAL, rates=RATES, rounds: int = 150) -> np.ndarray:
    """(local, rates) distance of the last model to the saddle."""
    fed = convex.federation()
    saddle, _ = convex.Problem(fed).saddle()
    found = np.zeros((len(local), len(rates)))
    for i, K in enumerate(local):
        for j, lr in enumerate(rates):
            eta_s = MOVE / (K * lr)
            last, _ = convex.run(fed, [20.0], eta_s=eta_s, rounds=rounds, steps=K, lr=lr)
            found[i, j] = (last[-1, 0] - saddle).norm()
    return found


def draw(ax, found) -> None:
    for K, y in list(zip(LOCAL, found, strict=True))[1:]:
        ax.loglog(RATES, y, "o-", ms=3, label=f"K = {K}")
    ax.set(xlabel="eta_c", ylabel="distance to the saddle")
    ax.set_xticks(RATES, map(str, RATES))
    ax.minorticks_off()
    ax.legend()


if __name__ == "__main__":
    found = measure()
    print("  K" + "".join(f"  eta_c {lr:5}" for lr in RATES) + "   slope")
    for K, y in zip(LOCAL, found, strict=True):
        slope = f"{theory.slopes(RATES, y):8.3f}" if K > 1 else "       -"
        print(f"{K:3}" + "".join(f"{value:13.2e}" for value in y) + slope)
    theory.figure(draw, 1, found)
