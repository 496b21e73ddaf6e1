"""Where FedMABA's model ends: at the saddle of alpha sup + (1 - alpha) mean, and not at the mean's.

First through the engine, in float64: twelve clients fit a linear map by least squares, and the
saddle is found apart from the library, by sup <p, F> = min_tau tau (log mean e^(F/tau) + rho).
Then Theorems 5 to 8 and 12 of docs/theory/proofs.md, with the weights of FedMABA.weigh.

python examples/theory_saddle.py
"""

from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

import fedmaba
import theory
from fedmaba.simulation import engine
from fedmaba.strategies.fedmaba import FedMABA
from theory import Array, Clients, drawn, train

DIM, CLASSES, ALPHA, RHO = 4, 2, 0.5, 0.5


def federation(clients: int = 12, each: int = 50) -> fedmaba.Federation:
    """Clients that disagree: every fourth one has its labels the other way round."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients, each, DIM)) * rng.uniform(0.7, 1.3, (clients, 1, DIM))
    theta = np.ones(DIM) + 0.5 * rng.normal(size=(clients, DIM))
    theta[::4] *= -1
    y = np.einsum("cnd,cd->cn", x, theta) + rng.normal(size=(clients, each)) > 0
    owner = np.repeat(np.arange(clients), each)
    return fedmaba.Federation.from_arrays(x.reshape(-1, DIM), y.ravel().astype(int), owner)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance to the one-hot label, of each example."""
    return (outputs - nn.functional.one_hot(targets, CLASSES)).square().sum(-1) / 2


def run(fed, eta_b, eta_s=1.0, **plan) -> tuple[Tensor, Tensor]:
    """The engine's last and averaged models after every round, (rounds, runs, DIM, CLASSES)."""
    mine = [FedMABA(ALPHA, step, RHO, eta_s) for step in eta_b]
    runs = [engine.Run(s, 0, fed, "poly:8") for s in mine]
    whole = {"minibatch": 10**6, "lr_decay": 1.0, "eval_every": 10**6, "dtype": "float64"}
    one = {"threads": 1}  # a step takes microseconds: handing it to a thread would take longer
    batch = engine.start(
        runs,
        engine.Plan(**(whole | one | plan)),
        lambda _, c: nn.Linear(DIM, c, bias=False),
        squares,
    )
    path = [(s.progress.model.clone(), s.progress.deployed.clone()) for s in engine.simulate(batch)]
    places = torch.arange(path[0][0].shape[1], dtype=torch.float64)
    order = batch.rows.layout.unpack(places)["weight"].T.long()  # of the weights in a flat model
    last, mean = (torch.stack(models)[..., order] for models in zip(*path, strict=True))
    return last, mean


class Problem:
    """Client losses F_i(w) = tr w'H_i w / 2 - tr G_i'w + 1/2 in float64, of w (DIM, CLASSES)."""

    def __init__(self, fed: fedmaba.Federation) -> None:
        own = [fed.train.of(i) for i in range(fed.n_clients)]
        x = [torch.from_numpy(fed.data.x[rows]).double() for rows in own]
        y = [nn.functional.one_hot(torch.from_numpy(fed.data.y[r]), CLASSES).double() for r in own]
        self.H = torch.stack([a.T @ a / len(a) for a in x])
        self.G = torch.stack([a.T @ b / len(a) for a, b in zip(x, y, strict=True)])
        self.mean_minimiser = torch.linalg.solve(self.H.mean(0), self.G.mean(0))

    def losses(self, w: Tensor) -> Tensor:
        """(..., N) of models (..., DIM, CLASSES)."""
        w = w[..., None, :, :]
        return (w * (self.H @ w / 2 - self.G)).sum((-2, -1)) + 0.5

    def value(self, z: Tensor) -> Tensor:
        """The same mixture as a convex function of z = (w, tau), to be minimised over both."""
        f, tau = self.losses(z[:-1].view(DIM, CLASSES)), z[-1]
        sup = tau * (torch.logsumexp(f / tau, 0) - np.log(len(f)) + RHO)
        return ALPHA * sup + (1 - ALPHA) * f.mean()

    def saddle(self) -> tuple[Tensor, Tensor]:
        """The minimiser, by damped Newton steps, and the weights p that attain the sup there."""
        z = torch.cat([self.mean_minimiser.flatten(), torch.ones(1)])
        for _ in range(50):
            g, curve = jacobian(self.value, z), hessian(self.value, z)
            if g.norm() < 1e-14:
                break
            d = torch.linalg.solve(curve, g)
            step = min(1.0, float(z[-1] / d[-1].clamp(min=1e-300)) / 2)  # tau stays above 0
            while step > 1e-9 and self.value(z - step * d) > self.value(z):
                step /= 2
            z = z - step * d
        w = z[:-1].view(DIM, CLASSES)
        return w, torch.softmax(self.losses(w) / z[-1], 0)


