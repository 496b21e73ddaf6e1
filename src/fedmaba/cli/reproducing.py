"""Reproduce the paper: the command is the laboratory's, where there is one."""

from __future__ import annotations

import typer

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def reproduce(context: typer.Context) -> int | None:
    """Reproduce a table or figure of the paper, in a clone; `reproduce --help` says how."""
    from fedmaba.experiment import laboratory

    code: int | None = laboratory.enter("command").main(context.args)
    return code


def challenge(context: typer.Context) -> int | None:
    """Enter a strategy of yours in a stored comparison, in a clone; `challenge --help` says how."""
    from fedmaba.experiment import laboratory

    code: int | None = laboratory.enter("command").challenge_main(context.args)
    return code
