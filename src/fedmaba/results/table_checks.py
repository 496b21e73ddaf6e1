"""Whether the tables of a run can belong together, and hold numbers that a run writes. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedmaba.results.groups import Groups

SERVER_MODELS: tuple[Literal["deployed", "last"], ...] = ("deployed", "last")  # which every run has
_PER_ROUND = ("round", "client", "weight", "reported_loss")
HEARD = 2  # in turnout.answer: not asked -1, its answer never came 0, was late 1, counted 2
# They say how many examples of a kind each client has.
SIZES = ("test_size", "validation_size", "unseen_size")
_MORE = ("info.", "turnout.")  # of each round: what strategies tell, and who took part
_TURNOUT = ("turnout.answer", "turnout.down", "turnout.up")
_INTEGERS = (*SIZES, *_TURNOUT, "round", "evaluated", "client")


def check_counts(name: str, counts: NDArray[Any], told: Groups) -> None:
    """Refuse counts that are not of these groups, or that count nothing."""
    if counts.shape[2] != len(told.names) or (counts < 0).any():
        raise ValueError(f"{name} holds no counts of {len(told.names)} groups")


class Table(Protocol):
    """An array, or what a file says about one."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def check_shapes(tables: Mapping[str, Table]) -> None:
    """Refuse tables that cannot belong together, judged by their types and shapes."""
    if "test_size" not in tables:
        raise ValueError("it lacks 'test_size'")
    seen = {n: t for n, t in tables.items() if n in _PER_ROUND or n.startswith(_MORE)}
    scored = {
        n: t for n, t in tables.items() if n not in seen and n.endswith((".accuracy", ".loss"))
    }
    if scored or "evaluated" in tables:
        pairs = [f"{model}.{what}" for model in SERVER_MODELS for what in ("accuracy", "loss")]
        _require(tables, "evaluated", *pairs)
    if seen:
        _require(tables, "round", "client", "weight")
    one = {*SIZES, "round", "evaluated", "turnout.clock"}
    one |= {n for n in seen if n.startswith("info.")}
    two = {n for n in seen if n not in one} | scored.keys()
    for name, table in tables.items():
        kinds = "iu" if name in _INTEGERS else "f" if name in two else "iuf"
        dimensions = 1 if name in one else 2 if name in two else max(1, len(table.shape))
        if table.dtype.kind not in kinds or len(table.shape) != dimensions:
            raise ValueError(f"{name} is {table.dtype} of shape {table.shape}")
    for group, name in ((seen, "round"), (scored, "evaluated")):
        for other, table in group.items():
            if table.shape[0] != tables[name].shape[0]:
                raise ValueError(f"{other} has {table.shape[0]} rows, {name} {tables[name].shape}")
    for name, table in tables.items():
        if name.endswith(".groups"):
            _require(tables, "evaluated")
            shape, rows, many = table.shape, tables["evaluated"], tables["test_size"]
            fits = len(shape) == 4 and shape[:2] == (*rows.shape, *many.shape)
            if table.dtype.kind not in "iu" or not fits or shape[3] not in (2, 4):
                raise ValueError(f"{name} is {table.dtype} of shape {shape}")
    wide = {**dict.fromkeys(scored, "test_size"), **{n: "client" for n in seen if n in two}}
    wide |= {name: "test_size" for name in SIZES if name in tables}
    for name, other in wide.items():
        if tables[name].shape[-1] != tables[other].shape[-1]:
            raise ValueError(f"{name} and {other} are of different width")


def _require(tables: Mapping[str, Table], *names: str) -> None:
    for name in names:
        if name not in tables:
            raise ValueError(f"it lacks {name!r}")


def check_values(tables: Mapping[str, NDArray[Any]]) -> None:
    """Refuse numbers that a run never writes."""
    for name in SIZES:
        least = -1 if name == "unseen_size" else 0  # -1: a client that takes part
        if name in tables and ((tables[name] < least).any() or not tables[name].any()):
            raise ValueError(f"{name} holds no client with an example, or negative numbers")
    for name in ("round", "evaluated"):
        if name in tables and not is_increasing(tables[name]):
            raise ValueError(f"{name} does not count upwards from 1 or more")
    client = tables.get("client", np.zeros((0, 1), np.int64))
    if client.size and not 0 <= client.min() <= client.max() < len(tables["test_size"]):
        raise ValueError("client holds a number that no client has")
    for name in tables:  # A client without test examples has an accuracy of nan.
        lost = np.isinf if name.endswith(".accuracy") else lambda table: ~np.isfinite(table)
        told = tables[name]
        if name in ("weight", "reported_loss") and "turnout.answer" in tables:
            told = told[tables["turnout.answer"] == HEARD]  # of others nothing is known
        if name.endswith((".accuracy", "weight", "reported_loss")) and lost(told).any():
            raise ValueError(f"{name} is not finite")


def is_increasing(rounds: NDArray[Any]) -> bool:
    """Whether these numbers of rounds only increase."""
    return not len(rounds) or bool(rounds[0] >= 1 and (rounds[1:] > rounds[:-1]).all())
