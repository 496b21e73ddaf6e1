"""Local training: every client trains its own model and nobody sends anything.

What a client reaches alone is what a federation has to beat for it.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.base import (
    Decision,
    Local,
    Personal,
    Replies,
    State,
    Strategy,
    size_weights,
)


@dataclass(frozen=True)
class Alone(Strategy):
    """every client alone: its own model, and no federation"""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"
    deploy: ClassVar[str] = "last"

    def local(self) -> Local:
        return Local(personal=Personal(only=True))

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(size_weights(replies), state)
