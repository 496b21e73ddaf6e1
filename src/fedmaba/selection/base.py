"""The contract of a selection: numbers in, clients out.

A server's way to choose whom it asks to train in a round, of the clients that are there. As with a
strategy, fields are its hyper-parameters and methods are pure. Nothing here imports torch, reads a
file or draws a random number: random numbers come with what it sees.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError
from fedmaba.strategies import hyper_parameters
from fedmaba.strategies.base import State, read_only

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Present:
    """The clients that are there in a round; row i is one of them, in client order."""

    round: int
    many: int  #                        how many are to be asked; not more than there are
    n_clients: int  #                   of the whole federation
    client: IntArray  # (c,)
    size: IntArray  # (c,)              their training examples
    asked: IntArray  # (c,)             in how many rounds each was asked to train so far
    random: FloatArray  # (c,)          drawn for this round, from 0 to 1
    loss: FloatArray | None = None  # (c,) at the server's model, nan for those not `polled`

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                object.__setattr__(self, name, read_only(value))


@dataclass(frozen=True)
class Selection:
    """A rule of whom to ask."""

    name: ClassVar[str]
    learns: ClassVar[bool] = False  #   whether `learn` sees the losses of training

    def __new__(cls, *args: Any, **values: Any) -> Self:
        hyper_parameters.require_dataclass(cls, Selection, cls.__qualname__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            try:
                kind = hyper_parameters.field_types(type(self))[f.name]
                kept = hyper_parameters.check_value(f, kind, value)
            except ValueError as rule:
                raise InputError(f"{self.name}: {f.name}={value!r}: {rule}") from None
            object.__setattr__(self, f.name, kept)

    def check(self, many: int, chance: FloatArray) -> None:
        """Refuse what cannot be done with `many` asked in a round, before the first.

        `chance` (N,) is the share of the rounds in which each client is there; nan for those that
        take no part.
        """

    def poll_size(self, many: int) -> int:
        """How many clients at most are asked for their loss before others are asked to train."""
        return 0

    def polled(self, seen: Present) -> IntArray:
        """The rows of those who are asked for their loss at the server's model."""
        return np.zeros(0, np.int64)

    def init(self, n_clients: int) -> State:
        """What is remembered, before the first round."""
        return {}

    def choose(self, state: State, seen: Present) -> IntArray:
        """The rows of those who are asked to train: `seen.many` of them, or fewer."""
        raise NotImplementedError

    def learn(self, state: State, client: IntArray, loss: FloatArray) -> State:
        """What is remembered after a round in which these answered, with a mean training loss."""
        return state


def smallest(values: FloatArray, many: int) -> IntArray:
    """The rows of the smallest values, in order; of equals, those of the first rows."""
    return np.sort(np.argsort(values, kind="stable")[:many])


def drawn_by_size(seen: Present, many: int) -> IntArray:
    """Rows drawn without replacement, each next one in proportion to its training examples."""
    return smallest(-np.log1p(-seen.random) / seen.size, many)
