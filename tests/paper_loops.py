"""Algorithms one client after another, as their papers write them.

Nothing here uses `Strategy.local` or `Strategy.weigh`: only who takes part, the minibatches and the
masks are those of the simulator. Models are vectors in float64.
"""

import math

import numpy as np
import torch
from scipy.optimize import minimize
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

    def outputs(self, at, rows, key=None):
        vector_to_parameters(at, self.plain.worker.parameters())
        return self.plain.forward(self.plain.worker, self.plain.examples(rows), key)

    def gradient(self, at, rows, key, more=None):
        """The gradient of the mean loss over some examples, and of more that their outputs give."""
        net, out = self.plain.worker, self.outputs(at, rows, key)
        loss = self.plain.criterion(out, self.plain.y[rows]).mean() + (more(out) if more else 0)
        parts = torch.autograd.grad(loss, list(net.parameters()))
        return torch.cat([g.flatten() for g in parts])

    def loss_before(self, client):
        """The mean loss of a client's training examples at the server's model."""
        vector_to_parameters(self.model, self.plain.worker.parameters())
        return self.plain.measured(self.plain.worker, self.fed.split.train[client])

    def full_gradient(self, client, t):
        """The gradient of all of a client's examples at the server's model."""
        key = self.batches(client, t)[0][1]
        return self.gradient(self.model, self.fed.split.train[client], key)

    def change(self, client, t, lr, along=lambda g: g):
        """What local steps along gradients, or what is made of them, change in the model."""
        y = self.model.clone()
        for rows, key in self.batches(client, t):
            y = y - lr * along(self.gradient(y, rows, key))
        return y - self.model

    def shares(self, cohort):
        """The participants' shares of their examples."""
        sizes = [len(self.fed.split.train[i]) for i in cohort]
        return [n / sum(sizes) for n in sizes]

    def claimed(self, client, start, end):
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
            theta = self.claimed(k, before, theta)
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
    """Algorithm 1 of Li et al. 2021 over FedAvg; with `alone` each client trains by itself.

    With `sgd` over FedSGD: one step on all examples, and one of the own model on a minibatch.
    """

    def __init__(self, *args, lam=1.0, alone=False, sgd=False):
        super().__init__(*args)
        self.lam, self.alone, self.sgd = lam, alone, sgd
        self.own = [self.model.clone() for _ in range(self.n)]  # v_k

    def round(self, t, cohort, lr):
        w, sent, sizes = self.model, [], [len(self.fed.split.train[k]) for k in cohort]
        for k in cohort:
            y, batches = w.clone(), self.batches(k, t)
            for rows, key in batches[:1] if self.sgd else batches:
                seen = self.fed.split.train[k] if self.sgd else rows
                y = y - lr * self.gradient(y, seen, key)
                v = self.own[k]
                pull = 0 if self.alone else self.lam * (v - w)
                self.own[k] = v - lr * (self.gradient(v, rows, key) + pull)
            sent.append(self.claimed(k, w, y))
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


class MIFA(PaperLoop):
    """Algorithm 1 of Gu et al. 2021, with memories of 0 before a device's first round.

    G_i is the change over the step size; with `whole` it is the change itself.
    """

    def __init__(self, *args, whole=False):
        super().__init__(*args)
        self.own = [torch.zeros_like(self.model) for _ in range(self.n)]  # G_i
        self.whole = whole

    def round(self, t, cohort, lr):
        over = 1 if self.whole else lr
        for i in cohort:
            trained = self.claimed(i, self.model, self.model + self.change(i, t, lr))
            self.own[i] = (trained - self.model) / over
        self.model = self.model + over * sum(self.own) / self.n


class PFedMe(PaperLoop):
    """Algorithm 1 of Dinh et al. 2020; the search by gradient descent from w_i."""

    def __init__(self, *args, lam=15.0, lr=0.01, steps=5, beta=1.0):
        super().__init__(*args)
        self.lam, self.lr, self.steps, self.beta = lam, lr, steps, beta
        self.own = [self.model.clone() for _ in range(self.n)]  # theta_i

    def round(self, t, cohort, lr):
        sent = []
        for i in cohort:
            w = self.model.clone()
            for rows, key in self.batches(i, t):
                theta = w.clone()
                for s in range(self.steps):
                    g = self.gradient(theta, rows, key + (s << 32))
                    theta = theta - self.lr * (g + self.lam * (theta - w))
                w = w - lr * self.lam * (w - theta)
            self.own[i] = theta
            sent.append(w)
        self.model = (1 - self.beta) * self.model + self.beta * sum(sent) / len(sent)


