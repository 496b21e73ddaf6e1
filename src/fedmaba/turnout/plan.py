"""Who takes part in the rounds of a run, and who answers in time, as one record. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba import rng
from fedmaba.data.federation import Federation
from fedmaba.errors import InputError
from fedmaba.selection import Selection, Uniform
from fedmaba.selection import parse as parse_selection
from fedmaba.turnout import words
from fedmaba.turnout.availability import Availability, Presence
from fedmaba.turnout.words import EachClient, Float32Array, FloatArray, IntArray

SPEED = 100.0  # training examples a second, in the middle
BANDWIDTH = 1.0  # megabytes a second, each way, in the middle


@dataclass(frozen=True)
class Turnout:
    """The options about who takes part; each is off by default."""

    available: Availability = Availability()
    select: Selection = Uniform()
    dropout: float = 0.0  #               share of those asked whose answer never comes
    speed: EachClient | None = None  #     training examples a second
    bandwidth: EachClient | None = None  # megabytes a second, each way
    deadline: float | None = None  #      seconds that a server waits
    unseen: float = 0.0  #                clients that take no part at all: a share, or a number
    sums: str = "plain"  #                what is billed: plain sums, or secure ones with masks

    def __post_init__(self) -> None:
        if self.deadline is not None and self.speed is None and self.bandwidth is None:
            raise InputError(
                f"deadline={self.deadline:g}s, but nobody takes any time: add --speed, --bandwidth "
                "or both"
            )

    @classmethod
    def parse(cls, told: Mapping[str, str | None]) -> Turnout | None:
        """The options in words, by their names; None where all are off."""
        given = {name: value for name, value in told.items() if value is not None}
        if not given:
            return None
        readers: dict[str, Callable[[str], Any]] = {
            "available": Availability.parse,
            "select": parse_selection,
            "dropout": _dropout,
            "speed": lambda text: EachClient.parse("speed", text, SPEED),
            "bandwidth": lambda text: EachClient.parse("bandwidth", text, BANDWIDTH),
            "deadline": lambda text: words.seconds("deadline", text),
            "unseen": _unseen,
            "sums": _sums,
        }
        return cls(**{name: readers[name](value) for name, value in given.items()})

    def tables(self) -> dict[str, str]:
        """The digests of the tables that were read, by option."""
        one: dict[str, words.Rows] = {"available": self.available.rows}
        one |= {each.option: each.rows for each in (self.speed, self.bandwidth) if each is not None}
        return {
            f"table of {option}": hashlib.sha256(repr(rows).encode()).hexdigest()
            for option, rows in one.items()
            if rows
        }

    def of(self, seed: int, fed: Federation) -> People:
        """The clients of a federation, as these options see them."""
        n, names = fed.n_clients, fed.client_names() if self.tables() else ()
        speed, bandwidth = (
            None if each is None else each.of(seed, n, names)
            for each in (self.speed, self.bandwidth)
        )
        presence, absent = self.available.of(seed, fed), self.absent(seed, n)
        return People(seed, presence, self.dropout, speed, bandwidth, absent)

    def absent(self, seed: int, n: int) -> NDArray[np.bool_] | None:
        """(N,) which of n clients take no part at all: those of the smallest random numbers."""
        if not self.unseen:
            return None
        many = max(1, round(self.unseen * n)) if self.unseen < 1 else int(self.unseen)
        if many >= n:
            raise InputError(f"unseen={many:,} of {n:,} clients: leave at least one that trains")
        drawn = words.in_blocks(lambda client: words.unit(rng.key(seed, "unseen", client)), n)
        out = np.zeros(n, bool)
        out[np.argsort(drawn, kind="stable")[:many]] = True
        return out


def _dropout(text: str) -> float:
    found = words.number("dropout", text, "give a share from 0 up to, but without, 1, as 10%", 0, 1)
    if found == 1:
        raise InputError(f"dropout={text!r}: nobody would ever answer: give less than 1")
    return found


def _sums(text: str) -> str:
    if text not in ("plain", "secure"):
        raise InputError(f"sums={text!r}: say plain or secure")
    return text


def _unseen(text: str) -> float:
    rule = "give a share of the clients below 1, as 20%, or a whole number of them, as 5"
    found = words.number("unseen", text, rule, 0)
    if found >= 1 and (text.endswith("%") or found != int(found)):
        raise InputError(f"unseen={text!r}: {rule}")
    return found


@dataclass(frozen=True)
class People:
    """The clients of one federation: when they are there, how fast they are, whom they lose."""

    seed: int
    presence: Presence
    dropout: float
    speed: Float32Array | None  # (N,)      training examples a second; None: no time
    bandwidth: Float32Array | None  # (N,)  megabytes a second; None: no time
    absent: NDArray[np.bool_] | None = None  # (N,) who takes no part at all; None: all may

    @property
    def many(self) -> int:
        """How many clients may take part."""
        n = len(self.presence.chance)
        return n if self.absent is None else n - int(self.absent.sum())

    @property
    def chance(self) -> FloatArray:
        """(N,) the share of the rounds in which each client is there; nan if it takes no part."""
        chance = self.presence.chance
        return chance if self.absent is None else np.where(self.absent, np.nan, chance)

    @cached_property
    def _newest(self) -> dict[int, tuple[IntArray, FloatArray]]:
        return {}

    def there(self, t: int) -> tuple[IntArray, FloatArray]:
        """Who is there in round t, and the numbers by which some of them are drawn."""
        if t not in self._newest:  # runs of one seed share a round
            client = self.presence(t)
            if self.absent is not None:
                client = client[~self.absent[client]]
            drawn = words.in_blocks(
                lambda rows: words.unit(rng.key(self.seed, "participants", t, client[rows])),
                len(client),
            )
            self._newest.clear()
            self._newest[t] = client, drawn
        return self._newest[t]

    def lost(self, t: int, client: IntArray) -> NDArray[np.bool_]:
        """Whose answers of round t never come, if these clients are asked."""
        return words.unit(rng.key(self.seed, "dropout", t, client)) < self.dropout

    def seconds(self, client: IntArray, examples: IntArray, sent: IntArray) -> FloatArray:
        """How long clients take to train on so many examples and to receive and send the bytes."""
        took = np.zeros(len(client))
        if self.speed is not None:
            took += examples / self.speed[client].astype(np.float64)
        if self.bandwidth is not None:
            took += sent / (1e6 * self.bandwidth[client].astype(np.float64))
        return took

    @property
    def timed(self) -> bool:
        """Whether anything takes time."""
        return self.speed is not None or self.bandwidth is not None


def fastest(people: People, examples: IntArray, sent: IntArray) -> float:
    """The seconds of the client that takes least, with so many examples (N,) and bytes (N,)."""
    return float(people.seconds(np.arange(len(examples)), examples, sent).min())
