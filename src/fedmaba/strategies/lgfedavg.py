"""LG-FedAvg: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act
Globally: Federated Learning with Local and Global Representations", arXiv:2001.01523, 2020.

Differs: the paper's experiments begin with a model that FedAvg has trained; here all begins with
the initial one, unless --init gives another. The server's copy of the local layers stays as it was
at the beginning.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.fedper import FedPer


@dataclass(frozen=True)
class LGFedAvg(FedPer):
    """all layers but the last stay with the client"""

    name: ClassVar[str] = "lgfedavg"
    title: ClassVar[str] = "LG-FedAvg"
    layers: str = "!last"
