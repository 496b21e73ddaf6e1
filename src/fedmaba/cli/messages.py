"""What a command says: results on standard output, all else on standard error, a line each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedmaba.report.escape import one_line

if TYPE_CHECKING:
    from fedmaba.report.document import Document


def say(text: object) -> None:
    """Print one line of the result."""
    typer.echo(one_line(str(text)))


def show_page(page: Document, to: str) -> None:
    """Print a page: its words and tables, or its tables in another form."""
    from fedmaba.report import document, json_forms, terminal

    if to == "json":
        typer.echo(json_forms.json_grid(page.grids[0]), nl=False)
    elif to == "text":
        terminal.lines(page.text)
        terminal.tables(page.grids)
        terminal.lines(page.foot)
    else:
        typer.echo(document.written(page, to), nl=False)


def tell(text: str) -> None:
    """Print one line on standard error: a remark, a warning or an error."""
    typer.echo(one_line(text), err=True)


def stays_silent() -> bool:
    """Whether this process stays silent, because rank 0 of the job speaks."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"


def tell_unfinished(folder: Path) -> None:
    """Print that a run is not finished and how to resume it, or the notes of a federation."""
    from fedmaba.experiment import parts
    from fedmaba.results import files, run_folder, state_folder

    if (state := state_folder.load_state_folder(folder)) is not None:
        for line in state.notes():
            tell(line)
        return
    # Results of reproduce are no run folders.
    found = parts.folders(folder) if folder.is_dir() else []
    begun = [part for part in found if files.exists(part / run_folder.EXPERIMENT_FILE)]
    left = [part for part in begun if not run_folder.is_finished(part)]
    if left:
        how = "it is running" if parts.any_in_use(folder) else parts.how_to_resume(folder)
        if len(found) > 1:
            tell(f"unfinished, {len(found) - len(left)} of {len(found)} parts are done: {how}")
            return
        runs = run_folder.load_history(folder).runs
        done = max((len(run.tables.get("round", ())) for run in runs), default=0)
        tell(f"unfinished, saved up to round {done}: {how}")
