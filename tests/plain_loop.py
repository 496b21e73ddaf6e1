"""Federated learning one client after another: nn.Module, autograd, torch.optim.

`Plain` is what a reader would write from the papers' pseudo-code. It shares with the simulator only
what decides which clients, minibatches and masks are drawn, and `Strategy.weigh`.
"""

import copy
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.stats import trim_mean
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedmaba import rng, strategies
from fedmaba.data import trees
from fedmaba.rows import models
from fedmaba.rows.random import dropout_mask, shuffles
from fedmaba.simulation.engine import Plan, Run, simulate, start
from fedmaba.strategies.base import Decision, Keep, Local, Needs, Replies, Strategy

# Clients keep nothing (`paper_loops` has the others), and no groups of people are needed.
NAMES = [
    name
    for name, kind in strategies.REGISTRY.items()
    if "fedmaba." in kind.__module__
    and not (kind().local().keeps or kind().local().second or kind().needs().groups)
]
SPECS = [
    *NAMES,
    "fedavg:weights=uniform",
    "fedprox:mu=1",
    "qffl:q=2",
    "qffl:q=0.5,mode=sgd",
    "afl:lam=0.5",
    "term:T=2",
    "term:T=2,normalise=reference",
    "fedmgda:epsilon=1,eta=0.3,decay=0.9",
    "propfair:M=1.5,epsilon=0.3",  # both branches of the bent loss
    "propfair:M=1.2,below=scaled",
    "fedfv:alpha=0,tau=2",
    "fedfv:alpha=1,tau=0",
    "fedmaba:alpha=0.8,eta_b=1,rho=0.3,eta_s=0.5,loss_at=mean",
    "fedmaba:ball=global,loss_at=end,eta_b=3",
    "fedmaba:sync=overwrite",
    "fedavgm:beta=0.5,lr=0.7,weights=uniform",
    "fedyogi:lr=0.1,beta1=0.5,beta2=0.7,tau=0.01",
    "deltafl:theta=0.3,weights=uniform",
    "aaggff:cdf=weibull",
    "adafed:gamma=0.2,eta=0.5",
    "fedeba:tau=0.3,a=0.4",
    "fedebaplus:tau=0.3,a=0.4,theta=0",
    "gifair:on=loss",
    "fedlf:tau=2,norms=reference",
    "fedlf:tau=2,work=gradient",
    "fedgini:epsilon=0.2",
    "fedmdfg:theta=3,s=2",
    "fedntd:beta=0.7,tau=2",
    "trimmed:share=0.4",
    "krum:share=0",
    "multikrum:share=0.4",
    "multikrum:share=0.4,weights=fedmaba",
    "median:weights=fedmaba",
    "trimmed:share=0.3,weights=afl:lam=0.5",
    "rfa:steps=5,weights=fedmaba",
    "cclip:around=last,tau=0.5,unit=one,steps=2,weights=fedmaba",
    "nnm:rule=rfa:weights=fedmaba",
    "nnm:share=0.4,rule=fedmaba",
]
PLAN = Plan(rounds=3, minibatch=4, lr=0.2, lr_decay=0.9, dtype="float64")


def mlp(shape, classes):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 10),
        nn.ReLU(),
        nn.Linear(10, 8),
        nn.Tanh(),
        nn.Linear(8, classes),
    )


def cnn(shape, classes):
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        nn.Conv2d(4, 5, 2, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(80, 8),
        nn.ReLU(),
        nn.Linear(8, classes),
    )


MODELS = {"mlp": mlp, "cnn": cnn}


def one(spec: str) -> Strategy:
    (strategy,) = strategies.parse(spec)
    return strategy


def torch_schedule(optimiser, words, total):
    """A schedule by torch.optim.lr_scheduler; `total` is how many steps it will take."""
    how = torch.optim.lr_scheduler
    *warm, last = (
        words.split(",") if not words.startswith("warmup") or "," in words else [words, ""]
    )
    many = int(warm[0].removeprefix("warmup:")) if warm else 0
    kind, _, rate = last.partition(":")
    parts = {
        "cosine": lambda: how.CosineAnnealingLR(optimiser, max(total - many, 1)),
        "exponential": lambda: how.ExponentialLR(optimiser, float(rate)),
    }
    after = parts.get(kind, lambda: how.ConstantLR(optimiser, 1.0))()
    if many < 2:  # grown after the first step
        return after
    grow = how.LinearLR(optimiser, 1 / many, total_iters=many - 1)
    return how.SequentialLR(optimiser, [grow, after], [many])


