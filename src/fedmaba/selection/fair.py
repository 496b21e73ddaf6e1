"""Fair quotas: each client is asked equally often over time, as far as it is there."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.errors import InputError
from fedmaba.selection.base import FloatArray, IntArray, Present, Selection
from fedmaba.strategies.base import State, param


@dataclass(frozen=True)
class Fair(Selection):
    """those who were asked least often so far; of equals, some are drawn"""

    name: ClassVar[str] = "fair"
    # In at least this share of the rounds each client must be asked; only whether that is possible
    # is looked at, because the rule is the same.
    least: float = param(0.0, low=0, high=1)

    def check(self, many: int, chance: FloatArray) -> None:
        n, rarest = int(np.isfinite(chance).sum()), int(np.nanargmin(chance))
        if many < self.least * n:
            raise InputError(
                f"fair: least={self.least:g} of the rounds for {n} clients is more than "
                f"{many} a round: raise --participants, or lower it to {many / n:g}"
            )
        if chance[rarest] < self.least:
            raise InputError(
                f"fair: least={self.least:g} of the rounds, but client {rarest} is there in "
                f"{chance[rarest]:.3g} of them: lower it, or raise --available"
            )

    def choose(self, state: State, seen: Present) -> IntArray:
        order = np.lexsort((seen.random, seen.asked))
        return np.sort(order[: seen.many])
