"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020.

Differs: with Adam, which the paper does not cover, each local step counts as one.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.strategies.base import (
    Decision,
    Needs,
    Replies,
    State,
    Strategy,
    require_finite,
    size_weights,
)


@dataclass(frozen=True)
class FedNova(Strategy):
    """changes are divided by the number of local steps before they are averaged"""

    name: ClassVar[str] = "fednova"
    title: ClassVar[str] = "FedNova"

    def needs(self) -> Needs:
        return Needs(steps=True)

    def total(self) -> None:
        return None

    def weigh(self, state: State, replies: Replies) -> Decision:
        share, steps = size_weights(replies), require_finite(replies.steps, "number of steps")
        effective = float(share @ steps)  # tau_eff
        return Decision(effective * share / steps, state, {"tau": effective})
