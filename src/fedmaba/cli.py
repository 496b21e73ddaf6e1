"""The command line: it turns words into calls and shows their results. No logic of its own.

Heavy modules are imported inside the commands, so that --help answers at once.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer
from pydantic import ValidationError

from fedmaba import __version__, stop
from fedmaba.errors import Diverged, FedmabaError, InputError, shortened
from fedmaba.experiment import config
from fedmaba.report import streams
from fedmaba.report.escape import one_line

if TYPE_CHECKING:
    from fedmaba.experiment.session import Session
    from fedmaba.reproduction.targets import Target
    from fedmaba.results.history import At, Model

    Dtype = Literal["float32", "tf32", "bf16", "float64"]
    Form = Literal["csv"]
    TableForm = Literal["text", "markdown", "latex", "csv"]
else:  # typer before 0.19 knows choices by enums only
    Model = StrEnum("Model", ["deployed", "last"])
    At = StrEnum("At", ["last", "best", "last5"])
    Dtype = StrEnum("Dtype", ["float32", "tf32", "bf16", "float64"])
    Form = StrEnum("Form", ["csv"])
    TableForm = StrEnum("TableForm", ["text", "markdown", "latex", "csv"])

app = typer.Typer(
    name="fedmaba",
    help="Fair federated learning: compare, reproduce and look at every algorithm.",
    epilog="Exit codes: 0 done, 1 an exception in your own code, 2 a mistake found before any "
    "work, 65 a run diverged, 69 another process of the job ended, 70 a process of the Flower demo "
    "failed, 71 too little memory, 74 the run folder or the output could not be written, "
    "75 another process works on the folder, 130 stopped after the round and saved, by Ctrl-C, "
    "SIGTERM or SIGHUP; or ended at once by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Fetch, check or export a data set.", no_args_is_help=True)
app.add_typer(data_app, name="data")
flower_app = typer.Typer(help="Deploy on Flower: see docs/deploy.md.", no_args_is_help=True)
app.add_typer(flower_app, name="flower")

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, only the result")]
Events = Annotated[bool, typer.Option("--tensorboard", help="also write TensorBoard events")]


def _share(text: str) -> float:
    """A share of clients."""
    with suppress(ValueError):
        share = float(str(config.fraction(text)))
        if 0 < share <= 1:
            return share
    raise typer.BadParameter(f"{text}: write it as 0.05 or 5%, above 0 and at most 1")


Share = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(
        help="share of clients that 'worst' and 'best' are the mean of, as 5% [as run]",
        parser=_share,
        metavar="SHARE",
    ),
]


def _reached(given: Path | list[Path]) -> Path | list[Path]:
    """Refuse a path that is too long or may not be looked at."""
    for path in given if isinstance(given, list) else [given]:
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue  # whoever reads it says so
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}: name a run folder") from error
    return given


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder", callback=_reached)]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="run folders", callback=_reached)
]
DataDir = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="folder where its files are looked for first"),
]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads this at run time
    typer.Option("--set", metavar="KEY=VALUE", help="any key of the experiment, as train.lr=0.05"),
]


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of an experiment; their values arrive as `options`."""
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    added = [
        inspect.Parameter(
            key.argument,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Optional[str],  # noqa: UP045
                typer.Option(key.flag, metavar="VALUE", help=_help(key), show_default=False),
            ],
        )
        for key in config.options()
    ]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    def wrapped(**given: Any) -> None:
        chosen = {key: given.pop(key.argument) for key in config.options()}
        command(**given, options={k: v for k, v in chosen.items() if v is not None})

    wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped


def _help(key: config.Key) -> str:
    return key.text if key.default is None else f"{key.text} [{key.default}]"


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
    if named and source and not _silent():  # the user may not know what a file imports
        _tell(f"{source} imports {user_code.say_sources(named)}")
    return asked


@app.command()
@_with_options
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


@app.command()
@_with_options
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


@app.command()
def resume(
    folder: RunFolder,
    trust: Annotated[
        bool, typer.Option("--trust", help="import the model and strategies that it names")
    ] = False,
    quiet: Quiet = False,
    tensorboard: Events = False,
) -> None:
    """Resume a run that was interrupted."""
    from fedmaba.experiment import session as experiment

    _drive(experiment.resume(folder, trust), folder, quiet, tensorboard)