# --- the plain loop ----------------------------------------------------------------------------


@dataclass
class Told:
    """What a plain round left behind."""

    client: np.ndarray
    weight: np.ndarray
    loss: np.ndarray | None


def _tensor(values):
    tensor = torch.from_numpy(values)
    return tensor.double() if tensor.is_floating_point() else tensor


def position_by_position(out, y):
    """The mean cross-entropy over the positions of each example that count."""
    found = []
    for one_out, one_y in zip(out.flatten(1, -2), y.flatten(1), strict=True):
        found.append(F.cross_entropy(one_out[one_y != -100], one_y[one_y != -100]))
    return torch.stack(found)


LOSSES = {
    "classify": nn.CrossEntropyLoss(reduction="none"),
    "regress": lambda out, y: torch.stack(
        [F.mse_loss(a, b.view_as(a)) for a, b in zip(out, y, strict=True)]
    ),
    "multilabel": lambda out, y: torch.stack(
        [nn.BCEWithLogitsLoss()(a, b) for a, b in zip(out, y, strict=True)]
    ),
    "sequence": position_by_position,
}


def bent(plain, loss, M, epsilon, slope):
    """PropFair's."""
    if M - loss >= epsilon:
        return -torch.log(M - loss)
    return slope * (loss - (M - epsilon)) - math.log(epsilon)  # a line from where it ends


def not_true(plain, loss, beta, tau):
    """FedNTD's: distances over the classes that an example is not of."""
    out, rows = plain.now
    with torch.no_grad():
        told = plain.forward(plain.model, plain.examples(rows))
    far = []
    for own, server, y in zip(out, told, plain.y[rows].tolist(), strict=True):
        others = [c for c in range(len(own)) if c != y]
        q, p = (own[others] / tau).softmax(0), (server[others] / tau).softmax(0)
        far.append((p * (p / q).log()).sum())
    return loss + beta * torch.stack(far).mean()


OBJECTIVES = {"propfair": bent, "fedntd": not_true}


def middle(rows, weights):
    """The point of each column with the least weighted sum of distances."""
    return np.array([min(c, key=lambda at: weights @ abs(c - at)) for c in rows.T])


def trimmed(rows, weights, share):
    """The weighted mean of each column without its least and greatest entries."""
    cut, out = int(share * len(rows) + 1e-9), []
    for column in rows.T:
        left = sorted(zip(column, weights, strict=True))[cut : len(rows) - cut]
        out.append(sum(v * w for v, w in left) / sum(w for _, w in left))
    return np.array(out)


RULES = {
    "sum": lambda rows, weights: weights @ rows,
    "median": lambda rows, weights: np.median(rows, axis=0),
    "trimmed": lambda rows, weights, share: trim_mean(rows, share),
    "weighted_median": middle,
    "weighted_trimmed": trimmed,
}


