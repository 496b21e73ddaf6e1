"""A federation: one pooled data set, and which of its examples belong to which client. No torch.

This is all that the simulation gets to see of the data. The lists of examples are flat arrays with
offsets, so that a million clients take three arrays and not three million.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmaba.data import datasets, forms, frames, partition, questions, tables, trees
from fedmaba.data.arrays import lost_by_float32
from fedmaba.data.attack import Attack, Hostile
from fedmaba.data.dataset import Dataset
from fedmaba.data.partition import Split
from fedmaba.errors import InputError, unknown

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ClientRows:
    """The examples of each client: client c owns those numbered index[start[c]:start[c + 1]]."""

    index: IntArray  # (total,)
    start: IntArray  # (N+1,)

    def __repr__(self) -> str:
        return f"ClientRows({len(self.index):,} examples of {len(self.size):,} clients)"

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


class Division(NamedTuple):
    """How examples are divided over clients."""

    spec: str = "given"
    clients: int | None = None
    # It is official or local; None means official where there is such a part.
    test: str | None = None
    validation: float = 0.0
    min_examples: int = 0


class Kinds(NamedTuple):
    """Kinds of clients, such as how much of a model they hold."""

    names: tuple[str, ...]
    of: IntArray  # (N,)


class Origin(NamedTuple):
    """What a federation was made of, so that another seed can divide it anew."""

    data: Dataset
    how: Division


@dataclass(frozen=True)
class Federation:
    """Clients over a pooled data set."""

    data: Dataset
    split: Split
    hostile: Hostile | None = None  # clients that lie or do harm
    origin: Origin | None = None  # None: it was split by hand
    # This is the digest of the split before examples were copied, empty if none were.
    divided: str = ""
    kinds: Kinds | None = None  # None: all clients are alike

    def __repr__(self) -> str:
        sizes = [f"{len(getattr(self, part).index):,} {part}" for part in partition.PARTS]
        return f"Federation({self.data.name}: {self.whence()}; examples: {', '.join(sizes)})"

    def whence(self) -> str:
        """How many clients there are, and where they come from."""
        many = f"{self.n_clients:,} client{'s' if self.n_clients != 1 else ''}"
        if self.origin is None:
            return f"{many}, as the split given names them"
        if self.origin.how.spec != "given":
            how = f"made by partition {self.origin.how.spec}"
            return f"{many}, {how}" + ": the data name none" * (self.data.client is None)
        column = self.data.client_column
        return f"{many}, named by column {column}" if column else f"{many}, named by the data"

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

    def division_digest(self) -> str:
        """The digest of which example of the data as read went where; the same in any batch."""
        return self.divided or self.split.sha256()

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
        spec: str | None = None,
        clients: int | None = None,
        seed: int = 0,
        test: str | None = "official",
        validation: float = 0.0,
        min_examples: int = 0,
    ) -> Federation:
        """Split a data set over clients; `spec` as in `fedmaba list partitions`.

        Without one the clients are the data's own, or shards:2 makes them where the data name none.
        `min_examples` leaves out the data's own clients that have fewer. `test` says which examples
        test: official or local ones; None: official where the data have such a part.
        """
        if isinstance(data, str):
            data = datasets.load(data)
        how = Division(spec or usual(data), clients, test, validation, min_examples)
        return divide(data, [seed], how)[seed]

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: ArrayLike,
        client: ArrayLike,
        seed: int = 0,
        validation: float = 0.0,
        task: str | None = None,
        *,
        min_examples: int = 0,
        **parts: Any,
    ) -> Federation:
        """Your own examples with their owners.

        Without x_test, y_test and client_test a fifth of each client's examples, drawn by the seed,
        are its test examples. Also x_validation, y_validation and client_validation; group,
        group_validation and group_test; classes and name: see `datasets.from_arrays`.
        """
        known = inspect.signature(datasets.from_arrays).parameters
        for word in parts:
            if word not in known:
                raise unknown("argument of from_arrays", word, known)
        data = datasets.from_arrays(x, y, client, task=task, **parts)
        return cls.make(data, "given", None, seed, None, validation, min_examples)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        label: str | None = None,
        client: str | None = None,
        group: str | None = None,
        split: str | None = None,
        *,
        min_examples: int = 0,
        missing: str | None = None,
        standardise: bool | str | None = None,
        categorical: Sequence[str] = (),
        drop: Sequence[str] = (),
        feature: Sequence[str] = (),
        together: str | None = None,
        text: str | None = None,
        tokeniser: str | None = None,
        tokens: int | None = None,
        seed: int = 0,
        validation: float = 0.0,
        task: str | None = None,
    ) -> Federation:
        """A data frame of pandas or polars, a table of pyarrow or Hugging Face, or columns by name.

        `label`, `client`, `group` and `split` name columns, each looked for under that name
        otherwise; `split` says train, validation or test. All other columns are features, but those
        of `drop`; those of `feature` are, even if they look like something else. Rows that share a
        value of `together`, as a patient's visits, train together or test together. Words become a
        column of 0 and 1 each, also in the columns of `categorical`; gaps are filled (`missing`:
        median, client-median or refuse) and numbers are standardised, both by the training examples
        alone. With a column of `text`, that column alone is read, as at most `tokens` tokens of the
        folder `tokeniser`.
        """
        reading = tables.reading(
            label,
            client,
            group,
            split,
            drop,
            categorical,
            missing,
            standardise,
            feature,
            together,
            text,
            None if tokeniser is None else str(tokeniser),
            tokens,
        )
        table = frames.read_frame(frame, reading)
        if table.reading.client is None:
            near = questions.owner_like(table)
            hint = f"{near!r}, which looks so" if near else ""
            raise InputError(
                f"no column is called client: say which one names the owner: client={hint}"
            )
        data = datasets.from_table(table, "frame", task)
        return cls.make(data, "given", None, seed, None, validation, min_examples)

    @classmethod
    def from_clients(
        cls,
        clients: Any,
        label: str | None = None,
        *,
        min_examples: int = 0,
        seed: int = 0,
        validation: float = 0.0,
        task: str | None = None,
        **columns: Any,
    ) -> Federation:
        """Examples that come client by client: a dict by name, a list, or a FederatedDataset
        or Partitioner of flwr_datasets.

        A client is a pair (x, y), a dict with x, y and perhaps group (of people), x_test, y_test,
        group_test, x_validation, y_validation and group_validation, a torch Dataset of pairs, or a
        table as `from_frame` takes it, with its options. A table may also have one column of images
        and one of labels.
        """
        found = forms.pooled(clients, label)
        if found.columns:
            more: dict[str, Any] = {
                "min_examples": min_examples,
                "seed": seed,
                "validation": validation,
            }
            return cls.from_frame(found.columns, label, "client", task=task, **more, **columns)
        if columns:
            raise InputError(f"{next(iter(columns))} is for tables, but clients have arrays")
        data = datasets.from_arrays(**found.arrays, task=task)
        data = replace(data, steps=(*data.steps, *found.steps))
        return cls.make(data, "given", None, seed, None, validation, min_examples)


def usual(data: Dataset) -> str:
    """The partition where none is asked for: the data's own clients, else shards:2."""
    if data.client is not None:
        return "given"
    if column := data.client_column:
        raise InputError(
            f"{data.name}: column {column} looks as if it named the clients: say --client "
            f"{column}, or --feature {column} if it is a feature and clients are to be made"
        )
    return "shards:2"


