"""How often this site trained, and what that cost its examples, by its own count. No torch.

The server counts, too, and says in each message how often it counted this site before. The larger
number holds: so a copy of this file that was restored gives no round and no epsilon back, unless
the server's count was restored with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmaba.deploy.operate.policy import Policy
from fedmaba.errors import InputError
from fedmaba.privacy import accounting
from fedmaba.results import files, run_folder

LEDGER = "ledger.json"
REMEDY = "fix it; this site answers nothing that it cannot count"


@dataclass(frozen=True)
class Count:
    """How many rounds, by federation, its noise and its delta; and what the newest round added."""

    by_federation: Mapping[str, int]
    behind: int = 0  # rounds that the server knew of and this site did not

    @property
    def rounds(self) -> int:
        return sum(self.by_federation.values())

    @property
    def private(self) -> bool:
        """Whether any of these federations states its noise."""
        return any(_terms(key)[0] for key in self.by_federation)

    def epsilon(self) -> float:
        """What the examples have cost; what several federations cost adds up."""
        spent = 0.0
        for key, rounds in self.by_federation.items():
            noise, delta = _terms(key)
            if noise:
                spent += accounting.spent_epsilon(noise, rounds, delta)
        return spent


class Ledger:
    """The counts of one site, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / LEDGER

    def take(self, terms: Mapping[str, Any], policy: Policy) -> Count:
        """Count one more round before it is answered; Forbidden where the policy ends."""
        with files.writing(self.folder, REMEDY):
            self.folder.mkdir(mode=0o700, exist_ok=True)
        lock = self.folder / "lock"
        with files.writing(lock, REMEDY), files.open_to_append(lock, private=True) as held:
            files.wait_for_lock(held.fileno())
            known = self._read()
            noise, told = terms.get("noise") or [], terms.get("taken")
            key = json.dumps([str(terms.get("federation")), noise, terms.get("delta")])
            mine = known.get(key, 0)
            there = told if isinstance(told, int) and not isinstance(told, bool) else 0
            found = known | {key: max(mine, there) + 1}
            count = Count(found, max(0, there - mine))
            policy.check_rounds(count.rounds)
            if policy.epsilon is not None:
                policy.check_cost(count.epsilon())
            files.write(self.file, json.dumps(found).encode(), remedy=REMEDY, private=True)
            return count

    def now(self) -> Count:
        return Count(self._read())

    def _read(self) -> dict[str, int]:
        if not files.exists(self.file):
            return {}
        with run_folder.reading(self.file, "restore it from a backup"):
            found = files.read_json(self.file)
        if not isinstance(found, dict) or not all(type(n) is int for n in found.values()):
            raise InputError(f"{self.file} is no ledger: restore it from a backup")
        return found


def _terms(key: str) -> tuple[tuple[float, ...], float]:
    _, noise, delta = json.loads(key)
    return tuple(map(float, noise)), float(delta or 0)
