"""Reproduce the paper: run what is missing of a table or figure, and show it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from fedmaba import stop, user_code
from fedmaba.cli.messages import tell
from fedmaba.cli.options import Dtype, Quiet
from fedmaba.errors import InputError
from fedmaba.experiment import config
from laboratory import challenge as challenge_rows
from laboratory import targets
from laboratory.targets import Target

if TYPE_CHECKING:
    from laboratory.run import LoadedData, PendingBatch


def _program() -> typer.Typer:
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


app, challenge_app = _program(), _program()
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
Precision = Annotated[Dtype, typer.Option(help=config.PRECISION)]


@app.command()
def reproduce(
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="[TARGET]",
            help="a table or figure; without one, lists all and how many of their runs are done",
        ),
    ] = None,
    rounds: Annotated[Optional[int], typer.Option(help="instead of the paper's", min=1)] = None,  # noqa: UP045
    seeds: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help=f"of every row: {config.SEEDS_HELP}"),
    ] = None,
    only: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="rows to run and show: fedavg,fedmaba:alpha=0.8"),
    ] = None,
    without: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="TARGET,...", help="targets to leave out of 'all'"),
    ] = None,
    batch: Annotated[str, typer.Option(help="run part I of N of the runs, as 1/3")] = "1/1",
    quick: Annotated[
        bool, typer.Option("--quick", help="about a minute on two cores, on the embedded sample")
    ] = False,
    source: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--from", help="run nothing: draw from the histories in this folder"),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for histories, tables and figures")] = (
        targets.OUT
    ),
    device: Device = "auto",
    dtype: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Reproduce a table or figure of the paper and show it beside the paper's numbers."""
    from laboratory import display, targets

    scale = {"--rounds": rounds, "--seeds": seeds, "--only": only, "--without": without}
    how = {"--batch": batch != "1/1", "--device": device != "auto", "--dtype": dtype != "float32"}
    if target is None:
        _refuse({**scale, "--quick": quick, **how}, "without a target: name one, or leave it out")
        display.show_targets(out, source)
        return
    if source is not None:
        _refuse(how, "with --from, which runs nothing: leave one of them out")
    words = tuple(word for text in only or [] for word in targets.parse_row_names(text))
    if only and not words:
        raise InputError(f"--only {','.join(only)!r}: it names no row: name one, or leave it out")
    some = None if seeds is None else targets.parse_seeds(seeds)
    left_out = tuple(name.strip() for text in without or [] for name in text.split(","))
    asked = targets.load_target(target, targets.Scale(rounds, some, words, quick, left_out))
    if source is None:
        _reproduce(asked, out, batch, targets.parse_machine(device, str(dtype)), quiet)
    display.show_and_write_target(asked, source or out, out / "quick" if quick else out)


@challenge_app.command()
def challenge(
    strategy: Annotated[
        str,
        typer.Argument(help="yours, with one setting or two: mine.MyStrategy:power=[1,2]"),
    ],
    setting: Annotated[
        str, typer.Option(help="the stored comparison to enter, as fashion-mnist-partial")
    ],
    stored: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="folder with the stored rows; by default the clone's results"),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the new runs")] = challenge_rows.OUT,
    device: Device = "auto",
    dtype: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Enter a strategy: search, pick and fresh seeds as every stored row had, then its rank."""
    from laboratory import archive, display

    user_code.allow_working_folder()
    asked = challenge_rows.load_setting(setting)
    entry = challenge_rows.enter(asked, strategy)
    folder = challenge_rows.folder(out, entry)
    others = archive.read_folder(stored or targets.folder() / "results")
    _reproduce(entry, folder, "1/1", targets.parse_machine(device, str(dtype)), quiet)
    batches = [*others, *archive.read_folder(folder)]
    display.show_document(challenge_rows.document(asked, entry, batches))


def main(words: Sequence[str]) -> int | None:
    """Do what the words after `fedmaba reproduce` say, and return the exit code."""
    code: int | None = app(list(words), prog_name="fedmaba reproduce", standalone_mode=False)
    return code


def challenge_main(words: Sequence[str]) -> int | None:
    """Do what the words after `fedmaba challenge` say, and return the exit code."""
    name = "fedmaba challenge"
    code: int | None = challenge_app(list(words), prog_name=name, standalone_mode=False)
    return code


def _refuse(flags: Mapping[str, object], why: str) -> None:
    for flag, said in flags.items():
        if said:
            raise InputError(f"{flag} {why}")


def _reproduce(target: Target, out: Path, batch: str, machine: config.Machine, quiet: bool) -> None:
    """Run what is missing of a target, batch after batch; after a search, what it picked."""
    from laboratory import run as reproduce

    part, loaded = reproduce.parse_part(batch), None
    while left := reproduce.plan(target, out, part):
        loaded = _run_batches(left, out, machine, loaded, quiet)


def _run_batches(
    left: list[PendingBatch],
    out: Path,
    machine: config.Machine,
    loaded: LoadedData | None,
    quiet: bool,
) -> LoadedData | None:
    """Run batches one after another, and give the data of the last one."""
    from laboratory import display
    from laboratory import run as reproduce

    with stop.after_the_round(tell) as asked, display.batches(left, quiet) as show:
        for work in left:
            going = reproduce.begin(work, out, machine, loaded, sys.argv)
            show.begin(going)
            for snapshot in going.rounds(asked):
                show.round(snapshot.round + 1)
            if going.stopped:
                done = going.session.batch.progress.round
                typer.echo(f"stopped after round {done}; the same command resumes it", err=True)
                raise typer.Exit(130)
            show.end(going.target)
            loaded = going.loaded_data()
            del going  # which frees the device's memory
    return loaded
