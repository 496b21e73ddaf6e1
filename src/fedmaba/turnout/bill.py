"""How many bytes a round sends to each client and back, as Flower carries them. No torch.

An array travels as NumPy writes it, which puts 128 bytes before its numbers. What else a message
holds was counted in the messages of flwr 1.41 (a test counts again).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fedmaba.strategies.base import Local, Needs

HEAD = 128 + 38  # bytes of an array besides its numbers and its name
TASK, ANSWER = 237, 196  # bytes of a message to a client, and back, without arrays
KEEPING, AGAIN = 67, 32  # bytes that tell a client what it kept, and the server since when
NUMBER, WORD = 20, 12  # bytes of a number in an answer, and around a word in a task


@dataclass(frozen=True)
class Bill:
    """Bytes for each client and round."""

    down: int  #       to a client that trains
    first: int  #      more for one that was never heard, where it keeps a model, and that has moved
    up: int  #         its answer
    again: int  #      more in the answer of one that was heard before and keeps something
    poll_up: int  #    the answer of one who is asked for its loss at the server's model alone


def bill_of(
    weights: Mapping[str, int], local: Local, needs: Needs, *, width: int = 4, own: bool = False
) -> Bill:
    """What a client costs, whose model has these weights with so many numbers each.

    `width` is the bytes of a number. `own` says that clients keep layers of the model.
    """
    arrays = [(name, count) for name, count in weights.items()]
    arrays += [
        (f"mean/{local.means.index(mean)}/{name}", count)
        for mean in local.sent_means
        for name, count in weights.items()
    ]
    body = sum(HEAD + len(name) + count * width for name, count in arrays)
    words = len(json.dumps(local.of(0).to_json()))
    keeps = KEEPING if local.keeps or own else 0
    told = needs.of_clients
    asked = WORD + len(" ".join(told)) if told else 0
    numbers = len(told) + (needs.loss != "none")
    first = sum(len(name) + 60 + count * width for name, count in weights.items())
    return Bill(
        down=TASK + words + keeps + asked + body,
        first=first + 20 if local.models_kept else 0,
        up=ANSWER + NUMBER * numbers + body,
        again=AGAIN if keeps else 0,
        poll_up=ANSWER + NUMBER,
    )
