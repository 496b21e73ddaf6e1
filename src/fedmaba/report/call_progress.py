"""What a call of `fedmaba.compare` says while it runs: on standard error, and to a logger.

`progress=True` shows it: a live display in a terminal, plain lines in a notebook or a file. The
logger `fedmaba` is told as well, if the caller has set up logging; without progress it is told
alone, by the usual rules of logging: warnings are seen, the rest is where somebody asked for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def speaking(
    session: Session, progress: bool
) -> Iterator[tuple[Speaker, Callable[[Snapshot], None]]]:
    """Who speaks for a session, and what to feed with its snapshots; rank 0 speaks for all."""
    if session.batch.ranks.rank > 0:
        yield _Silent(None), lambda snapshot: None
        return
    from rich.console import Console

    from fedmaba.report import terminal

    # A notebook would show each line as a box of its own.
    console = Console(stderr=True, force_jupyter=False) if progress else None
    speaker = Speaker(console)
    for fault in session.warnings:
        speaker.warn(fault)
    for note in session.notes:
        speaker.note(note)
    session.batch.rows.tell = speaker.note
    if console is not None and console.is_terminal and not console.is_dumb_terminal:
        with terminal.live(session, console) as display:
            yield speaker, display
    else:
        yield speaker, terminal.progress_lines(session, speaker.line)


class _Silent(Speaker):
    """Says nothing."""

    def _say(self, level: int, text: str, style: str) -> None:
        """Leave it to rank 0."""
