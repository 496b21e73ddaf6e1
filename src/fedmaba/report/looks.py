"""Which algorithm a row is, what it is measured against, and its colour. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedmaba.results.selection import REFERENCE
from fedmaba.strategies import BUILT_IN, REGISTRY

# The place of an algorithm in a palette of ten; later ones take the least used.
HUES = (BUILT_IN[0], *reversed(BUILT_IN[1:10]))


def algorithm(label: str) -> str:
    """The algorithm of a row: afl of `afl:lam=0.5` and of `AFL, λ=0.5 (code)`."""
    return re.sub(r"[^a-z0-9_]", "", re.split(r"[:,]| \(", label)[0].lower())


def reference(labels: Sequence[str]) -> int:
    """Which strategy the others are measured against: the usual reference, else the first."""
    return next((i for i, label in enumerate(labels) if algorithm(label) == REFERENCE), 0)


def hues(labels: Sequence[str]) -> list[tuple[int, int]]:
    """Hue and variant of each row, no pair twice: an algorithm keeps its hue in every figure.

    Two rows of an algorithm share it; further ones, and unknown algorithms, take the least used.
    """
    used, chosen = [0] * len(HUES), {}
    second: dict[str, int] = {}  # where an unknown algorithm's second row belongs
    for label in labels:
        home = algorithm(label)
        if home in HUES and used[HUES.index(home)] < 2:
            chosen[label] = HUES.index(home)
            used[chosen[label]] += 1
    for label in labels:
        if label not in chosen:
            least = min(range(1, len(HUES)), key=lambda hue: used[hue])
            chosen[label] = second.pop(algorithm(label), least)
            used[chosen[label]] += 1
            if chosen[label] == least and algorithm(label) not in HUES:
                second[algorithm(label)] = least
    seen = [chosen[label] for label in labels]
    return [(hue, seen[:i].count(hue)) for i, hue in enumerate(seen)]


SIGNS = {"alpha": "α", "eps": "ε", "eta": "η", "lam": "λ", "mu": "μ", "rho": "ρ", "tau": "τ"}


def printed_name(label: str) -> str:
    """A row's name as a paper prints it: "q-FFL, q = 0.1" of `qffl:q=0.1`; others stay."""
    spec, bracket, rest = label.partition(" (")
    name, colon, given = spec.partition(":")
    pairs = [pair.partition("=") for pair in given.split(",")] if colon else []
    title = REGISTRY[name].title if name in REGISTRY else ""
    if not title or any(not equals for _, equals, _ in pairs):
        return label
    told = [f"{SIGNS.get(key, key)} = {value}" for key, _, value in pairs]
    return ", ".join([title, *told]) + bracket + rest
