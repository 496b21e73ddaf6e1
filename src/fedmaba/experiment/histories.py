"""Histories that need more than a run folder to be read: of parts, or of the laboratory. No torch.

`results.loading` asks here first; the package says so.
"""

from __future__ import annotations

from pathlib import Path

from fedmaba.experiment import laboratory, parts
from fedmaba.results.history import History


def read(path: Path) -> History | None:
    """The history of results of `fedmaba reproduce`, or of a folder with parts; None elsewhere."""
    if laboratory.has_results(path):
        (source,) = laboratory.enter("target_sources").load_one(path)
        history: History = source.history
        return history
    parts.require_picked(path)
    return None if parts.folders(path) == [path] else parts.load_history(path)
