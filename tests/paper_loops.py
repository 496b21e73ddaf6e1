"""Algorithms whose clients keep something, one client after another, as their papers write them.

Nothing here uses `Strategy.local` or `Strategy.weigh`: only who takes part, the minibatches and the
masks are those of the simulator. Models are vectors in float64.
"""

import math

import numpy as np
import torch
from scipy.optimize import nnls
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedmaba import rng
from plain_loop import Plain, one


class PaperLoop:
    """What the loops share: gradients of a client's minibatches, and who takes part."""

    def __init__(self, seed, fed, plan, make):
        self.plain = Plain(one("fedavg"), seed, fed, plan, make)
        self.seed, self.fed, self.plan, self.n = seed, fed, plan, fed.n_clients
        self.model = parameters_to_vector(self.plain.model.parameters()).detach().clone()

    def participants(self, t):
        return rng.sample_clients(self.seed, t, self.n, self.plan.participants or self.n).tolist()

    def batches(self, client, t):
        key = torch.from_numpy(rng.key(self.seed, "local", t, client).view(np.int64))
        rows = self.plain.minibatches(self.fed.split.train[client], key)
        return [(part, key + k) for k, part in enumerate(rows)]

    def gradient(self, at, rows, key):
        """The gradient of the mean loss over some examples."""
        net = self.plain.worker
        vector_to_parameters(at, net.parameters())
        out = self.plain.forward(net, self.plain.examples(rows), key)
        loss = self.plain.criterion(out, self.plain.y[rows]).mean()
        parts = torch.autograd.grad(loss, list(net.parameters()))
        return torch.cat([g.flatten() for g in parts])

    def sent(self, client, start, end):
        """The model that a client says it has trained; a liar says another."""
        return end

    def run(self):
        for t in range(self.plan.rounds):
            self.round(t, self.participants(t), self.plain.rates[t])
        return self


class Scaffold(PaperLoop):
    """Algorithm 1 of Karimireddy et al. 2020."""

    def __init__(self, *args, option="II", eta_g=1.0):
        super().__init__(*args)
        self.option, self.eta_g = option, eta_g
        self.c = torch.zeros_like(self.model)
        self.own = [torch.zeros_like(self.model) for _ in range(self.n)]  # c_i

    def round(self, t, cohort, lr):
        x, dy, dc = self.model, [], []
        for i in cohort:
            y, batches = x.clone(), self.batches(i, t)
            for rows, key in batches:
                y = y - lr * (self.gradient(y, rows, key) - self.own[i] + self.c)
            if self.option == "I":
                new = self.gradient(x, self.fed.split.train[i], batches[0][1])
            else:
                new = self.own[i] - self.c + (x - y) / (len(batches) * lr)
            dy.append(y - x)
            dc.append(new - self.own[i])
            self.own[i] = new
        self.model = x + self.eta_g / len(cohort) * sum(dy)
        self.c = self.c + sum(dc) / self.n


class FedDyn(PaperLoop):
    """Algorithm 1 of Acar et al. 2021, with SGD for the client's minimisation."""

    def __init__(self, *args, alpha=0.1):
        super().__init__(*args)
        self.alpha = alpha
        self.h = torch.zeros_like(self.model)
        self.own = [torch.zeros_like(self.model) for _ in range(self.n)]  # grad L_k(theta_k)

    def round(self, t, cohort, lr):
        before, trained = self.model, []
        for k in cohort:
            theta = before.clone()
            for rows, key in self.batches(k, t):
                tilt = -self.own[k] + self.alpha * (theta - before)
                theta = theta - lr * (self.gradient(theta, rows, key) + tilt)
            theta = self.sent(k, before, theta)
            self.own[k] = self.own[k] - self.alpha * (theta - before)
            trained.append(theta)
        self.h = self.h - self.alpha / self.n * sum(theta - before for theta in trained)
        self.model = sum(trained) / len(trained) - self.h / self.alpha


class FedNova(PaperLoop):
    """Eq. (9) and (10) of Wang et al. 2020: SGD, or SGD with momentum rho."""

    def round(self, t, cohort, lr):
        rho, sizes = self.plan.optimiser.momentum, [len(self.fed.split.train[i]) for i in cohort]
        share = [n / sum(sizes) for n in sizes]
        normalised, length = [], []
        for i in cohort:
            y, u = self.model.clone(), torch.zeros_like(self.model)
            tau = 0
            for rows, key in self.batches(i, t):
                u = rho * u + self.gradient(y, rows, key)
                y = y - lr * u
                tau += 1
            # |a_i|_1 = [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)
            long = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
            normalised.append((self.model - y) / (lr * long))
            length.append(long)
        tau_eff = math.fsum(p * a for p, a in zip(share, length, strict=True))
        step = sum(p * d for p, d in zip(share, normalised, strict=True))
        self.model = self.model - tau_eff * lr * step


