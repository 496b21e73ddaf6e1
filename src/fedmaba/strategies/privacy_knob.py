"""What a strategy says of a hyper-parameter that trades its fairness for less noise. No torch."""

from __future__ import annotations

from typing import NamedTuple


class PrivacyKnob(NamedTuple):
    """A hyper-parameter that bounds the largest weight, and with it the noise of a private run."""

    name: str  # as users write it
    words: str  # "radius rho"
    sign: str  # as figures print it
    values: tuple[float, ...]  # that a plan compares, beside the strategy's own
