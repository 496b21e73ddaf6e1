"""Every algorithm by name. A new one is a file beside this and a line in the registry."""

from __future__ import annotations

import dataclasses
import itertools
from typing import get_type_hints

from fedmaba import own
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.strategies.afl import AFL
from fedmaba.strategies.fedavg import FedAvg
from fedmaba.strategies.fedfv import FedFV
from fedmaba.strategies.fedmaba import FedMABA
from fedmaba.strategies.fedmgda import FedMGDA
from fedmaba.strategies.fedprox import FedProx
from fedmaba.strategies.fedsgd import FedSGD
from fedmaba.strategies.propfair import PropFair
from fedmaba.strategies.qffl import QFFL
from fedmaba.strategies.term import TERM
from fedmaba.strategy import Strategy, build, options, short

__all__ = [
    "AFL",
    "QFFL",
    "REGISTRY",
    "TERM",
    "FedAvg",
    "FedFV",
    "FedMABA",
    "FedMGDA",
    "FedProx",
    "FedSGD",
    "PropFair",
    "describe",
    "parse",
    "register",
]

REGISTRY: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (
        FedAvg,
        FedSGD,
        FedProx,
        QFFL,
        AFL,
        TERM,
        FedMGDA,
        PropFair,
        FedFV,
        FedMABA,
    )
}


def register(kind: type[Strategy]) -> type[Strategy]:
    """Make a strategy of one's own known by its name; also usable as a decorator."""
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise InputError(f"{kind!r} is no class of strategies: derive one from fedmaba.Strategy")
    if REGISTRY.get(kind.name, kind) is not kind:
        raise InputError(f"a strategy named {kind.name!r} is registered already: choose a new name")
    REGISTRY[kind.name] = kind
    return kind


def parse(spec: str) -> list[Strategy]:
    """`name:key=value,key=[v1,v2]` as strategies: a list of values is a grid.

    The name is a registered one, or `package.module.Class` of one's own.
    """
    name, _, rest = spec.partition(":")
    if name not in REGISTRY and "." not in name:
        raise unknown(
            "strategy", name, REGISTRY, other=", or write package.module.Class of one's own"
        )
    kind = REGISTRY[name] if name in REGISTRY else _find(name)
    grid: dict[str, list[object]] = {}
    for item in _split(rest, spec):
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not key or not text:
            raise InputError(f"{spec!r}: {item!r} is not key=value, as q=0.1")
        if key in grid:
            raise InputError(f"{spec!r}: {key!r} is given twice")
        listed = text[1:-1].split(",") if text.startswith("[") and text.endswith("]") else [text]
        grid[key] = [_value(v.strip()) for v in listed]
    return [
        _made(name, kind, dict(zip(grid, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]


def describe() -> list[tuple[str, str, str]]:
    """Name, one line, and hyper-parameters with defaults (first of a choice) of each strategy."""
    rows = []
    for name, kind in REGISTRY.items():
        hints = get_type_hints(kind)
        params = []
        for f in dataclasses.fields(kind):
            listed = "|".join(map(str, options(hints[f.name])))
            params.append(f"{f.name}={listed or short(f.default)}")
        rows.append((name, (kind.__doc__ or "").strip().split("\n")[0], ", ".join(params)))
    return rows


def _find(path: str) -> type[Strategy]:
    """The class at `package.module.Class`."""
    if path.endswith(".toml"):
        raise InputError(f"strategy {path!r} is an experiment file: say fedmaba run {path}")
    where, _, attribute = path.rpartition(".")
    kind = own.find(f"strategy {path!r}", where, attribute, "package.module.Class")
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise InputError(f"strategy {path!r} is no class derived from fedmaba.Strategy")
    if not isinstance(getattr(kind, "name", None), str):
        raise InputError(f"strategy {path!r} has no name: write name: ClassVar[str] = ... in it")
    if kind.weigh is Strategy.weigh:
        raise InputError(
            f"strategy {path!r} has no weigh(): give it one, as docs/bring-your-own.md"
        )
    return kind


def _made(name: str, kind: type[Strategy], values: dict[str, object]) -> Strategy:
    """A strategy that can say its own name."""
    try:
        made = build(kind, values)
        made.label()
    except FedmabaError:
        raise
    except Exception as error:  # whatever a class of the user's own does
        raise own.fault(f"strategy {name!r}", error) from error
    return made


def _split(text: str, spec: str) -> list[str]:
    """Split at commas outside brackets."""
    items, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if depth not in (0, 1):
            break
        if c == "," and depth == 0:
            items.append(text[start:i])
            start = i + 1
    if depth != 0:
        raise InputError(f"{spec!r}: brackets do not match: write key=[v1,v2]")
    return [*items, text[start:]] if text else []


def _value(text: str) -> object:
    """A number where it reads as one, else the word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
