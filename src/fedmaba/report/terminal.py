"""What a terminal shows: progress while a run goes on, tables, lists. Reads, never computes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.live import Live
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.experiment import config
from fedmaba.report import escape, streams
from fedmaba.report.table import caption, cells, columns
from fedmaba.results.history import At, History, Model, Row, RunHistory
from fedmaba.results.metrics import PERCENT, Unit, variance

if TYPE_CHECKING:
    import fedmaba.simulation.batch
    from fedmaba.experiment.session import Session
    from fedmaba.report.document import Grid
    from fedmaba.reproduction.run import Batch, Work
    from fedmaba.reproduction.targets import Target
    from fedmaba.simulation.engine import Snapshot

STYLE = ("bold", "cyan", "")  # best, second, the others
NAME = 12  # signs of a name that a line holds at least
EFFORT = {"cnn": 20}  # MLP updates that take as long as one: 14 on an H200, 50 on a core of a CPU
WORDS = ("row", "note", "verdict", "our reading", "the paper", "where", "reading")  # no numbers


def screen() -> Console:
    """Standard output; wide where it is no terminal, so that labels stay whole for a reader."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def show(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    share: float | None = None,
    console: Console | None = None,
) -> None:
    """Print the table of a history."""
    console = console or screen()
    console.print(grid(history, model, at, history.share if share is None else share))
    for run in history.runs:
        if run.diverged:
            console.print(_line(run.diverged, "red"), soft_wrap=True)


def grid(history: History, model: Model, at: At, share: float) -> RenderableType:
    """The table: best bold, second-best coloured."""
    rows, body = history.summary(model, at, share), []
    for row, line in zip(rows, cells(rows, share), strict=True):
        body.append([_word(_named(row)), *(_word(c.text, STYLE[c.rank]) for c in line)])
    head = ["strategy", *(c.title for c in columns(share, history.unit))]
    return _table(caption(history, model, at), head, body, whole=head[1:])


class Fitting:
    """The first of several forms that has room, else the last."""

    def __init__(self, *forms: RenderableType) -> None:
        self.forms = forms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width
        fits = (f for f in self.forms if not isinstance(f, Table) or _least(f) <= wide)
        yield next(fits, self.forms[-1])


def _least(table: Table) -> int:
    """The width that the least widths of its columns make."""
    n, (_, right, _, left) = len(table.columns), table.padding
    lines = n + 1 if table.box else 0
    return sum(c.min_width or 0 for c in table.columns) + n * (left + right) + lines


def _table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[Text]], whole: Collection[str]
) -> RenderableType:
    """A table, the columns `whole` in one line each; where it is too wide, a block for each row."""
    out = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(head):
        title = _word(name)
        texts = [title.plain, *(row[i].plain for row in rows)]
        words = texts if name in whole else [word for text in texts for word in text.split()]
        least = max(map(len, words), default=0)
        out.add_column(
            title,
            justify="left" if i == 0 or name in WORDS else "right",
            overflow="fold",
            no_wrap=name in whole,
            min_width=min(least, NAME) if i == 0 and name not in whole else least,
        )
    blocks: list[RenderableType] = []
    for label, *line in rows:
        block = Table.grid(padding=(0, 2))
        for name, text in zip(head[1:], line, strict=True):
            if text:
                block.add_row(_word(name), text)
        blocks += [Text(), label, Padding(block, (0, 0, 0, 2), expand=False)]
        out.add_row(label, *line)
    return Group(_word(caption), Fitting(out, Group(*blocks, Text())))


def _line(text: str, style: str = "") -> Text:
    """A text that may hold words of a file."""
    return Text(escape.one_line(text), style)


def _word(text: str, style: str = "") -> Text:
    """The same where signs must stay aligned."""
    return Text(streams.spelled(escape.one_line(text)), style)


def _named(row: Row) -> str:
    """A row's label and what is to be said of it."""
    return f"{row.label} ({row.note})" if row.note else row.label


