"""Several processes (ranks) that torchrun started work on one simulation.

Every rank holds all models and states and draws the same clients, but trains only its share of the
rows. The ranks exchange sums: of weighted changes, or of matrices in which each rank filled its own
rows. A single rank exchanges nothing. NCCL moves tensors on GPUs, gloo all others.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fedmaba.errors import InputError, RankLost

PATIENCE = 2.0  # seconds in which a living rank notices that another is gone


class Ranks:
    """The processes of a job; this one is `rank` of `count`."""

    def __init__(self, rank: int = 0, count: int = 1, local: int = 0, host: Any = None) -> None:
        self.rank, self.count = rank, count
        self.local = local  # among the ranks of this machine
        self.host = host  # connections between the hosts' memories
        self.mine = slice(rank, None, count)  # of rows in order, dealt one by one

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place; the same bits on each."""
        if self.count > 1:
            if tensor.is_cuda:  # a rank that died is an error here, but a hang in NCCL
                torch.cuda.current_stream(tensor.device).synchronize()
                self.least(0)
            self._call(dist.all_reduce, tensor)
        return tensor

    def first(self, tensor: Tensor) -> Tensor:
        """The tensor of rank 0, in place."""
        if self.count > 1:
            self._call(dist.broadcast, tensor, src=0)
        return tensor

    def least(self, value: int) -> int:
        """The smallest of all ranks' values."""
        if self.count == 1:
            return value
        at = torch.tensor([value])
        self._call(dist.all_reduce, at, op=dist.ReduceOp.MIN)
        return int(at)

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any rank."""
        return self.least(-int(flag)) < 0

    def tell(self, content: bytes = b"") -> bytes:
        """Rank 0's content, on every rank."""
        if self.count == 1:
            return content
        length = self.first(torch.tensor([len(content)]))
        data = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == 0:
            data.numpy()[:] = np.frombuffer(content, np.uint8)
        return self.first(data).numpy().tobytes()

    def alike(self, what: str) -> None:
        """Refuse ranks that were given something else to work on than rank 0."""
        digest = hashlib.sha256(what.encode()).digest()
        odd = self.least(self.count if self.tell(digest) == digest else self.rank)
        if odd < self.count:
            raise InputError(
                f"rank {odd} has other data, options or versions than rank 0: give every host the "
                "same command, files and packages"
            )

    def _call(self, collective: Callable[..., object], tensor: Tensor, **how: Any) -> None:
        try:
            collective(tensor, group=None if tensor.is_cuda else self.host, **how)
            return
        except RuntimeError as error:
            reason = str(error).split("\n")[0]
        raise self._lost(reason)  # out here, where the error holds no connection any more

    def _lost(self, reason: str) -> RankLost:
        """The error that names the lost ranks: those that do not report a loss themselves."""
        atexit.unregister(dist.destroy_process_group)  # it might wait for those who are gone
        dist.destroy_process_group(self.host)  # whoever waits for this rank notices now
        self.host = None
        gone: list[int] = []
        with suppress(RuntimeError):  # torchrun may be gone, too
            store = _store()[0]
            store.set(f"noticed/{self.rank}", "")
            end = time.monotonic() + PATIENCE
            gone = list(range(self.count))
            while gone and time.monotonic() < end:
                gone = [r for r in gone if not store.check([f"noticed/{r}"])]
                time.sleep(0.05)
        who = ", ".join(map(str, gone))
        what = f"lost rank {who} of {self.count}" if gone else reason
        return RankLost(f"{what}: what was saved is whole, go on with `fedmaba resume`")


@functools.cache
def join() -> Ranks:
    """The ranks that torchrun started; a single rank where it was not torchrun."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        return Ranks()
    store, rank, count = _store()
    if count == 1:
        return Ranks()
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=count)
    atexit.register(dist.destroy_process_group)
    return Ranks(rank, count, int(os.environ["LOCAL_RANK"]), dist.new_group(backend="gloo"))


def speaker() -> str | None:
    """How this rank begins the line on why the job ends; None where another rank printed it."""
    store, rank, _ = _store()
    atexit.unregister(dist.destroy_process_group)  # it might wait for the others
    if rank:
        time.sleep(1)  # what all ranks found, rank 0 says
    with suppress(RuntimeError):  # no torchrun, no order: say it
        if store.add("spoken", 1) > 1:
            return None
    return f"rank {rank}: " if rank else ""


@functools.cache
def _store() -> tuple[Any, int, int]:
    """torchrun's key-value store, which outlives any rank; this rank, and how many there are."""
    from torch.distributed.rendezvous import rendezvous

    store, rank, count = next(rendezvous("env://"))
    own = dist.PrefixStore(_word(store, rank, count), store)  # type: ignore[attr-defined]
    return own, rank, count


def _word(store: Any, rank: int, count: int) -> str:
    """A word only the ranks of this attempt share; the store still has the keys of earlier ones."""
    fresh = uuid.uuid4().hex
    if rank:
        store.set(f"fedmaba/asks/{rank}", fresh)
        word: str = store.get(f"fedmaba/answer/{fresh}").decode()  # waits for it
        store.set(f"fedmaba/{word}/{rank}", "")
        return word
    waiting = set(range(1, count))
    while waiting:  # answers that nobody waits for any more do no harm
        asked = [r for r in waiting if store.check([f"fedmaba/asks/{r}"])]
        for r in asked:
            store.set(f"fedmaba/answer/{store.get(f'fedmaba/asks/{r}').decode()}", fresh)
        waiting -= {r for r in waiting if store.check([f"fedmaba/{fresh}/{r}"])}
        time.sleep(0.01)
    return fresh
