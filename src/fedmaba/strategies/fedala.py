"""FedALA: Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for
Personalized Federated Learning", AAAI 2023.

Before a client trains, it goes from its last model towards the server's, each weight of the layers
named at its own share of the way, which the client learns by gradient steps and keeps.
Differs: the paper learns the shares on a random part of the client's examples, and in its first
round until they settle; here by `steps` steps on the round's first minibatches in every round. Its
absent clients go to the server's model in every round; here those that take part do.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.layer_names import patterns
from fedmaba.strategies.averaging import SizeAverage
from fedmaba.strategies.base import Local, Second, param


@dataclass(frozen=True)
class FedALA(SizeAverage):
    """training starts between the client's last model and the server's, learned for each weight"""

    name: ClassVar[str] = "fedala"
    title: ClassVar[str] = "FedALA"
    layers: str = "last"  # patterns of their weights' names, joined by +
    steps: int = param(10, low=1)  # type: ignore[assignment]  # on the shares, in a round
    eta: float = param(1.0, low=0)  # size of these steps

    def __post_init__(self) -> None:
        super().__post_init__()
        self.local()  # which refuses layers without a name

    def local(self) -> Local:
        learned = Second("between", self.steps, self.eta, layers=patterns(self.layers))
        return Local(second=learned)