class PerFedAvg(PaperLoop):
    """Algorithm 1 of Fallah et al. 2020 without the Hessian; minibatches in turn."""

    def __init__(self, *args, alpha=0.01):
        super().__init__(*args)
        self.alpha = alpha

    def round(self, t, cohort, lr):
        sent = []
        for i in cohort:
            w, batches = self.model.clone(), self.batches(i, t)
            others = [rows for rows, _ in batches[1:] + batches[:1]]
            for (rows, key), other in zip(batches, others, strict=True):
                ahead = w - self.alpha * self.gradient(w, rows, key)
                w = w - lr * self.gradient(ahead, other, key + (1 << 32))
            sent.append(w)
        self.model = sum(sent) / len(sent)


class APFL(PaperLoop):
    """Algorithm 1 of Deng et al. 2020 with a fixed alpha."""

    def __init__(self, *args, alpha=0.5):
        super().__init__(*args)
        self.alpha = alpha
        self.v = [self.model.clone() for _ in range(self.n)]
        self.own = [self.model.clone() for _ in range(self.n)]  # the mixtures

    def round(self, t, cohort, lr):
        sent = []
        for i in cohort:
            w, v = self.model.clone(), self.v[i]
            for rows, key in self.batches(i, t):
                mixture = self.alpha * v + (1 - self.alpha) * w
                g = self.alpha * self.gradient(mixture, rows, key)  # by v, through the mixture
                w, v = w - lr * self.gradient(w, rows, key), v - lr * g
            self.v[i], self.own[i] = v, self.alpha * v + (1 - self.alpha) * w
            sent.append(w)
        self.model = sum(sent) / len(sent)


class FedALA(PaperLoop):
    """Algorithm 1 of Zhang et al. 2023 for the last layers, with steps on the first minibatches."""

    def __init__(self, *args, eta=1.0, steps=10, last=2):
        super().__init__(*args)
        self.eta, self.steps = eta, steps
        self.p = sum([p.numel() for p in self.plain.model.parameters()][-last:])
        self.own = [self.model.clone() for _ in range(self.n)]
        self.v = [torch.ones_like(self.model) for _ in range(self.n)]  # W_i^p after ones

    def round(self, t, cohort, lr):
        sent = []
        for i in cohort:
            w, batches, ours = self.v[i][-self.p :], self.batches(i, t), self.own[i][-self.p :]
            apart = self.model[-self.p :] - ours
            y = torch.cat([self.model[: -self.p], ours + apart * w])
            for s in range(self.steps):
                rows, key = batches[s % len(batches)][0], batches[0][1] + ((s + 1) << 32)
                w = (w - self.eta * self.gradient(y, rows, key)[-self.p :] * apart).clamp(0, 1)
                y = torch.cat([self.model[: -self.p], ours + apart * w])
            self.v[i] = torch.cat([self.v[i][: -self.p], w])
            for rows, key in batches:
                y = y - lr * self.gradient(y, rows, key)
            self.own[i] = y
            sent.append(y)
        self.model = sum(p * y for p, y in zip(self.shares(cohort), sent, strict=True))


class FedVARP(PaperLoop):
    """Algorithm 1 of Jhunjhunwala et al. 2022, whose server keeps every y_j."""

    def __init__(self, *args):
        super().__init__(*args)
        self.own = [torch.zeros_like(self.model) for _ in range(self.n)]  # y_j

    def round(self, t, cohort, lr):
        told = {i: self.change(i, t, lr) / lr for i in cohort}
        v = sum(told[i] - self.own[i] for i in cohort) / len(cohort) + sum(self.own) / self.n
        for i in cohort:
            self.own[i] = told[i]
        self.model = self.model + lr * v


class FedExP(PaperLoop):
    """Algorithm 1 of Jhunjhunwala et al. 2023."""

    def __init__(self, *args, epsilon=1e-3):
        super().__init__(*args)
        self.epsilon, self.lengths = epsilon, []

    def round(self, t, cohort, lr):
        told, m = [self.change(i, t, lr) for i in cohort], len(cohort)
        mean = sum(told) / m
        squares = sum(float(d @ d) for d in told)
        length = max(1.0, squares / (2 * m * (float(mean @ mean) + self.epsilon)))
        self.lengths.append(length)
        self.model = self.model + length * mean