def divide(data: Dataset, seeds: Sequence[int], how: Division) -> dict[int, Federation]:
    """A federation for each seed, all of one pooled data set."""
    test = how.test or ("official" if data.n_train < len(data.y) else "local")
    if data.task != "classify":
        partition.refuse_by_label(how.spec, data.target.in_words())
    if how.spec == "given":
        used = _without_small_clients(data, how.min_examples, official=test == "official")
    elif how.min_examples:
        raise InputError(
            f"min_examples={how.min_examples}, but the partition is {how.spec}: it is for the "
            "data's own clients, partition given"
        )
    else:
        used = data
    out = {}
    for seed in seeds:
        split = partition.split(
            used.y,
            used.n_train,
            used.client,
            how.spec,
            how.clients,
            seed,
            test=test,
            validation=how.validation,
            names=used.client_names,
            kept=used.validation,
            unit=used.unit,
        )
        out[seed] = Federation(used, split, origin=Origin(data, how))
    return prepared(out)


def _without_small_clients(data: Dataset, least: int, *, official: bool) -> Dataset:
    """Leave out clients with too few examples, and those without any to train on."""
    if data.client is None:
        if least:
            raise InputError(f"min_examples={least}, but the data have no client column: add one")
        return data
    n, many = len(data.client_names), len(data.y) if official else data.n_train
    owner, trains = data.client, np.arange(len(data.y)) < data.n_train
    if data.validation is not None:
        trains = trains & ~data.validation
    if (owner[: data.n_train] < 0).any():
        return data  # refused by `partition`
    seen = np.bincount(owner[:many][owner[:many] >= 0], minlength=n)
    small = seen < least
    idle = ~small & (np.bincount(owner[trains], minlength=n) == 0)
    gone = small | idle
    if not gone.any():
        return data
    if gone.all():
        raise InputError(
            f"min_examples={least}, but no client of {n} has as many and one to train on; the "
            f"largest has {int(seen.max())}: lower it"
        )
    steps = [
        f"clients: {int(left.sum())} of {n} left out, {why}: {int(seen[left].sum())} examples"
        for left, why in (
            (small, f"with fewer than {least} examples"),
            (idle, "without training examples"),
        )
        if left.any()
    ]
    keep = (owner < 0) | ~gone[owner]
    number = np.append(np.cumsum(~gone) - 1, -1)
    part = [None if v is None else v[keep] for v in (data.group, data.unit, data.validation)]
    return replace(
        data,
        x=trees.mapped(lambda v: v[keep], data.x),
        y=data.y[keep],
        n_train=int(keep[: data.n_train].sum()),
        client=number[owner[keep]],
        client_names=tuple(np.array(data.client_names, object)[~gone]),
        group=part[0],
        unit=part[1],
        validation=part[2],
        steps=(*data.steps, *steps),
    )


