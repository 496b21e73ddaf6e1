"""Algorithms one client after another, as their papers write them.

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

    def loss_before(self, client):
        """The mean loss of a client's training examples at the server's model."""
        vector_to_parameters(self.model, self.plain.worker.parameters())
        return self.plain.measured(self.plain.worker, self.fed.split.train[client])

    def change(self, client, t, lr):
        """What plain local steps change in the server's model."""
        y = self.model.clone()
        for rows, key in self.batches(client, t):
            y = y - lr * self.gradient(y, rows, key)
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


class FedEBA(PaperLoop):
    """Eq. (3), (7) and (8) of Wang et al.: model alignment, the one step on all examples."""

    def __init__(self, *args, tau, alpha):
        super().__init__(*args)
        self.tau, self.alpha = tau, alpha

    def round(self, t, cohort, lr):
        x, changes, first, tilt = self.model, [], [], []
        for i in cohort:
            changes.append(self.change(i, t, lr))
            masks = self.batches(i, t)[0][1]
            first.append(-lr * self.gradient(x, self.fed.split.train[i], masks))
            tilt.append(math.exp(self.loss_before(i) / self.tau))
        p = [e / sum(tilt) for e in tilt]
        fair = sum(w * d for w, d in zip(p, changes, strict=True))
        self.model = x + (1 - self.alpha) * fair + self.alpha * sum(first) / len(cohort)


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


class ByLoss(PaperLoop):
    """Plain local training; the server weighs the models by the losses before it."""

    def round(self, t, cohort, lr):
        losses = [self.loss_before(i) for i in cohort]
        sent = [self.model + self.change(i, t, lr) for i in cohort]
        weights = self.weights(t, cohort, losses)
        self.model = sum(w * y for w, y in zip(weights, sent, strict=True))


class FedGini(ByLoss):
    """A share epsilon of the plain mean of models; the rest by the squares of the losses' ranks."""

    def __init__(self, *args, epsilon):
        super().__init__(*args)
        self.epsilon = epsilon

    def weights(self, t, cohort, losses):
        ranks = [1 + sum(other < loss for other in losses) for loss in losses]
        whole, plain = sum(j * (j - 1) for j in ranks), self.epsilon / len(cohort)
        return [plain + (1 - self.epsilon) * j * (j - 1) / whole for j in ranks]


class DeltaFL(ByLoss):
    """Pillutla et al. 2024: the largest losses first, share / theta each, until the sum is 1."""

    def __init__(self, *args, theta, uniform=False):
        super().__init__(*args)
        self.theta, self.uniform = theta, uniform

    def weights(self, t, cohort, losses):
        m, left = len(cohort), 1.0
        share, found = [1 / m] * m if self.uniform else self.shares(cohort), [0.0] * m
        for i in sorted(range(m), key=lambda i: -losses[i]):
            found[i] = min(share[i] / self.theta, left)
            left -= found[i]
        return found


class GIFAIR(ByLoss):
    """Yue et al. 2023 with a group for each client: p_i + lambda times the sum of signs."""

    def __init__(self, *args, lam):
        super().__init__(*args)
        self.lam = lam

    def weights(self, t, cohort, losses):
        p = self.shares(cohort)
        lam = self.lam * min(p) / (len(cohort) - 1)
        signs = [sum((mine > x) - (mine < x) for x in losses) for mine in losses]
        return [p[i] + lam * r for i, r in enumerate(signs)]


def normal(x):
    return 0.5 + 0.5 * math.erf((x - 1) / math.sqrt(2))


def weibull(x):
    return 1 - math.exp(-x * x)


class AAggFFDevice(ByLoss):
    """AAggFF-D of Hahn et al. 2024, client by client; p moves before it weighs a round."""

    def __init__(self, *args, cdf=normal):
        super().__init__(*args)
        self.cdf, self.p, self.sums = cdf, [1 / self.n] * self.n, [0.0] * self.n

    def weights(self, t, cohort, losses):
        m, n = len(cohort), self.n
        c, mean_loss = m / n, sum(losses) / m
        r = {i: c * self.cdf(f / mean_loss) for i, f in zip(cohort, losses, strict=True)}
        mean = sum(r.values()) / m
        guess = [mean + (r[i] - mean) / c if i in r else mean for i in range(n)]
        lean = sum(p * (v - mean) for p, v in zip(self.p, guess, strict=True))
        for i in range(n):
            self.sums[i] += mean * lean / (1 + mean) ** 2 - guess[i] / (1 + mean)
        eta = math.sqrt(math.log(n)) / ((2 + c) * math.sqrt(t + 2))
        odds = [math.exp(-eta * v) for v in self.sums]
        self.p = [v / sum(odds) for v in odds]
        return [odds[i] / sum(odds[j] for j in cohort) for i in cohort]


