"""Run an experiment: compare, run, resume."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmaba import stop
from fedmaba.cli.messages import say_nothing, stays_silent, tell
from fedmaba.cli.options import Events, Overrides, Quiet, RunFolder, with_experiment_options
from fedmaba.errors import Diverged, InputError
from fedmaba.experiment import config

if TYPE_CHECKING:
    from fedmaba.experiment.session import Session


@with_experiment_options
def compare(
    strategies: Annotated[
        list[str], typer.Argument(metavar="STRATEGY...", help="as fedmaba:alpha=0.8,eta_b=[0.1,1]")
    ],
    overrides: Overrides = None,
    quiet: Quiet = False,
    tensorboard: Events = False,
    **given: Any,
) -> None:
    """Run strategies side by side on one federation and show the table."""
    options = given["options"]
    asked = _experiment({"strategies": strategies}, options, overrides, "")
    _run(asked, quiet, tensorboard)


@with_experiment_options
def run(
    file: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.toml", help="see docs/experiments.md")
    ],
    overrides: Overrides = None,
    quiet: Quiet = False,
    tensorboard: Events = False,
    **given: Any,
) -> None:
    """Run the experiment of a file; options override its keys."""
    asked = _experiment(config.read_toml(file), given["options"], overrides, str(file))
    _run(asked, quiet, tensorboard)


def resume(
    folder: RunFolder,
    trust: Annotated[
        bool, typer.Option("--trust", help="import the model and strategies that it names")
    ] = False,
    quiet: Quiet = False,
    tensorboard: Events = False,
) -> None:
    """Resume a run that was interrupted."""
    from fedmaba.experiment import starting

    _drive(starting.resume(folder, trust), folder, quiet, tensorboard)


def _experiment(
    tree: dict[str, Any], options: dict[config.Key, str], overrides: list[str] | None, source: str
) -> config.Experiment:
    from fedmaba import user_code
    from fedmaba.experiment import checks

    for key, value in options.items():
        config.set_key(tree, key.name, value)
    for item in overrides or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"--set {item!r}: write KEY=VALUE, as train.lr=0.05")
        config.set_key(tree, name.strip(), value.strip())
    if named := checks.user_modules(tree):
        user_code.allow_working_folder()
    asked = checks.build(tree, source)
    if named and source and not stays_silent():  # the user may not know what a file imports
        tell(f"{source} imports {user_code.say_sources(named)}")
    return asked


def _run(asked: config.Experiment, quiet: bool, tensorboard: bool) -> None:
    from fedmaba.experiment import starting
    from fedmaba.experiment.session import prepare
    from fedmaba.results import run_folder

    if tensorboard:
        from fedmaba.report.tensorboard import check

        check()
    session = prepare(asked)
    stem = Path(asked.data.name).stem.partition(":")[0]
    ranks = session.batch.ranks
    if asked.save.out:
        out = Path(asked.save.out)
    else:  # one folder for all ranks
        claimed = "" if ranks.rank else str(run_folder.create_numbered_folder(Path("runs"), stem))
        out = Path(ranks.tell(claimed.encode()).decode())
    starting.open_run_folder(session, out, sys.argv)
    _drive(session, out, quiet, tensorboard)


def _drive(session: Session, out: Path, quiet: bool, tensorboard: bool) -> None:
    """Simulate to the end, showing progress, then the table and where everything lies."""
    from fedmaba.report import terminal
    from fedmaba.results import run_folder

    silent, began = session.batch.ranks.rank > 0, time.monotonic()
    with ExitStack() as held:
        asked = held.enter_context(stop.after_the_round(say_nothing if silent else tell))
        shows = [held.enter_context(terminal.progress(session, quiet or silent))]
        if tensorboard and not silent:
            from fedmaba.report.tensorboard import events

            shows.append(held.enter_context(events(session, out)))
        for snapshot in session.rounds(asked):
            for show in shows:
                show(snapshot)
    if silent:
        return
    if session.stopped:
        done = session.batch.progress.round
        tell(f"stopped after round {done}; resume with: {run_folder.resume_hint(out)}")
        raise typer.Exit(130)
    terminal.result(session, out, time.monotonic() - began)
    if any(session.batch.progress.diverged):
        raise typer.Exit(Diverged.exit_code)
