"""What a terminal shows of `fedmaba reproduce`: progress, the list of targets, finished targets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from fedmaba.errors import FedmabaError, InputError
from fedmaba.report.document import Document
from fedmaba.report.terminal import (
    Pace,
    can_move,
    clock,
    line_of,
    rate_of,
    screen,
    table_of,
)
from laboratory.targets import OUT, Target

if TYPE_CHECKING:
    from laboratory.run import PendingBatch, RunningBatch

# As many MLP updates take as long as one: 14 on an H200, 50 on a core of a CPU.
EFFORT = {"cnn": 20}


class Batches:
    """Progress over the batches of a target: time left at the pace of the one that runs."""

    def __init__(
        self, left: Sequence[PendingBatch], bar: Progress | None, console: Console
    ) -> None:
        self.left, self.bar, self.console = left, bar, console
        self.total, self.past, self.at = sum(map(_effort, left)), 0, 0
        self.said = time.monotonic()
        self.task = bar.add_task("", total=self.total) if bar else None

    def begin(self, batch: RunningBatch) -> None:
        work, self.pace = batch.work, Pace(batch.session.batch)
        self.at, self.effort = self.at + 1, _effort(work) // self.pace.rounds  # of a round
        for note in batch.session.warnings + batch.session.notes:
            self._say(note)
        many = f"{len(work.runs)} runs, {self.pace.rounds:,} rounds"
        told = f"batch {self.at} of {len(self.left)}: {many}: {work.job.title}"
        self.console.print(line_of(told, "dim"))

    def round(self, done: int) -> None:
        self.pace.reach(done)
        now, reached, rate = time.monotonic(), self.past + done * self.effort, self.pace.rate
        left = (self.total - reached) / max(rate * self.effort, 1e-9)
        text = f"batch {self.at}/{len(self.left)}, round {done}/{self.pace.rounds}, "
        text += f"{rate_of(rate * self.pace.clients, 'clients')}, {clock(left)} left"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=reached, description=text)
        elif now - self.said > 10 or done == self.pace.rounds:
            self.said = now
            self._say(text)

    def end(self, written: Path) -> None:
        self.past += self.pace.rounds * self.effort
        self._say(f"saved {written}")

    def _say(self, text: str) -> None:
        self.console.print(line_of(text, "dim"), soft_wrap=True)


def _effort(work: PendingBatch) -> int:
    """Of a batch, in client updates of the MLP."""
    return work.updates * EFFORT.get(work.job.experiment.model, 1)


@contextmanager
def batches(left: Sequence[PendingBatch], quiet: bool) -> Iterator[Batches]:
    """A display of a target in progress: a bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True, quiet=quiet)
    if quiet or not can_move(console):
        yield Batches(left, None, console)
        return
    with Progress(
        BarColumn(), TextColumn("{task.description}", markup=False), console=console
    ) as bar:
        yield Batches(left, bar, bar.console)


def show_and_write_target(target: Target, source: Path, out: Path) -> None:
    """Show a target from its histories and write it in every form."""
    from laboratory import write_targets

    console, whole = screen(), target.view.kind == "all"
    shown = target.uses if whole else (target,)
    for one, drawn in zip(shown, write_targets.write_all(shown, source, out), strict=True):
        if isinstance(drawn, InputError) and whole:
            console.print(line_of(str(drawn), "red"), soft_wrap=True)
            continue
        if isinstance(drawn, FedmabaError):
            raise drawn
        page, files, why = drawn
        console.print(line_of(page.title, "bold"))
        for text in page.text:
            console.print(line_of(text, "bold red" if text.startswith("CUT-DOWN") else ""))
        for grid in page.grids:
            main = grid.name in ("best", "paper-best", "last", "pairs-last")
            main = main or grid.name.startswith("last-")
            if one.view.kind != "table" or main:
                console.print(table_of(grid))
        if why:
            console.print(line_of(f"no figures: {why}", "red"), soft_wrap=True)
        kinds = ", ".join(dict.fromkeys(f.name for f in files))
        console.print(line_of(f"{out / one.name}: {kinds}"), soft_wrap=True)


def show_document(page: Document) -> None:
    """Words and tables of a page that stands alone."""
    console = screen()
    console.print(line_of(page.title, "bold"))
    for text in page.text:
        console.print(line_of(text), soft_wrap=True)
    for grid in page.grids:
        console.print(table_of(grid))


def target_rows(out: Path = OUT) -> list[tuple[str, ...]]:
    """Every target: its name, its title, its runs, those that a folder holds, client updates."""
    from laboratory import archive, picks

    sizes = picks.target_sizes(archive.read_folder(out) if out.exists() else [])
    return [(s.name, s.title, str(s.runs), str(s.done), str(s.updates)) for s in sizes]


def show_targets(out: Path = OUT, source: Path | None = None) -> None:
    """Every target with its runs, those a folder holds, its client updates; what was begun."""
    from fedmaba.results import run_folder
    from laboratory import archive, picks

    console, where = screen(), source or out
    sizes = picks.target_sizes(archive.read_folder(where) if source or out.exists() else [])
    width = max(len(size.name) for size in sizes)
    head = f"{'target':{width}}  runs  held  client updates"
    whole = len(head) + 2 + max(len(size.title) for size in sizes)
    beside = not console.is_terminal or console.width >= whole
    console.print(Text(head, "dim"), soft_wrap=True)
    for size in sizes:
        line = f"{size.name:{width}}  {size.runs:4}  {size.done:4}  {size.updates:14,}"
        console.print(line_of(f"{line}  {size.title}" if beside else line), soft_wrap=True)
        if not beside:
            console.print(Padding(line_of(size.title, "dim"), (0, 0, 0, 2), expand=False))
    note = "" if source else "; --from FOLDER looks into another, as the repository's results"
    for folder in sorted((where / "checkpoint").glob("*.*.*")):
        if files := run_folder.checkpoints(folder):
            name, _, dtype = folder.name.rsplit(".", 2)
            text = f"interrupted: {name} ({dtype}) after round {int(files[0].stem):,}; "
            console.print(line_of(f"{text}the command that began it goes on"), soft_wrap=True)
    console.print(line_of(f"held: runs in {where}{note}", "dim"), soft_wrap=True)
