"""What a command or a Python call says while it runs: on standard error, to a logger.

`progress=True` of `compare` or `tune` shows it: a live display in a terminal, plain lines in a
notebook or a file. The logger `fedmaba` is told as well, if the caller has set up logging; without
progress it is told alone, by the usual rules of logging: warnings are seen, the rest is where
somebody asked for it.
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
    """Says lines on a console, to the logger, or to both, but none below the `least` level."""

    def __init__(self, console: Console | None, least: int = logging.INFO) -> None:
        self.console, self.least = console, least

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
        if level < self.least:
            return
        if self.console is not None:
            from rich.text import Text

            self.console.print(Text(one_line(text), style), soft_wrap=True)
        # Where nobody has set up logging, Python would print a warning a second time.
        if self.console is None or LOG.hasHandlers():
            LOG.log(level, "%s", one_line(text))


def speaker_for(progress: bool, rank: int = 0, quiet: bool = False) -> Speaker:
    """Who speaks for a call or a command, warnings alone if `quiet`; rank 0 speaks for all."""
    if rank > 0:
        return Speaker(None, logging.CRITICAL)
    from rich.console import Console

    # A notebook would show each line as a box of its own.
    console = Console(stderr=True, force_jupyter=False) if progress else None
    return Speaker(console, logging.WARNING if quiet else logging.INFO)


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
    for fault in () if session.done else session.warnings:
        speaker.warn(fault)
    if session.done or speaker.least > logging.INFO:
        yield lambda snapshot: None
        return
    from fedmaba.report import terminal

    console = speaker.console
    for note in session.notes:
        speaker.note(note)
    session.batch.rows.tell = speaker.note
    if console is not None and terminal.can_move(console):
        with terminal.live(session, console) as display:
            yield display
    else:
        yield terminal.progress_lines(session, speaker.line)