@contextmanager
def progress(session: Session, quiet: bool) -> Iterator[Callable[[Snapshot], None]]:
    """A display fed with snapshots: live on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    for fault in session.faults:
        console.print(_line(fault), soft_wrap=True)
    if quiet:
        yield lambda snapshot: None
        return
    for note in session.notes:
        console.print(_line(note, "dim"), soft_wrap=True)
    moving = console.is_terminal and not console.is_dumb_terminal
    shown = _live(session, console) if moving else _lines(session, console)
    with shown as display:
        yield display


class Pace:
    """How fast rounds come, and when the last will be there.

    From the second one on the first does not count: on a GPU kernels are compiled in it.
    """

    def __init__(self, batch: fedmaba.simulation.batch.Batch) -> None:
        self.done, self.rounds = batch.progress.round, batch.plan.rounds
        n = [run.federation.n_clients for run in batch.runs]
        self.clients = sum(min(batch.plan.participants or c, c) for c in n)  # a round
        self.times = [(time.monotonic(), self.done)]  # of the start, the first round, the last

    def reach(self, done: int) -> None:
        self.done = done
        self.times = [*self.times[:2], (time.monotonic(), done)]

    @property
    def rate(self) -> float:
        """Rounds per second."""
        (then, first), (now, last) = self.times[-2:] if len(self.times) > 1 else self.times * 2
        return (last - first) / max(now - then, 1e-9)

    @property
    def left(self) -> float:
        """Seconds, at the rate so far."""
        return (self.rounds - self.done) / self.rate if self.rate > 0 else 0.0


def dashboard(session: Session, pace: Pace) -> RenderableType:
    """Round, rate and time left; below, how each strategy does by now."""
    share = session.experiment.eval.share
    rate = f"{_rate(pace.rate, 'rounds')}  {_rate(pace.rate * pace.clients, 'clients')}"
    unit = session.history.unit
    head = ["strategy", f"accuracy{unit.mark}", f"variance{unit.square}"]
    head += [f"worst {100 * share:g} %", "λ*", "variance over rounds"]
    rows, body = session.history.summary(share=share), []
    for row, line in zip(rows, cells(rows, share), strict=True):
        variance, accuracy, worst, _ = (Text(c.text.split(" ")[0], STYLE[c.rank]) for c in line)
        runs = [run for run in session.history.runs if run.label == row.label]
        trend = Text(spark(_variances(runs, unit)), "cyan")
        body.append([_line(_named(row)), accuracy, variance, worst, Text(_multiplier(runs)), trend])
    tables = (_now(head[:keep], body) for keep in (6, 5, 4, 3, 2))
    return Group(Fitting(_bar(pace, rate), _bar(pace, "")), Text(), Fitting(*tables))


def _bar(pace: Pace, rate: str) -> Table:
    """How far a run is, in one line."""
    done = Text.assemble("round ", (f"{pace.done}", "bold"), f"/{pace.rounds}")
    left = Text.assemble((clock(pace.left), "bold"), " left")
    out = Table.grid(padding=(0, 2, 0, 0), expand=True)
    out.add_column(no_wrap=True, min_width=len(done))
    out.add_column(ratio=1, min_width=10)
    for text in (rate, left):
        out.add_column(no_wrap=True, min_width=len(text))
    bar = ProgressBar(total=pace.rounds, completed=pace.done, complete_style="cyan")
    out.add_row(done, bar, Text(rate, "dim"), left)
    return out


def _now(head: Sequence[str], rows: Sequence[Sequence[Text]]) -> Table:
    """As many columns of the display as `head` names."""
    out = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    for i, name in enumerate(head):
        widest = max(len(name), *(len(row[i]) for row in rows))
        if i == 0:
            out.add_column(name, overflow="fold", min_width=min(NAME, widest))
        else:
            side: JustifyMethod = "left" if name.endswith("rounds") else "right"
            out.add_column(name, justify=side, no_wrap=True, min_width=widest)
    for row in rows:
        out.add_row(*row[: len(head)])
    return out


def spark(values: list[float]) -> str:
    """Numbers as a row of blocks, from the least to the greatest."""
    marks = "▁▂▃▄▅▆▇█"
    known = [v for v in values if math.isfinite(v)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    steps = (7 * (v - low) / (high - low or 1.0) for v in values)
    return "".join(marks[round(step)] if math.isfinite(step) else " " for step in steps)


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 3:04:05."""
    whole = round(seconds)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _variances(runs: list[RunHistory], unit: Unit = PERCENT, most: int = 24) -> list[float]:
    """Variance over clients at the last evaluations, mean over the strategy's seeds."""
    found = [run for run in runs if not run.diverged and "evaluated" in run.tables]
    if not found:
        return []
    count = min(len(run.tables["evaluated"]) for run in found)
    rows = slice(max(0, count - most), count)
    tables = [
        np.asarray(run.tables["deployed.accuracy"][rows])[:, run.test_size > 0]  # not the hostile
        for run in found
    ]
    return [sum(variance(a, unit) for a in at) / len(at) for at in zip(*tables, strict=True)]


