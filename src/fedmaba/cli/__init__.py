"""The command line: it turns words into calls and shows their results. No logic of its own.

There is a module for each thing that a user wants to do. Heavy modules are imported inside the
commands, so that --help answers at once.
"""

from fedmaba.cli.commands import app
from fedmaba.cli.entry import main

__all__ = ["app", "main"]
