"""Coordinate-wise median: Yin, Chen, Kannan, Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018.

Differs: the paper takes medians of gradients; here clients take as many local steps as the run
says, and the median is that of their model changes.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.base import Changes, Combine
from fedmaba.strategies.behind import Robust


@dataclass(frozen=True)
class Median(Robust):
    """the middle of the clients' changes, weight by weight of the model"""

    name: ClassVar[str] = "median"
    title: ClassVar[str] = "Median"
    sees: ClassVar[Changes] = "none"

    def combine(self) -> Combine:
        return Combine("median" if self.weights == Robust.weights else "weighted_median")