def distance(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().sum((-2, -1)).sqrt()


CASES = {  # eta_b, lr, minibatch
    "full batch": ((0.5, 2.0, 10.0), 0.3, 10**6),
    "steps too large": ((10.0,), 1.0, 10**6),
    "minibatch of 10": ((10.0,), 0.3, 10),
}


def in_the_engine(rounds: int = 600) -> dict[tuple[str, float], tuple[float, float]]:
    """Of every case: distances to the saddle of the last and the averaged model at the end."""
    fed = federation()
    saddle, _ = Problem(fed).saddle()
    found = {}
    for name, (steps, lr, minibatch) in CASES.items():
        last, mean = run(fed, steps, rounds=rounds, steps=1, lr=lr, minibatch=minibatch)
        for i, eta_b in enumerate(steps):
            found[name, eta_b] = tuple(float(distance(w[-1, i], saddle)) for w in (last, mean))
    return found


def drift(local=(1, 2, 5, 10), rates=(0.04, 0.01), rounds: int = 150) -> dict[int, list[float]]:
    """By K: distance of the last model to the saddle, for each eta_c; K eta_c eta_s stays 0.4."""
    fed = federation()
    saddle, _ = Problem(fed).saddle()
    found = {}
    for K in local:
        runs = (run(fed, [20.0], 0.4 / (K * lr), rounds=rounds, steps=K, lr=lr) for lr in rates)
        found[K] = [float(distance(last[-1, 0], saddle)) for last, _ in runs]
    return found


def solve(clients: Clients, alpha: float, rho: float, rounds: int = 1500) -> tuple[Array, float]:
    """The mixture's minimiser for quadratics, and how far it may be from the least value."""
    models, weights = train(
        clients, FedMABA(alpha, 20.0, rho), clients.c.mean(0), rounds, 0.1 if rho > 0.1 else 0.05
    )
    w, q = models[-1], weights[-1] * clients.a
    certificate = weights[-1] @ clients.losses(q @ clients.c / q.sum())
    return w, theory.mixture(clients.losses(w), alpha, rho) - float(certificate)


def theorem5(alpha, rho, eta_b, K, step, loss_at="start", rounds=200) -> tuple[float, float]:
    """Psi of the averaged model above its least value, and what it is at most."""
    clients, start = drawn(12, 4, 0), np.full(4, 2.0)
    best, _ = solve(clients, alpha, rho)
    strategy = FedMABA(alpha, eta_b, rho, loss_at=loss_at)
    models, _ = train(clients, strategy, start, rounds, step, K)
    gap = theory.mixture(clients.losses(models[:-1].mean(0)), alpha, rho)
    gap -= theory.mixture(clients.losses(best), alpha, rho)
    # Local steps bring a model nearer to its client's centre: gradients are largest at their start.
    square = max(float((clients.gradients(w) ** 2).sum(1).max()) for w in models)
    rate = step / K
    late = rate * square * {"start": 0.0, "mean": (K - 1) / 2, "end": K}[loss_at]
    return gap, (
        float(((start - best) ** 2).sum()) / (2 * step * rounds)
        + step * square / 2
        + alpha * rho / (eta_b * rounds)
        + rate**2 * square * (K - 1) * (2 * K - 1) / 12
        + alpha * min(2 * np.sqrt(2 * rho), 2.0) * late
    )


def theorem6(rounds: int) -> tuple[float, float, float]:
    """Two clients, best responses: mean squared gradient of Psi's envelope, its bound, and the
    least squared gradient of the round's own weighted loss."""
    clients = Clients(np.ones(2), np.array([[1.0], [-1.0]]), np.zeros(2))
    alpha, rho, step = 0.5, 0.1, 1 / np.sqrt(rounds)
    delta = alpha * (2 * theory.worst(np.array([1.0, 0.0]), rho)[0] - 1)
    models, weights = train(clients, FedMABA(alpha, 1e12, rho), np.array([0.5]), rounds, step)
    w = models[:-1, 0]  # Psi(w) = (1 + w^2) / 2 + delta |w|
    near = np.sign(w) * np.maximum(2 * np.abs(w) - delta, 0) / 3
    envelope = near[0] ** 2 / 2 + delta * abs(near[0]) + (near[0] - w[0]) ** 2
    least = ((w + weights @ [-1.0, 1.0]) ** 2).min()
    bound = 2 * envelope / (step * rounds) + 2 * step * (np.abs(w).max() + delta) ** 2
    return float((4 * (w - near) ** 2).mean()), float(bound), float(least)


def curvature(clients: Clients, w: Array, alpha: float, rho: float) -> float:
    """The largest eigenvalue of Psi's Hessian, by Theorem 7."""
    f, g = clients.losses(w), clients.gradients(w)
    p = theory.worst(f, rho)
    off, apart = f - p @ f, g - p @ g
    tau = 1 / np.polyfit(f, np.log(p), 1)[0]
    both = (p * off) @ apart
    spread = (p[:, None] * apart).T @ apart - np.outer(both, both) / (p @ off**2)
    own = alpha * (p @ clients.a) + (1 - alpha) * clients.a.mean()
    return float(own + alpha / tau * np.linalg.eigvalsh(spread)[-1])


def stable(alpha: float, rho: float, part: float, rounds: int = 600) -> float:
    """Distance to the minimiser after best responses with this part of the step 2 / curvature."""
    clients = drawn(12, 4, 0)
    best, _ = solve(clients, alpha, rho, 4000)
    step = part * 2 / curvature(clients, best, alpha, rho)
    models, _ = train(clients, FedMABA(alpha, 1e9, rho), best + 1e-4, rounds, step)
    return float(np.linalg.norm(models[-1] - best))


def theorem8(alpha: float, rho: float) -> tuple[float, ...]:
    """Where there is an even model: spread and bound, the mean's rise and bound."""
    clients, even = drawn(12, 4, 0), np.array([0.5, -0.3, 0.2, 0.1])
    clients = Clients(clients.a, clients.c, np.zeros(12))
    clients = Clients(clients.a, clients.c, 3 - clients.losses(even))
    cheapest = clients.a @ clients.c / clients.a.sum()
    price = clients.losses(even).mean() - clients.losses(cheapest).mean()
    w, _ = solve(clients, alpha, rho)
    f = clients.losses(w)
    most = price**2 / (2 * rho * alpha**2) + price / alpha * (f.mean() - f.min())
    rise = f.mean() - clients.losses(cheapest).mean()
    return f.std(), np.sqrt(most), rise, alpha * theory.excess(clients.losses(cheapest), rho)


def theorem12(m: int, eta_b: float, rounds: int = 900, seeds: int = 4) -> tuple[float, ...]:
    """Cohorts of m of 7: Psi_m of the averaged model above its least value, and what that is at
    most; and Psi_m at the minimiser of the mixture over all clients."""
    clients, start, alpha, rho, step = drawn(7, 2, 5), np.full(2, 2.0), 0.8, 0.4, 0.05
    cohorts = [list(c) for c in combinations(range(7), m)]

    def psi(w: Array) -> float:
        f = clients.losses(w)
        return float(np.mean([theory.mixture(f[c], alpha, rho) for c in cohorts]))

    def slope(w: Array) -> Array:
        f, g = clients.losses(w), clients.gradients(w)
        tops = [theory.worst(f[c], rho) @ g[c] for c in cohorts]
        return alpha * np.mean(tops, 0) + (1 - alpha) * g.mean(0)

    best = clients.c.mean(0)
    for k in range(150):
        best = best - 0.4 / (1 + k / 10) * slope(best)
    gaps, square = [], 0.0
    for seed in range(seeds):
        strategy = FedMABA(alpha, eta_b, rho)
        models, _ = train(clients, strategy, start, rounds, step, cohort=m, seed=seed)
        gaps.append(psi(models[:-1].mean(0)) - psi(best))
        square = max(square, *((clients.gradients(w) ** 2).sum(1).max() for w in models))
    late = alpha * (rho + np.log(1e12 * 7 / m)) / eta_b
    most = float(((start - best) ** 2).sum()) / (2 * step * rounds) + step * square / 2 + late
    other, _ = solve(clients, alpha, rho)
    return float(np.mean(gaps)), most, psi(other) - psi(best)


def corollary6(step: float, eta_b: float, rounds: int) -> tuple[float, float]:
    """By how much the weights lag behind the best response, mean over rounds, and at most."""
    clients, alpha, rho = drawn(20, seed=7, waves=True), 0.5, 1.0
    models, weights = train(clients, FedMABA(alpha, eta_b, rho), np.full(5, 2.0), rounds, step)
    f = [clients.losses(w) for w in models[:-1]]
    lag = np.mean([theory.mixture(x, alpha, rho) - q @ x for x, q in zip(f, weights, strict=True)])
    square, kappa = max((clients.gradients(w) ** 2).sum(1).max() for w in models), rho + 27.7
    return float(lag), alpha * (
        3 * np.sqrt(square * kappa * step / eta_b) + kappa / (eta_b * rounds)
    )


if __name__ == "__main__":
    problem = Problem(federation())
    saddle, _ = problem.saddle()
    for name, w in (("saddle", saddle), ("mean's minimiser", problem.mean_minimiser)):
        f = problem.losses(w)
        print(f"{name}: client losses {f.min():.3f} to {f.max():.3f}, mean {f.mean():.4f}")
    print(f"between them {distance(saddle, problem.mean_minimiser):.4f}")
    print("engine            eta_b  last to saddle  averaged to saddle")
    for (name, eta_b), (last, mean) in in_the_engine().items():
        print(f"{name:16} {eta_b:6} {last:15.1e} {mean:19.1e}")
    print("local steps: distance to the saddle, eta_c 0.04 and 0.01")
    for K, (far, near) in drift().items():
        print(f"K {K:2}: {far:.2e} {near:.2e}")
    print("Theorem 5: alpha rho eta_b  K step  loss_at     gap   bound")
    for case in (
        *((1.0, 0.5, 0.5, 1, 0.1), (0.5, 1.5, 0.05, 1, 0.1), (1.0, 0.5, 5.0, 5, 0.3)),
        *((1.0, 0.5, 5.0, 5, 0.3, "mean"), (1.0, 0.5, 5.0, 5, 0.3, "end")),
    ):
        alpha, rho, eta_b, K, step, at = (*case, "start")[:6]
        gap, most = theorem5(*case)
        print(f"{alpha:16} {rho:3} {eta_b:5} {K:2} {step:4}  {at:5} {gap:9.4f} {most:7.3f}")
    print("Theorem 6: mean squared gradient of the envelope; bound; least of the weighted loss")
    for rounds in (100, 1000, 10_000):
        print(f"T {rounds:5}: " + "; ".join(f"{value:.4f}" for value in theorem6(rounds)))
    for step, eta_b, rounds in ((0.1, 0.5, 400), (0.01, 5.0, 1000)):
        lag, most = corollary6(step, eta_b, rounds)
        print(f"Corollary 6, step {step} eta_b {eta_b}: lag {lag:.4f}, at most {most:.3f}")
    for alpha, rho in ((1.0, 0.5), (0.5, 0.5), (1.0, 0.05)):
        below, above = (stable(alpha, rho, part) for part in (0.95, 1.05))
        print(
            f"Theorem 7, alpha {alpha} rho {rho}: at 0.95 of 2/curvature {below:.0e} from the "
            f"minimiser, at 1.05 {above:.0e}"
        )
    for alpha in (0.1, 0.6, 1.0):
        sd, most, rise, price = theorem8(alpha, 0.5)
        print(
            f"Theorem 8, alpha {alpha}: sd {sd:.3f}, at most {most:.3f}; the mean rises by "
            f"{rise:.4f}, at most {price:.4f}"
        )
    for m in (2, 4):
        gap, most, other = theorem12(m, 1e9)
        print(
            f"Theorem 12, cohorts of {m}: gap {gap:.5f}, at most {most:.3f}; of the minimiser for "
            f"all clients {other:.5f}"
        )
