"""MOON: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021.

Differs: the paper contrasts the outputs of a projection head that it adds to the model; here the
outputs of the model itself are contrasted, or with on=features what a model returns as features,
which may be those of such a head. Before a client's first round its previous model is the
initial one, so in the first round of a run the contrast has no gradient.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmaba.strategies.averaging import SizeAverage
from fedmaba.strategies.base import SERVER, Keep, Local, Objective, param


@dataclass(frozen=True)
class Moon(SizeAverage):
    """clients stay near the server's outputs and away from those of their previous model"""

    name: ClassVar[str] = "moon"
    title: ClassVar[str] = "MOON"
    mu: float = param(1.0, low=0)
    tau: float = param(0.5, above=0)
    on: Literal["outputs", "features"] = "outputs"

    def local(self) -> Local:
        previous = Keep(end=1.0, before=0.0, from_model=True)
        numbers = {"mu": self.mu, "tau": self.tau}
        name = "moon-features" if self.on == "features" else "moon"
        objective = Objective(name, numbers, (SERVER, "previous"))
        return Local(objective=objective, keep={"previous": previous})
