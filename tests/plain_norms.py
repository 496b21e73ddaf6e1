"""Federated learning with torch's own BatchNorm, one client after another, by state dicts.

It shares with the simulator what decides which clients and minibatches are drawn, and
`Strategy.weigh`; nothing of rows, flat vectors or masks.
"""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedmaba import rng
from fedmaba.rows import models
from fedmaba.simulation.engine import Plan
from fedmaba.strategies.base import Replies
from plain_loop import Plain

PLAN = Plan(rounds=3, minibatch=3, lr=0.2, lr_decay=0.9, dtype="float64")
STATISTICS = ("running_mean", "running_var")


def norm_net(shape, classes):
    """A small network with BatchNorm over images and over vectors."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3),
        nn.BatchNorm2d(4, momentum=0.3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 9),
        nn.BatchNorm1d(9),
        nn.Tanh(),
        nn.Linear(9, classes),
    )


class PlainNorms(Plain):
    """The plain loop of a model with BatchNorm, as one of the choices treats it."""

    def __init__(self, choice, strategy, seed, fed, plan, make):
        self.choice, self.strategy, self.seed = choice, strategy, seed
        self.fed, self.plan = fed, plan
        shape, classes = fed.data.x.shape[1:], len(fed.data.classes)
        self.worker = make(shape, classes)
        first = models.build_model(make, shape, classes, seed, "average").state_dict()
        self.worker.load_state_dict(first)
        self.worker = self.worker.double()
        self.norms = {
            f"{n}.{k}"
            for n, m in self.worker.named_modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm)
            for k in m.state_dict()
        }
        self.server = copy.deepcopy(self.worker.state_dict())
        self.own = {
            c: {n: self.server[n].clone() for n in self.norms} for c in range(fed.n_clients)
        }
        self.x, self.y = torch.from_numpy(fed.data.x).double(), torch.from_numpy(fed.data.y)
        self.state = strategy.init(fed.n_clients)
        self.velocity = dict.fromkeys(self.server, 0.0)
        self.told = []
        self.guide = None

    def load(self, client):
        """Give the worker the server's model, with the client's own part where it has one."""
        own = self.own[client] if self.choice == "local" else {}
        self.worker.load_state_dict({**self.server, **own})
        return self.worker

    def trained(self, client, t, lr):
        """A client's state after training, and the mean loss that it saw."""
        model = self.load(client).train()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and self.choice == "frozen":
                module.eval().requires_grad_(False)
        how = self.plan.optimiser
        weights = [p for p in model.parameters() if p.requires_grad]
        server = [p.detach().clone() for p in weights]
        sgd = torch.optim.SGD(weights, lr, how.momentum, 0.0, how.weight_decay)
        key = torch.from_numpy(rng.key(self.seed, "local", t, client).view(np.int64))
        seen = []
        for rows in self.minibatches(self.fed.split.train[client], key):
            loss = F.cross_entropy(model(self.x[rows]), self.y[rows])
            seen.append(loss.item())
            sgd.zero_grad()
            self.objective(loss, weights, server).backward()
            sgd.step()
        return copy.deepcopy(model.state_dict()), float(np.mean(seen))

    def scored(self, client, rows, state=None):
        """Mean loss and accuracy over examples in evaluation mode, as the client uses the model."""
        model = self.load(client).eval()
        if state is not None:
            model.load_state_dict(state)
        with torch.no_grad():
            out = model(self.x[rows])
        right = (out.argmax(1) == self.y[rows]).double().mean()
        return float(F.cross_entropy(out, self.y[rows])), float(right)

    def round(self, t):
        plan, needs, n = self.plan, self.strategy.needs(), self.fed.n_clients
        lr = plan.lr * plan.lr_decay**t
        clients = rng.sample_clients(self.seed, t, n, plan.participants or n)
        states, losses = [], []
        for client in clients:
            rows = self.fed.split.train[client]
            start = self.scored(client, rows)[0]
            state, mean = self.trained(client, t, lr)
            end = self.scored(client, rows, state)[0]
            states.append(state)
            losses.append({"none": 0.0, "start": start, "mean": mean, "end": end}[needs.loss])
        sent = [
            name
            for name, value in self.server.items()
            if value.is_floating_point() and not (self.choice == "local" and name in self.norms)
        ]
        weights = [name for name in sent if not name.endswith(STATISTICS)]
        change = torch.stack(
            [torch.cat([(s[n] - self.server[n]).flatten() for n in weights]) for s in states]
        )
        gram = (change @ change.T).numpy()
        replies = Replies(
            round=t,
            lr=lr,
            n_clients=n,
            client=clients,
            size=np.array([len(self.fed.split.train[c]) for c in clients]),
            loss=None if needs.loss == "none" else np.array(losses),
            norms=gram.diagonal() if needs.changes == "norms" else None,
            gram=gram if needs.changes == "gram" else None,
            past_client=np.zeros(0, np.int64),
            past_round=np.zeros(0, np.int64),
        )
        coef, self.state, _ = self.strategy.weigh(self.state, replies)
        for name in sent:
            delta = sum(
                c * (s[name] - self.server[name]) for c, s in zip(coef, states, strict=True)
            )
            self.velocity[name] = plan.server_momentum * self.velocity[name] + delta
            self.server[name] = self.server[name] + plan.server_lr * self.velocity[name]
        for client, state in zip(clients, states, strict=True):
            self.own[client] = {name: state[name] for name in self.norms}
        self.told.append((clients, coef, replies.loss))

    def evaluated(self):
        """(2, N) loss and accuracy of each client on its test examples."""
        every = [self.scored(c, rows) for c, rows in enumerate(self.fed.split.test)]
        return np.array(every).T
