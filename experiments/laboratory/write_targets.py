"""Write the tables and figures of targets, in several processes: Matplotlib uses one core."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from fedmaba.errors import FedmabaError, InputError, NoRoom
from fedmaba.report import document, figures
from fedmaba.report.document import Document
from fedmaba.results import run_folder
from laboratory import archive
from laboratory import page as reproduction
from laboratory.archive import ArchiveFile
from laboratory.targets import Target

REMEDY = "fix it, or choose another --out"


class WrittenTarget(NamedTuple):
    """A target that was written in every form."""

    page: Document  # Its figures are left out, because they are files by now.
    files: list[Path]
    why: str  # there are no figures


def write_all(
    targets: Sequence[Target], source: Path, out: Path
) -> Iterator[WrittenTarget | FedmabaError]:
    """Each target in its order, as soon as it is written, or what hindered it."""
    found = archive.read_folder(source)  # also to be told once, and at once, what is wrong with it
    many = min(_cores(), len(targets))
    if many < 2:
        yield from (_drawn(target, found, out) for target in targets)
        return
    context, workers, ends = get_context("spawn"), [], []
    try:
        for i in range(many):
            here, there = context.Pipe(duplex=False)
            given = (there, targets[i::many], source, out)
            workers.append(context.Process(target=_work, args=given, daemon=True))
            with _child_processes_skip_working_folder():
                workers[-1].start()
            there.close()  # so that a worker that ends leaves nobody waiting
            ends.append(here)
        for k in range(len(targets)):
            yield _next(ends[k % many])
    finally:
        for worker in workers:
            worker.terminate()


@contextmanager
def _child_processes_skip_working_folder() -> Iterator[None]:
    """Python processes started meanwhile do not import modules from the working folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def _drawn(target: Target, found: Sequence[ArchiveFile], out: Path) -> WrittenTarget | FedmabaError:
    try:
        page = reproduction.document(target, found)
        files, why = _write_document(page, out / target.name)
    except FedmabaError as error:
        return error
    page.figures.clear()
    return WrittenTarget(page, files, why)


def _write_document(page: Document, folder: Path) -> tuple[list[Path], str]:
    """All forms into a folder; the files, and why there are no figures if there are none."""
    run_folder.make_folder(folder)
    files = []
    for form, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv")):
        target = folder / f"table.{ending}"
        run_folder.write_file(target, document.written(page, form).encode(), remedy=REMEDY)
        files.append(target)
    for name, draw in page.figures.items():
        try:
            figure = draw()
        except InputError as error:  # no matplotlib, or nothing to draw
            return files, str(error)
        for form in figures.FILE_ENDINGS:
            target = folder / f"{re.sub(r'[^a-z0-9_-]', '_', name)}{form}"
            run_folder.write_file(target, figures.encode(figure, form), remedy=REMEDY)
            files.append(target)
    return files, ""


def _cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _work(there: Connection, targets: Sequence[Target], source: Path, out: Path) -> None:
    """What one process does; Ctrl-C, which reaches all of a terminal, is for the first of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = archive.read_folder(source)
    for target in targets:
        there.send(_drawn(target, found, out))


def _next(here: Connection) -> WrittenTarget | FedmabaError:
    try:
        shown: WrittenTarget | FedmabaError = here.recv()
    except (EOFError, OSError) as error:  # before a message, or in the middle of one
        raise NoRoom(
            "a process that draws ended early, most likely for lack of memory: draw one target at "
            "a time, as `fedmaba reproduce TARGET --from FOLDER`"
        ) from error
    return shown
