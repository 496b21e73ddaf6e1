"""A strategy in front of another one, whose weights it uses or whose steps it takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedmaba.errors import InputError
from fedmaba.strategies.base import (
    Changes,
    Combine,
    Decision,
    FloatArray,
    Guide,
    Local,
    Needs,
    Replies,
    ServerStep,
    Shown,
    State,
    Strategy,
    Trials,
)
from fedmaba.strategies.server_optimisers import ServerOptimiser

FLOOR = 1e-9  # of the equal weight: those that a rule chooses always weigh something


@dataclass(frozen=True)
class Behind(Strategy):
    """what another strategy says, unless a hook says otherwise"""

    @property
    def inner(self) -> Strategy:
        """The other strategy."""
        raise NotImplementedError

    @property
    def deploy(self) -> str:  # type: ignore[override]
        return self.inner.deploy

    def needs(self) -> Needs:
        return self.inner.needs()

    def local(self) -> Local:
        return self.inner.local()

    def total(self) -> float | None:
        return self.inner.total()

    def max_weight(self, n: int, share: float = 1.0) -> float | None:
        return self.inner.max_weight(n, share)

    def init(self, n_clients: int) -> State:
        return self.inner.init(n_clients)

    def join(self, state: State, n_clients: int) -> State:
        return self.inner.join(state, n_clients)

    def weigh(self, state: State, replies: Replies) -> Decision:
        return self.inner.weigh(state, replies)

    def search(self, replies: Replies, decision: Decision, tried: Trials) -> ServerStep:
        return self.inner.search(replies, decision, tried)

    def guide(self, replies: Replies, decision: Decision) -> Guide:
        return self.inner.guide(replies, decision)

    def server_optimiser(self) -> ServerOptimiser | None:
        return self.inner.server_optimiser()

    def combine(self) -> Combine | None:
        return self.inner.combine()

    def doubts(self, clients: int, participants: int) -> tuple[str, ...]:
        return self.inner.doubts(clients, participants)

    def shown(self) -> tuple[Shown, ...] | None:
        return self.inner.shown()


def named(spec: str, where: str) -> Strategy:
    """The one strategy that a hyper-parameter names, with ; for its commas."""
    from fedmaba import strategies  # which knows those in front of others, too

    found = strategies.parse(spec.replace(";", ","))
    if len(found) > 1:
        raise InputError(f"{where}={spec!r} is a grid: name one strategy")
    return found[0]


@dataclass(frozen=True)
class Robust(Behind):
    """A rule that bounds what one client can do, among clients with another strategy's weights."""

    sees: ClassVar[Changes] = "gram"
    weights: str = field(default="fedavg:weights=uniform", kw_only=True)  # with ; for its commas

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = self.inner
        needs, local = rule.needs(), rule.local()
        if local != Local() or needs.guided:
            raise InputError(
                f"{self.name}: weights={self.weights!r}: it also changes what clients do, and here "
                f"it gives weights alone: choose another, or put the rule behind it, as "
                f"ditto:server={self.name}"
            )
        sees = needs.changes != "none" or needs.first_steps or rule.combine() is not None
        if sees or rule.total() != 1.0:
            raise InputError(
                f"{self.name}: weights={self.weights!r}: a robust rule takes weights that sum to 1 "
                "and need no changes of models: choose fedavg, fedmaba, afl or term"
            )

    @property
    def inner(self) -> Strategy:
        return named(self.weights, f"{self.name}: weights")

    def needs(self) -> Needs:
        return replace(super().needs(), changes=self.sees)

    def combine(self) -> Combine | None:
        return Combine("sum")  # which leaves out changes that are not finite

    def max_weight(self, n: int, share: float = 1.0) -> float | None:
        return None

    def weigh(self, state: State, replies: Replies) -> Decision:
        """The other strategy's weights of all participants, before any is left out."""
        decision = super().weigh(state, replies)
        return decision._replace(coef=np.maximum(decision.coef, FLOOR / len(decision.coef)))


def distances(gram: FloatArray, at: FloatArray) -> FloatArray:
    """How far each of the vectors of a Gram matrix is from their sum with these coefficients."""
    square = gram.diagonal() - 2 * gram @ at + at @ gram @ at
    return np.sqrt(np.maximum(square, 0.0))


def square_distances(gram: FloatArray) -> FloatArray:  # (m, m)
    """The squared distances between the vectors of a Gram matrix."""
    norms = gram.diagonal()
    return np.maximum(norms[:, None] + norms - 2 * gram, 0.0)
