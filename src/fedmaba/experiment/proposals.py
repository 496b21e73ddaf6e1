"""The trials that Optuna proposes for one strategy, the same in every process of a search.

What is proposed and scored is kept in one order. Each process goes through this order with a
sampler of the same seed, so that all of them propose the same next trial.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fedmaba.errors import InputError, installed
from fedmaba.experiment import config

RANGE = re.compile(r"(log:)?(-?[0-9.eE+-]+)\.\.(-?[0-9.eE+-]+)")
Entry = dict[str, Any]  # of the order: a proposal with its row and values, or the value of a trial


class Range(NamedTuple):
    """All numbers between two, to be drawn by a sampler."""

    low: float
    high: float
    log: bool
    whole: bool  # numbers only


def read_range(text: str) -> Range | None:
    """Read `0.01..1`, `log:0.01..1` or `1..5`."""
    match = RANGE.fullmatch(text.strip())
    if not match:
        return None
    with suppress(ValueError):
        low, high = float(match[2]), float(match[3])
        if low < high and math.isfinite(low) and math.isfinite(high) and (low > 0 or not match[1]):
            whole = all(re.fullmatch(r"-?[0-9]+", match[i]) for i in (2, 3))
            return Range(low, high, bool(match[1]), whole)
    raise InputError(f"{text}: write LOW..HIGH or log:LOW..HIGH, as log:0.001..1")


class Proposals:
    """What Optuna has proposed for one strategy, and which of it has a score."""

    def __init__(
        self, number: int, spec: str, rows: Sequence[str], space: Mapping[str, list[Any] | Range]
    ) -> None:
        self.optuna, self.spec, self.rows, self.space = _optuna(), spec, rows, space
        sampler = self.optuna.samplers.TPESampler(seed=number)
        self.study = self.optuna.create_study(sampler=sampler, direction="maximize")
        self.entries: list[Entry] = []
        self.scored: set[int] = set()
        self._trials: list[Any] = []
        self._seen = 0  # entries of the order

    def ask(self) -> Entry:
        """The next proposal."""
        trial = self.study.ask()
        row = trial.suggest_categorical("strategy", list(self.rows))
        values = {name: _suggested(trial, name, some) for name, some in self.space.items()}
        self._trials.append(trial)
        entry = {"strategy": self.spec, "trial": len(self.entries), "row": row, "values": values}
        self.entries.append(entry)
        return entry

    def follow(self, order: Sequence[Entry]) -> None:
        """Go through what is new in the order."""
        for entry in order[self._seen :]:
            if entry["strategy"] == self.spec:
                self._follow(entry)
        self._seen = len(order)

    def _follow(self, entry: Entry) -> None:
        number = entry["trial"]
        if "value" not in entry:
            mine = self.entries[number] if number < len(self.entries) else self.ask()
            if mine != entry:
                raise InputError(
                    f"trial {number + 1} of {self.spec} was proposed as {entry['values']} and now "
                    f"is {mine['values']}: go on with the version of Optuna that began the search"
                )
            return
        self.scored.add(number)
        if entry["value"] is not None:
            self.study.tell(self._trials[number], entry["value"])
        else:
            self.study.tell(self._trials[number], state=self.optuna.trial.TrialState.FAIL)

    def without_score(self) -> list[int]:
        """The numbers of the trials that nobody has finished yet."""
        return [n for n in range(len(self.entries)) if n not in self.scored]


def with_values(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of keys with these values."""
    found = copy.deepcopy(dict(tree))
    for name, value in values.items():
        config.set_key(found, name, value)
    return found


def _suggested(asked: Any, name: str, values: list[Any] | Range) -> Any:
    """The value that a sampler proposes for a key."""
    if not isinstance(values, Range):
        return asked.suggest_categorical(name, values)
    if values.whole:
        return asked.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return asked.suggest_float(name, values.low, values.high, log=values.log)


def _optuna() -> Any:
    with installed("sampler=tpe needs Optuna: pip install 'fedmaba[tune]'"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
