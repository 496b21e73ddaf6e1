"""Weights & Biases: a run for each strategy and seed, kept in the run folder until it is sent.

Nothing leaves the machine unless the variable WANDB_MODE says `online`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fedmaba.report import escape, tracked

BINS = 20


def check() -> None:
    """Say what to install before any work starts."""
    with tracked.installed_for("wandb", "Weights & Biases"):
        import wandb  # noqa: F401


def errors() -> tuple[type[Exception], ...]:
    """What it raises when the tracker fails, not fedmaba."""
    import wandb

    return (wandb.Error, OSError)


def open_run(run: tracked.TrackedRun, known: str) -> tracked.Tracker:
    """Start to track a run, or go on with the one that is `known` by its id."""
    import wandb

    tracked.place(run.folder, "wandb")
    mode: Any = os.environ.get("WANDB_MODE") or "offline"
    made = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or "fedmaba",
        dir=str(run.folder),
        id=known or None,
        name=escape.one_line(run.title()),
        group=escape.one_line(run.group),
        config={
            k: escape.one_line(v) if isinstance(v, str) else v for k, v in run.settings.items()
        },
        mode=mode,
        reinit="create_new",  # The runs of an experiment are trained together.
        resume="allow" if known and mode == "online" else None,
        settings=wandb.Settings(
            silent=True, console="off", save_code=False, disable_git=True, symlink=False
        ),
    )
    # Only a server can say what it has; files that wait to be sent have what was saved before.
    there = made.step if known and mode == "online" else run.done + 1 if known else 1
    return WandbRun(made, range(1, there))


class WandbRun:
    """One run of Weights & Biases."""

    def __init__(self, made: Any, there: range) -> None:
        self._made, self.id, self.there = made, str(made.id or ""), there

    def write(self, done: int, figures: tracked.RoundFigures) -> None:
        """Log the figures of a round, with the spread of the clients."""
        import wandb

        told: dict[str, Any] = {escape.one_line(k): v for k, v in figures.values.items()}
        if figures.clients is not None and len(figures.clients):
            spread = np.histogram(figures.clients, bins=BINS)
            told["clients/accuracy"] = wandb.Histogram(np_histogram=spread)
        self._made.log(told, step=done)

    def close(self, finished: bool) -> None:
        """End it: the run is finished, or was stopped and may be resumed."""
        self._made.finish(exit_code=0 if finished else 1)
