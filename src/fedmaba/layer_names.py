"""Which weights of a model stay with the client, by patterns of their names. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from fedmaba.errors import InputError

LAST = "last"  # as a pattern: the weights of the last module


def patterns(words: str) -> tuple[str, ...]:
    """The patterns of weights that are joined by a plus, as in `fc1.*+fc2.*`."""
    found = tuple(words.split("+"))
    if not all(one.strip("! ") for one in found):
        raise InputError(f"own layers {words!r}: name weights, as last or fc1.*+fc2.*")
    return found


def names_kept(pattern: str, names: Sequence[str]) -> set[str]:
    """The names of a model's weights that a pattern fits.

    A pattern is one of `fnmatch`, or `last`: the weights of the last module. After an exclamation
    mark it fits all others.
    """
    if pattern.startswith("!"):
        return {*names} - names_kept(pattern[1:], names)
    if pattern == LAST:
        module = names[-1].rpartition(".")[0]
        return {name for name in names if name.rpartition(".")[0] == module}
    return {name for name in names if fnmatchcase(name, pattern)}