class Ditto(PaperLoop):
    """Algorithm 1 of Li et al. 2021 over FedAvg; with `alone` each client trains by itself."""

    def __init__(self, *args, lam=1.0, alone=False):
        super().__init__(*args)
        self.lam, self.alone = lam, alone
        self.own = [self.model.clone() for _ in range(self.n)]  # v_k

    def round(self, t, cohort, lr):
        w, sent, sizes = self.model, [], [len(self.fed.split.train[k]) for k in cohort]
        for k in cohort:
            y = w.clone()
            for rows, key in self.batches(k, t):
                y = y - lr * self.gradient(y, rows, key)
                v = self.own[k]
                pull = 0 if self.alone else self.lam * (v - w)
                self.own[k] = v - lr * (self.gradient(v, rows, key) + pull)
            sent.append(self.sent(k, w, y))
        if not self.alone:
            self.model = sum(n / sum(sizes) * y for n, y in zip(sizes, sent, strict=True))


class Eagle(PaperLoop):
    """The gradient of mean loss + lambda/2 variance of the gaps, as the abstract of Erraji et al.
    names its objective; a gap is the loss minus the least loss of a model trained alone."""

    def __init__(self, *args, lam):
        super().__init__(*args)
        self.lam, self.own = lam, [self.model.clone() for _ in range(self.n)]
        self.least = [math.inf] * self.n

    def loss(self, at, rows, key=None):
        net = self.plain.worker
        vector_to_parameters(at, net.parameters())
        with torch.no_grad():
            out = self.plain.forward(net, self.plain.examples(rows), key)
            return float(self.plain.criterion(out, self.plain.y[rows]).mean())

    def round(self, t, cohort, lr):
        w, sizes = self.model, [len(self.fed.split.train[k]) for k in cohort]
        changes, gaps, shares = [], [], [n / sum(sizes) for n in sizes]
        for k in cohort:
            y, seen = w.clone(), []
            for rows, key in self.batches(k, t):
                seen.append(self.loss(self.own[k], rows, key))
                self.own[k] = self.own[k] - lr * self.gradient(self.own[k], rows, key)
                y = y - lr * self.gradient(y, rows, key)
            self.least[k] = min(self.least[k], sum(seen) / len(seen))
            changes.append(y - w)
            vector_to_parameters(w, self.plain.worker.parameters())
            whole = self.plain.measured(self.plain.worker, self.fed.split.train[k])
            gaps.append(whole - self.least[k])
        mean = sum(p * r for p, r in zip(shares, gaps, strict=True))
        weights = [max(p + self.lam * p * (r - mean), 0) for p, r in zip(shares, gaps, strict=True)]
        self.model = w + sum(c / sum(weights) * d for c, d in zip(weights, changes, strict=True))


class FedEBA(PaperLoop):
    """Eq. (3), (7) and (8) of Wang et al.: model alignment, the one step on all examples."""

    def __init__(self, *args, tau, alpha):
        super().__init__(*args)
        self.tau, self.alpha = tau, alpha

    def round(self, t, cohort, lr):
        x, changes, first, tilt = self.model, [], [], []
        for i in cohort:
            y, every = x.clone(), self.fed.split.train[i]
            for rows, key in self.batches(i, t):
                y = y - lr * self.gradient(y, rows, key)
            changes.append(y - x)
            first.append(-lr * self.gradient(x, every, None))
            vector_to_parameters(x, self.plain.worker.parameters())
            tilt.append(math.exp(self.plain.measured(self.plain.worker, every) / self.tau))
        p = [e / sum(tilt) for e in tilt]
        fair = sum(w * d for w, d in zip(p, changes, strict=True))
        self.model = x + (1 - self.alpha) * fair + self.alpha * sum(first) / len(cohort)