def prepared(federations: dict[int, Federation]) -> dict[int, Federation]:
    """Finish inputs that wait for a split: each split gets its own copy, in one pooled data set.

    What fills gaps and standardises is learnt from the training examples of that split alone.
    """
    data = next(iter(federations.values())).data
    how, n = data.preparation, len(data.y)
    if how is None:
        return federations
    place: dict[str, int] = {}  # of the copy of each split
    copies: list[NDArray[np.float32]] = []
    first: dict[int, int] = {}  # example of each seed's copy
    for seed, fed in federations.items():
        digest = fed.split.sha256() if how.learns else ""
        if digest not in place:
            place[digest] = len(copies)
            owner = np.full(n, -1, np.int64)
            for rows in (fed.train, fed.validation, fed.test):
                owner[rows.index] = np.repeat(np.arange(fed.n_clients), rows.size)
            copies.append(how.apply(np.asarray(data.x), np.sort(fed.train.index), owner))
        first[seed] = place[digest] * n
    times = len(copies)
    doubts = data.doubts
    if not how.standardise:
        names = [how.features[i].column for i in how.numbers]
        wide = np.asarray(data.x)[:, how.numbers]
        doubts += lost_by_float32(data.name, wide, names, "leave out --standardise no")
    part = [None if v is None else np.tile(v, times) for v in (data.client, data.group)]
    whole = replace(
        data,
        x=np.concatenate(copies),
        y=np.concatenate([data.y] * times),
        client=part[0],
        group=part[1],
        unit=None,
        validation=None,
        preparation=None,
        steps=(*data.steps, *how.in_words()),
        doubts=doubts,
    )
    return {
        seed: replace(
            fed,
            data=whole,
            split=fed.split.shifted(first[seed]),
            divided=fed.division_digest(),
        )
        for seed, fed in federations.items()
    }


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
    split = replace(fed.split, **kept)
    return replace(fed, split=split, hostile=hostile, divided=fed.division_digest())


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
        group=None if data.group is None else np.append(data.group, data.group[copied]),
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
