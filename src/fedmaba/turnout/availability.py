"""Who is there in a round: a function of seed, round and client. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedmaba import rng
from fedmaba.data.federation import Federation
from fedmaba.errors import InputError
from fedmaba.turnout import words
from fedmaba.turnout.words import FloatArray, IntArray

By = Literal["", "size", "label", "group"]
AVAILABLE = "write always, p=0.5, p=0.2..0.9, cyclic:24 or a .csv file"


@dataclass(frozen=True)
class Availability:
    """When clients are there: with a chance, in turns, or as a table says."""

    kind: Literal["always", "p", "cyclic", "file"] = "always"
    low: float = 1.0
    high: float = 1.0
    period: int = 1
    by: By = ""  #               what decides the chance, or the turn, instead of the seed
    rows: words.Rows = ()  #     client, from, to: rounds from 1, both ends among them

    @classmethod
    def parse(cls, text: str) -> Availability:
        """Read `always`, `p=0.2..0.9,by=label`, `cyclic:24,share=0.5,by=size` or `file.csv`."""
        if text == "always":
            return cls()
        if text.endswith(".csv"):
            rows = words.table("available", text, ("client", "from", "to"))
            for _, first, last in rows:
                if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
                    raise InputError(
                        f"available={text}: from {first!r} to {last!r}: give whole rounds from 1, "
                        "the first one first"
                    )
            return cls("file", rows=rows)
        head, _, rest = text.partition(",")
        if head.startswith("p="):
            told = words.pairs("available", rest, ("by",))
            low, dots, high = head[2:].partition("..")
            rule = "give chances from 0 to 1, as p=0.2..0.9"
            least, most = (
                words.number("available", v, rule, 0, 1) for v in (low, high if dots else low)
            )
            if told and ".." not in text:
                raise InputError(
                    f"available={text!r}: by says who has which chance, and there is one: write a "
                    "range, as p=0.2..0.9, or leave out by"
                )
            return cls("p", least, most, by=_by(told))
        if head.startswith("cyclic:"):
            told = words.pairs("available", rest, ("by", "share"))
            length = head[7:]
            if not length.isdecimal() or not 2 <= int(length) <= 10**6:
                raise InputError(f"available={text!r}: cyclic:K has K rounds, from 2 to 1,000,000")
            share = words.number("available", told.get("share", "0.5"), "share is 0 to 1", 0, 1)
            return cls("cyclic", share, share, int(length), _by(told))
        raise InputError(f"available={text!r}: {AVAILABLE}")

    def of(self, seed: int, fed: Federation) -> Presence:
        """When the clients of a federation are there."""
        n = fed.n_clients
        place = words.in_blocks(lambda client: words.unit(rng.key(seed, "chance", client)), n)
        if self.by:
            place = (np.argsort(np.argsort(trait(fed, self.by), kind="stable")) + 0.5) / n
        if self.kind == "p":
            chance = self.low + (self.high - self.low) * place
            return Presence(self.kind, seed, chance)
        if self.kind == "cyclic":
            there = int(np.ceil(self.low * self.period))
            phase = (place * self.period).astype(np.int64)
            return Presence(self.kind, seed, np.full(n, there / self.period), self.period, phase)
        if self.kind == "file":
            listed, first, last = zip(*self.rows, strict=True)
            spans = np.array([first, last]).astype(np.int64) - 1
            who = words.clients_of("available", listed, n, fed.client_names())
            return Presence(self.kind, seed, _share_of_rounds(n, who, spans), 1, who, spans)
        return Presence(self.kind, seed, np.ones(n))


def _by(told: dict[str, str]) -> By:
    by = told.get("by", "")
    if by not in get_args(By):
        raise InputError(f"available: by={by!r}: choose one of size, label, group")
    return by  # type: ignore[return-value]


def _share_of_rounds(n: int, who: IntArray, spans: IntArray) -> FloatArray:
    """(N,) in which share of the rounds up to the table's last one each client is there."""
    rounds = np.zeros(n)
    order = np.lexsort((spans[0], who))
    reached = dict[int, int]()
    for k in order:  # spans may overlap
        c, (first, last) = int(who[k]), spans[:, k]
        begin = max(int(first), reached.get(c, 0))
        rounds[c] += max(0, int(last) + 1 - begin)
        reached[c] = max(reached.get(c, 0), int(last) + 1)
    share: FloatArray = rounds / (spans[1].max() + 1)
    return share


@dataclass(frozen=True)
class Presence:
    """When each client of one federation is there."""

    kind: str
    seed: int
    chance: FloatArray  # (N,)   share of the rounds in which it is there
    period: int = 1
    phase: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))  # or rows' clients
    spans: IntArray = field(default_factory=lambda: np.zeros((2, 0), np.int64))

    def __call__(self, t: int) -> NDArray[np.int64]:
        """The clients that are there in round t, from 0, in order."""
        n = len(self.chance)
        if self.kind == "p":
            return words.in_blocks(lambda client: self._by_chance(t, client), n)
        if self.kind == "cyclic":
            turn = (t + self.phase) % self.period
            return np.flatnonzero(turn < self.chance * self.period)
        if self.kind == "file":
            inside = (self.spans[0] <= t) & (t <= self.spans[1])
            return np.unique(self.phase[inside])
        return np.arange(n)

    def _by_chance(self, t: int, client: IntArray) -> IntArray:
        drawn = words.unit(rng.key(self.seed, "there", t, client))
        return client[drawn < self.chance[client]]


def trait(fed: Federation, by: By) -> FloatArray:  # (N,)
    """What clients are ranked by: their training examples, or how common these are.

    The classes, or groups, are put in the order of how many training examples each has, the first
    of equals first. A client's number is the mean place of its examples, counted from the end.
    """
    if by == "size":
        return fed.train.size.astype(np.float64)
    values = fed.data.y if by == "label" else fed.data.group
    if values is None or (by == "label" and fed.data.task != "classify"):
        what = "classes" if by == "label" else "group column"
        raise InputError(f"available: by={by}, but {fed.data.name} has no {what}: choose by=size")
    known: IntArray = np.asarray(values)[fed.train.index]
    count = np.bincount(known)
    place = np.empty(len(count), np.int64)
    place[np.argsort(-count, kind="stable")] = np.arange(len(count))
    owner = np.repeat(np.arange(fed.n_clients), fed.train.size)
    total = np.bincount(owner, place[known].astype(np.float64), fed.n_clients)
    place_of: FloatArray = -total / fed.train.size
    return place_of
