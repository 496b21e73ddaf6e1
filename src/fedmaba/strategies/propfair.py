"""PropFair: Zhang et al., "Proportional Fairness in Federated Learning", TMLR 2023.

Clients minimise -log(M - loss), continued below epsilon; the server averages.
below="tangent" is the paper's continuation (slope 1/epsilon); below="scaled" is the public code's
default (slope 1/M), which takes small steps where the loss is large. With M = epsilon only the
continuation is ever used.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmaba.strategies.averaging import SizeAverage
from fedmaba.strategies.base import Local, Objective, param


@dataclass(frozen=True)
class PropFair(SizeAverage):
    """FedAvg of clients that minimise -log(M - loss)"""

    name: ClassVar[str] = "propfair"
    title: ClassVar[str] = "PropFair"
    M: float = param(5.0, above=0)
    epsilon: float = param(0.2, above=0)
    below: Literal["tangent", "scaled"] = "tangent"

    def local(self) -> Local:
        slope = min(1.0 / (self.epsilon if self.below == "tangent" else self.M), 1e30)  # float32
        return Local(
            objective=Objective("propfair", {"M": self.M, "epsilon": self.epsilon, "slope": slope})
        )
