"""Two ranks as two threads of this process: the engine's own sums over ranks, without a network."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from fedmaba.simulation.distributed import Ranks
from fedmaba.simulation.engine import simulate


class ThreadRanks(Ranks):
    """A rank whose tensors meet those of the other in memory."""

    def __init__(self, rank, meeting):
        super().__init__(rank, 2, rank)
        self.meeting, self.tensors = meeting

    def _call(self, collective, tensor, **how):
        self.tensors[self.rank] = tensor.clone()
        self.meeting.wait(60)
        both = torch.stack(self.tensors)
        if collective is dist.broadcast:
            out = both[0]
        else:
            out = both.amin(0) if how.get("op") == dist.ReduceOp.MIN else both.sum(0)
        self.meeting.wait(60)
        tensor.copy_(out)


def on_two_ranks(begin):
    """The batches of two ranks at their end, each made by `begin()`."""
    meeting = threading.Barrier(2), [None, None]
    batches = [begin(), begin()]
    for rank, batch in enumerate(batches):
        batch.ranks = ThreadRanks(rank, meeting)

    def play(batch):
        try:
            list(simulate(batch))
        except BaseException:
            meeting[0].abort()  # the other would wait
            raise

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(play, batches))
    return batches
