"""A federation: one pooled data set, and which of its examples belong to which client. No torch.

This is all that the simulation gets to see of the data. The lists of examples are flat arrays with
offsets, so that a million clients take three arrays and not three million.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmaba.data import datasets, partition, trees
from fedmaba.data.attack import Attack, Hostile
from fedmaba.data.datasets import Dataset
from fedmaba.data.partition import Split
from fedmaba.errors import InputError

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ClientRows:
    """The examples of each client: client c owns those numbered index[start[c]:start[c + 1]]."""

    index: IntArray  # (total,)
    start: IntArray  # (N+1,)

    @cached_property
    def size(self) -> IntArray:
        """(N,) how many examples each client has."""
        return np.diff(self.start)

    def of(self, client: int) -> IntArray:
        """The numbers of one client's examples."""
        return self.index[self.start[client] : self.start[client + 1]]

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(N,) Mean of the values of each client's examples; nan for a client without any."""
        if not len(self.index):
            return np.full(len(self.size), np.nan)
        total = np.zeros(len(self.size))
        some = self.size > 0
        total[some] = np.add.reduceat(values, self.start[:-1][some])
        out = np.full(len(total), np.nan)
        out[some] = total[some] / self.size[some]
        return out


def _part(lists: tuple[IntArray, ...]) -> ClientRows:
    start = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(rows) for rows in lists], out=start[1:])
    index = np.concatenate(lists) if lists else np.zeros(0, dtype=np.int64)
    return ClientRows(index.astype(np.int64), start)


@dataclass(frozen=True)
class Federation:
    """Clients over a pooled data set."""

    data: Dataset
    split: Split
    hostile: Hostile | None = None  # clients that lie or do harm

    @cached_property
    def train(self) -> ClientRows:
        """The training examples of each client."""
        return _part(self.split.train)

    @cached_property
    def validation(self) -> ClientRows:
        """The validation examples of each client."""
        return _part(self.split.validation)

    @cached_property
    def test(self) -> ClientRows:
        """The test examples of each client."""
        return _part(self.split.test)

    @property
    def n_clients(self) -> int:
        """How many clients there are."""
        return len(self.split.train)

    def check(self) -> None:
        """Refuse a split made by hand that no run can use."""
        n, many = self.n_clients, len(self.data.y)
        taken = np.zeros(many, bool)
        for name in partition.PARTS:
            part: ClientRows = getattr(self, name)
            if len(part.size) != n:
                raise InputError(
                    f"the split has {n} clients, but {len(part.size)} in {name}: give each client "
                    "a part, which may be empty"
                )
            if len(part.index) and not 0 <= part.index.min() <= part.index.max() < many:
                raise InputError(
                    f"the split's {name} names examples outside 0..{many - 1}: name rows of x"
                )
            if taken[part.index].any():
                twice = part.index[np.argmax(taken[part.index])]
                raise InputError(
                    f"the split's {name} names example {twice}, which it names before among those "
                    "for training or validation: put it into one part"
                )
            taken[part.index] = True
        if not n or not self.train.size.all():
            who = (
                f"client {np.argmin(self.train.size)} has no" if n else "there are no clients with"
            )
            raise InputError(f"{who} training examples: leave out clients without any")
        if not len(self.test.index):
            raise InputError("no client has a test example: hold some out")

    def labels(self) -> NDArray[np.int32] | None:
        """(N, C) training examples of each client and class.

        None where that is a huge table, or where targets are no classes.
        """
        n, c = self.n_clients, len(self.data.classes)
        if n * c > 10_000_000 or self.data.task != "classify":
            return None
        owner = np.repeat(np.arange(n), self.train.size)
        flat = np.bincount(owner * c + self.data.y[self.train.index], minlength=n * c)
        return flat.reshape(n, c).astype(np.int32)

    def client_names(self) -> tuple[str, ...]:
        """The names that the data give the clients, where each client owns what the data say."""
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
        if data.task != "classify":
            partition.refuse_by_label(spec, data.target.in_words())
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
        x: Any,
        y: ArrayLike,
        client: ArrayLike,
        seed: int = 0,
        validation: float = 0.0,
        task: str | None = None,
    ) -> Federation:
        """Your own examples with their owners; a fifth of each client's are its test examples."""
        data = datasets.from_arrays(x, y, client, task=task)
        return cls.make(data, "given", seed=seed, test="local", validation=validation)


def attacked(
    federations: dict[int, Federation], attack: Attack, share: float
) -> dict[int, Federation]:
    """The same federations, by seed, with a share of each one's clients hostile."""
    data = next(iter(federations.values())).data
    if attack.flip and data.task != "classify":
        raise InputError(
            f"attack labels=flip, but the targets are {data.target.in_words()} (task "
            f"{data.task}): only classes can be flipped; choose another attack, as update=-1"
        )
    out = {
        seed: _without_tests(fed, Hostile.draw(attack, share, fed.n_clients, seed))
        for seed, fed in federations.items()
    }
    return _flipped(out) if attack.flip else out


def _without_tests(fed: Federation, hostile: Hostile) -> Federation:
    none = np.zeros(0, np.int64)
    kept = {
        part: tuple(none if lies else rows for rows, lies in zip(lists, hostile.who, strict=True))
        for part, lists in (("validation", fed.split.validation), ("test", fed.split.test))
    }
    return replace(fed, split=replace(fed.split, **kept), hostile=hostile)


def _flipped(federations: dict[int, Federation]) -> dict[int, Federation]:
    """Give hostile clients copies of their training examples with flipped labels."""
    data = next(iter(federations.values())).data
    taken = [
        rows
        for fed in federations.values()
        if fed.hostile is not None
        for rows, lies in zip(fed.split.train, fed.hostile.who, strict=True)
        if lies
    ]
    copied = np.unique(np.concatenate(taken))
    more = replace(
        data,
        x=trees.mapped(lambda v: np.concatenate([v, v[copied]]), data.x),
        y=np.concatenate([data.y, len(data.classes) - 1 - data.y[copied]]),
        client=None if data.client is None else np.append(data.client, data.client[copied]),
    )
    out = {}
    for seed, fed in federations.items():
        assert fed.hostile is not None
        train = tuple(
            len(data.y) + np.searchsorted(copied, rows) if lies else rows
            for rows, lies in zip(fed.split.train, fed.hostile.who, strict=True)
        )
        out[seed] = replace(fed, data=more, split=replace(fed.split, train=train))
    return out
