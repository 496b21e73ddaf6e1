"""Another value in every field of every file of every kind of folder, then every command on it."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path

from tools.faults import formats, kinds
from tools.faults.cases import Case, play
from tools.faults.common import Say, Tally

KINDS = (*kinds.RUNS, "server", "archive")
FRESH = 200  # one case of so many is a process of its own, as a user starts it
_made: list[Path] = []


def templates(root: Path) -> None:
    kinds.make(root, KINDS)
    _made[:] = [root]


def campaign(count: int, seed: int, say: Say) -> Tally:
    """Values of another type in every field: one line or an answer, never a traceback."""
    return play("types", cases(seed), count, seed, say, templates)


def cases(seed: int) -> Iterator[Case]:
    """Every place with one command, then every place with another, without end."""
    rng = random.Random(seed)
    found = _places()
    rng.shuffle(found)
    turns = [rng.randrange(100) for _ in found]
    turn = 0
    while True:
        for at, (kind, place) in zip(turns, found, strict=True):
            words = kinds.commands(kind, rng)
            chosen = words[(at + turn) % len(words)]
            fresh = "" if chosen[0] == "server" or rng.randrange(FRESH) else "module"
            spoil = functools.partial(_spoil, place)
            yield Case(place.what, kind, chosen, spoil, fresh=fresh)
        turn += 1


def _places() -> list[tuple[str, formats.Place]]:
    """All places of all kinds; of files that are alike, the first."""
    found = []
    for kind in KINDS:
        run = _made[0] / kind / "run"
        alike = set()
        for file in sorted(p for p in run.rglob("*") if p.is_file() and p.suffix):
            sort = (file.parent.name, file.suffix) if file.parent != run else file.name
            if sort not in alike:
                alike.add(sort)
                found += [(kind, place) for place in formats.places(run, file)]
    return found


def _spoil(place: formats.Place, folder: Path) -> None:
    (folder / "run" / place.file).write_bytes(place.content())
