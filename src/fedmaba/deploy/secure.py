"""Secure sums: what sites and server agree on, in numbers and words. Pure NumPy, no torch.

In a secure round the server learns the weighted sum of the sites' changes, and no single change. A
site scales its change by its share of the weight, rounds it to whole multiples of `step` and adds
masks that cancel in the sum (Bonawitz et al. 2017). A round has four exchanges, and a fifth where
sites sign their keys:

    keys    the site trains, keeps its change, and sends its loss and two new public keys
    shares  the site gets the keys of all, and sends each other one sealed shares of its secrets
    mask    the site gets everybody's share of the weight, and sends its masked change
    agree   the site is told whose masked change arrived, and signs that list
    unmask  the site is told whose masked change arrived, and sends the shares that remove the masks

This module has the numbers and the checks of what others say. `masks` has the cryptography,
`secure_site` and `secure_round` have the two sides.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.deploy.validation import Refused, printable
from fedmaba.errors import InputError

MaskedWords = NDArray[np.uint32]  # masked numbers, modulo 2**32
STAGES = ("keys", "shares", "mask", "agree", "unmask")
NUMBER_BITS = (8, 30)  # of a number before it is masked; masked numbers have 32
TEXT_BYTES_PER_SITE = 1024  # of a message; an honest one needs less than half of it
MOST_SITES = 1000  # Shamir shares of more take minutes at every site
MOST_TEXT_BYTES = TEXT_BYTES_PER_SITE * MOST_SITES
EVIDENCE_BITS = 40  # bits: how unlikely it must be that honest numbers look unmasked
SUM_ERROR = 1e-6  # by which shares of the weight may miss 1
MOST_SHARE = 0.9  # of the weight that one site may hold, unless somebody says otherwise
LEAST_WEIGHT = 0.1  # that sites which stay must hold: their sum is scaled up by what others held


@dataclass(frozen=True)
class SecureSum:
    """The settings of secure sums.

    threshold: how many sites must stay until the end of a round, as a count (3) or as a share of
    those that begin it (0.6); more than half of them, and at least two. Where sites sign their
    keys, twice as many as that must be more than one more than all: a share is raised to it.
    clip: the largest norm of a site's change; a larger change is scaled down to it at the site.
    bits: of each number before it is masked, 8 to 30. One step is about clip / 2**(bits - 1).
    most_share: the largest share of the weight that one site may hold, since the sum of one site
    that holds nearly all of it is nearly its change. 1.0 allows every share.
    """

    threshold: float = 0.6
    clip: float = 10.0
    bits: int = 28
    most_share: float = MOST_SHARE

    def __post_init__(self) -> None:
        if not is_number(self.clip) or not 0 < self.clip <= 1e9:
            raise InputError(f"secure: clip={self.clip!r}: give a norm above 0, at most 1e9")
        low, high = NUMBER_BITS
        if not is_count(self.bits) or not low <= self.bits <= high:
            raise InputError(
                f"secure: bits={self.bits!r}: give a whole number from {low} to {high}"
            )
        count, share = is_count(self.threshold), is_number(self.threshold)
        if not (count and self.threshold >= 2) and not (
            share and not count and 0.5 < self.threshold <= 1
        ):
            raise InputError(
                f"secure: threshold={self.threshold!r}: give a count from 2, or a share above 0.5 "
                "and up to 1.0"
            )
        check_most_share(self.most_share, "secure: ")

    @property
    def step(self) -> float:
        """The distance of two neighbouring numbers: a power of two, so that sums are exact."""
        return float(2.0 ** math.ceil(math.log2(self.clip / (2 ** (self.bits - 1) - 1))))

    @property
    def limit(self) -> int:
        """The largest whole number of steps that one site, or all together, can reach."""
        return math.ceil(self.clip / self.step)

    @property
    def fewest(self) -> int:
        """The fewest sites that a round can begin with."""
        return int(self.threshold) if is_count(self.threshold) else 2

    def least(self, sites: int, signed: bool = False) -> int:
        """How many of these sites must stay; InputError if no number of them is enough."""
        least = int(self.threshold)
        if not is_count(self.threshold):
            least = max(2, math.ceil(self.threshold * sites - 1e-9))
            least = max(least, least_signed(sites)) if signed else least
        why = wrong_threshold(least, sites, signed)
        if why:
            raise InputError(f"secure: threshold={self.threshold:g}, and {sites} sites: {why}")
        return least

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def least_signed(sites: int) -> int:
    """The lowest threshold at which a server and one site together read no change.

    With k sites of its own, a server that tells others different lists of who stayed gets enough
    shares of both secrets of a site exactly if twice the threshold is at most sites + k.
    """
    return (sites + 1) // 2 + 1


def wrong_threshold(least: int, sites: int, signed: bool = False) -> str:
    """Why so few or many of the sites are no threshold; empty if they are one."""
    if sites > MOST_SITES:
        return f"secure sums take at most {MOST_SITES} sites"
    if least > sites:
        return f"{least} are needed: wait for more sites, or lower the threshold"
    if least < 2 or 2 * least <= sites:
        return f"{least} are too few: more than half must stay, and at least two"
    if signed and least < least_signed(sites):
        return (
            f"{least} are too few where sites sign their keys: the server and one site could read "
            f"a change; {least_signed(sites)} must stay"
        )
    return ""


def check_most_share(value: Any, where: str = "") -> None:
    """Refuse what is no share of the weight that one site may hold."""
    if not is_number(value) or not 0 < value <= 1:
        raise InputError(f"{where}most_share={value!r}: give a share above 0 and up to 1.0")


def is_count(value: object) -> bool:
    """Whether this is a whole number, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether this is a finite number, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