def _multiplier(runs: list[RunHistory]) -> str:
    """The newest lambda of a strategy that has one, mean over its seeds."""
    newest = [float(run.tables["info.lambda"][-1]) for run in runs if "info.lambda" in run.tables]
    return f"{sum(newest) / len(newest):.2f}" if newest else "–"


def _rate(value: float, what: str) -> str:
    return f"{value:,.0f} {what}/s" if value >= 10 else f"{value:.1f} {what}/s"


@contextmanager
def _live(session: Session, console: Console) -> Iterator[Callable[[Snapshot], None]]:
    pace = Pace(session.batch)
    drawn = 0.0  # fast rounds must not wait for the display
    with Live(
        dashboard(session, pace), console=console, refresh_per_second=4, transient=True
    ) as live:

        def display(snapshot: Snapshot) -> None:
            nonlocal drawn
            pace.reach(snapshot.round + 1)
            if time.monotonic() - drawn > 0.2 or pace.done == pace.rounds:
                live.update(dashboard(session, pace))
                drawn = time.monotonic()

        yield display


@contextmanager
def _lines(session: Session, console: Console) -> Iterator[Callable[[Snapshot], None]]:
    pace, share = Pace(session.batch), session.experiment.eval.share

    def display(snapshot: Snapshot) -> None:
        pace.reach(snapshot.round + 1)
        if snapshot.evaluations is None:
            return
        parts, mark = [], session.history.unit.mark
        for row in session.history.summary(share=share):
            runs = [run for run in session.history.runs if run.label == row.label]
            multiplier = _multiplier(runs)
            parts.append(
                f"{row.label} {row.mean.accuracy:.1f}{mark} var {row.mean.variance:.0f} "
                f"worst {row.mean.worst:.1f}{mark}"
                + (f" lambda {multiplier}" if multiplier != "–" else "")
            )
        head = f"round {pace.done}/{pace.rounds}, {_rate(pace.rate, 'rounds')}, "
        head += f"{pace.left:.0f} s left"
        console.print(_line(f"{head}: {'; '.join(parts)}"), soft_wrap=True)

    yield display


def result(session: Session, out: Path) -> None:
    """The end of a run: its table, what the last model would have given, and where things lie."""
    console = screen()
    share = session.experiment.eval.share
    show(session.history, "deployed", "last", share, console)
    if any(run.deploy != "last" for run in session.history.runs):
        console.print(grid(session.history, "last", "last", share))
    console.print(_line(f"results: {out}"), soft_wrap=True)


class Batches:
    """Progress over the batches of a target: time left at the pace of the one that runs."""

    def __init__(self, left: Sequence[Work], bar: Progress | None, console: Console) -> None:
        self.left, self.bar, self.console = left, bar, console
        self.total, self.past, self.at = sum(map(_effort, left)), 0, 0
        self.said = time.monotonic()
        self.task = bar.add_task("", total=self.total) if bar else None

    def begin(self, batch: Batch) -> None:
        work, self.pace = batch.work, Pace(batch.session.batch)
        self.at, self.effort = self.at + 1, _effort(work) // self.pace.rounds  # of a round
        for note in batch.session.faults + batch.session.notes:
            self._say(note)
        many = f"{len(work.runs)} runs, {self.pace.rounds:,} rounds"
        self._say(f"batch {self.at} of {len(self.left)}: {many}: {work.job.title}")

    def round(self, done: int) -> None:
        self.pace.reach(done)
        now, reached, rate = time.monotonic(), self.past + done * self.effort, self.pace.rate
        left = (self.total - reached) / max(rate * self.effort, 1e-9)
        text = f"batch {self.at}/{len(self.left)}, round {done}/{self.pace.rounds}, "
        text += f"{_rate(rate * self.pace.clients, 'clients')}, {clock(left)} left"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=reached, description=text)
        elif now - self.said > 10 or done == self.pace.rounds:
            self.said = now
            self._say(text)

    def end(self, written: Path) -> None:
        self.past += self.pace.rounds * self.effort
        self._say(f"saved {written}")

    def _say(self, text: str) -> None:
        self.console.print(_line(text, "dim"), soft_wrap=True)


def _effort(work: Work) -> int:
    """Of a batch, in client updates of the MLP."""
    return work.updates * EFFORT.get(work.job.experiment.model, 1)


