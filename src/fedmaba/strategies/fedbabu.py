"""FedBABU: Oh, Kim, Yun, "FedBABU: Toward Enhanced Representation for Federated Image
Classification", ICLR 2022. Its personal models are made by fine-tuning: --finetune.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedmaba.strategies.base import Local
from fedmaba.strategies.fedper import FedPer


@dataclass(frozen=True)
class FedBABU(FedPer):
    """the last layer stays as it was initialised, for all clients"""

    name: ClassVar[str] = "fedbabu"
    title: ClassVar[str] = "FedBABU"

    def local(self) -> Local:
        return replace(super().local(), own_epochs=0)
