"""MIFA: Gu et al., "Fast Federated Learning in the Presence of Arbitrary Device Unavailability",
NeurIPS 2021. Absent clients count with the last change that they sent.

Differs: the paper waits until every client has answered once, or assumes that all do in the first
round; here clients count from their first change on, and the mean is over all clients from the
start, so the first steps are short. The paper remembers changes divided by the step size and
multiplies with that of the present round: memory="gradient". By default the change itself is
remembered, so that where step sizes fall absent clients count with their older, larger steps.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.strategies.base import Decision, Keep, Local, Replies, State, Strategy


@dataclass(frozen=True)
class MIFA(Strategy):
    """the mean of all clients' last changes, of absent ones too"""

    name: ClassVar[str] = "mifa"
    title: ClassVar[str] = "MIFA"
    memory: Literal["change", "gradient"] = "change"

    def local(self) -> Local:
        gradient = self.memory == "gradient"
        keep = Keep(start=-1.0, end=1.0, before=0.0, per_step_size=gradient)
        return Local(keep={"change": keep}, server_adds={"change": 1.0})

    def total(self) -> float:
        return 0.0  # the step is the mean of what clients keep

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(np.zeros(len(replies.client)), state)
