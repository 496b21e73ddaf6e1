"""Fetch the replies of a real federation: each by itself, and none that is too large.

This module is handed Flower's grid and imports nothing of Flower. No torch.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from fedmaba.deploy import validation
from fedmaba.deploy.validation import Arrays
from fedmaba.errors import FedmabaError

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid


POLL_SECONDS = 0.5  # pause between two fetches
FETCH_SECONDS = 2.0  # how long slow replies may delay the next fetch
LAST_FETCH_SECONDS = 30.0  # for replies that are already arriving when the time is up
SLOW_FACTOR = 2.0  # slow sites get this many times what the quick ones took, on top


def send_messages(grid: Grid, messages: Sequence[Message]) -> list[str | None]:
    """Send messages and return their ids in order; None for one that could not be sent."""
    if not messages:
        return []
    ids = list(grid.push_messages(messages))
    if len(ids) != len(messages):
        raise FedmabaError("the SuperLink took none of the messages: see its log, then run again")
    return ids


def collect_replies(
    grid: Grid, messages: Sequence[Message], timeout: float, quorum: int, grace: float
) -> list[tuple[int, Message | str]]:
    """Send messages and return each node's reply, or why there is none.

    Once `quorum` nodes have answered, the others get SLOW_FACTOR times as long again, but at least
    `grace` seconds. The node is the one that the message was sent to, whatever the reply says.
    """
    begin = time.monotonic()
    end = begin + timeout
    nodes = [m.metadata.dst_node_id for m in messages]
    found: list[tuple[int, Message | str]] = []
    fetcher = ReplyFetcher(grid)
    for message, node in zip(send_messages(grid, messages), nodes, strict=True):
        if message:
            fetcher.waiting[message] = node
        else:
            found.append((node, "nothing could be sent"))
    late = f"no answer within {timeout:g} seconds"
    good = 0
    while fetcher.waiting:
        over = time.monotonic() >= end  # then this fetch is the last
        left = max(0.0, end - time.monotonic())
        new = fetcher.fetch(LAST_FETCH_SECONDS if over else min(FETCH_SECONDS, left))
        found += new
        if over:
            found += [(node, late) for node in fetcher.waiting.values()]
            break
        before, now = good, time.monotonic()
        good += sum(not isinstance(m, str) and not m.has_error() for _, m in new)
        if before < quorum <= good:
            soon = now + max(grace, SLOW_FACTOR * (now - begin))
            if soon < end:
                end = soon
                had = f"{good} of {len(messages)} had answered"
                late = f"no answer within {end - begin:.0f} seconds, when {had}"
        if fetcher.waiting:
            time.sleep(POLL_SECONDS)
    return found


def _pull(grid: Grid, message: str) -> Message | str | None:
    """The reply to one message: None while there is none, a line if it is unreadable."""
    try:
        return next(iter(grid.pull_messages([message])), None)
    except validation.Refused as why:
        return str(why)
    except Exception as error:  # flwr unpacks what a stranger packed: it may fail in any way
        return f"its reply cannot be read: {type(error).__name__}: {validation.printable(error)}"


class ReplyFetcher:
    """Fetches each reply in a thread of its own, so that a slow one delays no other."""

    def __init__(self, grid: Grid | None = None) -> None:
        self.grid = grid
        self.waiting: dict[str, int] = {}  # message -> the node that is to answer it
        self.under_way: dict[str, Future[Message | str | None]] = {}

    def fetch(self, seconds: float) -> list[tuple[int, Message | str]]:
        """Ask for every reply; return those that arrive within so many seconds, by node."""
        for message in [m for m in self.waiting if m not in self.under_way]:
            done: Future[Message | str | None] = Future()
            self.under_way[message] = done
            # No thread pool: when the program ends, a pool waits for a fetch that may never end.
            threading.Thread(target=self._fetch_one, args=(message, done), daemon=True).start()
        wait(self.under_way.values(), seconds)
        found: list[tuple[int, Message | str]] = []
        for message, done in list(self.under_way.items()):
            if done.done():
                del self.under_way[message]
                got = done.result()
                if got is not None:
                    found.append((self.waiting.pop(message), got))
        return sorted(found, key=lambda pair: pair[0])  # not in order of arrival

    def stop_waiting(self, nodes: set[int]) -> None:
        """Stop waiting for these nodes."""
        self.waiting = {m: node for m, node in self.waiting.items() if node not in nodes}
        self.under_way = {m: done for m, done in self.under_way.items() if m in self.waiting}

    def _fetch_one(self, message: str, done: Future[Message | str | None]) -> None:
        try:
            done.set_result(_pull(self.grid, message))
        except BaseException as error:  # such as the end of the program; `fetch` raises it again
            done.set_exception(error)


def limit_reply_size(
    grid: Grid, model: Arrays, record_bytes: int = validation.MAX_RECORD_BYTES
) -> Grid:
    """Return a grid that fetches no reply larger than an honest one can be.

    The largest has the arrays of `model`, and records of numbers or words of `record_bytes`.
    Only Flower's own grid fetches replies in parts; any other grid is returned unchanged.
    """
    if not hasattr(grid, "_runtime_client"):
        return grid
    limited = copy.copy(grid)
    limited._client = _SizeLimitedClient(grid._runtime_client, model, record_bytes)
    return limited


class _SizeLimitedClient:
    """Flower's client of the SuperLink, which refuses replies of too many or too large parts."""

    def __init__(self, client: Any, model: Arrays, record_bytes: int) -> None:
        self.client, self.most = client, validation.max_parts(model)
        self.record_bytes = record_bytes
        largest = max(array.nbytes for array in model.values())
        self.largest = largest + 2 * validation.MAX_HEADER_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullMessages(self, request: Any) -> Any:
        """Check the list of a reply's parts before any part is fetched."""
        found = self.client.PullMessages(request)
        for tree in found.message_object_trees:
            count, left = 0, [tree]
            while left and count < self.most:
                count += 1
                left += left.pop().children
            if left:
                raise validation.Refused(
                    f"it comes in more than {self.most} parts, so none is fetched"
                )
        return found

    def PullObject(self, request: Any) -> Any:
        """Check one part before it is decoded."""
        found = self.client.PullObject(request)
        content = found.object_content
        kind = bytes(content[:16]).partition(b" ")[0]
        limit = self.record_bytes
        if kind == b"ArrayChunk":
            limit = self.largest
        elif kind not in (b"MetricRecord", b"ConfigRecord"):
            limit += 256 * self.most
        if len(content) > limit:
            raise validation.Refused(
                f"a part of it has {len(content)} bytes: at most {limit} are read"
            )
        # An array lists its pieces. One piece listed a million times would fill the memory.
        if kind == b"Array" and content.count(b",") > 2 * self.most:
            raise validation.Refused(f"an array of it has more than {self.most} pieces")
        return found
