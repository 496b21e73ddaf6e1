"""What `--help` shows: every option in a panel, examples that can be typed, 80 columns."""

import shlex

import pytest
import typer

from fedmaba import cli
from fedmaba.cli import helping
from fedmaba.experiment import config

COMMANDS = typer.main.get_command(cli.app).commands
WITH_PANELS = ("compare", "run", "tune")


@pytest.mark.parametrize("name", WITH_PANELS)
def test_options_stand_in_panels_and_the_most_used_come_first(name, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = call(name, "--help").out
    assert max(map(len, shown.splitlines())) <= 80
    panels = [line[:-1] for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert panels == [title for title in helping.PANELS if title in panels]
    assert len(panels) == len(helping.PANELS) - (name != "tune")
    most_used = shown.partition("Most used:")[2].partition("\n\n")[0]
    assert all(flag in most_used for flag in helping.FLAGS_MOST_USED)
    for key in config.options():
        assert shown.count(f"  {key.flag} VALUE") == 1


def test_flags_of_panels_are_options():
    known = {key.flag for key in config.options()}
    assert known >= {*helping.FLAGS_MOST_USED, *helping.FLAGS_OF_OWN_TABLE}


@pytest.mark.parametrize("name", [n for n, c in COMMANDS.items() if c.epilog])
def test_examples_are_commands_that_can_be_typed(name):
    lines = COMMANDS[name].epilog.replace("\\\n", "").splitlines()[2:]
    assert len(lines) >= (3 if name in WITH_PANELS else 1)
    for line in lines:
        program, called, *words = shlex.split(line)
        assert program == "fedmaba"
        COMMANDS[called].make_context(called, words)  # which reads the words and runs nothing
