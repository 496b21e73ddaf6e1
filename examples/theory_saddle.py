"""FedMABA with one local step reaches the saddle of alpha sup + (1 - alpha) mean, not the mean's.

Full batches through the real engine in float64; then steps so large that the last model jumps to
and fro, and minibatches: there the average of the late models (poly:8) is nearer than the last.

python examples/theory_saddle.py [FIGURE.svg]
"""

import torch

import theory
import theory_convex as convex

CASES = {  # eta_b, lr, minibatch
    "full batch": ((0.5, 2.0, 10.0), 0.3, 10**6),
    "steps too large": ((10.0,), 1.0, 10**6),
    "minibatch of 10": ((10.0,), 0.3, 10),
}


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).square().sum((-2, -1)).sqrt()


def measure(rounds: int = 600) -> dict[tuple[str, float], dict[str, torch.Tensor]]:
    """Of every case, after every round: distances to the saddle and to the mean's minimiser."""
    fed = convex.federation()
    problem = convex.Problem(fed)
    saddle, _ = problem.saddle()
    found = {}
    for name, (steps, lr, minibatch) in CASES.items():
        paths = convex.run(fed, steps, rounds=rounds, steps=1, lr=lr, minibatch=minibatch)
        for i, eta_b in enumerate(steps):
            last, averaged = (path[:, i] for path in paths)
            found[name, eta_b] = {
                "last": distance(last, saddle),
                "averaged": distance(averaged, saddle),
                "last to mean": distance(last, problem.mean_minimiser),
                "averaged to mean": distance(averaged, problem.mean_minimiser),
                "gradient": problem.gradient(last).square().sum((-2, -1)),
            }
    return found


def draw(*axes_and_found) -> None:
    *axes, found = axes_and_found
    for ax, (name, (steps, _, _)) in zip(axes, CASES.items(), strict=True):
        show = slice(80) if name == "steps too large" else slice(None)
        for i, eta_b in enumerate(steps):
            f, many = found[name, eta_b], len(steps) > 1
            label = f"last, eta_b {eta_b}" if many else "last"
            ax.semilogy(f["last"][show], f"C{3 - i}", lw=0.8, label=label)
            if not many:
                ax.semilogy(f["averaged"][show], "C0", label="averaged, poly:8")
                ax.set_ylim(5e-3, 4)
        ax.set(xlabel="round", title=name)
        ax.legend(loc="lower left" if many else "upper right")
    axes[0].set(ylabel="distance to the saddle")


if __name__ == "__main__":
    problem = convex.Problem(convex.federation())
    saddle, p = problem.saddle()
    for name, w in (("saddle", saddle), ("mean's minimiser", problem.mean_minimiser)):
        f = problem.losses(w)
        print(f"{name}: client losses {f.min():.3f} to {f.max():.3f}, mean {f.mean():.4f}")
    print(f"between them {distance(saddle, problem.mean_minimiser):.4f}")
    found = measure()
    print(f"{'':16} eta_b  last-saddle  averaged-saddle  last-mean  averaged-mean  |gradient|^2")
    for (name, eta_b), f in found.items():
        a, b, c, d, g = (float(v[-1]) for v in f.values())
        print(f"{name:16} {eta_b:5} {a:12.1e} {b:16.1e} {c:10.4f} {d:14.4f} {g:13.0e}")
    theory.figure(draw, 3, found)