class Plain:
    """Federated learning as in the papers' pseudo-code, in float64."""

    stream = 0  # added to the keys of a client's random streams

    def __init__(self, strategy, seed, fed, plan, make, loss=None):
        self.strategy, self.seed, self.fed, self.plan = strategy, seed, fed, plan
        data = fed.data
        shape, classes = data.shape, data.target.outputs
        self.model = models.build_model(make, shape, classes, seed, target=data.target).double()
        self.worker = copy.deepcopy(self.model)  # trained by one client after another
        self.x = trees.mapped(_tensor, data.x)
        self.y = _tensor(data.y)
        self.criterion = loss or LOSSES[data.task]
        self.state = strategy.init(fed.n_clients)
        self.past: dict[int, tuple[int, torch.Tensor]] = {}  # client -> round, change
        self.velocity, self.second = 0.0, None  # moments of the server
        nothing = torch.zeros(sum(p.numel() for p in self.model.parameters())).double()
        self.kept = defaultdict(lambda: nothing)  # (name, client) -> what the client keeps
        self.training = None  # the client that trains
        self.guide = None  # of a round, by client: a factor, and what joins gradients
        server = torch.optim.SGD([torch.zeros(1, requires_grad=True)], plan.lr)
        over = torch_schedule(server, plan.schedule or f"exponential:{plan.lr_decay}", plan.rounds)
        self.rates = []  # the step size of each round
        for _ in range(plan.rounds):
            self.rates += over.get_last_lr()
            server.step()
            over.step()
        self.told: list[Told] = []
        self.path: list[torch.Tensor] = []  # the server's model after each round

    def forward(self, model, x, key=None):
        """The model's outputs; with a key in training mode, with the masks of that stream."""
        for number, layer in enumerate(m for m in model.modules() if not list(m.children())):
            if isinstance(layer, nn.Dropout):
                if key is not None:
                    mask = dropout_mask(key, number, (1, *x.shape), layer.p, x.dtype)
                    x = x * mask[0]
            else:
                x = layer(x)
        return x

    def measured(self, model, rows):
        """Mean loss over examples, in evaluation mode."""
        with torch.no_grad():
            out = self.forward(model, self.examples(rows))
            return float(self.criterion(out, self.y[rows]).mean())

    def minibatches(self, rows, key):
        """The examples of each local step."""
        size, batch = len(rows), self.plan.minibatch
        if self.strategy.local().full_batch:
            yield rows
            return
        left = self.plan.steps or self.plan.epochs * math.ceil(size / batch)
        for epoch in range(left):
            order = shuffles(key + ((1 + epoch) << 40), torch.tensor([[size]]), size)[0].numpy()
            for a in range(0, size, batch):
                if left == 0:
                    return
                left -= 1
                yield rows[order[a : a + batch]]

    def objective(self, data_loss, w, server):
        """What a client minimises, as its paper writes it."""
        work = self.strategy.local()
        if work.objective is not None:
            data_loss = OBJECTIVES[work.objective.name](self, data_loss, **work.objective.numbers)
        if self.guide is not None:
            factor, joins = self.guide[self.training]
            data_loss = factor * data_loss + (joins * torch.cat([p.flatten() for p in w])).sum()
        for name, factor in work.add.items():
            kept = self.kept[name, self.training]
            if name == "server":
                kept = torch.cat([p.flatten() for p in server])
            data_loss = data_loss + factor * (kept * torch.cat([p.flatten() for p in w])).sum()
        if mu := work.prox[self.training] if isinstance(work.prox, tuple) else work.prox:
            distance = sum(((a - b) ** 2).sum() for a, b in zip(w, server, strict=True))
            data_loss = data_loss + mu / 2 * distance
        return data_loss

    def train(self, client, t, lr):
        """A client's trained model and the mean loss it saw."""
        plan, seen, self.training = self.plan, [], client
        trained = self.worker
        trained.load_state_dict(self.model.state_dict())
        server = [p.detach().clone() for p in self.model.parameters()]
        optimiser = self.optimiser(trained, lr)
        key = torch.from_numpy(rng.key(self.seed, "local", t, client).view(np.int64)) + self.stream
        batches = list(self.minibatches(self.fed.split.train[client], key))
        self.taken = len(batches)
        schedule = torch_schedule(optimiser, plan.step_schedule, len(batches))
        for k, rows in enumerate(batches):
            out = self.forward(trained, self.inputs(rows, key + k), key + k)
            data_loss = self.criterion(out, self.y[rows]).mean()
            self.now = out, rows
            seen.append(data_loss.item())
            optimiser.zero_grad()
            self.objective(data_loss, list(trained.parameters()), server).backward()
            if plan.optimiser.clip is not None:
                nn.utils.clip_grad_norm_(trained.parameters(), plan.optimiser.clip)
            optimiser.step()
            schedule.step()
        return trained, float(np.mean(seen))

    def optimiser(self, model, lr):
        """torch's own optimiser with the plan's settings."""
        how, decay = self.plan.optimiser, self.plan.optimiser.weight_decay
        if how.optimiser in ("adam", "adamw"):
            kind = torch.optim.Adam if how.optimiser == "adam" else torch.optim.AdamW
            betas = how.beta1, how.beta2
            return kind(model.parameters(), lr, betas, how.epsilon, weight_decay=decay)
        nesterov = how.optimiser == "nesterov"
        return torch.optim.SGD(model.parameters(), lr, how.momentum, 0.0, decay, nesterov=nesterov)

    def examples(self, rows):
        return trees.mapped(lambda values: values[rows], self.x)

    def inputs(self, rows, key):
        """What a client trains on in a step with this random stream."""
        return self.examples(rows)

    def round(self, t):
        plan, needs, n = self.plan, self.strategy.needs(), self.fed.n_clients
        lr = self.rates[t]
        clients = rng.sample_clients(self.seed, t, n, plan.participants or n)
        server = parameters_to_vector(self.model.parameters()).detach()
        changes, losses, later, steps = [], [], [], []
        sent = self.strategy.local().send
        self.guide = self.guided(clients, t, lr) if needs.guided else None
        for client in clients:
            trained, mean = self.train(client, t, lr)
            steps.append(self.taken)
            end = parameters_to_vector(trained.parameters()).detach()
            for name, rule in self.strategy.local().keep.items():
                before = self.kept[name, client]
                self.kept[name, client] = (
                    rule.start * server + rule.end * end + rule.before * before
                )
            changes.append(self.kept[sent, client] if sent else end - server)
            rows = self.fed.split.train[client]
            where = {"start": self.model, "end": trained}.get(needs.loss)
            losses.append(mean if where is None else self.measured(where, rows))
            later += [self.measured(trained, rows)] if needs.loss_after else []
        since = t - needs.keep_rounds
        past = {c: kept for c, kept in self.past.items() if c >= 0 and kept[0] >= since}
        if needs.last_step:
            past = {c: kept for c, kept in self.past.items() if c == -1}
        every = torch.stack(changes + [change for _, change in past.values()])
        gram = (every @ every.T).numpy()
        replies = Replies(
            round=t,
            lr=lr,
            n_clients=n,
            client=clients,
            size=np.array([len(self.fed.split.train[c]) for c in clients]),
            loss=None if needs.loss == "none" else np.array(losses),
            norms=gram.diagonal()[: len(clients)] if needs.changes == "norms" else None,
            gram=gram if needs.changes == "gram" else None,
            layer_grams=None if needs.changes != "layers" else self.layer_grams(every),
            past_client=np.array([*past], dtype=np.int64),
            past_round=np.array([r for r, _ in past.values()], dtype=np.int64),
            steps=np.array(steps, np.float64) if needs.steps else None,
            loss_after=np.array(later) if needs.loss_after else None,
        )
        decision = self.strategy.weigh(self.state, replies)
        coef, self.state, _ = decision
        if needs.first_steps:
            every = torch.cat([every, torch.stack([-lr * self.gradient(c, t) for c in clients])])
        delta = self.combined(torch.from_numpy(coef), every)
        self.past[-1] = t, delta
        if needs.trials:
            factor = self.searched(replies, decision, server, delta)
            coef, delta = factor * coef, factor * delta
        moved = server + plan.server_lr * self.along(delta)
        vector_to_parameters(moved, self.model.parameters())
        self.past |= {int(c): (t, change) for c, change in zip(clients, changes, strict=True)}
        shown = coef.mean(0) if coef.ndim == 2 else coef
        shown = shown.reshape(2, -1).sum(0) if needs.first_steps else shown[: len(clients)]
        self.told.append(Told(clients, shown, replies.loss))
        self.path.append(parameters_to_vector(self.model.parameters()).detach().clone())

    def guided(self, clients, t, lr):
        """What the strategy says of each participant's local steps, once it knows all losses."""
        train = self.fed.split.train
        told = Replies(
            round=t,
            lr=lr,
            n_clients=self.fed.n_clients,
            client=clients,
            size=np.array([len(train[c]) for c in clients]),
            loss=np.array([self.measured(self.model, train[c]) for c in clients]),
        )
        guide = self.strategy.guide(told, self.strategy.weigh(self.state, told))
        every = torch.stack([self.gradient(c, t) for c in clients])
        scale, own, mix = (torch.from_numpy(np.zeros(len(clients)) + part) for part in guide)
        joins = own[:, None] * every + mix @ every
        return dict(zip(clients.tolist(), zip(scale, joins, strict=True), strict=True))

    def searched(self, replies, decision, server, delta):
        """The factor on the step that the strategy takes after it has tried others."""
        tried = []
        while not (found := self.strategy.search(replies, decision, tried)).take:
            moved = server + self.plan.server_lr * found.factor * delta
            vector_to_parameters(moved, self.worker.parameters())
            rows = (self.fed.split.train[c] for c in replies.client)
            tried.append((found.factor, np.array([self.measured(self.worker, r) for r in rows])))
        return found.factor

    def gradient(self, client, t):
        """The gradient of all of a client's examples at the server's model, as in a first step."""
        rows = self.fed.split.train[client]
        key = torch.from_numpy(rng.key(self.seed, "local", t, client).view(np.int64))
        out = self.forward(self.model, self.examples(rows), key)
        loss = self.criterion(out, self.y[rows]).mean()
        parts = torch.autograd.grad(loss, list(self.model.parameters()))
        return torch.cat([g.flatten() for g in parts])

    def layers(self, rows):
        """The parts of changes (k, P) that belong to each module with weights."""
        modules = [m for m in self.model.modules() if list(m.parameters(recurse=False))]
        return rows.split([sum(p.numel() for p in m.parameters()) for m in modules], 1)

    def layer_grams(self, rows):
        return np.array([(part @ part.T).numpy() for part in self.layers(rows)])

    def combined(self, coef, rows):
        """Changes with their coefficients, which may differ by layer; or by a rule."""
        if (rule := self.strategy.combine()) is not None:
            rows, votes = rows.numpy()[: coef.shape[-1]], coef.numpy()
            if votes.ndim == 2:  # mixes
                rows, votes = votes / votes.sum(1)[:, None] @ rows, votes.sum(1) / len(votes)
            return torch.from_numpy(RULES[rule.name](rows, votes, **rule.numbers))
        if coef.ndim == 1:
            return coef @ rows[: len(coef)]
        parts = zip(coef, self.layers(rows), strict=True)
        return torch.cat([row @ part[: len(row)] for row, part in parts])

    def along(self, delta):
        """The server's step along the weighted changes, as the papers write it."""
        how = self.strategy.server_optimiser()
        if how is None or how.kind == "momentum":
            beta, lr = (self.plan.server_momentum, 1.0) if how is None else (how.beta1, how.lr)
            self.velocity = beta * self.velocity + delta
            return lr * self.velocity
        self.velocity = how.beta1 * self.velocity + (1 - how.beta1) * delta
        v = torch.full_like(delta, how.tau**2) if self.second is None else self.second
        if how.kind == "adam":
            self.second = how.beta2 * v + (1 - how.beta2) * delta**2
        else:
            self.second = v - (1 - how.beta2) * delta**2 * torch.sign(v - delta**2)
        return how.lr * self.velocity / (torch.sqrt(self.second) + how.tau)

    def run(self):
        for t in range(self.plan.rounds):
            self.round(t)
        return self


