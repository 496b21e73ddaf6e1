"""What a terminal shows: progress while a run goes on, tables, lists. Reads, never computes."""

from __future__ import annotations

import math
import os
import shlex
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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

from fedmaba.errors import unknown
from fedmaba.experiment import parts
from fedmaba.report import data, escape, numbers, streams, verdict
from fedmaba.report.document import Cell, Grid, minus_sign
from fedmaba.report.table import (
    capitalised,
    digits_of,
    for_screen,
    incentive_grids,
    noise_note,
    privacy_note,
    silence,
    summary,
)
from fedmaba.results.history import History
from fedmaba.results.metrics import PERCENT, Unit
from fedmaba.results.run_history import At, Model, RunHistory

if TYPE_CHECKING:
    import fedmaba.simulation.batch
    from fedmaba.experiment.session import Session
    from fedmaba.simulation.engine import Snapshot
    from fedmaba.strategies.base import Shown

RANK_STYLES = ("bold", "cyan", "")  # best, second, the others
COLUMNS = 2  # This many of a strategy's own numbers are shown while a run goes on.
TREND = "variance over rounds"
MARKS_NOTE = Text("Bold: best. Cyan: second. A smaller variance is fairer.", "dim")
NAME_WIDTH = 12  # A line holds at least this many signs of a name.
WORD_COLUMNS = (
    "row",
    "note",
    "verdict",
    "what it means",
    "the paper",
    "where",
    "reading",
    "the paper's value lies inside our interval",
    "likely cause, where one was tested",
    "who and why",
)  # no numbers


def screen() -> Console:
    """Standard output; where it is no terminal, as wide as COLUMNS says, else wide enough."""
    console = Console()
    return console if _has_width(console) else Console(width=160)


def _has_width(console: Console) -> bool:
    """Whether lines must end somewhere: in a terminal, or as COLUMNS says, which rich obeys."""
    return console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()


def can_move(console: Console) -> bool:
    """Whether lines can be drawn over; FORCE_COLOR colours notebooks and files, which cannot."""
    try:
        there = console.file.isatty()
    except (AttributeError, ValueError):  # closed, or no stream of Python's
        there = False
    return there and console.is_terminal and not console.is_dumb_terminal


def show(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    share: float | None = None,
    console: Console | None = None,
) -> None:
    """Print the table of a history."""
    console = console or screen()
    share = history.share if share is None else share
    shown = for_screen(summary(history, model, at, share))
    console.print(table_of(shown, whole=shown.head[1:]))
    if console.is_terminal and any(cell.rank < 2 for row in shown.rows for cell in row):
        console.print(MARKS_NOTE)
    for gained in map(for_screen, incentive_grids(history, model, at)):
        named = replace(gained, title=capitalised(gained.title))
        console.print(table_of(named, whole=gained.head[1:]))
    if noise := noise_note(history.summary(model, at, share), history.runs, history.on):
        noise = minus_sign(noise)
        console.print(line_of(noise, "yellow" if "warning" in noise else "dim"))
    if spent := privacy_note(history.runs):
        console.print(line_of(spent, "dim"))
    for told in silence(history.runs):
        console.print(line_of(told, "yellow"), soft_wrap=True)
    for run in history.runs:
        if run.diverged:
            console.print(line_of(run.diverged, "red"), soft_wrap=True)


def grid(history: History, model: Model, at: At, share: float) -> RenderableType:
    """The table of strategies."""
    shown = for_screen(summary(history, model, at, share))
    return table_of(shown, whole=shown.head[1:])


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


def table_of(grid: Grid, whole: Collection[str] = ("where", "setting")) -> RenderableType:
    """A table: best bold, second coloured; where it is too wide, a block for each row.

    The columns `whole` stay in one line each.
    """
    rows = [
        [
            aligned(minus_sign(cell.text) if i else cell.text, RANK_STYLES[cell.rank])
            for i, cell in enumerate(row)
        ]
        for row in grid.rows
    ]
    out = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(grid.head):
        title = aligned(name)
        texts = [title.plain, *(row[i].plain for row in rows)]
        words = texts if name in whole else [word for text in texts for word in text.split()]
        least = max(map(len, words), default=0)
        out.add_column(
            title,
            justify="left" if i == 0 or name in WORD_COLUMNS else "right",
            overflow="fold",
            no_wrap=name in whole,
            min_width=min(least, NAME_WIDTH) if i == 0 and name not in whole else least,
        )
    blocks: list[RenderableType] = []
    for label, *line in rows:
        block = Table.grid(padding=(0, 2))
        for name, text in zip(grid.head[1:], line, strict=True):
            if text:
                block.add_row(aligned(name), text)
        blocks += [Text(), label, Padding(block, (0, 0, 0, 2), expand=False)]
        out.add_row(label, *line)
    return Group(aligned(grid.title), Fitting(out, Group(*blocks, Text())))


