"""Clients that lie or do harm, for experiments. NumPy only, pure.

Which clients are hostile depends on the seed alone, so every strategy meets the same ones. Hostile
clients have no test examples: a run is judged by the honest clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba import rng
from fedmaba.data.cells import number_of
from fedmaba.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ATTACK_KINDS = {
    "loss=L": "report the loss L, as 1e6",
    "loss=xF": "report F times their own loss",
    "loss=worst": "report the largest loss of the round's honest participants",
    "labels=flip": "train on labels turned round: the first class is called the last",
    "update=F": "send F times the change of their model; -1 turns it round",
}


@dataclass(frozen=True)
class Attack:
    """What hostile clients do; several things can be combined."""

    loss: float | None = None  # what they report,
    times: float | None = None  # or how many times their own loss,
    worst: bool = False  # or that of the worst honest participant
    flip: bool = False
    update: float = 1.0


@dataclass(frozen=True)
class Hostile:
    """The hostile clients of one federation."""

    attack: Attack
    who: NDArray[np.bool_]  # (N,)

    @classmethod
    def draw(cls, attack: Attack, share: float, n: int, seed: int) -> Hostile:
        """A share of n clients, at least one of them, and not all."""
        many = max(1, round(share * n))
        if share <= 0 or many >= n:
            raise InputError(
                f"a share of {share:g} of {n} clients is hostile: leave at least one on either side"
            )
        who = np.zeros(n, bool)
        who[rng.choose(rng.key(seed, "hostile", np.arange(n)), many)] = True
        return cls(attack, who)

    def reported_losses(self, client: IntArray, loss: FloatArray) -> FloatArray:
        """The losses that a round's participants report: true ones, or lies of hostile clients."""
        lies, attack = self.who[client], self.attack
        if attack.loss is not None:
            return np.where(lies, attack.loss, loss)
        if attack.times is not None:
            with np.errstate(over="ignore"):  # a report is finite, however large
                lie = np.minimum(attack.times * loss, np.finfo(np.float64).max)
            return np.where(lies, lie, loss)
        if attack.worst and not lies.all():
            return np.where(lies, loss[~lies].max(), loss)
        return loss

    def reported(
        self, client: IntArray, loss: FloatArray, seen: dict[str, NDArray[Any]]
    ) -> tuple[FloatArray, dict[str, NDArray[Any]]]:
        """The same, and what else is measured: who says k times its loss says 1/k of that alone.

        Both make a client seem to lose by the federation. Who says that it has no loss leaves the
        other as it is.
        """
        told = self.reported_losses(client, loss)
        if "alone" not in seen:
            return told, seen
        most = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            share = np.divide(loss, told, out=np.ones_like(loss), where=told > 0)
            alone = np.minimum(np.minimum(share, most) * seen["alone"], most)
        return told, {**seen, "alone": alone}

    def update_factors(self, client: IntArray) -> FloatArray:
        """By which factor each participant multiplies its model change before sending it."""
        return np.where(self.who[client], self.attack.update, 1.0)


def parse_attack(text: str) -> Attack:
    """Read an attack such as `loss=x3`, or several joined by `+`."""
    told: dict[str, Any] = {}
    keys = [part.strip().partition("=")[0] for part in text.split("+")]
    for key, part in zip(keys, text.split("+"), strict=True):
        meant = _parse_part(key, part.strip().partition("=")[2])
        if meant is None:
            raise InputError(
                f"attack {part.strip()!r} is unknown: write {', '.join(ATTACK_KINDS)}, "
                "or some joined by +"
            )
        if keys.count(key) > 1:
            raise InputError(f"attack {text!r}: {key} stands in it twice: leave one out")
        told |= meant
    return Attack(**told)


def _parse_part(key: str, value: str) -> dict[str, Any] | None:
    """The fields of `Attack` that one part sets; None where the part is unknown."""
    if (key, value) == ("labels", "flip"):
        return {"flip": True}
    if (key, value) == ("loss", "worst"):
        return {"worst": True}
    times = key == "loss" and value.startswith("x")
    number = number_of(value[times:])
    if not math.isfinite(number) or key not in ("loss", "update"):
        return None
    if key == "loss" and number < 0:
        raise InputError(f"attack 'loss={value}': a reported loss is 0 or more")
    return {"times" if times else key: number}