class MaxFL(PaperLoop):
    """The gradient of the mean of sigmoid(F_i - rho_i) by autograd, after local steps.

    rho_i is the least mean loss over the steps of a round of a model trained alone.
    """

    def __init__(self, *args, eta=1.0, epsilon=1e-8):
        super().__init__(*args)
        self.eta, self.epsilon = eta, epsilon
        self.own, self.rho = [self.model.clone() for _ in range(self.n)], [math.inf] * self.n

    def round(self, t, cohort, lr):
        weights, told = [], []
        for k in cohort:
            seen = []
            for rows, key in self.batches(k, t):
                with torch.no_grad():
                    out = self.outputs(self.own[k], rows, key)
                    seen.append(float(self.plain.criterion(out, self.plain.y[rows]).mean()))
                self.own[k] = self.own[k] - lr * self.gradient(self.own[k], rows, key)
            self.rho[k] = min(self.rho[k], sum(seen) / len(seen))
            loss = torch.tensor(self.loss_before(k), dtype=torch.float64, requires_grad=True)
            (slope,) = torch.autograd.grad(torch.sigmoid(loss - self.rho[k]), loss)
            weights.append(float(slope))
            told.append(self.change(k, t, lr))
        step = self.eta / (sum(weights) + self.epsilon)
        self.model = self.model + step * sum(q * d for q, d in zip(weights, told, strict=True))


class FedDGGA(PaperLoop):
    """Algorithm 1 and eq. (10) of Zhang et al. 2023, a client after another; a dict of weights.

    Clients without a last model of their own move as the mean of the others does.
    """

    def __init__(self, *args, d=0.2, rounds=None):
        super().__init__(*args)
        self.d, self.total = d, rounds
        self.a, self.last = dict.fromkeys(range(self.n), 1 / self.n), {}

    def round(self, t, cohort, lr):
        gaps = {i: self.loss_before(i) - self.last[i] for i in cohort if i in self.last}
        if gaps:
            mean = sum(gaps.values()) / len(gaps)
            most = max(abs(g - mean) for g in gaps.values())
            step = self.d * (1 - t / self.total if self.total else 1)
            if most > 0:
                for i, gap in gaps.items():
                    self.a[i] = min(max(self.a[i] + (gap - mean) / most * step / self.n, 0), 1)
                total = sum(self.a.values())
                self.a = {i: a / total for i, a in self.a.items()}
        told = {i: self.change(i, t, lr) for i in cohort}
        server = self.model
        for i in cohort:
            self.model = server + told[i]
            self.last[i] = self.loss_before(i)  # at the client's own model
        mass = sum(self.a[i] for i in cohort)
        self.model = server + sum(self.a[i] / mass * told[i] for i in cohort)


class Moon(PaperLoop):
    """Algorithm 1 of Li, He, Song 2021, where z are the outputs of the model."""

    def __init__(self, *args, mu=1.0, tau=0.5):
        super().__init__(*args)
        self.mu, self.tau = mu, tau
        self.own = [self.model.clone() for _ in range(self.n)]  # w_i of its last round

    def contrasted(self, out):
        return out

    def contrast(self, client, rows):
        with torch.no_grad():
            models = self.model, self.own[client]
            z_glob, z_prev = (self.contrasted(self.outputs(w, rows)) for w in models)

        def added(out):
            z = self.contrasted(out)
            near, far = (
                ((z * other).sum(1) / z.norm(dim=1) / other.norm(dim=1) / self.tau).exp()
                for other in (z_glob, z_prev)
            )
            return self.mu * -(near / (near + far)).log().mean()

        return added

    def round(self, t, cohort, lr):
        sent = []
        for i in cohort:
            w = self.model.clone()
            for rows, key in self.batches(i, t):
                w = w - lr * self.gradient(w, rows, key, self.contrast(i, rows))
            self.own[i] = w
            sent.append(w)
        self.model = sum(p * w for p, w in zip(self.shares(cohort), sent, strict=True))


class MoonOfFeatures(Moon):
    """The same, where z are the features that a model without dropout returns beside outputs."""

    def outputs(self, at, rows, key=None):
        vector_to_parameters(at, self.plain.worker.parameters())
        out, self.z = self.plain.worker(self.plain.examples(rows))
        return out

    def contrasted(self, out):
        return self.z


