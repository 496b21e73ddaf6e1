"""Which weights of a model stay with the client, by patterns of their names. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

LAST = "last"  # as a pattern: the weights of the last module


def patterns(words: str) -> tuple[str, ...]:
    """The patterns of weights that are joined by a plus, as in `fc1.*+fc2.*`."""
    return tuple(filter(None, words.split("+")))


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
