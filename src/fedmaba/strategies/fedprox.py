"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

Differs: every client does the whole local work; the paper's stragglers with partial work are not
simulated.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.averaging import SizeAverage
from fedmaba.strategies.base import Local, param


@dataclass(frozen=True)
class FedProx(SizeAverage):
    """FedAvg with a proximal term mu/2 |w - w_server|^2 in each local step"""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    mu: float = param(0.1, low=0)

    def local(self) -> Local:
        return Local(prox=self.mu)
