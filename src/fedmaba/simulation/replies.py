"""From numbers on the host to a strategy's decision, in a simulation and at Flower's server.

No torch: the server of a real federation runs without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.strategies.answers import call_weigh
from fedmaba.strategies.base import Decision, Replies, State, Strategy

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
GRAMS = {"gram", "layer_grams"}


def make_replies(
    round: int,
    lr: float,
    n_clients: int,
    client: IntArray,  # (m,)
    size: IntArray,  # (m,)
    numbers: Mapping[str, Any],
) -> Replies:
    """A round as its strategy sees it; inner products are made exactly symmetric."""
    seen = dict(numbers)
    for name in seen.keys() & GRAMS:
        seen[name] = (seen[name] + seen[name].swapaxes(-1, -2)) / 2
    return Replies(round, lr, n_clients, client, size, **seen)


def without(numbers: Mapping[str, Any], out: IntArray) -> dict[str, Any]:
    """Numbers of participants without those at some places, as if they had not answered."""
    left = {name: np.delete(value, out, -1) for name, value in numbers.items() if name in GRAMS}
    left = {name: np.delete(value, out, -2) for name, value in left.items()}
    return {n: left[n] if n in GRAMS else np.delete(v, out, 0) for n, v in numbers.items()}


def with_zeros(decision: Decision, out: IntArray) -> Decision:
    """The decision with coefficients 0 of participants that were left out at these places."""
    at = out - np.arange(len(out))
    return decision._replace(coef=np.insert(decision.coef, at, 0.0, axis=-1))


def decide(
    strategy: Strategy, state: State, replies: Replies, names: Sequence[str] = ()
) -> tuple[Decision, str]:
    """What a strategy answers, and why that cannot be used; empty where it can.

    `names` are those of the participants; without them, they have numbers.
    """
    decision = call_weigh(strategy, state, replies)
    wrong = np.argwhere(~np.isfinite(decision.coef))
    if not len(wrong):
        return decision, ""
    place, m = wrong[0][-1], len(replies.client)
    whose = "a kept change"
    if place < m:
        whose = names[place] if names else f"client {replies.client[place]}"
    return decision, f"the strategy gave {whose} the weight {decision.coef[tuple(wrong[0])]}"


def broken(client: IntArray, numbers: Mapping[str, NDArray[Any]]) -> str:
    """Why a run has diverged, by the first client whose number is not finite; empty if none is."""
    for name, values in sorted(numbers.items(), key=lambda item: item[0] == "loss"):
        if np.isfinite(values).all():
            continue
        if name == "loss":
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            return f"the training loss of client {client[bad]} is {values[bad]}"
        squares = values if values.ndim == 1 else values.diagonal(axis1=-2, axis2=-1)
        own = squares.reshape(-1, squares.shape[-1]).sum(0)[: len(client)]
        largest = int(np.argmax(np.nan_to_num(np.abs(own), nan=np.inf)))
        what = "own model" if name == "alone" else "model change"
        return f"the {what} of client {client[largest]} is not finite"
    return ""
