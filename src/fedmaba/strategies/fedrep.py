"""FedRep: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021.

Differs: the server weighs by training examples, the paper's average is uniform. A client that takes
part for the first time starts from the initial head; in the authors' code from the mean of heads.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedmaba.strategies.base import Local, param
from fedmaba.strategies.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """the client trains its own last layer first, then the others"""

    name: ClassVar[str] = "fedrep"
    title: ClassVar[str] = "FedRep"
    epochs: int = param(10, low=0)  # type: ignore[assignment]  # of the layers that stay

    def local(self) -> Local:
        return replace(super().local(), own_epochs=self.epochs)
