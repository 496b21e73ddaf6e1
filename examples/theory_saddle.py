"""FedMABA with one local step reaches the saddle of alpha sup + (1 - alpha) mean, not the mean's.

Full batches through the real engine in float64; then steps so large that the last model circles,
and minibatches, where the average of the late models (poly:8) is nearer than the last.

python examples/theory_saddle.py [FIGURE.svg]
"""

import theory
import theory_convex as convex
import torch

CASES = {  # eta_b, lr, minibatch
    "full batch": (2.0, 0.3, 10**6),
    "full batch, fast bandit": (10.0, 0.3, 10**6),
    "full batch, steps too large": (10.0, 1.0, 10**6),
    "minibatch of 10": (10.0, 0.3, 10),
}


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).square().sum((-2, -1)).sqrt()


def measure(rounds: int = 600) -> dict[str, dict[str, torch.Tensor]]:
    """Of every case, after every round: distances to the saddle and to the mean's minimiser."""
    fed = convex.federation()
    problem = convex.Problem(fed)
    saddle, _ = problem.saddle()
    found = {}
    for name, (eta_b, lr, minibatch) in CASES.items():
        paths = convex.run(fed, [eta_b], rounds=rounds, steps=1, lr=lr, minibatch=minibatch)
        last, averaged = (path[:, 0] for path in paths)
        found[name] = {
            "last": distance(last, saddle),
            "averaged": distance(averaged, saddle),
            "last to mean": distance(last, problem.mean_minimiser),
            "averaged to mean": distance(averaged, problem.mean_minimiser),
            "gradient": problem.gradient(last).square().sum((-2, -1)),
        }
    return found


def draw(*axes_and_found) -> None:
    *axes, found = axes_and_found
    for ax, (name, f) in zip(axes, list(found.items())[1:], strict=True):
        ax.semilogy(f["last"], "C3", lw=0.8, label="last")
        ax.semilogy(f["averaged"], "C0", label="averaged, poly:8")
        ax.semilogy(f["averaged to mean"], "0.6", ls="--", label="averaged, to mean's minimiser")
        ax.set(xlabel="round", title=name, ylim=(1e-16, 2))
    axes[0].set(ylabel="distance to the saddle")
    axes[1].legend(loc="lower left")


if __name__ == "__main__":
    problem = convex.Problem(convex.federation())
    saddle, p = problem.saddle()
    for name, w in (("saddle", saddle), ("mean's minimiser", problem.mean_minimiser)):
        f = problem.losses(w)
        print(f"{name}: client losses {f.min():.3f} to {f.max():.3f}, mean {f.mean():.4f}")
    print(f"between them {distance(saddle, problem.mean_minimiser):.4f}")
    found = measure()
    print(f"{'':28} last-saddle  averaged-saddle  last-mean  averaged-mean  |gradient|^2")
    for name, f in found.items():
        end = [float(v[-1]) for v in f.values()]
        print(f"{name:28} {end[0]:11.1e} {end[1]:16.1e} {end[2]:10.4f} {end[3]:14.4f} {end[4]:13.0e}")
    theory.figure(draw, 3, found)
