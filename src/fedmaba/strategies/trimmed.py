"""Coordinate-wise trimmed mean: Yin, Chen, Kannan, Bartlett, "Byzantine-Robust Distributed
Learning: Towards Optimal Statistical Rates", ICML 2018.

Differs: the paper trims gradients; here clients take as many local steps as the run says, and their
model changes are trimmed. The share is of the participants of a round, not of all clients.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.base import Changes, Combine, param
from fedmaba.strategies.behind import Robust


@dataclass(frozen=True)
class Trimmed(Robust):
    """the mean of the clients' changes without the least and greatest, weight by weight"""

    name: ClassVar[str] = "trimmed"
    title: ClassVar[str] = "Trimmed mean"
    sees: ClassVar[Changes] = "none"
    share: float = param(0.1, low=0, high=0.49)  # beta: left out at each end

    def combine(self) -> Combine:
        rule = "trimmed" if self.weights == Robust.weights else "weighted_trimmed"
        return Combine(rule, {"share": self.share})
