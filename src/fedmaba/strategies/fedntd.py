"""FedNTD: Lee, Jeong, Shin, Bae, Yun, "Preservation of the Global Knowledge by Not-True
Distillation in Federated Learning", NeurIPS 2022.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.averaging import SizeAverage
from fedmaba.strategies.base import SERVER, Local, Objective, param


@dataclass(frozen=True)
class FedNTD(SizeAverage):
    """clients keep what the server's model says of the classes that an example is not of"""

    name: ClassVar[str] = "fedntd"
    title: ClassVar[str] = "FedNTD"
    beta: float = param(1.0, low=0)
    tau: float = param(1.0, above=0)

    def local(self) -> Local:
        return Local(objective=Objective("fedntd", {"beta": self.beta, "tau": self.tau}, (SERVER,)))
