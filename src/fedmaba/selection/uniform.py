"""Every client that is there is as likely to be asked as any other."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.selection.base import IntArray, Present, Selection
from fedmaba.strategies.base import State


@dataclass(frozen=True)
class Uniform(Selection):
    """all that are there alike, drawn anew in each round"""

    name: ClassVar[str] = "uniform"

    def choose(self, state: State, seen: Present) -> IntArray:
        if seen.many == len(seen.client):
            return np.arange(seen.many)
        return np.sort(np.argpartition(seen.random, seen.many)[: seen.many])