@app.command()
def table(
    folder: RunFolder,
    model: Annotated[Model, typer.Option(help="which server model")] = "deployed",
    at: Annotated[At, typer.Option(help="which rounds")] = "last",
    share: Share = None,
    against: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="ROW", help="also each row's differences to this one, with 95 % intervals"
        ),
    ] = None,
    to: Annotated[TableForm, typer.Option(help="how it is written")] = "text",
) -> None:
    """Show the table of a run folder, finished or not."""
    from fedmaba.report import document, terminal
    from fedmaba.report import table as tables
    from fedmaba.results import run_folder

    history = run_folder.load_history(folder)
    page = tables.document(history, model, at, share, against, str(folder))
    if to == "text":
        terminal.show(history, model, at, share)
        terminal.tables(page.grids[1:])
    else:
        typer.echo(document.written(page, to), nl=False)
    _tell_unfinished(folder)


def _tell_unfinished(folder: Path) -> None:
    from fedmaba.results import run_folder

    if not (folder / "runs.json").exists():
        runs = run_folder.load_history(folder).runs
        done = max((len(run.tables.get("round", ())) for run in runs), default=0)
        how = "it is running" if run_folder.in_use(folder) else run_folder.resume_hint(folder)
        _tell(f"unfinished, saved up to round {done}: {how}")


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
        config.REPRODUCE_FOLDER
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help=config.PRECISION)] = "float32",
    quiet: Quiet = False,
) -> None:
    """Reproduce a table or figure of the paper and show it beside the paper's numbers."""
    from fedmaba.reproduction import display, targets

    scale = {"--rounds": rounds, "--seeds": seeds, "--only": only, "--without": without}
    how = {"--batch": batch != "1/1", "--device": device != "auto", "--dtype": dtype != "float32"}
    if target is None:
        _refuse({**scale, "--quick": quick, **how}, "without a target: name one, or leave it out")
        display.targets(out, source)
        return
    if source is not None:
        _refuse(how, "with --from, which runs nothing: leave one of them out")
    words = tuple(word for text in only or [] for word in targets.words(text))
    if only and not words:
        raise InputError(f"--only {','.join(only)!r}: it names no row: name one, or leave it out")
    some = None if seeds is None else config.parse_seeds(seeds)
    left_out = tuple(name.strip() for text in without or [] for name in text.split(","))
    asked = targets.load(target, targets.Scale(rounds, some, words, quick, left_out))
    if source is None:
        _reproduce(asked, out, batch, config.parse_machine(device, str(dtype)), quiet)
    display.reproduced(asked, source or out, out / "quick" if quick else out)


def _refuse(flags: Mapping[str, object], why: str) -> None:
    for flag, said in flags.items():
        if said:
            raise InputError(f"{flag} {why}")


def _say(text: object) -> None:
    typer.echo(one_line(str(text)))


def _tell(text: str) -> None:
    typer.echo(one_line(text), err=True)


def _hush(text: str) -> None:
    """Say nothing: rank 0 speaks for all."""


def _reproduce(target: Target, out: Path, batch: str, machine: config.Machine, quiet: bool) -> None:
    """Run what is missing of a target, batch after batch."""
    from fedmaba.reproduction import display
    from fedmaba.reproduction import run as reproduce

    left, loaded = reproduce.plan(target, out, reproduce.parse_part(batch)), None
    with stop.after_the_round(_tell) as asked, display.batches(left, quiet) as show:
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


@app.command()
def report(
    folders: RunFolders,
    out: Annotated[Path, typer.Option("-o", "--out", help="file to write")] = Path("report.html"),
    share: Share = None,
) -> None:
    """Write one self-contained page with every table and figure."""
    from fedmaba.report import html

    html.write(folders, out, share)
    _say(out)


@app.command()
def watch(
    folder: RunFolder,
    port: Annotated[int, typer.Option(help="0: any that is free", min=0, max=65535)] = 0,
    share: Share = None,
) -> None:
    """Serve the report of a run while it goes on, to this machine only."""
    from fedmaba.report import watch as live

    with live.serve(folder, port, share) as server:
        _say(f"{server.url} shows {folder} and renews itself; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@app.command()
def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="see fedmaba list figures")],
    folders: RunFolders,
    out: Annotated[Path, typer.Option("-o", "--out", help=".pdf, .svg or .png")],
    model: Annotated[Model, typer.Option(help="which server model")] = "deployed",
    share: Share = None,
) -> None:
    """Draw one figure in print quality."""
    from fedmaba.report import figures

    figures.write(kind, folders, out, model, share)
    _say(out)


