"""What a real federation logs, kept in its state folder, so that one that died says why. No torch.

Each line has a time, so it is apart from rounds.jsonl, which repeats bit for bit after a crash.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime

from fedmaba.errors import FedmabaError
from fedmaba.results import run_folder

MOST_LETTERS = 1000  # of a text
# what may stand before the name of the site that a line is about
SITE_IN_TEXT = re.compile(r"(?:left out of round \d+: )?(?:node \d+ \(|site ')?([^\s:()']+)")


class EventLog:
    """The lines of one server; without a folder none is kept."""

    def __init__(self) -> None:
        self.folder: run_folder.Folder | None = None
        self.round: int | None = None  # that is under way, or ended last

    def add(self, level: int, text: str, sites: Collection[str] = ()) -> None:
        """Append a line; a disk that takes no more ends no run here: saving a round says so."""
        if self.folder is None:
            return
        found = SITE_IN_TEXT.match(text.strip())
        site = found.group(1) if found and found.group(1) in sites else None
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "level": logging.getLevelName(level).lower(),
            "round": self.round,
            "site": site,
            "text": text[:MOST_LETTERS],
        }
        with suppress(FedmabaError):
            self.folder.append_event(line)


def why_it_ends(error: BaseException) -> str:
    """The error that ends a run, as a line of the log."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "the run is stopped from outside; the state is saved"
    told = str(error) if isinstance(error, FedmabaError) else f"{type(error).__name__}: {error}"
    return f"the run ends by an error: {told}"