def line_of(text: str, style: str = "") -> Text:
    """A text that may hold words of a file."""
    return Text(escape.one_line(text), style)


def aligned(text: str, style: str = "") -> Text:
    """The same where signs must stay aligned."""
    return Text(streams.spelled(escape.one_line(text)), style)


class Pace:
    """How fast rounds come, and when the last will be there.

    From the second one on the first does not count: on a GPU kernels are compiled in it.
    """

    def __init__(self, batch: fedmaba.simulation.batch.Batch) -> None:
        self.done, self.rounds = batch.progress.round, batch.plan.rounds
        n = [run.federation.n_clients for run in batch.runs]
        self.clients = sum(min(batch.plan.participants or c, c) for c in n)  # a round
        # These are of the start, the first round and the last one.
        self.times = [(time.monotonic(), self.done)]

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

    @property
    def known(self) -> bool:
        """Whether a round has been timed, so that there is a rate."""
        return self.rate > 0


def dashboard(session: Session, pace: Pace) -> RenderableType:
    """Round, rate and time left; below, how each strategy does by now."""
    share = session.experiment.eval.share
    rate = f"{rate_of(pace.rate, 'rounds')}  {rate_of(pace.rate * pace.clients, 'clients')}"
    rate = rate if pace.known else ""
    history, unit = session.history, session.history.unit
    told, table = _in_progress(history), for_screen(summary(history, share=share))
    variance, accuracy, worst, _ = table.head[1:]
    head = [table.head[0], accuracy, variance, worst, *(number.short for number in told)]
    body = []
    for label, line in zip(dict.fromkeys(r.label for r in history.runs), table.rows, strict=True):
        figures = [Cell(cell.text.split(" ")[0], rank=cell.rank) for cell in line[1:]]
        runs = [run for run in history.runs if run.label == label]
        newest = [Cell(_newest(runs, number.name) or "–") for number in told]
        trend = Cell(spark(_variances(runs, unit)))
        body.append([line[0], figures[1], figures[0], figures[2], *newest, trend])
    shown = Grid("progress", "", [*head, TREND], body)
    tables = (_now(shown, keep) for keep in range(len(shown.head), 1, -1))
    marks = [MARKS_NOTE] if any(cell.rank < 2 for row in body for cell in row) else []
    return Group(Fitting(_bar(pace, rate), _bar(pace, "")), Text(), Fitting(*tables), *marks)


def _bar(pace: Pace, rate: str) -> Table:
    """How far a run is, in one line."""
    done = Text.assemble("round ", (f"{pace.done}", "bold"), f"/{pace.rounds}")
    left = Text("estimating")
    if pace.known:
        left = Text.assemble((clock(pace.left), "bold"), " left")
    out = Table.grid(padding=(0, 2, 0, 0), expand=True)
    out.add_column(no_wrap=True, min_width=len(done))
    out.add_column(ratio=1, min_width=10)
    for text in (rate, left):
        out.add_column(no_wrap=True, min_width=len(text))
    bar = ProgressBar(total=pace.rounds, completed=pace.done, complete_style="cyan")
    out.add_row(done, bar, Text(rate, "dim"), left)
    return out


def _now(grid: Grid, keep: int) -> Table:
    """The first columns of the display."""
    out = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    rows = [[line_of(cell.text, RANK_STYLES[cell.rank]) for cell in row] for row in grid.rows]
    for i, name in enumerate(grid.head[:keep]):
        widest = max(len(name), *(len(row[i]) for row in rows))
        side: JustifyMethod = "left" if name == TREND else "right"
        if i == 0:
            out.add_column(name, overflow="fold", min_width=min(NAME_WIDTH, widest))
        else:
            style = "cyan" if name == TREND else ""
            out.add_column(name, justify=side, style=style, no_wrap=True, min_width=widest)
    for row in rows:
        out.add_row(*row[:keep])
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
        [f.variance for f in run.fairness("deployed", at=range(*rows.indices(count)), unit=unit)]
        for run in found
    ]
    return [sum(at) / len(at) for at in zip(*tables, strict=True)]


def _in_progress(history: History) -> list[Shown]:
    """The numbers of the strategies that have a column while a run goes on."""
    return [number for number in numbers.of_runs(history.runs) if number.short][:COLUMNS]


def _newest(runs: list[RunHistory], name: str) -> str:
    """The newest value of a strategy's number, mean over its seeds; nothing if it has none."""
    found = [values for run in runs if (values := numbers.values(run, name)) is not None]
    newest = [float(values[-1]) for values in found if len(values)]
    return f"{sum(newest) / len(newest):.2f}" if newest else ""