@app.command("export")
def export_run(
    folder: RunFolder,
    to: Annotated[Form, typer.Option(help="which form")] = "csv",
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--out", help="folder to write [RUN/csv]"),
    ] = None,
) -> None:
    """Write the tables of a run for a spreadsheet or another program."""
    from fedmaba.report import export as tables

    for path in tables.to_csv(folder, out or folder / to):
        _say(path)
    _tell_unfinished(folder)


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(metavar="strategies|datasets|models|partitions|attacks|figures|targets")
    ],
) -> None:
    """One line each, with hyper-parameters and defaults."""
    from fedmaba.report import terminal
    from fedmaba.reproduction import display

    if what == "targets":
        display.targets(config.REPRODUCE_FOLDER)
    else:
        terminal.listing(what)


@data_app.command()
def fetch(
    name: str,
    data_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="folder to put it in [the cache]"),
    ] = None,
) -> None:
    """Download a data set from its publisher and check it."""
    from fedmaba.data import datasets
    from fedmaba.report import terminal

    with terminal.transfer() as progress:
        where = datasets.fetch(name, data_dir, progress)
    _say(f"{name}: complete in {where}")


@data_app.command()
def check(name: str, data_dir: DataDir = None) -> None:
    """Check the files of a data set, size and SHA-256."""
    from fedmaba.data import datasets

    found = datasets.check(name, data_dir)
    for path, status in found:
        _say(f"{path}: {status}")
    if any(status != "ok" for _, status in found):
        raise typer.Exit(InputError.exit_code)


@data_app.command()
def export(
    name: str,
    directory: Path,
    data_dir: DataDir = None,
) -> None:
    """Write a data set as its publisher's plain binary files."""
    from fedmaba.data import datasets

    for path in datasets.export(name, directory, data_dir):
        _say(path)


@flower_app.command("new")
def flower_new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="new or empty")],
) -> None:
    """Write a complete Flower app that runs as it is."""
    from fedmaba.deploy.flower_app.new import new

    for path in new(directory):
        _say(path)


@flower_app.command("proxy")
def flower_proxy(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="for nginx.conf and its logs")],
    keys: Annotated[
        Path, typer.Option(help="folder with server.pem, server.key and ca.pem")
    ] = Path("keys"),
    listen: Annotated[
        str, typer.Option(help="address and port for the SuperNodes")
    ] = "0.0.0.0:8443",
    superlink_port: Annotated[int, typer.Option(help="the SuperLink's, on 127.0.0.1")] = 8000,
) -> None:
    """Write the nginx configuration of the SuperLink's door: SuperNodes pass, control does not."""
    from fedmaba.deploy.flower_app import proxy

    target = proxy.write(directory, listen, superlink_port, keys)
    _say(f"{target}: start it with {' '.join(proxy.command('nginx', directory))}")


@flower_app.command("check")
def flower_check(
    where: Annotated[str, typer.Argument(metavar="HOST:PORT", help="where SuperNodes connect")],
    ca: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="the federation's ca.pem; else this machine's own list"),
    ] = None,
) -> None:
    """Say whether the fleet and whether control of all sites can be reached from here."""
    from fedmaba.deploy.flower_app.check import check

    found = check(where, ca)
    for line in found.lines():
        _say(line)
    if not found.ok:
        raise typer.Exit(InputError.exit_code)


@flower_app.command("demo")
def flower_demo(
    strategy: Annotated[str, typer.Option(help="one row, no grid")] = "fedmaba:alpha=0.8",
    sites: Annotated[int, typer.Option(help="SuperNodes, a shard each", min=1, max=50)] = 5,
    rounds: Annotated[int, typer.Option(help="communication rounds", min=1)] = 4,
) -> None:
    """Run a federation of real Flower processes on this machine, with TLS and keys."""
    from fedmaba.deploy.flower_app.demo import demo

    demo(typer.echo, strategy, sites, rounds)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="show the version and exit")] = False,
) -> None:
    if version:
        typer.echo(f"fedmaba {__version__}")
        raise typer.Exit


