"""Ditto: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021. Any other strategy may be its server's rule.

Differs: lambda is one number for all clients; the paper also chooses it by client.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedmaba.errors import InputError
from fedmaba.strategies.base import (
    Decision,
    Local,
    Needs,
    Personal,
    Replies,
    ServerStep,
    Shown,
    State,
    Strategy,
    Trials,
    param,
)
from fedmaba.strategies.server_optimisers import ServerOptimiser


@dataclass(frozen=True)
class Ditto(Strategy):
    """each client also keeps a model of its own, pulled towards the server's"""

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    lam: float = param(1.0, low=0)
    server: str = "fedavg"  # a strategy as it is written elsewhere, with ; for its commas

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule.local().personal is not None:
            raise InputError(
                f"ditto: server={self.server!r}: its clients have models of their own already: "
                "choose a rule such as fedavg or fedmaba"
            )

    @property
    def rule(self) -> Strategy:
        """The strategy that moves the server's model."""
        return _rule(self.server)

    @property
    def deploy(self) -> str:  # type: ignore[override]
        return self.rule.deploy

    def needs(self) -> Needs:
        return self.rule.needs()

    def local(self) -> Local:
        return replace(self.rule.local(), personal=Personal(self.lam))

    def total(self) -> float | None:
        return self.rule.total()

    def max_weight(self, n: int, share: float = 1.0) -> float | None:
        return self.rule.max_weight(n, share)

    def init(self, n_clients: int) -> State:
        return self.rule.init(n_clients)

    def join(self, state: State, n_clients: int) -> State:
        return self.rule.join(state, n_clients)

    def weigh(self, state: State, replies: Replies) -> Decision:
        return self.rule.weigh(state, replies)

    def search(self, replies: Replies, decision: Decision, tried: Trials) -> ServerStep:
        return self.rule.search(replies, decision, tried)

    def server_optimiser(self) -> ServerOptimiser | None:
        return self.rule.server_optimiser()

    def shown(self) -> tuple[Shown, ...] | None:
        return self.rule.shown()


def _rule(spec: str) -> Strategy:
    from fedmaba import strategies  # which knows Ditto, too

    found = strategies.parse(spec.replace(";", ","))
    if len(found) > 1:
        raise InputError(f"ditto: server={spec!r} is a grid: name one strategy")
    return found[0]