class FairFed(PaperLoop):
    """The formulas of Ezzeldin et al. 2023 as they stand there, one example after another."""

    def __init__(self, *args, beta):
        super().__init__(*args)
        self.beta, self.weight, self.undefined = beta, {}, 0

    def told(self, client):
        """How many predictions are right; of each group how many positives, and how many found."""
        net, data, right = self.plain.worker, self.fed.data, 0
        table = {0: [0, 0], 1: [0, 0]}
        vector_to_parameters(self.model, net.parameters())
        for i in self.fed.split.train[client]:
            with torch.no_grad():
                told = int(self.plain.forward(net, self.plain.x[i : i + 1]).argmax())
            right += told == data.y[i]
            if data.y[i] == 1:
                table[data.group[i]][0] += 1
                table[data.group[i]][1] += told
        return right, table

    def difference(self, tables):
        (n, a), (m, b) = ([sum(t[g][k] for t in tables) for k in (0, 1)] for g in (0, 1))
        return a / n - b / m if n and m else None

    def round(self, t, cohort, lr):
        told, share = [self.told(i) for i in cohort], self.shares(cohort)
        sizes = [len(self.fed.split.train[i]) for i in cohort]
        overall = self.difference([table for _, table in told])
        accuracy = sum(right for right, _ in told) / sum(sizes)
        away = []
        for (right, table), size in zip(told, sizes, strict=True):
            gap = self.difference([table])
            self.undefined += gap is None
            away.append(abs(right / size - accuracy) if gap is None else abs(overall - gap))
        mean = sum(away) / len(away)
        for i, p, d in zip(cohort, share, away, strict=True):
            self.weight[i] = self.weight.get(i, p) - self.beta * (d - mean)
            assert self.weight[i] > 0
        total = sum(self.weight[i] for i in cohort)
        step = [self.weight[i] / total * self.change(i, t, lr) for i in cohort]
        self.model = self.model + sum(step)


class FedEBAPlus(PaperLoop):
    """Algorithm 1 of Wang et al. 2023, as public notes on it tell it; the angle by its cosine."""

    def __init__(self, *args, tau=0.5, a=0.1, theta=90.0):
        super().__init__(*args)
        self.tau, self.a, self.theta, self.aligned = tau, a, theta, []

    def round(self, t, cohort, lr):
        w, m, loss = self.model, len(cohort), [self.loss_before(i) for i in cohort]
        tilted = [math.exp(f / self.tau) for f in loss]
        p = [e / sum(tilted) for e in tilted]
        cosine = sum(loss) / math.sqrt(m * sum(f * f for f in loss))
        first = [self.full_gradient(i, t) for i in cohort]
        self.aligned.append(math.degrees(math.acos(min(cosine, 1))) > self.theta)
        a = self.a if self.aligned[-1] else 0
        fair = sum(q * g for q, g in zip(p, first, strict=True))
        told = [self.change(i, t, lr, lambda g: (1 - a) * g + a * fair) for i in cohort]
        step = sum(q * d for q, d in zip(p, told, strict=True))
        if not self.aligned[-1]:
            step = (1 - self.a) * step - self.a * lr * sum(first) / m
        self.model = w + step


class GIFAIR(PaperLoop):
    """Algorithm 1 of Yue et al. 2023 with a client for each group: local losses are scaled."""

    def __init__(self, *args, lam=0.9):
        super().__init__(*args)
        self.lam = lam

    def round(self, t, cohort, lr):
        p, loss, m = self.shares(cohort), [self.loss_before(i) for i in cohort], len(cohort)
        lam, step = self.lam * min(p) / (m - 1), 0
        for k, i in enumerate(cohort):
            r = sum((loss[k] > f) - (loss[k] < f) for f in loss)
            scale = 1 + lam * r / p[k]
            step = step + p[k] * self.change(i, t, lr, lambda g, by=scale: by * g)
        self.model = self.model + step


class ScaffPD(PaperLoop):
    """Algorithms 1 and 2 of Yu et al. 2023, the dual step by SLSQP."""

    def __init__(self, *args, rho=0.1, sigma=0.05, theta=1.0):
        super().__init__(*args)
        self.rho, self.sigma, self.theta = rho, sigma, theta
        self.weights, self.last = np.full(self.n, 1 / self.n), {}

    def round(self, t, cohort, lr):
        loss, n = {i: self.loss_before(i) for i in cohort}, self.n
        s = np.full(n, sum(loss.values()) / len(loss))
        for i, known in self.last.items():
            s[i] = known
        for i, new in loss.items():
            s[i] = (1 + self.theta) * new - self.theta * self.last.get(i, new)
        self.last |= loss
        before = self.weights

        def minimised(x):
            away = ((x - before) ** 2).sum() / 2
            return self.sigma * (self.rho * n / 2 * ((x - 1 / n) ** 2).sum() - s @ x) + away

        def slope(x):
            return self.sigma * (self.rho * n * (x - 1 / n) - s) + x - before

        whole = {"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like}
        self.weights = minimize(
            minimised, before, jac=slope, bounds=[(0, 1)] * n, constraints=whole, tol=1e-15
        ).x
        mass = sum(self.weights[i] for i in cohort)
        own = {i: self.full_gradient(i, t) for i in cohort}
        mean = sum(self.weights[i] / mass * own[i] for i in cohort)
        self.model = self.model + sum(
            self.weights[i] / mass * self.change(i, t, lr, lambda g, c=own[i]: g - c + mean)
            for i in cohort
        )
