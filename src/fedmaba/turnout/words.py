"""The words of the options about who takes part, and the tables that they name. No torch."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba import rng
from fedmaba.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Float32Array = NDArray[np.float32]
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
Rows = tuple[tuple[str, ...], ...]
BLOCK = 1 << 15  # clients


def unit(words: NDArray[np.uint64]) -> FloatArray:
    """Random words as numbers from 0 up to, but without, 1."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def in_blocks(of: Callable[[IntArray], NDArray[Any]], n: int) -> NDArray[Any]:
    """What a function gives for the clients 0 to n - 1, without long arrays in between."""
    ends = [*range(0, max(n, 1), BLOCK), n]
    return np.concatenate([of(np.arange(a, b)) for a, b in itertools.pairwise(ends)])


def number(option: str, text: str, rule: str, low: float, high: float = math.inf) -> float:
    """A number between bounds, or the rule it breaks."""
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not low <= found <= high or math.isinf(found):
        raise InputError(f"{option}={text!r}: {rule}")
    return found


def pairs(option: str, text: str, known: Sequence[str]) -> dict[str, str]:
    """`key=value,key=value` as a dict, where each key is known and is given once."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in known or not equals or key in found:
            raise InputError(f"{option}: {part!r}: write {' or '.join(f'{k}=...' for k in known)}")
        found[key] = value
    return found


def table(option: str, path: str, columns: Sequence[str]) -> Rows:
    """The rows of a .csv file with these columns."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            read = csv.DictReader(file)
            rows = [tuple(str(row.get(name) or "") for name in columns) for row in read]
            head = read.fieldnames or []
    except OSError as error:
        raise InputError(f"{option}={path}: {error.strerror}: name a .csv file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{option}={path}: {error}: give a .csv file") from error
    if missing := [name for name in columns if name not in head]:
        raise InputError(f"{option}={path}: no column {missing[0]!r}: give {', '.join(columns)}")
    if not rows:
        raise InputError(f"{option}={path}: it has no rows: give one for each client")
    return tuple(rows)


def clients_of(option: str, listed: Sequence[str], n: int, names: Sequence[str]) -> IntArray:
    """The numbers of clients that a table names, by their names or by numbers from 0."""
    place = {str(i): i for i in range(n)} | {name: i for i, name in enumerate(names)}
    for one in listed:
        if one not in place:
            raise InputError(
                f"{option}: no client {one!r}: give a name of the data's own, or 0 to {n - 1}"
            )
    return np.array([place[one] for one in listed], np.int64)


@dataclass(frozen=True)
class EachClient:
    """A number above 0 for each client: one for all, drawn by the seed, or from a table."""

    option: str
    median: float
    sigma: float = 0.0
    rows: Rows = ()

    @classmethod
    def parse(cls, option: str, text: str, usual: float) -> EachClient:
        """Read `200`, `lognormal:0.5`, `lognormal:0.5,median=200` or `file.csv`."""
        if text.endswith(".csv"):
            rows = table(option, text, ("client", option))
            for _, value in rows:
                number(option, value, "give each client a number above 0", 5e-324)
            return cls(option, usual, rows=rows)
        word, colon, rest = text.partition(":")
        if not colon:
            rule = "write a number above 0, lognormal:0.5 or a .csv file"
            return cls(option, number(option, text, rule, 5e-324))
        if word != "lognormal":
            raise InputError(
                f"{option}={text!r}: write lognormal:0.5,median=200, a number or a .csv"
            )
        sigma, _, more = rest.partition(",")
        told = pairs(option, more, ("median",))
        median = number(option, told.get("median", repr(usual)), "median is above 0", 5e-324)
        return cls(option, median, number(option, sigma, "lognormal:S has S from 0 to 10", 0, 10))

    def of(self, seed: int, n: int, names: Sequence[str]) -> Float32Array:  # (N,)
        """The number of each of n clients."""
        if self.rows:
            out = np.full(n, np.nan, np.float32)
            listed, values = zip(*self.rows, strict=True)
            out[clients_of(self.option, listed, n, names)] = [float(v) for v in values]
            if np.isnan(out).any():
                who = int(np.argmax(np.isnan(out)))
                raise InputError(f"{self.option}: the table has no row for client {who}: add one")
            return out
        if not self.sigma:
            return np.full(n, self.median, np.float32)
        return in_blocks(lambda client: self._drawn(seed, client), n)

    def _drawn(self, seed: int, client: IntArray) -> Float32Array:
        one, two = (unit(rng.key(seed, self.option, client, i)) for i in (0, 1))
        normal = np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * np.pi * two)  # Box and Muller
        out: FloatArray = self.median * np.exp(self.sigma * normal)
        return out.astype(np.float32)


def seconds(option: str, text: str) -> float:
    """A time such as 60s, 2m, 1.5h or 90 in seconds."""
    unit_name = text[-1:] if text[-1:] in SECONDS else ""
    rule = "write a time above 0, as 60s, 2m or 1h"
    try:
        found = number(option, text.removesuffix(unit_name), rule, 5e-324)
    except InputError:
        raise InputError(f"{option}={text!r}: {rule}") from None
    return found * SECONDS.get(unit_name, 1.0)
