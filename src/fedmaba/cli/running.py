"""Run an experiment: compare, run, tune, resume."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmaba import stop
from fedmaba.cli.helping import SEARCH
from fedmaba.cli.messages import stays_silent, tell
from fedmaba.cli.options import (
    Fresh,
    Overrides,
    Quiet,
    RunFolder,
    TensorboardFlag,
    Track,
    with_experiment_options,
)
from fedmaba.errors import Diverged, InputError
from fedmaba.experiment import config, experiment_file

if TYPE_CHECKING:
    from fedmaba.experiment.session import Session
    from fedmaba.results.history import History


@with_experiment_options
def compare(
    strategies: Annotated[
        list[str],
        typer.Argument(metavar="STRATEGY...", help="such as fedavg or fedmaba:alpha=[0.5,0.8]"),
    ],
    overrides: Overrides = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    track: Track = None,
    tensorboard: TensorboardFlag = False,
    **given: Any,
) -> None:
    """Run strategies side by side on one federation and show the table."""
    options = given["options"]
    asked = _experiments({"strategies": strategies}, options, overrides, "")
    _run(*asked, fresh, quiet, _trackers(track, tensorboard))


@with_experiment_options
def run(
    file: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="an experiment file")],
    overrides: Overrides = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    track: Track = None,
    tensorboard: TensorboardFlag = False,
    **given: Any,
) -> None:
    """Run the experiment of a file; options override its keys."""
    tree = experiment_file.read_toml(file)
    asked = _experiments(tree, given["options"], overrides, str(file))
    _run(*asked, fresh, quiet, _trackers(track, tensorboard))


@with_experiment_options
def tune(
    strategies: Annotated[
        list[str],
        typer.Argument(
            metavar="STRATEGY...", help="strategies; each gets the same number of trials"
        ),
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=[...]",
            help="values to try with every strategy, as lr=[0.01,0.1]",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="try the whole grid, random settings of it, or tpe (which needs Optuna)",
            rich_help_panel=SEARCH,
        ),
    ] = "grid",
    trials: Annotated[
        int | None,
        typer.Option(
            help="settings to try for each strategy [its whole grid]", min=1, rich_help_panel=SEARCH
        ),
    ] = None,
    pick: Annotated[
        str,
        typer.Option(
            help="keep the best mean (best:accuracy), or the least variance within a point of it "
            "(best:fair)",
            rich_help_panel=SEARCH,
        ),
    ] = "best:accuracy",
    search_seeds: Annotated[
        int,
        typer.Option(help="seeds of every trial, from 0 on", min=1, rich_help_panel=SEARCH),
    ] = 3,
    overrides: Overrides = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    track: Track = None,
    **given: Any,
) -> None:
    """Try settings, pick each strategy's best on validation data, run fresh seeds of it."""
    from fedmaba.experiment import tune as tuning
    from fedmaba.report import terminal, trials_table

    tree, used = _tree({}, given["options"], overrides), _trackers(track)
    tried = dict(_key_and_value(item, "--grid", "lr=[0.01,0.1]") for item in grid or [])
    out = tree.get("save", {}).get("out")
    if not out:
        raise InputError("tune keeps its search in a folder: name one with --out")
    search = tuning.Search(
        tuple(strategies), tuning.with_grid(tree, tried), sampler, trials, pick, search_seeds
    )
    _allow_user_code({**tree, "strategies": strategies})
    began, whole = time.monotonic(), tuning.Tuning(search, Path(out), command=sys.argv)
    if fresh:
        whole.out = _new_folder(whole.out)
    ran = False
    for session in whole.sessions():
        ran |= not session.done
        _drive(session, whole.out, quiet, used, again="the same command goes on")
        del session
    terminal.tables([trials_table.trials_grid(whole.trials, whole.history().unit, pick)])
    if ran:
        _show_result(whole.history(), whole.out, time.monotonic() - began)
    else:
        _show_finished(whole.history(), whole.out, quiet, extends=False)


def resume(
    folder: RunFolder,
    trust: Annotated[
        bool, typer.Option("--trust", help="import the model and strategies that it names")
    ] = False,
    quiet: Quiet = False,
    track: Track = None,
    tensorboard: TensorboardFlag = False,
) -> None:
    """Resume a run that was interrupted."""
    from fedmaba.experiment import parts, starting
    from fedmaba.results import run_folder

    parts.require_picked(folder)
    left = [part for part in parts.folders(folder) if not run_folder.is_finished(part)]
    if not left:
        _show_finished(parts.load_history(folder), folder, quiet)
        return
    used = _trackers(track, tensorboard)
    if any(run_folder.load_about(part).get("python") for part in parts.folders(folder)):
        hint = parts.how_to_resume(folder)
        raise InputError(f"{folder} was begun in Python, with more than names: {hint}")
    began = time.monotonic()
    for part in left:
        session = starting.resume(part, trust)
        _drive(session, folder, quiet, used)
    if not session.batch.ranks.rank:
        whole = parts.folders(folder) != [folder]
        history = parts.load_history(folder) if whole else session.history
        _show_result(history, folder, time.monotonic() - began)