class FedGini(PaperLoop):
    """A share epsilon of the plain mean of models; the rest by the squares of the losses' ranks."""

    def __init__(self, *args, epsilon):
        super().__init__(*args)
        self.epsilon = epsilon

    def round(self, t, cohort, lr):
        sent, losses, m = [], [], len(cohort)
        for i in cohort:
            vector_to_parameters(self.model, self.plain.worker.parameters())
            losses.append(self.plain.measured(self.plain.worker, self.fed.split.train[i]))
            y = self.model.clone()
            for rows, key in self.batches(i, t):
                y = y - lr * self.gradient(y, rows, key)
            sent.append(y)
        ranks = [1 + sum(other < loss for other in losses) for loss in losses]
        whole = sum(j * (j - 1) for j in ranks)
        self.model = sum(
            (self.epsilon / m + (1 - self.epsilon) * j * (j - 1) / whole) * y
            for j, y in zip(ranks, sent, strict=True)
        )


class MIFA(PaperLoop):
    """Algorithm 1 of Gu et al. 2021, with memories of 0 before a device's first round."""

    def __init__(self, *args):
        super().__init__(*args)
        self.own = [torch.zeros_like(self.model) for _ in range(self.n)]  # G_i

    def round(self, t, cohort, lr):
        for i in cohort:
            y = self.model.clone()
            for rows, key in self.batches(i, t):
                y = y - lr * self.gradient(y, rows, key)
            self.own[i] = (self.model - self.sent(i, self.model, y)) / lr
        self.model = self.model - lr * sum(self.own) / self.n


class FedMDFG(PaperLoop):
    """Appendix A of Pan et al. 2023; the trials of steps in the order of their code."""

    def __init__(self, *args, theta=11.25, s=5):
        super().__init__(*args)
        self.theta, self.s = theta, s
        self.before = {}  # client -> its gradient in the last round, scaled
        self.expected = {}  # client -> (mean of the losses that were no larger, rounds)
        self.lengths = []  # of the steps taken, as multiples of the step size
        self.fair = []  # whether the fair-driven objective was there

    def losses(self, at, cohort):
        net = self.plain.worker
        vector_to_parameters(at, net.parameters())
        return np.array([self.plain.measured(net, self.fed.split.train[i]) for i in cohort])

    def larger_than_expected(self, cohort, loss):
        """How many losses are above what is expected of their clients; what is expected moves."""
        count = 0
        for i, value in zip(cohort, loss, strict=True):
            mean, rounds = self.expected.get(i, (value, 0))
            if value <= mean:
                mean = (mean * rounds + value) / (rounds + 1)
            else:
                count += 1
            self.expected[i] = (mean, rounds + 1)
        return count

    def round(self, t, cohort, lr):
        loss, p = self.losses(self.model, cohort), np.ones(len(cohort))
        key = [torch.from_numpy(rng.key(self.seed, "local", t, i).view(np.int64)) for i in cohort]
        g = [
            self.gradient(self.model, self.fed.split.train[i], k)
            for i, k in zip(cohort, key, strict=True)
        ]
        g = np.array([v.numpy() for v in g])
        norms = np.linalg.norm(g, axis=1)
        g = g / norms[:, None] * norms.mean()
        old = [v for i, v in self.before.items() if i not in cohort]
        self.before = dict(zip(cohort, g, strict=True))

        def angle(values):
            return math.acos(min(1, values @ p / np.linalg.norm(values) / np.linalg.norm(p)))

        active = 0 < self.larger_than_expected(cohort, loss) < len(cohort)
        active = active or math.degrees(angle(loss)) > self.theta
        h = p @ loss / np.linalg.norm(loss) ** 2 * loss - p
        q = np.vstack([g, *([h / np.linalg.norm(h) @ g] if active else []), *old])
        # The shortest convex combination is, apart from a factor, the least-squares solution of
        # q' x = 0, 1' x = 1 with x >= 0.
        one = np.linalg.norm(q, axis=1).mean()
        x, _ = nnls(np.vstack([q.T, np.full(len(q), one)]), np.append(np.zeros(q.shape[1]), one))
        d = q.T @ x / x.sum()
        scale = np.linalg.norm(g.mean(0)) / np.linalg.norm(d)
        d, step = scale * d, (lr if old else 2**self.s * lr)
        tried = []
        while step >= 0.5**self.s * lr / scale:
            after = self.losses(self.model - step * torch.from_numpy(d), cohort)
            tried.append((step, after.sum()))
            if (after <= loss - step * 1e-4 * g @ d).all() and (
                not active or angle(after) < angle(loss)
            ):
                break
            step /= 2
        else:
            better = [k for k, total in tried if total < loss.sum()]
            step = better[0] if better else min(tried, key=lambda one: one[1])[0]
        self.model = self.model - step * torch.from_numpy(d)
        self.lengths.append(step / lr)
        self.fair.append(active)
