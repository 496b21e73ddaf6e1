"""FedPer: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization
Layers", arXiv:1912.00818, 2019.

Differs: the layers that stay are named, and the last one is usual; the paper counts them from the
end of its networks.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.layer_names import patterns
from fedmaba.strategies.averaging import SizeAverage
from fedmaba.strategies.base import Local


@dataclass(frozen=True)
class FedPer(SizeAverage):
    """the last layer stays with the client, and is trained together with the others"""

    name: ClassVar[str] = "fedper"
    title: ClassVar[str] = "FedPer"
    layers: str = "last"  # patterns of their weights' names, joined by +

    def __post_init__(self) -> None:
        super().__post_init__()
        self.local()  # which refuses layers without a name

    def local(self) -> Local:
        return Local(own_layers=patterns(self.layers))
