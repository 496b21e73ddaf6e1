"""How the squared gradient norm of the mixture falls with the number of rounds T.

One local step on a minibatch, step size C / sqrt(T), mean over the T rounds of |gradient|^2 of
alpha sup + (1 - alpha) mean at the server's model: the quantity that theorems on local SGD bound
by a multiple of 1/sqrt(T). Slopes over T, one per seed, with the interval of their mean.

python examples/theory_rate.py [FIGURE.svg]
"""

import numpy as np

import theory
import theory_convex as convex

HORIZONS, STEPS, SEEDS, C, MINIBATCH = (100, 200, 400, 800, 1600), (0.5, 10.0), 6, 2.0, 20


def measure(horizons=HORIZONS, seeds=SEEDS, steps=STEPS) -> np.ndarray:
    """(horizons, eta_b, seeds, 2) mean of |gradient|^2 over the run; at the averaged model."""
    fed = convex.federation()
    problem = convex.Problem(fed)
    found = []
    for T in horizons:
        last, averaged = convex.run(
            fed, steps, range(seeds), rounds=T, steps=1, lr=C / np.sqrt(T), minibatch=MINIBATCH
        )
        run = problem.gradient(last).square().sum((-2, -1)).mean(0)
        end = problem.gradient(averaged[-1]).square().sum((-2, -1))
        found.append(np.stack([run, end], -1).reshape(len(steps), seeds, 2))
    return np.array(found)


def slopes(found: np.ndarray, horizons=HORIZONS) -> np.ndarray:
    """(eta_b, seeds, 2) log-log slopes."""
    return theory.slopes(horizons, found.reshape(len(found), -1)).reshape(found.shape[1:])


def draw(ax, found) -> None:
    for i, eta_b in enumerate(STEPS):
        for j, name in enumerate(("mean over the run", "averaged model")):
            y = found[:, i, :, j]
            ax.loglog(HORIZONS, y, f"C{i}.", ms=3)
            label = rf"{name}, $\eta_b$ = {eta_b:g}"
            ax.loglog(HORIZONS, np.exp(np.log(y).mean(1)), f"C{i}{'-:'[j]}", label=label)
    T = np.array(HORIZONS)
    ax.loglog(T, 0.2 / np.sqrt(T / T[0]), "k--", lw=0.8, label=r"$T^{-1/2}$")
    ax.set(xlabel="rounds $T$", ylabel="squared gradient norm")
    ax.set_ylim(1e-7, None)  # room for the legend
    ax.legend(fontsize=7, loc="lower left")


if __name__ == "__main__":
    found = measure()
    print("mean over the run of |gradient|^2, mean over seeds")
    print("     T " + "".join(f"  eta_b {eta_b:4}" for eta_b in STEPS))
    for T, row in zip(HORIZONS, found[..., 0].mean(2), strict=True):
        print(f"{T:6} " + "".join(f"{value:12.4f}" for value in row))
    for i, eta_b in enumerate(STEPS):
        for j, name in enumerate(("mean over the run", "averaged model")):
            mean, half = theory.interval(slopes(found)[i, :, j])
            print(f"slope of the {name}, eta_b {eta_b}: {mean:.2f} ± {half:.2f}")
    theory.figure(draw, 1, found)
