"""Plain averages: by the clients' training examples, or uniform."""

from dataclasses import dataclass
from typing import Literal

from fedmaba.strategies.base import (
    Decision,
    FloatArray,
    Replies,
    State,
    Strategy,
    size_weights,
    uniform_weights,
)


def average_weights(by: Literal["size", "uniform"], replies: Replies) -> FloatArray:
    """(m,) The weight of each participant."""
    return size_weights(replies) if by == "size" else uniform_weights(replies)


def largest_average_weight(by: Literal["size", "uniform"], n: int, share: float) -> float:
    """The largest weight that one of n participants can get, as `Strategy.max_weight` says it."""
    return share if by == "size" else 1.0 / n


@dataclass(frozen=True)
class SizeAverage(Strategy):
    """A server that averages by training examples: what is special is what clients do."""

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return share

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(size_weights(replies), state)
