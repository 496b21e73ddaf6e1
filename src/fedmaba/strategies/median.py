"""Coordinate-wise median: Yin, Chen, Kannan, Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018.

Differs: the paper takes medians of gradients; here clients take as many local steps as the run
says, and the median is that of their model changes.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.base import Combine, Decision, Replies, State, Strategy, uniform_weights


@dataclass(frozen=True)
class Median(Strategy):
    """the middle of the clients' changes, weight by weight of the model"""

    name: ClassVar[str] = "median"
    title: ClassVar[str] = "Median"

    def combine(self) -> Combine:
        return Combine("median")

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(uniform_weights(replies), state)
