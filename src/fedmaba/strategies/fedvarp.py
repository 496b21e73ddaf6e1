"""FedVARP: Jhunjhunwala, Sharma, Nagarkatti, Joshi, "FedVARP: Tackling the Variance Due to Partial
Client Participation in Federated Learning", UAI 2022. Last changes stand in for absent clients.

Every client has a memory y_i of its last change over the step size. The server's step is the mean
of all memories, plus the mean over participants of how far their changes are from their memories.
Differs: a client's memory lies with the client, and the server keeps the mean of all.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import Decision, Keep, Local, Replies, State, Strategy


@dataclass(frozen=True)
class FedVARP(Strategy):
    """the mean of all clients' last changes, corrected by what participants changed their mind"""

    name: ClassVar[str] = "fedvarp"
    title: ClassVar[str] = "FedVARP"

    def local(self) -> Local:
        memory = Keep(start=-1.0, end=1.0, before=0.0, per_step_size=True)
        return Local(keep={"y": memory}, server_adds={"y": 1.0}, unbiased=True)

    def total(self) -> float:
        return 0.0  # the step is made of what clients keep

    def weigh(self, state: State, replies: Replies) -> Decision:
        return Decision(np.zeros(len(replies.client)), state)
