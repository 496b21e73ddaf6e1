"""How replies of a real federation are fetched: each by itself, and none that is too large.

Knows Flower's grid by what it is called with, and imports nothing of it. No torch.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from fedmaba.deploy import validation
from fedmaba.deploy.validation import Arrays
from fedmaba.errors import FedmabaError

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid


def push(grid: Grid, messages: Sequence[Message]) -> list[str | None]:
    """Send messages; their ids in order, None where one could not be sent."""
    if not messages:
        return []
    ids = list(grid.push_messages(messages))
    if len(ids) != len(messages):
        raise FedmabaError("the SuperLink took none of the messages: see its log, then run again")
    return ids


def _pull(grid: Grid, message: str) -> Message | str | None:
    """The reply to one message: None while there is none, a line where it cannot be read."""
    try:
        return next(iter(grid.pull_messages([message])), None)
    except validation.Refused as why:
        return str(why)
    except Exception as error:  # flwr unpacks what a stranger packed: no way to fail is ruled out
        return f"its reply cannot be read: {type(error).__name__}: {validation.line(error)}"


class Looks:
    """Looks for replies, each in a thread of its own, so that a slow one holds up no other."""

    def __init__(self, grid: Grid | None = None) -> None:
        self.grid = grid
        self.waiting: dict[str, int] = {}  # message -> the node that is to answer it
        self.under_way: dict[str, Future[Message | str | None]] = {}

    def once(self, seconds: float) -> list[tuple[int, Message | str]]:
        """Look for every reply; those that are there within so many seconds."""
        for message in [m for m in self.waiting if m not in self.under_way]:
            done: Future[Message | str | None] = Future()
            self.under_way[message] = done
            # no pool: at the end of the program it would wait for a look that never ends
            threading.Thread(target=self._look, args=(message, done), daemon=True).start()
        wait(self.under_way.values(), seconds)
        found: list[tuple[int, Message | str]] = []
        for message, done in list(self.under_way.items()):
            if done.done():
                del self.under_way[message]
                got = done.result()
                if got is not None:
                    found.append((self.waiting.pop(message), got))
        return sorted(found, key=lambda pair: pair[0])  # not in order of arrival

    def drop(self, nodes: set[int]) -> None:
        """Wait no longer for these nodes."""
        self.waiting = {m: node for m, node in self.waiting.items() if node not in nodes}
        self.under_way = {m: done for m, done in self.under_way.items() if m in self.waiting}

    def _look(self, message: str, done: Future[Message | str | None]) -> None:
        try:
            done.set_result(_pull(self.grid, message))
        except BaseException as error:  # the end of the program, say: `once` raises it again
            done.set_exception(error)


def counted(grid: Grid, model: Arrays) -> Grid:
    """A grid that fetches no reply larger than any honest one; others have no parts to fetch."""
    if not hasattr(grid, "_runtime_client"):
        return grid
    counted = copy.copy(grid)
    counted._client = _Client(grid._runtime_client, model)
    return counted


class _Client:
    """The way to the SuperLink; a reply of too many or too large parts is refused on it."""

    def __init__(self, client: Any, model: Arrays) -> None:
        self.client, self.most = client, validation.parts(model)
        self.largest = max(array.nbytes for array in model.values()) + 2 * validation.HEADER

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullMessages(self, request: Any) -> Any:
        """Replies as lists of their parts, before any of these is fetched."""
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
        """One part, before it is decoded."""
        found = self.client.PullObject(request)
        content = found.object_content
        kind = bytes(content[:16]).partition(b" ")[0]
        limit = self.largest if kind == b"ArrayChunk" else validation.SMALL + 256 * self.most
        limit = validation.SMALL if kind in (b"MetricRecord", b"ConfigRecord") else limit
        if len(content) > limit:
            raise validation.Refused(
                f"a part of it has {len(content)} bytes: at most {limit} are read"
            )
        # an array names its pieces; one piece named a million times would fill the memory
        if kind == b"Array" and content.count(b",") > 2 * self.most:
            raise validation.Refused(f"an array of it has more than {self.most} pieces")
        return found
