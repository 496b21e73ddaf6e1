"""A convex federated problem with a known solution; theory_saddle, _rate and _drift run on it.

Twelve clients fit one linear map to their labels by least squares, so every loss is a quadratic.
The saddle is found apart from the library, by sup <p, F> = min_tau tau (log mean e^(F/tau) + rho).
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

import fedmaba
from fedmaba.simulation import engine
from fedmaba.strategies.fedmaba import FedMABA
from fedmaba.strategies.simplex import tilt

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


def run(fed, eta_b, seeds=(0,), eta_s=1.0, **plan) -> tuple[Tensor, Tensor]:
    """The engine's last and averaged models after every round, (rounds, runs, DIM, CLASSES)."""
    mine = [FedMABA(ALPHA, step, RHO, eta_s) for step in eta_b]
    runs = [engine.Run(s, seed, fed, "poly:8") for s in mine for seed in seeds]
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

    def gradient(self, w: Tensor) -> Tensor:
        """Of alpha sup_p <p, F> + (1 - alpha) mean F at models (..., DIM, CLASSES)."""
        f = self.losses(w)
        best = np.stack([tilt(1e6 * row, RHO).p for row in f.reshape(-1, f.shape[-1]).numpy()])
        q = ALPHA * torch.from_numpy(best).view(f.shape) + (1 - ALPHA) / f.shape[-1]
        return (q[..., None, None] * (self.H @ w[..., None, :, :] - self.G)).sum(-3)

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
