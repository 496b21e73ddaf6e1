"""Run the command that was typed: every error that a user can fix is one line and its exit code."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import typer
from pydantic import ValidationError

from fedmaba import stop
from fedmaba.cli import commands
from fedmaba.cli.messages import stays_silent, tell
from fedmaba.errors import FedmabaError, InputError, shortened
from fedmaba.report import streams
from fedmaba.report.escape import one_line


def main() -> None:
    """The entry point: every error a user can fix is one line and its exit code."""
    with stop.at_once():
        streams.make_streams_safe()
        sys.exit(_answer())


def _answer() -> int | None:
    """Run the command that was typed and return its exit code."""
    # The threads of NumPy's BLAS keep every core busy after each 100 x 100 product, the size that
    # strategies use. What gains from threads is torch's work, and torch has threads of its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    warnings.formatwarning = lambda message, *_, **__: (
        f"{one_line(f'fedmaba: warning: {message}')}\n"
    )
    if stays_silent():
        warnings.simplefilter("ignore")
    # This is the base class of click's errors, hidden by typer.
    usage: Any = typer.BadParameter.__mro__[2]
    try:
        _refuse_empty_words(sys.argv[1:])
        code: int | None = commands.app(standalone_mode=False)
        sys.stdout.flush()
        return code
    except FedmabaError as error:
        if (who := _speaker()) is not None:
            tell(f"fedmaba: {who}{error}")
        return error.exit_code
    except usage as error:
        typer.echo(_usage_message(error), err=True)
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


def _usage_message(error: Any) -> str:
    """What to say of a command line that typer does not understand."""
    from fedmaba import strategies

    text = error.format_message().replace(": Value error, ", ": ")
    if text.lstrip().startswith("Usage:"):  # This is the help of a command without arguments.
        return str(text)
    if isinstance(error.__cause__, ValidationError):  # newer typers leave the value out
        given = error.__cause__.errors()[0]["input"]
        text = text.replace(": Input should", f": {given}: it should")
    asked = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if any(asked == f.name for known in strategies.REGISTRY.values() for f in fields(known)):
        rule = f"hyper-parameters stand with their strategy: write STRATEGY:{asked}=VALUE"
        text = f"No such option: --{asked}: {rule}"
    if re.fullmatch(r"No such command '.*'\.", text):  # and no command has a similar name
        text = text[:-1] + ": see fedmaba --help"
    return one_line(shortened(f"fedmaba: {text}"))


def _refuse_empty_words(words: Sequence[str]) -> None:
    """Refuse an empty word: most often a shell variable that was never set.

    `compare` and `run` check their words themselves, to name all mistakes at once.
    """
    if words[:1] in (["compare"], ["run"], ["tune"]):
        return
    for before, word in pairwise(["", *words]):
        flag = re.fullmatch("(--[a-z-]+)=", word)
        if not word or flag:
            name = flag[1] if flag else before if before.startswith("-") else "an argument"
            raise InputError(f"{name} is empty: give it a value, or leave it out")


def _speaker() -> str | None:
    """How a line on an error begins; None where another process of the job has said it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    from fedmaba.simulation import distributed

    return distributed.speaker()
