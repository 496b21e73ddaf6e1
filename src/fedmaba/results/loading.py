"""A history from whatever folder or file holds one. No torch."""

from __future__ import annotations

from pathlib import Path

from fedmaba.results import registry, run_folder, state_folder
from fedmaba.results.history import History


def load_history(path: Path | str) -> History:
    """The history of a run folder with all its parts, or of results of `fedmaba reproduce`.

    What is unfinished is read up to its checkpoint. Where experiments of a folder differ in a key,
    the labels say it: `fedavg, lr=0.01`. Results are named as `experiments/results/TARGET`, or by
    one of their `.npz` files, and need a clone of the repository. The state folder of a server on
    Flower is the history of one run, whose clients are its sites.
    """
    path = Path(path)
    found: History | None = registry.reader().read(path)
    if found is not None:
        return found
    if (state := state_folder.load_state_folder(path)) is not None:
        return state.history()
    return run_folder.load_history(path)
