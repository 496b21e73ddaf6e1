"""Power-of-Choice: Cho, Wang & Joshi, "Towards Understanding Biased Client Selection in Federated
Learning", AISTATS 2022. Of d candidates, those with the highest loss are asked to train.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.errors import InputError
from fedmaba.selection.base import (
    FloatArray,
    IntArray,
    Present,
    Selection,
    drawn_by_size,
    smallest,
)
from fedmaba.strategies.base import State


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """of d candidates, drawn by size, those with the highest loss at the server's model"""

    name: ClassVar[str] = "power-of-choice"
    d: int = 20

    def check(self, many: int, chance: FloatArray) -> None:
        clients = int(np.isfinite(chance).sum())
        if not many <= self.d <= clients:
            raise InputError(
                f"power-of-choice: d={self.d} candidates for {many} that are asked, of "
                f"{clients} clients: give d from {many} to {clients}"
            )

    def poll_size(self, many: int) -> int:
        return self.d

    def polled(self, seen: Present) -> IntArray:
        return drawn_by_size(seen, self.d)

    def choose(self, state: State, seen: Present) -> IntArray:
        assert seen.loss is not None  # some were polled
        return smallest(-np.nan_to_num(seen.loss, nan=-np.inf), min(seen.many, self.d))
