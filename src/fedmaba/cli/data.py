"""Get data sets: fetch, check, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmaba.cli.messages import say
from fedmaba.cli.options import AsJson, DataDir
from fedmaba.errors import InputError


def fetch(
    name: str,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="folder to put it in [the cache]"),
    ] = None,
) -> None:
    """Download a data set from its publisher and check it."""
    from fedmaba.data import datasets
    from fedmaba.report import terminal

    with terminal.transfer() as progress:
        where = datasets.fetch(name, data_dir, progress)
    say(f"{name}: complete in {where}")


def check(name: str, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check the files of a data set, size and SHA-256."""
    from fedmaba.data import datasets

    found = datasets.check(name, data_dir)
    if as_json:
        from fedmaba.report import json_forms

        typer.echo(json_forms.json_list(f"files of {name}", found), nl=False)
    for path, status in () if as_json else found:
        say(f"{path}: {status}")
    if any(status != "ok" for _, status in found):
        raise typer.Exit(InputError.exit_code)


def export(
    name: str,
    directory: Path,
    data_dir: DataDir = None,
) -> None:
    """Write a data set as its publisher's plain binary files."""
    from fedmaba.data import datasets

    for path in datasets.export(name, directory, data_dir):
        say(path)
