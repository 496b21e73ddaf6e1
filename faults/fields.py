"""Another value in every field of every file of every kind of folder, then every command on it."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path

from faults import formats, kinds
from faults.cases import Case, turns

KINDS = (*kinds.RUNS, "server", "archive")
FRESH = 200  # one case of so many is a process of its own, as a user starts it


def cases(seed: int, templates: Path) -> Iterator[Case]:
    """Every place with one command, then every place with another, without end."""
    rng = random.Random(seed)
    for turn, (kind, place) in turns(_places(templates), rng):
        words = kinds.commands(kind, rng)
        chosen = words[turn % len(words)]
        fresh = chosen[0] != "server" and not rng.randrange(FRESH)
        yield Case(place.what, kind, chosen, functools.partial(_spoil, place), fresh=fresh)


def _places(templates: Path) -> list[tuple[str, formats.Place]]:
    """All places of all kinds; of files that are alike, the first."""
    found = []
    for kind in KINDS:
        run = templates / kind / "run"
        alike = set()
        for file in sorted(p for p in run.rglob("*") if p.is_file() and p.suffix):
            sort = (file.parent.name, file.suffix) if file.parent != run else file.name
            if sort not in alike:
                alike.add(sort)
                found += [(kind, place) for place in formats.places(run, file)]
    return found


def _spoil(place: formats.Place, folder: Path) -> None:
    (folder / "run" / place.file).write_bytes(place.content())
