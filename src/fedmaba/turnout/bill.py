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
# A secure sum: what is asked and told first, and later messages, with those of each client in it.
SUM_TASK, SUM_KEYS = 281, 243
LATER_DOWN, LATER_UP = (839, 393), (949, 359)


@dataclass(frozen=True)
class Bill:
    """Bytes for each client and round."""

    down: int  #       to a client that trains
    first: int  #      more for one that was never heard, where it keeps a model, and that has moved
    up: int  #         its answer
    again: int  #      more in the answer of one that was heard before and keeps something
    poll_up: int  #    the answer of one who is asked for its loss at the server's model alone
    masked: int = 0  # of a masked change, which a secure sum takes instead of a model; 0: plain

    def later(self, many: int) -> tuple[int, int]:
        """More bytes down and up of each client in a secure sum of so many; none in a plain one."""
        if not self.masked:
            return 0, 0
        down, up = (first + each * many for first, each in (LATER_DOWN, LATER_UP))
        return down, up + self.masked


def bill_of(
    weights: Mapping[str, int],
    local: Local,
    needs: Needs,
    *,
    width: int = 4,
    own: bool = False,
    secure: bool = False,
) -> Bill:
    """What a client costs, whose model has these weights with so many numbers each.

    `width` is the bytes of a number. `own` says that clients keep layers of the model, `secure`
    that the server sees masked changes, whose numbers have 4 bytes, and their sum.
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
        down=TASK + words + keeps + asked + body + SUM_TASK * secure,
        first=first + 20 if local.models_kept else 0,
        up=ANSWER + NUMBER * numbers + (SUM_KEYS if secure else body),
        again=AGAIN if keeps else 0,
        poll_up=ANSWER + NUMBER,
        masked=4 * (sum(weights.values()) + 1) if secure else 0,
    )
