"""Randomness as a function of (seed, purpose, round, client, ...), never of a global state.

A run draws the same numbers alone, beside other runs, after a resume and on every device. A key is
a 64-bit hash of its words; a stream is the hashes of key + counter (SplitMix64's finaliser).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

UIntArray = NDArray[np.uint64]
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(z: UIntArray) -> UIntArray:
    """A bijection of 64-bit words whose output bits all depend on all input bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))


def key(seed: int, purpose: str, *words: int | NDArray[np.integer]) -> UIntArray:
    """The key of one stream, or an array of keys where a word is an array."""
    k = _root(seed, purpose)
    for word in words:
        w = np.atleast_1d(np.asarray(word)).astype(np.uint64)
        k = mix(k + (w + np.uint64(1)) * np.uint64(GOLDEN))
    return k


@lru_cache(maxsize=1024)
def _root(seed: int, purpose: str) -> UIntArray:
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:8]
    return np.asarray([int.from_bytes(digest, "little")], dtype=np.uint64)


def generator(seed: int, purpose: str, *words: int) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.Generator(np.random.Philox(key=int(key(seed, purpose, *words)[0])))


class ParticipantDraws:
    """The participants of each round; those of several rounds are drawn at once, to save time."""

    def __init__(self) -> None:
        self.newest: dict[tuple[int, ...], tuple[int, NDArray[np.int64], UIntArray]] = {}

    def __call__(
        self, seed: int, round: int, n_clients: int, many: int
    ) -> tuple[NDArray[np.int64], UIntArray]:
        """The participants of a round, and the random stream of each one's training in it."""
        at_once = max(1, min(32, 100_000 // n_clients))  # so many rounds cost little more than one
        which, (block, place) = (seed, n_clients, many), divmod(round, at_once)
        found = self.newest.get(which)
        if found is None or found[0] != block:
            rounds = np.arange(block * at_once, (block + 1) * at_once)[:, None]
            clients = sample_clients(seed, rounds, n_clients, many)
            found = self.newest[which] = block, clients, key(seed, "local", rounds, clients)
        return found[1][place].copy(), found[2][place].copy()


def sample_clients(
    seed: int, round: int | NDArray[np.int64], n_clients: int, participants: int
) -> NDArray[np.int64]:
    """Which clients take part: drawn uniformly without replacement, in client order.

    `round` may be a column of rounds; the result then has a row for each of them.
    """
    everyone = np.arange(n_clients, dtype=np.int64)
    if participants == n_clients:
        out: NDArray[np.int64] = everyone + 0 * np.asarray(round)
        return out
    return choose(key(seed, "participants", round, everyone), participants)


def choose(words: UIntArray, many: int) -> NDArray[np.int64]:
    """The positions, in order, of the `many` smallest of some random words."""
    return np.sort(np.argpartition(words, many)[..., :many]).astype(np.int64)