def rate_of(value: float, what: str) -> str:
    """A rate as text, such as "1,200 rounds/s"; of slow ones the seconds that each takes."""
    if 0 < value < 0.1:
        return f"{1 / value:.3g} s a {what.removesuffix('s')}"
    return f"{value:,.0f} {what}/s" if value >= 10 else f"{value:.1f} {what}/s"


@contextmanager
def live(session: Session, console: Console) -> Iterator[Callable[[Snapshot], None]]:
    """A display that renews itself in its place, fed with snapshots."""
    pace = Pace(session.batch)
    drawn = 0.0  # Fast rounds must not wait for the display.
    with Live(
        dashboard(session, pace), console=console, refresh_per_second=4, transient=True
    ) as shown:

        def display(snapshot: Snapshot) -> None:
            nonlocal drawn
            pace.reach(snapshot.round + 1)
            if time.monotonic() - drawn > 0.2 or pace.done == pace.rounds:
                shown.update(dashboard(session, pace))
                drawn = time.monotonic()

        yield display


def progress_lines(session: Session, tell: Callable[[str], None]) -> Callable[[Snapshot], None]:
    """A function of snapshots that tells line by line how far a session is."""
    pace, share = Pace(session.batch), session.experiment.eval.share

    def display(snapshot: Snapshot) -> None:
        pace.reach(snapshot.round + 1)
        if snapshot.evaluations is None:
            return
        unit = session.history.unit
        head = f"round {pace.done}/{pace.rounds}, {rate_of(pace.rate, 'rounds')}, "
        tell(head + f"{pace.left:.0f} s left")
        wide = Console(stderr=True).width
        for row in session.history.summary(share=share):
            runs = [run for run in session.history.runs if run.label == row.label]
            newest = {n.name: _newest(runs, n.name) for n in _in_progress(session.history)}
            spread, mean, worst = (
                f"{value:.{digits_of([value], unit)}f}"
                for value in (row.mean.variance, row.mean.accuracy, row.mean.worst)
            )
            told = f"{row.label}: variance {spread}{unit.square}, mean {mean}{unit.mark}, worst "
            told += f"{worst}{unit.mark}"
            told += "".join(f", {name} {value}" for name, value in newest.items() if value)
            for line in textwrap.wrap(told, wide, initial_indent="  ", subsequent_indent="    "):
                tell(line)

    return display


def result(history: History, out: Path, seconds: float | None = None) -> None:
    """The end of a run: tables, the verdict, how long it took, what next, and where things lie."""
    console = screen()
    share = history.share
    show(history, "deployed", "last", share, console)
    if any(run.deploy != "last" for run in history.runs):
        console.print(grid(history, "last", "last", share))
    if any(run.has_personal for run in history.runs):
        console.print(grid(history, "personal", "last", share))
    wide = min(80, console.width)  # a sentence is read, not scanned
    source = replace(data.source_of(history), about=parts.about_of(out))  # which names clients
    for said in verdict.verdicts_of_sources([source], share):
        console.print(line_of(said.text), width=wide)
    if seconds is not None:
        console.print(f"It took {clock(seconds)}.")
    command = shlex.join(["fedmaba", "report", str(out), "-o", "report.html"])
    console.print(line_of(f"Look at it: {command}"), soft_wrap=True)
    console.print(line_of(f"results: {out}"), soft_wrap=True)


def tables(grids: Sequence[Grid]) -> None:
    """Print tables."""
    console = screen()
    for grid in grids:
        spans = [n for i, n in enumerate(grid.head) if any(row[i].span for row in grid.rows)]
        console.print(table_of(grid, whole=("where", "setting", *spans)))


def lines(texts: Sequence[str]) -> None:
    """Print sentences, each below an empty line."""
    for text in texts:
        Console().print()
        Console().print(line_of(text))


def listing(what: str) -> None:
    """Strategies, data sets, models, partitions, attacks or figures; in a file, a line each."""
    rows, console = rows_of(what), Console()
    if _has_width(console):  # A name is whole; what is told of it continues below itself.
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, *told in rows:
            table.add_row(aligned(name), Text("\n").join(aligned(text) for text in told if text))
        console.print(table)
        return
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(text.ljust(w) for text, w in zip(row, width, strict=True))
        console.print(line_of(line.rstrip()), soft_wrap=True)


def rows_of(what: str) -> list[tuple[str, ...]]:
    """What there is to choose from: a name each, and what is told of it."""
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

        return [*attack.ATTACK_KINDS.items()]
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
