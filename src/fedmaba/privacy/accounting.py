"""What noise costs and what is spent, by Google's dp-accounting (extra `privacy`). No torch.

The only module that knows dp-accounting. A round releases one or two Gaussian mechanisms: the
noised sum of changes, and the noised losses. A client takes part in some rounds. All of these are
one event, which Google's Rényi accountant counts together. The neighbour of a federation has one
client replaced; a noise multiplier is the noise divided by what such a replacement can change.

No amplification by sampling is claimed: see docs/privacy.md.
"""

from __future__ import annotations

import importlib.metadata
from functools import lru_cache
from typing import Any

from fedmaba.errors import InputError, installed

EPSILON_TOLERANCE = 1e-6  # of a noise multiplier, beside the guess; it errs on the safe side


MISSING = (
    "dp is accounted by Google's dp-accounting, which is not installed here: "
    "pip install 'fedmaba[privacy]'"
)


def require_accountant() -> Any:
    """The package dp-accounting, or one line that says how to get it."""
    with installed(MISSING):
        import dp_accounting
    return dp_accounting


def accountant_in_words() -> str:
    """Who counts, with the version."""
    require_accountant()
    return f"dp-accounting {importlib.metadata.version('dp-accounting')}, RdpAccountant"


def releases(noise: float, shares: tuple[float, ...]) -> tuple[float, ...]:
    """The noise multiplier of each release of a round, which together are as good as `noise`.

    Shares sum to 1: Gaussian mechanisms of multipliers z_i are together one of multiplier z with
    1/z^2 = sum 1/z_i^2, so a release that may cost the share s has z_i = z / sqrt(s).
    """
    return tuple(float(noise / share**0.5) for share in shares)


@lru_cache(maxsize=65_536)
def spent_epsilon(multipliers: tuple[float, ...], rounds: int, delta: float) -> float:
    """The epsilon at delta of a client that took part in so many rounds."""
    if rounds == 0:
        return 0.0
    return float(_accountant().compose(_event(multipliers, rounds)).get_epsilon(delta))


@lru_cache(maxsize=1024)
def noise_multiplier(epsilon: float, delta: float, shares: tuple[float, ...], rounds: int) -> float:
    """The noise of a round, as a multiple of what a client can change, that keeps to epsilon."""
    dp = require_accountant()
    guess = rounds**0.5  # of a round's noise, in the middle of the range that people use
    try:
        found = dp.calibrate_dp_mechanism(
            _accountant,
            lambda noise: _event(releases(noise, shares), rounds),
            epsilon,
            delta,
            dp.LowerEndpointAndGuess(guess * 1e-6, guess),
            tol=EPSILON_TOLERANCE * guess,
        )
    except (dp.mechanism_calibration.NoBracketIntervalFoundError, ValueError) as error:
        raise InputError(
            f"dp: no noise keeps to epsilon={epsilon:g} at delta={delta:g} over {rounds} rounds: "
            "choose another epsilon, as 8"
        ) from error
    return float(found)


def _accountant() -> Any:
    dp = require_accountant()
    relation = dp.NeighboringRelation.REPLACE_ONE
    return dp.rdp.RdpAccountant(neighboring_relation=relation)


def _event(multipliers: tuple[float, ...], rounds: int) -> Any:
    """All that a client takes part in, as dp-accounting describes it."""
    dp = require_accountant()
    once = dp.ComposedDpEvent([dp.GaussianDpEvent(noise) for noise in multipliers])
    return dp.SelfComposedDpEvent(once, rounds)
