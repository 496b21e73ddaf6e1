"""The worst mean over the KL ball against its expansion, as the radius shrinks and as N grows.

python examples/theory_surrogate.py [FIGURE.svg]
"""

import numpy as np

import theory
from fedmaba.strategies.simplex import tilt

RADII = 10.0 ** np.arange(0, -6.5, -0.5)


def families(n: int = 100) -> dict[str, np.ndarray]:
    """Losses of n clients: a skewed set, with a few badly served clients, and a symmetric one."""
    u = (np.arange(n) + 0.5) / n
    return {"skewed": -0.5 * np.log(1 - u), "symmetric": 0.5 + 0.4 * np.sin(np.pi * (u - 0.5))}


def measure(losses: np.ndarray) -> dict[str, np.ndarray]:
    """sup_p <p, F> - mean F for every radius, and what an expansion says it is."""
    variance = losses.var()
    third = ((losses - losses.mean()) ** 3).mean()
    sup = np.array([tilt(1e6 * losses, rho).p @ (losses - losses.mean()) for rho in RADII])
    return {
        "excess": sup,
        "sqrt(2 rho Var)": np.sqrt(2 * RADII * variance),
        "sqrt(rho Var)": np.sqrt(RADII * variance),
        "next term": third / (3 * variance) * RADII,
    }


def orders(found: dict[str, np.ndarray]) -> tuple[float, float]:
    """Log-log slope in rho, below 1e-2, of what each first-order form leaves."""
    small = RADII < 1.1e-2
    left = [np.abs(found["excess"] - found[name])[small] for name in list(found)[1:3]]
    two, one = theory.slopes(RADII[small], np.stack(left, 1))
    return float(two), float(one)


def in_clients(n: int) -> dict[str, float]:
    """sqrt N times what is left of sup - mean for n skewed losses: o(N^-1/2) says it goes to 0."""
    losses = families(n)["skewed"]
    fixed, small = (tilt(1e6 * losses, rho).p @ (losses - losses.mean()) for rho in (1.0, 1 / n))
    sd, root = losses.std(), np.sqrt(n)
    return {
        "fixed": float(fixed - sd),
        "fixed, times": float(root * (fixed - sd)),
        "with 2": float(root * (small - np.sqrt(2 / n) * sd)),
        "without": float(root * (small - np.sqrt(1 / n) * sd)),
    }


def below() -> tuple[float, float]:
    """sup - mean and sqrt(rho Var) at rho = 1 of 95 clients with loss 1 and 5 with loss 0."""
    losses = np.array([1.0] * 95 + [0.0] * 5)
    return float(tilt(1e6 * losses, 1.0).p @ losses - losses.mean()), float(losses.std())


def draw(left, right, found) -> None:
    f = found["skewed"]
    for name, style in (("excess", "k"), ("sqrt(2 rho Var)", "C0--"), ("sqrt(rho Var)", "C3:")):
        left.loglog(RADII, f[name], style, label="sup - mean" if name == "excess" else name)
    for i, (name, f) in enumerate(found.items()):
        right.loglog(RADII, np.abs(f["excess"] - f["sqrt(2 rho Var)"]), f"C{i}", label=name)
    wrong = found["skewed"]["excess"] - found["skewed"]["sqrt(rho Var)"]
    right.loglog(RADII, wrong, "C3:", label="skewed, sqrt(rho Var)")
    left.set(xlabel="rho", ylabel="excess over the mean")
    right.set(xlabel="rho", ylabel="|excess - expansion|")
    left.legend()
    right.legend()


if __name__ == "__main__":
    found = {name: measure(losses) for name, losses in families().items()}
    for name, f in found.items():
        print(
            f"{name} losses\n    rho  sup-mean  sqrt(2rV)  sqrt(rV)  over sqrt(2rV)  over sqrt(rV)"
        )
        for i in range(0, len(RADII), 2):
            s, two, one = (f[k][i] for k in list(f)[:3])
            print(
                f"{RADII[i]:7.0e} {s:9.5f} {two:10.5f} {one:9.5f} {s / two:15.4f} {s / one:14.4f}"
            )
        two, one = orders(f)
        print(f"order of what is left: {two:.2f} for sqrt(2 rho Var), {one:.2f} for sqrt(rho Var)")
    print("skewed losses, rho = 1: left of sup - mean; the last three times sqrt N")
    print("     N  rho: sqrt(rV)  the same  rho/N: sqrt(2rV/N)  rho/N: sqrt(rV/N)")
    for n in 10 ** np.arange(1, 6):
        f = in_clients(int(n))
        print(
            f"{n:6} {f['fixed']:14.3f} {f['fixed, times']:9.2f} {f['with 2']:19.4f}"
            f" {f['without']:18.4f}"
        )
    print("95 clients at loss 1, 5 at 0: sup - mean {:.3f}, sqrt(rho Var) {:.3f}".format(*below()))
    theory.figure(draw, 2, found)
