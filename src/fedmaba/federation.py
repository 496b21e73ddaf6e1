"""A federation: one pooled data set and, per client, which of its rows are whose. No torch here.

The only hand-over from data to engine. Index lists are kept flat with offsets, so that a million
clients are three arrays and not three million.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmaba import datasets, partition
from fedmaba.attack import Hostile
from fedmaba.datasets import Dataset
from fedmaba.partition import Split

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Rows of the pool by client: client c owns index[start[c]:start[c + 1]]."""

    index: IntArray  # (total,)
    start: IntArray  # (N+1,)

    @cached_property
    def size(self) -> IntArray:
        """(N,) how many examples each client has."""
        return np.diff(self.start)

    def of(self, client: int) -> IntArray:
        """One client's rows."""
        return self.index[self.start[client] : self.start[client + 1]]

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(N,) mean per client of a value per entry of `index`; nan where it has none."""
        if not len(self.index):
            return np.full(len(self.size), np.nan)
        total = np.zeros(len(self.size))
        some = self.size > 0
        total[some] = np.add.reduceat(values, self.start[:-1][some])
        out = np.full(len(total), np.nan)
        out[some] = total[some] / self.size[some]
        return out


def _part(lists: tuple[IntArray, ...]) -> Part:
    start = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(rows) for rows in lists], out=start[1:])
    index = np.concatenate(lists) if lists else np.zeros(0, dtype=np.int64)
    return Part(index.astype(np.int64), start)


@dataclass(frozen=True)
class Federation:
    """Clients over a pooled data set."""

    data: Dataset
    split: Split
    hostile: Hostile | None = None  # clients that lie or do harm

    @cached_property
    def train(self) -> Part:
        return _part(self.split.train)

    @cached_property
    def validation(self) -> Part:
        return _part(self.split.validation)

    @cached_property
    def test(self) -> Part:
        return _part(self.split.test)

    @property
    def n_clients(self) -> int:
        return len(self.split.train)

    def labels(self) -> NDArray[np.int32] | None:
        """(N, C) training examples of each client and class; None where that is a huge table."""
        n, c = self.n_clients, len(self.data.classes)
        if n * c > 10_000_000:
            return None
        owner = np.repeat(np.arange(n), self.train.size)
        flat = np.bincount(owner * c + self.data.y[self.train.index], minlength=n * c)
        return flat.reshape(n, c).astype(np.int32)

    def client_names(self) -> tuple[str, ...]:
        """The data's own names of the clients, where the partition is the data's own."""
        names, owner = self.data.client_names, self.data.client
        if owner is None or len(names) != self.n_clients or len(names) > 100_000:
            return ()
        own = np.repeat(np.arange(self.n_clients), self.train.size)
        return names if np.array_equal(owner[self.train.index], own) else ()

    @classmethod
    def make(
        cls,
        data: Dataset | str,
        spec: str = "shards:2",
        clients: int | None = None,
        seed: int = 0,
        test: str = "official",
        validation: float = 0.0,
    ) -> Federation:
        """Split a data set over clients; `spec` as in `fedmaba list partitions`."""
        if isinstance(data, str):
            data = datasets.load(data)
        split = partition.split(
            data.y,
            data.n_train,
            data.client,
            spec,
            clients,
            seed,
            test=test,
            validation=validation,
            names=data.client_names,
        )
        return cls(data, split)

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        client: ArrayLike,
        seed: int = 0,
        validation: float = 0.0,
    ) -> Federation:
        """One's own examples with their owners; a fifth of each client's are its test examples."""
        data = datasets.from_arrays(x, y, client)
        return cls.make(data, "given", seed=seed, test="local", validation=validation)
