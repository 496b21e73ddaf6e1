"""Which model is deployed (handed out to users): an average of the server's models.

`last`, `average`, `poly:K` (polynomial decay, Shamir and Zhang 2013) or `ema:B`.
"""

from __future__ import annotations

import math

from fedmaba.errors import InputError


def parse_rule(text: str) -> tuple[str, float]:
    """Kind and number of a rule: `last`, `average`, `poly:K` or `ema:B`."""
    kind, _, number = text.partition(":")
    try:
        value = float(number) if number else math.nan
    except ValueError:
        value = math.nan
    if (
        (kind in ("last", "average") and not number)
        or (kind == "poly" and 0 <= value < math.inf)
        or (kind == "ema" and 0 < value < 1)
    ):
        return kind, value
    raise InputError(
        f"deploy={text!r}: say last, average, poly:K with K of at least 0, or ema:B with 0 < B < 1"
    )


def new_model_share(text: str, t: int) -> float:
    """The weight of the server's new model in the deployed average after round t = 0, 1, ..."""
    kind, value = parse_rule(text)
    if kind == "poly":
        return (value + 1) / (t + 1 + value)
    if kind == "average":
        return 1 / (t + 1)
    return 1.0 if kind == "last" or t == 0 else 1 - value
