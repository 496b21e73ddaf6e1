"""What `fedmaba flower start` runs: the programs of a server's or a site's folder, or one of them.

Without a part, all of them are watched here. With one, this process becomes that program, for
systemd or a container to watch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fedmaba.deploy.flower_app import commands, proxy
from fedmaba.deploy.operate import run, server_folder, site_folder
from fedmaba.deploy.operate.processes import Program, run_all
from fedmaba.deploy.operate.server_folder import ServerFolder
from fedmaba.deploy.operate.services import PROXY, RUN, SUPERLINK, SUPERNODE
from fedmaba.deploy.operate.site_folder import SiteFolder
from fedmaba.errors import InputError

# what a SuperNode's log says when it ends, in words that help
MEANINGS = {
    "Failed to activate SuperNode": "the server does not know this site's key: ask the operator "
    "whether the site is admitted",
    "Connection attempt failed": "the server cannot be reached: is it up?",
}
Say = Callable[[str], None]
Place = ServerFolder | SiteFolder


def read(path: Path) -> Place:
    """The folder of a server or of a site, whichever it is."""
    if (path / server_folder.FILE).exists():
        return ServerFolder.read(path)
    if (path / site_folder.FILE).exists():
        return SiteFolder.read(path)
    raise InputError(
        f"{path} has neither {server_folder.FILE} nor {site_folder.FILE}: name a folder that "
        "`fedmaba flower init` or `join` made"
    )


def start(place: Place, part: str | None, say: Say) -> int:
    """Run the programs of a folder; the exit code."""
    names = (SUPERLINK, PROXY, RUN) if isinstance(place, ServerFolder) else (SUPERNODE,)
    if part is not None and part not in names:
        raise InputError(f"--part {part}: here it is one of {', '.join(names)}")
    if isinstance(place, ServerFolder) and part in (None, RUN):
        place.check_run()
    if part == RUN:
        assert isinstance(place, ServerFolder)
        run.follow(place, say)
        return 0
    if part is not None:
        _become(place, *_program(place, part))
    watched = [_watched(place, name) for name in names]
    return run_all(place.path, watched, say)


def _program(place: Place, part: str) -> tuple[Sequence[str], Mapping[str, str]]:
    """The command of a part, and its environment."""
    if isinstance(place, SiteFolder):
        return place.command(), place.environment()
    env = commands.environment(place.path)
    if part == SUPERLINK:
        database = str(place.path / "link" / "link.db")
        return commands.superlink_command(place.superlink, place.keys, database), env
    words = proxy.serve_command("fedmaba", place.path / "proxy")
    return [sys.executable, "-m", *words], env


def _watched(place: Place, part: str) -> Program:
    if part == RUN:  # in a process of its own, whose lines go to a log as those of the others
        command = ["fedmaba", "flower", "start", str(place.path), "--part", RUN]
        return Program(RUN, [sys.executable, "-m", *command], final=True)
    return Program(part, *_program(place, part), meanings=MEANINGS if part == SUPERNODE else {})


def _become(place: Place, command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Put the program in the place of this process."""
    os.chdir(place.path)
    os.umask(0o077)
    whole = {**os.environ, **env}
    os.execvpe(command[0], list(command), whole)