def vector(batch, flat):
    """A flat row of the engine as one vector in the order of nn.Module's parameters."""
    return torch.cat([w.flatten() for w in batch.rows.layout.unpack(flat).values()])


def apart(a, b):
    """Distance relative to the second's length."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def played(specs, fed, plan, make, seed=3, **own):
    """A simulated batch and its snapshots' rounds."""
    runs = [s if isinstance(s, Run) else Run(one(s), seed, fed) for s in specs]
    batch = start(runs, plan, make, **own)
    shots = list(simulate(batch))
    batch.workers.close()
    assert batch.progress.diverged == [""] * len(runs)
    return batch, shots


MIXED = ["fedavg", "fedsgd", "fedprox", "propfair", "qffl", "fedfv", "fedmaba:loss_at=mean"]
FEW = ["fedavg", "fedprox:mu=1", "propfair:M=1.5,epsilon=0.3", "fedfv", "fedmaba:loss_at=mean"]


class Wrapped(nn.Module):
    """A model the engine cannot look into."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@dataclass(frozen=True)
class Odd(Strategy):
    """gives a weight that is not finite in its third round"""

    name = "odd"

    def needs(self):
        return Needs()

    def weigh(self, state, replies):
        bad = np.inf if replies.round == 2 else 1.0
        return Decision(np.full(len(replies.client), bad / len(replies.client)), state)


class Functional(nn.Module):
    """Dropout by function call, and noise, which torch.func does not vectorise."""

    def __init__(self, shape, classes, noise=0.0):
        super().__init__()
        self.noise = noise
        self.a, self.b = nn.Linear(math.prod(shape), 6), nn.Linear(6, classes)

    def forward(self, x):
        x = F.dropout(x.flatten(1), 0.2, self.training)
        x = x + self.noise * torch.randn_like(x) if self.noise else x
        return self.b(F.dropout(self.a(x).relu(), 0.5, self.training))


@dataclass(frozen=True)
class Drifting(Strategy):
    """A test strategy whose clients keep two vectors, as FedDyn's keep one."""

    name: ClassVar[str] = "drifting"
    alpha: float = 0.3
    late: bool = False

    def needs(self):
        return Needs(changes="norms") if self.late else Needs()

    def local(self):
        keep = {
            "h": Keep(start=self.alpha, end=-self.alpha),
            "g": Keep(end=0.1, before=0.5),
        }
        return Local(prox=self.alpha, keep=keep, add={"h": -1.0, "g": 0.05})

    def weigh(self, state, replies):
        return Decision(np.full(len(replies.client), 1 / len(replies.client)), state)
