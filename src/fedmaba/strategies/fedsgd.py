"""FedSGD: McMahan et al., AISTATS 2017: one full-batch gradient per client and round."""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.averaging import SizeAverage
from fedmaba.strategies.base import Local


@dataclass(frozen=True)
class FedSGD(SizeAverage):
    """one step on the full-batch gradient of all clients together"""

    name: ClassVar[str] = "fedsgd"
    title: ClassVar[str] = "FedSGD"

    def local(self) -> Local:
        return Local(full_batch=True)