def _experiments(
    tree: dict[str, Any], options: dict[config.Key, str], overrides: list[str] | None, source: str
) -> tuple[list[config.Experiment], Collection[str]]:
    """The experiment of each combination of values, and the keys that have several."""
    from fedmaba.experiment import checks, sweep

    tree = _tree(tree, options, overrides)
    named = _allow_user_code(tree)
    swept = sweep.combinations(tree)
    asked = [checks.build_checked(one, source) for one in swept.trees]
    if named and source and not stays_silent():  # The user may not know what a file imports.
        tell(f"{source} imports {named}")
    return asked, swept.keys


def _tree(
    tree: dict[str, Any], options: dict[config.Key, str], overrides: list[str] | None
) -> dict[str, Any]:
    """The keys of an experiment as they were given, --set last."""
    for key, value in options.items():
        config.set_key(tree, key.name, value)
    for item in overrides or []:
        config.set_key(tree, *_key_and_value(item, "--set", "train.lr=0.05"))
    return tree


def _key_and_value(item: str, flag: str, example: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        raise InputError(f"{flag} {item!r}: write KEY=VALUE, as {example}")
    return name.strip(), value.strip()


def _allow_user_code(tree: dict[str, Any]) -> str:
    """Let the modules that an experiment names be imported; say which."""
    from fedmaba import user_code
    from fedmaba.experiment import checks

    named = checks.user_modules(tree)
    if named:
        user_code.allow_working_folder()
    return user_code.say_sources(named) if named else ""


def _run(
    asked: list[config.Experiment],
    keys: Collection[str],
    fresh: bool,
    quiet: bool,
    used: Sequence[str],
) -> None:
    from fedmaba import strategies
    from fedmaba.experiment import starting

    def claim(session: Session) -> Path:
        """A new folder, one for all ranks."""
        stem, ranks = Path(asked[0].data.name).stem.partition(":")[0], session.batch.ranks
        claimed = "" if ranks.rank else str(_new_folder(out or Path("runs", stem)))
        return Path(ranks.tell(claimed.encode()).decode())

    rows = strategies.single_specs(asked[0].strategies)
    out = Path(asked[0].save.out) if asked[0].save.out else None
    whole = starting.RunGroup(
        asked, rows, keys, None if fresh else out, claim=claim, command=sys.argv
    )
    began, finished, ran = time.monotonic(), [], False
    for session in whole.sessions():
        _drive(session, whole.out or Path(), quiet, used)
        finished.append((session.experiment, session.history))
        ran |= not session.done
        silent = session.batch.ranks.rank > 0
        del session  # which frees the device's memory
    if silent or whole.out is None:
        return
    if not ran:
        _show_finished(whole.history(finished), whole.out, quiet)
    else:
        _show_result(whole.history(finished), whole.out, time.monotonic() - began)


def _new_folder(name: Path) -> Path:
    """A new folder with the next number that is free after this name."""
    from fedmaba.results import run_folder

    return run_folder.create_numbered_folder(name.parent, name.name)


def _trackers(track: Sequence[str] | None, tensorboard: bool = False) -> list[str]:
    """The trackers that are asked for; refused before any work if one is not installed."""
    if not track and not tensorboard:
        return []
    from fedmaba.report import trackers

    return trackers.check([*["tensorboard"] * tensorboard, *(track or ())])


def _drive(session: Session, out: Path, quiet: bool, used: Sequence[str], again: str = "") -> None:
    """Simulate to the end, showing progress here and to trackers."""
    from fedmaba.experiment import parts
    from fedmaba.report import call_progress

    silent = session.batch.ranks.rank > 0
    if session.done:
        return
    speaker = call_progress.speaker_for(True, session.batch.ranks.rank, quiet)
    with stop.after_the_round((lambda text: None) if silent else tell) as asked:
        call_progress.follow(session, speaker, asked, used)
    if session.stopped:
        if silent:
            raise typer.Exit(0)
        done = session.batch.progress.round
        how = again or f"resume with: {parts.how_to_resume(out)}"
        tell(f"stopped after round {done}; {how}")
        raise typer.Exit(130)


def _show_finished(history: History, out: Path, quiet: bool, extends: bool = True) -> None:
    """Show the result of a folder that was finished before, and how to extend it."""
    from fedmaba.experiment import parts

    if not quiet:
        again = f"command with --out {shlex.quote(str(out))}"
        if parts.about_of(out).get("python"):
            again = f"call of compare() with out={str(out)!r}"
        more = f"; to extend it, repeat its {again} and more rounds, more seeds or another strategy"
        tell(f"{out} is finished: nothing is trained again" + more * extends)
    _show_result(history, out)


def _show_result(history: History, out: Path, seconds: float | None = None) -> None:
    from fedmaba.report import terminal

    terminal.result(history, out, seconds)
    if any(run.diverged for run in history.runs):
        raise typer.Exit(Diverged.exit_code)