# numbers


def quantise(change: NDArray[Any], share: float, rule: SecureSum) -> tuple[NDArray[np.int64], bool]:
    """share * change in whole steps, (P,), and whether the change had to be clipped."""
    flat = np.asarray(change, np.float64)
    if not np.isfinite(flat).all():
        raise InputError("the change of this site is not finite: it takes no part in this round")
    largest = float(np.abs(flat).max(initial=0.0))
    norm = largest * float(np.linalg.norm(flat / largest)) if largest else 0.0
    factor = min(1.0, rule.clip / norm) if norm else 1.0
    return np.rint(flat * (share * factor / rule.step)).astype(np.int64), norm > rule.clip


def to_words(numbers: NDArray[np.int64], clipped: bool) -> MaskedWords:
    """(P + 1,) what a site masks: its numbers, then whether they were clipped."""
    return np.append(numbers, int(clipped)).astype(np.uint32)  # modulo 2**32


def from_words(words: MaskedWords, sites: int, rule: SecureSum) -> tuple[NDArray[np.int64], int]:
    """The sum without masks: (P,) whole steps, and how many sites clipped; else Refused."""
    numbers = words.view(np.int32).astype(np.int64)
    if np.abs(numbers).max(initial=0) > rule.limit + sites or not 0 <= numbers[-1] <= sites:
        raise Refused(
            f"the sum lies outside what {sites} changes of norm {rule.clip:g} can reach: a site "
            "did not mask as agreed"
        )
    return numbers[:-1], int(numbers[-1])


def looks_unmasked(words: MaskedWords, rule: SecureSum) -> bool:
    """Whether all numbers are as small as unmasked ones, which masked ones never are by chance."""
    free = 31 - math.log2(rule.limit + 1)  # bits that only a mask can set
    inside = np.abs(words.view(np.int32).astype(np.int64)) <= rule.limit
    return bool(len(words) * free >= EVIDENCE_BITS and inside.all())


