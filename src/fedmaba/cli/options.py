"""Options that several commands share, and those that an experiment gives to a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedmaba.cli.helping import OUTPUT, panel_of
from fedmaba.errors import usable
from fedmaba.experiment import config

if TYPE_CHECKING:
    from fedmaba.report.figures import Font as Font
    from fedmaba.report.figures import Width as Width
    from fedmaba.results.history import On as On
    from fedmaba.results.run_history import At as At
    from fedmaba.results.run_history import Model as Model

    Dtype = Literal["float32", "tf32", "bf16", "float64"]
    ExportForm = Literal["csv", "parquet", "card"]
    By = Literal["strategy", "client", "group"]
    TableForm = Literal["text", "markdown", "latex", "csv", "json"]
    TrackerName = Literal["tensorboard", "wandb", "mlflow"]
else:  # Before 0.19, typer knows choices by enums only.
    Model = StrEnum("Model", ["deployed", "last", "personal"])
    At = StrEnum("At", ["last", "best", "last5"])
    On = StrEnum("On", ["test", "validation"])
    Dtype = StrEnum("Dtype", ["float32", "tf32", "bf16", "float64"])
    ExportForm = StrEnum("ExportForm", ["csv", "parquet", "card"])
    By = StrEnum("By", ["strategy", "client", "group"])
    TableForm = StrEnum("TableForm", ["text", "markdown", "latex", "csv", "json"])
    Font = StrEnum("Font", ["sans", "serif"])
    Width = StrEnum("Width", ["column", "page"])
    TrackerName = StrEnum("TrackerName", ["tensorboard", "wandb", "mlflow"])

Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="show no progress, only the result", rich_help_panel=OUTPUT),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="begin anew, in a new folder beside --out: OUT-001, OUT-002, ...",
        rich_help_panel=OUTPUT,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON document for scripts")]
TensorboardFlag = Annotated[
    bool,
    typer.Option("--tensorboard", help="the same as --track tensorboard", rich_help_panel=OUTPUT),
]
Track = Annotated[
    list[TrackerName] | None,
    typer.Option(
        "--track",
        metavar="TRACKER",
        help="also send every round to tensorboard, wandb or mlflow",
        rich_help_panel=OUTPUT,
    ),
]
JudgedOn = Annotated[
    On, typer.Option("--on", help="score clients on their test or their validation examples")
]


def _share(text: str) -> float:
    """A share of clients."""
    with suppress(ValueError):
        share = float(str(config.fraction(text)))
        if 0 < share <= 1:
            return share
    raise typer.BadParameter(f"{text}: write it as 0.05 or 5%, above 0 and at most 1")


WorstShare = Annotated[
    float | None,
    typer.Option(
        help="share of clients over which 'worst' and 'best' average, as 5% [as run]",
        parser=_share,
        metavar="SHARE",
    ),
]


Until = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIGURE=VALUE",
        help="what was spent until accuracy=80%, worst=50% or variance=300 was first reached",
    ),
]


def _refuse_unreadable(given: Path | list[Path]) -> Path | list[Path]:
    """Refuse a path that is too long or may not be looked at."""
    for path in given if isinstance(given, list) else [given]:
        # whoever reads it says what is not there
        with usable(path, "name a run folder"), suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()
    return given


RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="a run folder", callback=_refuse_unreadable),
]
RunOrState = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="a run or state folder", callback=_refuse_unreadable),
]
RunOrTarget = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="a run or state folder, or results of reproduce: FOLDER/TARGET or an .npz file",
        callback=_refuse_unreadable,
    ),
]
RunFolders = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="run or state folders, or results of reproduce: results/TARGET or an .npz file",
        callback=_refuse_unreadable,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="folder where its files are looked for first"),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="set any key of an experiment file, as train.lr=0.05"
    ),
]


def with_experiment_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of an experiment; their values arrive as `options`."""
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    added = []
    for key in config.options():
        text = key.text if key.default is None else f"{key.text} [{key.default}]"
        option = typer.Option(
            key.flag,
            metavar="VALUE",
            help=text,
            show_default=False,
            rich_help_panel=panel_of(key),
        )
        kind, kept = Annotated[str | None, option], inspect.Parameter.KEYWORD_ONLY
        added.append(inspect.Parameter(key.argument, kept, default=None, annotation=kind))
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    def wrapped(**given: Any) -> None:
        chosen = {key: given.pop(key.argument) for key in config.options()}
        command(**given, options={k: v for k, v in chosen.items() if v is not None})

    wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped
