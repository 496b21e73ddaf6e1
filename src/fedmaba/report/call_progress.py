"""What a Python call of `compare` or `tune` says while it runs: on standard error, to a logger.

`progress=True` shows it: a live display in a terminal, plain lines in a notebook or a file. The
logger `fedmaba` is told as well, if the caller has set up logging; without progress it is told
alone, by the usual rules of logging: warnings are seen, the rest is where somebody asked for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from fedmaba.report.escape import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from fedmaba.experiment.session import Session
    from fedmaba.simulation.engine import Snapshot

LOG = logging.getLogger("fedmaba")


class Speaker:
    """Says lines on a console, to the logger, or to both."""

    def __init__(self, console: Console | None) -> None:
        self.console = console

    def warn(self, text: str) -> None:
        """Say what the caller has to know."""
        self._say(logging.WARNING, text, "yellow")

    def note(self, text: str) -> None:
        """Say what is good to know."""
        self._say(logging.INFO, text, "dim")

    def line(self, text: str) -> None:
        """Say how far the runs are."""
        self._say(logging.INFO, text, "")

    def _say(self, level: int, text: str, style: str) -> None:
        if self.console is not None:
            from rich.text import Text

            self.console.print(Text(one_line(text), style), soft_wrap=True)
        # Where nobody has set up logging, Python would print a warning a second time.
        if self.console is None or LOG.hasHandlers():
            LOG.log(level, "%s", one_line(text))


def speaker_for(progress: bool, rank: int = 0) -> Speaker:
    """Who speaks for a call; rank 0 speaks for all."""
    if rank > 0:
        return _Silent(None)
    from rich.console import Console

    # A notebook would show each line as a box of its own.
    return Speaker(Console(stderr=True, force_jupyter=False) if progress else None)


def follow(
    session: Session, speaker: Speaker, stop: Callable[[], bool], used: Sequence[str] = ()
) -> None:
    """Simulate a session to its end, or until told to stop; say how far it is, also to trackers."""
    with ExitStack() as held:
        shows = [held.enter_context(_showing(session, speaker))]
        if used and not session.done and not session.batch.ranks.rank:
            from fedmaba.report import trackers

            shows.append(held.enter_context(trackers.tracking(used, session, speaker.warn)))
        for snapshot in session.rounds(stop):
            for show in shows:
                show(snapshot)


@contextmanager
def _showing(session: Session, speaker: Speaker) -> Iterator[Callable[[Snapshot], None]]:
    """Say what there is to know of a session; what to feed with its snapshots."""
    if session.done or isinstance(speaker, _Silent):
        yield lambda snapshot: None
        return
    from fedmaba.report import terminal

    console = speaker.console
    for fault in session.warnings:
        speaker.warn(fault)
    for note in session.notes:
        speaker.note(note)
    session.batch.rows.tell = speaker.note
    if console is not None and terminal.can_move(console):
        with terminal.live(session, console) as display:
            yield display
    else:
        yield terminal.progress_lines(session, speaker.line)


class _Silent(Speaker):
    """Says nothing."""

    def _say(self, level: int, text: str, style: str) -> None:
        """Leave it to rank 0."""