def shares_of_weight(coef: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Coefficients as shares that sum to 1, and their sum; Refused if that cannot be."""
    total = float(coef.sum()) if np.isfinite(coef).all() else math.nan
    if not 0 < total < math.inf or coef.min() < 0:
        raise Refused("the strategy gave a weight that is negative or not finite")
    return coef / total, total


def largest_part(weights: Sequence[float]) -> float:
    """The part of the weight of these sites that one of them holds, at most."""
    total = sum(weights)
    return max(weights) / total if total > 0 else 1.0


def check_largest(weights: Sequence[float], most: float) -> None:
    """Refuse a sum that is nearly the change of one of these sites."""
    found = largest_part(weights)
    if found > most + SUM_ERROR:
        raise Refused(
            f"one site would hold {found:.1%} of the weight, so the sum would be nearly its "
            f"change, and most_share={most:g}: raise it, or choose a strategy or settings that "
            "spread weight"
        )


def check_held(weights: Sequence[float]) -> None:
    """Refuse to open a sum of sites that hold too little of the weight."""
    held = sum(weights)
    if held < LEAST_WEIGHT:
        raise Refused(
            f"the sites that stayed hold {held:.3g} of the weight: at least {LEAST_WEIGHT:g} must "
            "stay"
        )


# words


def write_message(content: Mapping[str, Any]) -> str:
    """A message as text; bytes become base64."""
    return json.dumps(content, default=lambda raw: base64.b64encode(raw).decode(), sort_keys=True)


def read_message(text: object, most: int) -> dict[str, Any]:
    """The message that `write` made, or Refused."""
    if not isinstance(text, str) or len(text) > most:
        raise Refused(f"it sent no text of up to {most} letters about the secure sum")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("its text about the secure sum is not JSON") from None
    if not isinstance(found, dict):
        raise Refused("its text about the secure sum is no JSON object")
    return found


def read_bytes(value: object, what: str, size: int | None = None, most: int = 512) -> bytes:
    """Bytes of a message, of a given size or at most so many; else Refused."""
    try:
        if not isinstance(value, str) or len(value) > 2 * most:
            raise ValueError
        found = base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        raise Refused(f"{what} is {printable(value, 40)!r}: it must be base64") from None
    if size is not None and len(found) != size:
        raise Refused(f"{what} has {len(found)} bytes: it must have {size}")
    return found


def read_list(value: object, what: str, size: int) -> list[Any]:
    """A list with one entry for each participant, or Refused."""
    if not isinstance(value, list) or len(value) != size:
        raise Refused(f"{what} must be a list of {size}")
    return value


def read_places(value: object, what: str, sites: int) -> list[int]:
    """Different places of participants, from 0 on, in order; else Refused."""
    if (
        not isinstance(value, list)
        or len(value) > sites
        or not all(type(i) is int and 0 <= i < sites for i in value)
        or value != sorted(set(value))
    ):
        raise Refused(f"{what} must be a list of places from 0 to {sites - 1}, in order")
    return value


def read_shares_of_weight(value: object, sites: int, least: int) -> list[float | None]:
    """Everybody's share of the weight, None for who left; at least `least` stay, else Refused."""
    found = read_list(value, "weights", sites)
    there = [w for w in found if w is not None]
    if not all(type(w) in (int, float) and 0 <= w <= 1 for w in there):
        raise Refused("weights must lie in 0..1")
    if len(there) < least:
        raise Refused(f"weights of {len(there)} sites: at least {least} must be in the sum")
    if abs(sum(there) - 1) > SUM_ERROR:
        raise Refused(f"weights sum to {sum(there):.9g}: they must sum to 1")
    return [None if w is None else float(w) for w in found]


def agreement(
    round_id: str,
    rule: Mapping[str, Any],
    least: int,
    keys: Sequence[bytes],
    weights: Sequence[float | None],
) -> bytes:
    """The hash of all that sites must have been told alike.

    Masks are derived with it, so if the server told two sites different things, their masks do not
    cancel and the server learns nothing.
    """
    told = {
        "round": round_id, "rule": dict(rule), "least": least, "keys": list(keys),
        "weights": list(weights),
    }  # fmt: skip
    return hashlib.sha256(write_message(told).encode()).digest()
