"""What a terminal shows: progress while a run goes on, tables, lists. Reads, never computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedmaba.errors import unknown
from fedmaba.history import At, History, Model
from fedmaba.report.table import caption, cells, columns

if TYPE_CHECKING:
    from fedmaba.engine import Snapshot
    from fedmaba.experiment import Session

STYLE = ("bold", "cyan", "")  # best, second, the others


def show(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    share: float = 0.05,
    console: Console | None = None,
) -> None:
    """Print the table of a history."""
    console = console or Console()
    console.print(grid(history, model, at, share))
    for run in history.runs:
        if run.diverged:
            console.print(Text(run.diverged, "red"), soft_wrap=True)


def grid(history: History, model: Model, at: At, share: float) -> Table:
    """The table: best bold, second-best coloured."""
    rows = history.summary(model, at, share)
    out = Table(
        title=caption(history, model, at),
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )
    out.add_column("strategy", overflow="fold")
    for column in columns(share):
        out.add_column(column.title, justify="right", no_wrap=True)
    for row, line in zip(rows, cells(rows, share), strict=True):
        note = f" ({row.note})" if row.note else ""
        out.add_row(Text(row.label + note), *(Text(c.text, STYLE[c.rank]) for c in line))
    return out


@contextmanager
def progress(session: Session, quiet: bool) -> Iterator[Callable[[Snapshot], None]]:
    """A display fed with snapshots: live on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if quiet:
        yield lambda snapshot: None
        return
    for note in session.notes:
        console.print(Text(note, "dim"), soft_wrap=True)
    shown = _live(session, console) if console.is_terminal else _lines(session, console)
    with shown as display:
        yield display


@contextmanager
def _live(session: Session, console: Console) -> Iterator[Callable[[Snapshot], None]]:
    bar = Progress(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(None),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
    )
    task = bar.add_task("", total=session.batch.plan.rounds, completed=session.batch.progress.round)
    share = session.experiment.eval.share
    with Live(bar, console=console, refresh_per_second=8) as live:

        def display(snapshot: Snapshot) -> None:
            bar.update(task, completed=snapshot.round + 1)
            if snapshot.evaluations is not None:
                live.update(Group(grid(session.history, "deployed", "last", share), bar))

        yield display
        live.update(bar)


@contextmanager
def _lines(session: Session, console: Console) -> Iterator[Callable[[Snapshot], None]]:
    begun, first = time.monotonic(), session.batch.progress.round
    rounds, share = session.batch.plan.rounds, session.experiment.eval.share

    def display(snapshot: Snapshot) -> None:
        if snapshot.evaluations is None:
            return
        done = snapshot.round + 1
        left = (time.monotonic() - begun) / (done - first) * (rounds - done)
        parts = [
            f"{row.label} {row.mean.accuracy:.1f} % var {row.mean.variance:.0f} "
            f"worst {row.mean.worst:.1f} %"
            for row in session.history.summary(share=share)
        ]
        head = f"round {done}/{rounds}, {left:.0f} s left"
        console.print(Text(f"{head}: {'; '.join(parts)}"), soft_wrap=True)

    yield display


def result(session: Session, out: Path) -> None:
    """The end of a run: its table, what the last model would have given, and where things lie."""
    console = Console()
    share = session.experiment.eval.share
    show(session.history, "deployed", "last", share, console)
    if any(run.deploy != "last" for run in session.history.runs):
        console.print(grid(session.history, "last", "last", share))
    console.print(Text(f"results: {out}"), soft_wrap=True)


def listing(what: str) -> None:
    """One line each: strategies, data sets, models or partitions."""
    rows = _rows(what)
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(text.ljust(w) for text, w in zip(row, width, strict=True))
        Console().print(Text(line.rstrip()), soft_wrap=True)


def _rows(what: str) -> list[tuple[str, ...]]:
    if what == "strategies":
        from fedmaba import strategies

        return [*strategies.describe()]
    if what == "datasets":
        from fedmaba import datasets

        return [*datasets.describe()]
    if what == "models":
        from fedmaba import models

        return [*models.describe()]
    if what == "partitions":
        from fedmaba import partition

        return [*partition.describe()]
    raise unknown("list", what, ["strategies", "datasets", "models", "partitions"])


@contextmanager
def transfer() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for downloads, fed with (file, bytes so far, bytes in all)."""
    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:

        def display(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name)
            bar.update(tasks[name], completed=done, total=total)

        yield display