class AAggFFSilo(ByLoss):
    """AAggFF-S of Hahn et al. 2024: the Newton step's minimum by trying all sets of weights that
    are not 0, and among those that are feasible the least value."""

    def __init__(self, *args):
        super().__init__(*args)
        self.p, self.seen = np.full(self.n, 1 / self.n), []

    def value(self, p):
        b = self.n / 4
        steps = sum(g @ p + b / 2 * (g @ (p - q)) ** 2 for g, q in self.seen)
        return steps + 4 / 2 * p @ p

    def least_on(self, some):
        """The minimum where only some weights may differ from 0, and those freely."""
        b, k = self.n / 4, len(some)
        square = 4 * np.eye(k) + sum(b * np.outer(g[some], g[some]) for g, _ in self.seen)
        line = sum(g[some] * (1 - b * g @ q) for g, q in self.seen)
        both = np.block([[square, np.ones((k, 1))], [np.ones((1, k)), np.zeros((1, 1))]])
        p = np.zeros(self.n)
        p[some] = np.linalg.solve(both, np.append(-line, 1))[:k]
        return p

    def weights(self, t, cohort, losses):
        losses = np.array(losses)
        r = np.array([normal(f) / self.n for f in losses / losses.mean()])
        self.seen.append((-r / (1 + self.p @ r), self.p))
        sets = [[i for i in range(self.n) if which >> i & 1] for which in range(1, 2**self.n)]
        feasible = [p for p in map(self.least_on, sets) if (p >= 0).all()]
        self.p = min(feasible, key=self.value)
        return self.p


class AdaFed(PaperLoop):
    """Hamidi and Yang 2024: orthogonal vectors in turn, and their shortest combination."""

    def __init__(self, *args, gamma=1.0, eta=1.0):
        super().__init__(*args)
        self.gamma, self.eta = gamma, eta

    def round(self, t, cohort, lr):
        made = []
        for i in cohort:
            g, power = -self.change(i, t, lr), self.loss_before(i) ** self.gamma
            parts = [g @ u / (u @ u) for u in made]
            rest = g - sum(c * u for c, u in zip(parts, made, strict=True))
            made.append(rest / (power - sum(parts)))
        weights = [1 / (u @ u) for u in made]
        d = sum(w / sum(weights) * u for w, u in zip(weights, made, strict=True))
        self.model = self.model - self.eta * d


def shortest(vectors, ridge=0.0):
    """The shortest convex combination of vectors.

    It is, apart from a factor, the least-squares solution of q' x = 0, 1' x = 1 with x >= 0. A
    ridge is a small vector for each of them, at right angles to all others.
    """
    squares, k = (vectors**2).sum(1), len(vectors)
    small, one = np.sqrt(ridge * squares.mean()) * np.eye(k), np.full(k, np.sqrt(squares).mean())
    rows = np.vstack([vectors.T, small, one])
    x, _ = nnls(rows, np.append(np.zeros(len(rows) - 1), one[0]))
    return vectors.T @ x / x.sum()


class FedLF(PaperLoop):
    """Algorithm 1 of Pan et al. 2024, with changes for gradients.

    The ridge is that of `simplex.min_norm`, which moves a model by up to 2e-8 of its length here.
    """

    def __init__(self, *args, tau=10, ridge=1e-10):
        super().__init__(*args)
        self.tau, self.ridge, self.sent, self.joined = tau, ridge, {}, set()
        self.absent = []  # how many absent clients each round counted

    def fair(self, loss, g):
        """Equation (5)."""
        size, root, ones = np.linalg.norm(loss), math.sqrt(len(loss)), np.ones(len(loss))
        return (loss @ ones * loss / (root * size) - ones * size / root) / size**2 @ g

    def layered(self, every):
        """Lines 5 to 15: the direction of each layer; where it is 0, layers are joined."""
        parts = [p.numpy() for p in self.plain.layers(torch.from_numpy(every))]
        k, found = 0, {}
        while k < len(parts):
            found[k] = shortest(parts[k], self.ridge)
            longest = np.linalg.norm(parts[k], axis=1).max()
            if np.linalg.norm(found[k]) < 3e-5 * longest and len(parts) > 1:
                k = min(k, len(parts) - 2)  # with the next, or the last with the one before
                parts[k : k + 2] = [np.hstack(parts[k : k + 2])]
            else:
                k += 1
        return np.concatenate([found[k] for k in range(len(parts))])

    def round(self, t, cohort, lr):
        loss = np.array([self.loss_before(i) for i in cohort])
        g = np.array([-self.change(i, t, lr).numpy() for i in cohort])
        far = min(self.tau, len(self.joined) // len(cohort))
        old = [v for i, (s, v) in self.sent.items() if i not in cohort and s >= t - far]
        d = self.layered(np.vstack([g, *old, self.fair(loss, g)]))
        d = d / np.linalg.norm(d) * np.linalg.norm(g.mean(0))
        self.model = self.model - torch.from_numpy(d)
        self.sent |= {i: (t, v) for i, v in zip(cohort, g, strict=True)}
        self.joined |= set(cohort)
        self.absent.append(len(old))


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
        d = shortest(q)
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
