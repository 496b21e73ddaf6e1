"""Ditto: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021. Any other strategy may be its server's rule.

Differs: lambda is one number for all clients; the paper also chooses it by client.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedmaba.errors import InputError
from fedmaba.strategies.base import Local, Personal, Strategy, param
from fedmaba.strategies.behind import Behind, named


@dataclass(frozen=True)
class Ditto(Behind):
    """each client also keeps a model of its own, pulled towards the server's"""

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    lam: float = param(1.0, low=0)
    server: str = "fedavg"  # a strategy as it is written elsewhere, with ; for its commas

    def __post_init__(self) -> None:
        super().__post_init__()
        if (local := self.inner.local()).own_model or local.second is not None:
            raise InputError(
                f"ditto: server={self.server!r}: its clients have models of their own already: "
                "choose a rule such as fedavg or fedmaba"
            )

    @property
    def inner(self) -> Strategy:
        """The strategy that moves the server's model."""
        return named(self.server, "ditto: server")

    def local(self) -> Local:
        return replace(super().local(), personal=Personal(self.lam))