def _run(asked: config.Experiment, quiet: bool, tensorboard: bool) -> None:
    from fedmaba.experiment import session as experiment
    from fedmaba.results import run_folder

    if tensorboard:
        from fedmaba.report.tensorboard import check

        check()
    session = experiment.prepare(asked)
    stem = Path(asked.data.name).stem.partition(":")[0]
    ranks = session.batch.ranks
    if asked.save.out:
        out = Path(asked.save.out)
    else:  # one folder for all ranks
        claimed = "" if ranks.rank else str(run_folder.create_numbered_folder(Path("runs"), stem))
        out = Path(ranks.tell(claimed.encode()).decode())
    experiment.begin(session, out, sys.argv)
    _drive(session, out, quiet, tensorboard)


def _drive(session: Session, out: Path, quiet: bool, tensorboard: bool) -> None:
    """Simulate to the end, showing progress, then the table and where everything lies."""
    from fedmaba.report import terminal
    from fedmaba.results import run_folder

    silent = session.batch.ranks.rank > 0
    with ExitStack() as held:
        asked = held.enter_context(stop.after_the_round(_hush if silent else _tell))
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
        _tell(f"stopped after round {done}; resume with: {run_folder.resume_hint(out)}")
        raise typer.Exit(130)
    terminal.result(session, out)
    if any(session.batch.progress.diverged):
        raise typer.Exit(Diverged.exit_code)


def _silent() -> bool:
    """Whether this process stays silent, because rank 0 of the job speaks."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"


def _speaker() -> str | None:
    """How a line on an error begins; None where another process of the job has said it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    from fedmaba.simulation import distributed

    return distributed.speaker()


def _filled(words: Sequence[str]) -> None:
    """Refuse an empty word: most often a shell variable that was never set.

    `compare` and `run` check their words themselves, to name all mistakes at once.
    """
    if words[:1] in (["compare"], ["run"]):
        return
    for before, word in pairwise(["", *words]):
        flag = re.fullmatch("(--[a-z-]+)=", word)
        if not word or flag:
            name = flag[1] if flag else before if before.startswith("-") else "an argument"
            raise InputError(f"{name} is empty: give it a value, or leave it out")


def main() -> None:
    """The entry point: every error a user can fix is one line and its exit code."""
    with stop.at_once():
        streams.settle()
        sys.exit(_answer())


def _answer() -> int | None:
    """Run the command that was typed and return its exit code."""
    # The threads of NumPy's BLAS keep every core busy after each 100 x 100 product, the size that
    # strategies use. What gains from threads is torch's work, and torch has threads of its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    warnings.formatwarning = lambda message, *_, **__: (
        f"{one_line(f'fedmaba: warning: {message}')}\n"
    )
    if _silent():
        warnings.simplefilter("ignore")
    usage: Any = typer.BadParameter.__mro__[
        2
    ]  # the base class of click's errors, which typer hides
    try:
        _filled(sys.argv[1:])
        code: int | None = app(standalone_mode=False)
        sys.stdout.flush()
        return code
    except FedmabaError as error:
        if (who := _speaker()) is not None:
            _tell(f"fedmaba: {who}{error}")
        return error.exit_code
    except usage as error:
        text = error.format_message().replace(": Value error, ", ": ")
        if isinstance(error.__cause__, ValidationError):  # what newer typers leave out
            given = error.__cause__.errors()[0]["input"]
            text = text.replace(": Input should", f": {given}: it should")
        from fedmaba import strategies

        asked = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
        if any(asked == f.name for known in strategies.REGISTRY.values() for f in fields(known)):
            rule = f"hyper-parameters stand with their strategy: write STRATEGY:{asked}=VALUE"
            text = f"No such option: --{asked}: {rule}"
        if re.fullmatch(r"No such command '.*'\.", text):  # and none is near
            text = text[:-1] + ": see fedmaba --help"
        whole = text.lstrip().startswith("Usage:")  # the help of a command without arguments
        typer.echo(text if whole else one_line(shortened(f"fedmaba: {text}")), err=True)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        typer.echo(
            "fedmaba: simulating needs PyTorch: in a clone of fedmaba, pip install '.[sim]'",
            err=True,
        )
        return 2


if __name__ == "__main__":
    main()
