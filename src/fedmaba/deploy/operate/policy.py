"""What a site allows, whatever the server asks: the part [policy] of its site.toml. No torch.

The file never leaves the site. `Policy.check` looks at what is asked before the app sees it, and
`leaves` at what the app answers before it goes. What breaks the policy is refused with one line,
which the server is told, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from fedmaba.deploy.secure import MOST_SHARE
from fedmaba.errors import InputError

SCORES = ("loss", "accuracy", "error", "personal-accuracy", "personal-error", "alone", "loss_after")
ALWAYS_LEAVES = ("num-examples", "started-anew", "steps")
HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
APP = re.compile(r"[0-9a-f]{64}")
MEMORY = re.compile(r"(\d{1,6})([MG])")
FORM = {
    "app": "the SHA-256 of the app that may run, or a list of them",
    "rounds": "a whole number from 1 on",
    "epsilon": "a number above 0",
    "least-noise": "a number from 0 on",
    "secure": "true or false",
    "most-share": "a number above 0 and at most 1",
    "scores": 'a list of what may leave, as ["loss", "accuracy"]',
    "hours": 'as "20:00-06:00"',
    "memory": 'as "4G" or "500M"',
    "threads": "a whole number from 1 on",
}


class Forbidden(InputError):
    """The site's policy does not allow what is asked."""


@dataclass(frozen=True)
class Policy:
    """What a site allows; None: it sets no limit of this kind."""

    app: tuple[str, ...] = ()  #         apps that may run, by the SHA-256 of Flower's bundle
    rounds: int | None = None  #         in how many rounds it trains, in all
    epsilon: float | None = None  #      what its examples may cost in all, by its own count
    least_noise: float | None = None  #  the least noise, in multiples of what one site can change
    secure: bool = False  #              only secure sums
    most_share: float = MOST_SHARE  #    of a secure sum that one site may hold
    scores: tuple[str, ...] = SCORES  #  which numbers about its data may leave
    hours: str | None = None  #          when it trains, by its own clock
    memory: str | None = None  #         of the process that trains
    threads: int | None = None

    @classmethod
    def read(cls, told: object, source: str) -> Policy:
        """A policy as site.toml writes it; InputError for anything that is not understood."""
        if not isinstance(told, Mapping):
            raise InputError(f"{source}: policy is no table: write [policy] and its keys below")
        names = {f.name.replace("_", "-"): f.name for f in fields(cls)}
        found: dict[str, Any] = {}
        for key, value in told.items():
            if key not in names:
                raise InputError(f"{source}: policy.{key}: known are {', '.join(names)}")
            if not _fits(key, value):
                raise InputError(f"{source}: policy.{key} = {value!r}: say {FORM[key]}")
            found[names[key]] = tuple(value) if isinstance(value, list) else value
        if isinstance(found.get("app"), str):
            found["app"] = (found["app"],)
        return cls(**found)

    def check_app(self, sha256: str) -> None:
        if self.app and sha256 not in self.app:
            raise Forbidden(
                f"policy: app {sha256[:16]}... is none that this site allows: look at it, then "
                "add its SHA-256 to policy.app"
            )

    def check_time(self, now: datetime) -> None:
        found = HOURS.fullmatch(self.hours or "")
        if found is None:
            return
        start, end = (int(h) * 60 + int(m) for h, m in (found.groups()[:2], found.groups()[2:]))
        minute = now.hour * 60 + now.minute
        inside = start <= minute < end if start < end else minute >= start or minute < end
        if not inside:
            raise Forbidden(f"policy: it is {now:%H:%M} here, and this site trains {self.hours}")

    def check_task(self, secure: bool, terms: Mapping[str, Any]) -> None:
        """Refuse a federation whose settings give less than this site asks for."""
        if self.secure and not secure:
            raise Forbidden(
                "policy: this site takes part in secure sums alone, and its model is asked for"
            )
        if self.epsilon is None and self.least_noise is None:
            return
        noise = _noises(terms.get("noise"))
        if not noise:
            raise Forbidden(
                "policy: this site asks for privacy, and the federation states no noise: the "
                "operator gives dp, or you leave epsilon and least-noise out"
            )
        # the releases of a round are together as good as one of this noise
        least = 1 / math.sqrt(sum(1 / n**2 for n in noise))
        if self.least_noise is not None and least < self.least_noise:
            raise Forbidden(
                f"policy: the noise of a round is {least:.3g} times what a site can change: "
                f"least-noise is {self.least_noise:g}"
            )

    def check_cost(self, spent: float) -> None:
        """Refuse a round after which this site's examples would have cost more."""
        if self.epsilon is not None and spent > self.epsilon:
            raise Forbidden(
                f"policy: after this round this site has spent epsilon {spent:.4g} by its own "
                f"count, and may spend {self.epsilon:g} in all"
            )

    def check_asked(self, numbers: Iterable[str]) -> None:
        """Refuse a strategy that needs a number which does not leave this site."""
        for name in numbers:
            if name not in (*ALWAYS_LEAVES, *self.scores):
                raise Forbidden(
                    f"policy: the strategy asks for {name!r}, which does not leave this site"
                )

    def check_rounds(self, taken: int) -> None:
        if self.rounds is not None and taken > self.rounds:
            raise Forbidden(
                f"policy: this site has trained in {taken - 1} rounds, and may in {self.rounds}"
            )

    def leaves(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers of an answer that may leave; others stay, and the server does without."""
        known = {*ALWAYS_LEAVES, *self.scores}
        return {name: value for name, value in numbers.items() if name in known}

    @property
    def memory_bytes(self) -> int | None:
        found = MEMORY.fullmatch(self.memory or "")
        return None if found is None else int(found[1]) << {"M": 20, "G": 30}[found[2]]


def _noises(value: object) -> list[float]:
    """The noise of each release of a round; none if that is not what was told."""
    told = value if isinstance(value, list) else []
    good = all(isinstance(n, int | float) and 0 < n < math.inf for n in told)
    return told if good else []


def _fits(key: str, value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key == "app":
        listed = value if isinstance(value, list) else [value]
        return all(isinstance(one, str) and APP.fullmatch(one) for one in listed)
    if key in ("rounds", "threads"):
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if key in ("epsilon", "least-noise", "most-share"):
        most = 1.0 if key == "most-share" else math.inf
        return number and (0 if key == "least-noise" else 1e-300) <= value <= most  # type: ignore[operator]
    if key == "secure":
        return isinstance(value, bool)
    if key == "scores":
        return isinstance(value, list) and all(one in SCORES for one in value)
    form = {"hours": HOURS, "memory": MEMORY}[key]
    return isinstance(value, str) and form.fullmatch(value) is not None
