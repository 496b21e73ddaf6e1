"""Small strategies and models of one feature each, which several tests simulate."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedmaba.strategies.base import Decision, Keep, Local, Needs, Objective, Personal, Strategy


def equal(replies, state):
    """The same weight for each client."""
    return Decision(np.full(len(replies.client), 1 / len(replies.client)), state)


# --- what clients minimise -----------------------------------------------------------------------


def distil(losses, outputs, y, others, numbers):
    """The usual loss, and lam * KL divergence from the server's softened outputs."""
    theirs, own = ((v / numbers["T"]).log_softmax(-1) for v in (others["server"], outputs))
    return losses + numbers["lam"] * (theirs.exp() * (theirs - own)).sum(-1)


def confident(losses, outputs, y, others, numbers):
    """An objective of outputs that sees no other model: the usual loss, less some entropy."""
    log_p = outputs.log_softmax(-1)
    return losses + numbers["share"] * (log_p.exp() * log_p).sum(-1)


def near(losses, outputs, features, y, others, numbers):
    """The usual loss, and share * how far outputs and features are from the server's."""
    pairs = zip((outputs, features), others["server"], strict=True)
    return losses + numbers["share"] * sum((a - b).square().sum(-1) for a, b in pairs)


def tilted(loss, numbers):
    """(exp(t loss) - 1) / t"""
    return torch.exp(numbers["t"] * loss)


@dataclass(frozen=True)
class Minimising(Strategy):
    """a test strategy whose clients minimise something else"""

    name: ClassVar[str] = "minimising"
    objective: str = "distil"
    number: float = 0.7
    prox: float = 0.0
    full_batch: bool = False

    def needs(self):
        return Needs(loss="mean")

    def local(self):
        share = {"share": self.number}
        numbers = {"distil": {"lam": self.number, "T": 2.0}, "confident": share, "near": share}
        sees = ("server",) if self.objective in ("distil", "near") else ()
        own = numbers.get(self.objective, {"t": self.number})
        objective = Objective(f"toys:{self.objective}", own, sees)
        return Local(objective=objective, prox=self.prox, full_batch=self.full_batch)

    def weigh(self, state, replies):
        return equal(replies, state)


# --- what clients keep ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Heads(Strategy):
    """weighs by size, or by losses seen and changes; clients keep what a pattern fits"""

    name = "heads"
    kept: str = "5.*"
    late: bool = False
    mu: float = 0.0
    lean: float = 0.0
    first: int = -1  # epochs in which clients train what they keep alone; -1: all together

    def needs(self):
        return Needs("mean", "gram") if self.late else Needs()

    def local(self):
        add = {"server": self.lean} if self.lean else {}
        epochs = None if self.first < 0 else self.first
        return Local(prox=self.mu, add=add, own_layers=(self.kept,), own_epochs=epochs)

    def weigh(self, state, replies):
        share = replies.size.astype(float)
        if self.late:
            share = replies.loss * np.sqrt(replies.gram.diagonal())
        return Decision(share / share.sum(), state)


MU = (0.0, 0.4, 1.0, 0.0, 2.5)


@dataclass(frozen=True)
class Pulled(Strategy):
    """FedProx with a mu of each client's own"""

    name: ClassVar[str] = "pulled"
    mu: tuple[float, ...] = MU
    late: bool = False  # whether the server sees each change
    keeps: bool = False  # whether clients keep a vector that joins their gradients
    own: bool = False  # whether they train a model of their own, too

    def needs(self):
        return Needs(changes="norms") if self.late else Needs()

    def local(self):
        vectors = {"keep": {"h": Keep(start=0.3, end=-0.3)}, "add": {"h": -1.0}}
        personal = Personal(prox=0.5) if self.own else None
        return Local(prox=np.array(self.mu), personal=personal, **(vectors if self.keeps else {}))

    def weigh(self, state, replies):
        return equal(replies, state)


class Featured(nn.Module):
    """A model that returns features beside outputs, of a head that outputs do not need."""

    def __init__(self, shape, classes):
        super().__init__()
        many = math.prod(shape)
        self.a, self.b, self.head = nn.Linear(many, 10), nn.Linear(10, classes), nn.Linear(10, 6)

    def forward(self, x):
        z = self.a(x.flatten(1)).tanh()
        return self.b(z), self.head(z)


class OutputsAlone(Featured):
    """The same, without features."""

    def forward(self, x):
        return super().forward(x)[0]


def norm_free(shape, classes):
    """Convolutions without dropout, whose masks are other ones in each form of rows."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3),
        nn.Tanh(),
        nn.Conv2d(4, 3, 3),
        nn.Flatten(),
        nn.Linear(48, classes),
    )
