"""Targets drawn and written, many at once: each in a process, for Matplotlib keeps to one core."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from fedmaba import compact
from fedmaba.compact import Batch
from fedmaba.errors import NoRoom
from fedmaba.report import document, reproduction
from fedmaba.report.document import Document
from fedmaba.targets import Target


class Shown(NamedTuple):
    """A target that was written in every form."""

    page: Document  # without its figures: they are files by now
    files: list[Path]
    why: str  # there are no figures


def draw(target: Target, found: Sequence[Batch], out: Path) -> Shown:
    """Write a target's page from histories."""
    page = reproduction.document(target, found)
    files, why = document.write(page, out / target.name)
    page.figures.clear()
    return Shown(page, files, why)


def every(targets: Sequence[Target], source: Path, out: Path) -> Iterator[Callable[[], Shown]]:
    """What waits for each target, in their order; a core draws one at a time."""
    found = compact.read_all(source)  # also to be told once, and at once, what is wrong with it
    many = min(_cores(), len(targets))
    if many < 2:
        for target in targets:
            yield partial(draw, target, found, out)
        return
    with ProcessPoolExecutor(many, get_context("spawn"), _leave_stopping_to_the_first) as pool:
        going = [pool.submit(_apart, target, source, out) for target in targets]
        try:
            for one in going:
                yield partial(_wait, one)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _wait(going: Future[Shown]) -> Shown:
    try:
        return going.result()
    except BrokenProcessPool as error:
        raise NoRoom(
            "a process that draws was killed, most likely for lack of memory: draw one target at a "
            "time, as `fedmaba reproduce TARGET --from FOLDER`"
        ) from error


def _cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _leave_stopping_to_the_first() -> None:
    """Ctrl-C reaches every process of a terminal; only the first one answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _apart(target: Target, source: Path, out: Path) -> Shown:
    return draw(target, compact.read_all(source), out)