@contextmanager
def batches(left: Sequence[Work], quiet: bool) -> Iterator[Batches]:
    """A display of a target in progress: a bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        yield Batches(left, None, console)
        return
    with Progress(
        BarColumn(), TextColumn("{task.description}", markup=False), console=console
    ) as bar:
        yield Batches(left, bar, bar.console)


def reproduced(target: Target, source: Path, out: Path) -> None:
    """Show a target from its histories and write it in every form."""
    from fedmaba.reproduction import drawing

    console, whole = screen(), target.view.kind == "all"
    shown = target.uses if whole else (target,)
    for one, drawn in zip(shown, drawing.every(shown, source, out), strict=True):
        if isinstance(drawn, InputError) and whole:
            console.print(_line(str(drawn), "red"), soft_wrap=True)
            continue
        if isinstance(drawn, FedmabaError):
            raise drawn
        page, files, why = drawn
        console.print(_line(page.title, "bold"), soft_wrap=True)
        for text in page.text:
            console.print(_line(text, "bold red" if text.startswith("CUT-DOWN") else ""))
        for grid in page.grids:
            main = grid.name in ("best", "last", "pairs-last") or grid.name.startswith("last-")
            if one.view.kind != "table" or main:
                console.print(_page_table(grid))
        if why:
            console.print(_line(f"no figures: {why}", "red"), soft_wrap=True)
        kinds = ", ".join(dict.fromkeys(f.name for f in files))
        console.print(_line(f"{out / one.name}: {kinds}"), soft_wrap=True)


def grids(found: Sequence[Grid]) -> None:
    """Print tables of a page."""
    console = screen()
    for one in found:
        console.print(_page_table(one))


def _page_table(grid: Grid) -> RenderableType:
    rows = [[_word(cell.text, STYLE[cell.rank]) for cell in row] for row in grid.rows]
    return _table(grid.title, grid.head, rows, whole=("where", "setting"))


def goals(out: Path, source: Path | None = None) -> None:
    """Every target with its runs, those a folder holds, its client updates; what was begun."""
    from fedmaba.reproduction import archive
    from fedmaba.results import run_folder

    console, where = screen(), source or out
    sizes = archive.sizes(archive.read_all(where) if source or out.exists() else [])
    width = max(len(size.name) for size in sizes)
    head = f"{'target':{width}}  runs  held  client updates"
    whole = len(head) + 2 + max(len(size.title) for size in sizes)
    beside = not console.is_terminal or console.width >= whole
    console.print(Text(head, "dim"), soft_wrap=True)
    for size in sizes:
        line = f"{size.name:{width}}  {size.runs:4}  {size.held:4}  {size.updates:14,}"
        console.print(_line(f"{line}  {size.title}" if beside else line), soft_wrap=True)
        if not beside:
            console.print(Padding(_line(size.title, "dim"), (0, 0, 0, 2), expand=False))
    note = "" if source else "; --from FOLDER looks into another, as the repository's results"
    for folder in sorted((where / "checkpoint").glob("*.*.*")):
        if files := run_folder.checkpoints(folder):
            name, _, dtype = folder.name.rsplit(".", 2)
            text = f"interrupted: {name} ({dtype}) after round {int(files[0].stem):,}; "
            console.print(_line(f"{text}the command that began it goes on"), soft_wrap=True)
    console.print(_line(f"held: runs in {where}{note}", "dim"), soft_wrap=True)


def listing(what: str) -> None:
    """One line each: strategies, data sets, models, partitions, attacks, figures or targets."""
    if what == "targets":
        goals(config.KEPT)
        return
    rows = _rows(what)
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(text.ljust(w) for text, w in zip(row, width, strict=True))
        Console().print(_line(line.rstrip()), soft_wrap=True)


def _rows(what: str) -> list[tuple[str, ...]]:
    if what == "strategies":
        from fedmaba import strategies

        return [*strategies.describe_strategies()]
    if what == "datasets":
        from fedmaba.data import datasets

        return [*datasets.describe_datasets()]
    if what == "models":
        from fedmaba.rows import models

        return [*models.describe_models()]
    if what == "partitions":
        from fedmaba.data import partition

        return [*partition.describe_partitions()]
    if what == "attacks":
        from fedmaba.data import attack

        return [*attack.KINDS.items()]
    if what == "figures":
        from fedmaba.report import figures

        return [*figures.describe()]
    known = ["strategies", "datasets", "models", "partitions", "attacks", "figures", "targets"]
    raise unknown("list", what, known)


@contextmanager
def transfer() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for downloads, fed with (file, bytes so far, bytes in all)."""
    tasks: dict[str, TaskID] = {}
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )

    def display(name: str, done: int, total: int) -> None:
        if not tasks:
            bar.start()
        if name not in tasks:
            tasks[name] = bar.add_task(name)
        bar.update(tasks[name], completed=done, total=total)

    try:
        yield display
    finally:
        if tasks:  # an empty bar is a blank line
            bar.stop()
