"""Clients with more training examples are asked more often."""

from dataclasses import dataclass
from typing import ClassVar

from fedmaba.selection.base import IntArray, Present, Selection, drawn_by_size
from fedmaba.strategies.base import State


@dataclass(frozen=True)
class BySize(Selection):
    """drawn without replacement, each next one in proportion to its training examples"""

    name: ClassVar[str] = "size"

    def choose(self, state: State, seen: Present) -> IntArray:
        return drawn_by_size(seen, seen.many)
