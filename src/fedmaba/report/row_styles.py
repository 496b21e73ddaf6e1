"""Which algorithm a row is, what it is measured against, and its colour. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from fedmaba.results.selection import REFERENCE
from fedmaba.strategies import BUILT_IN, REGISTRY

VARIANTS = 5  # of a hue that look different
# The place of an algorithm in a palette of ten; later ones take the least used.
HUES = (BUILT_IN[0], *reversed(BUILT_IN[1:10]))


def algorithm(label: str) -> str:
    """The algorithm of a row: afl of `afl:lam=0.5` and of `AFL, λ=0.5 (code)`."""
    return re.sub(r"[^a-z0-9_]", "", re.split(r"[:,]| \(", label)[0].lower())


def shares_no_model(label: str) -> bool:
    """Whether a row trains every client alone, so that there is no model to hand out."""
    return _trains_alone(algorithm(label))


@cache
def _trains_alone(name: str) -> bool:
    """Whether the clients of a built-in strategy train their own model and no other."""
    if name not in BUILT_IN:
        return False
    personal = REGISTRY[name]().local().personal
    return personal is not None and personal.only


def has_personal_models(label: str) -> bool:
    """Whether a row's clients keep models of their own beside the shared one."""
    name = algorithm(label)
    return name in BUILT_IN and REGISTRY[name]().local().personal is not None


def keeps_layers(label: str) -> bool:
    """Whether a row's clients keep layers of their own, with which they are scored."""
    name = algorithm(label)
    return name in BUILT_IN and bool(REGISTRY[name]().local().own_layers)


def reference(labels: Sequence[str]) -> int:
    """Which strategy the others are measured against: the usual reference, else the first."""
    return next((i for i, label in enumerate(labels) if algorithm(label) == REFERENCE), 0)


def hues(labels: Sequence[str]) -> list[tuple[int, int]]:
    """Hue and variant of each row, no pair twice: an algorithm keeps its hue in every figure.

    Two rows of an algorithm share its hue, the one with the usual settings among them. Further ones
    take hues that no other algorithm here has, as long as there are any, then their own again.
    """
    known = {home: HUES.index(home) for home in map(algorithm, labels) if home in HUES}
    used, chosen = [0] * len(HUES), dict[str, tuple[int, int]]()
    second: dict[str, int] = {}  # This is where the second row of an unknown algorithm belongs.

    def take(label: str, hue: int) -> None:
        chosen[label] = hue, used[hue]
        used[hue] += 1

    for label in sorted(labels, key=lambda label: ":" in label):  # the usual settings first
        hue = known.get(algorithm(label))
        if hue is not None and used[hue] < 2:
            take(label, hue)
    for label in sorted(labels, key=lambda label: algorithm(label) in known):  # unknown ones first
        home = algorithm(label)
        if label in chosen:
            continue
        least = min(range(1, len(HUES)), key=lambda hue: used[hue])
        if home in known:
            take(label, known[home] if used[least] and used[known[home]] < VARIANTS else least)
        elif home in second:
            take(label, second.pop(home))
        else:
            take(label, least)
            second[home] = least
    return [chosen[label] for label in labels]


GREEK_SIGNS = {"alpha": "α", "eps": "ε", "eta": "η", "eta_b": "η_b", "lam": "λ", "mu": "μ"}
GREEK_SIGNS |= {"rho": "ρ", "tau": "τ", "theta": "θ"}


def printed_name(label: str) -> str:
    """A row's name as a paper prints it: "q-FFL, q = 0.1" of `qffl:q=0.1`; others stay."""
    spec, bracket, rest = label.partition(" (")
    name, colon, given = spec.partition(":")
    pairs = [pair.partition("=") for pair in given.split(",")] if colon else []
    title = REGISTRY[name].title if name in REGISTRY else ""
    if not title or any(not equals for _, equals, _ in pairs):
        return label
    told = [f"{GREEK_SIGNS.get(key, key)} = {value}" for key, _, value in pairs]
    return ", ".join([title, *told]) + bracket + rest
