"""Units, compose files and monitoring of a folder, with its own paths filled in. No torch."""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from fedmaba.deploy.flower_app import private
from fedmaba.errors import InputError

SUPERLINK, PROXY, RUN, SUPERNODE = "superlink", "proxy", "run", "supernode"
ALWAYS = "Restart=always"
# 2 is a mistake that nobody but a person can correct, and 0 the end of the run
UNTIL_DONE = "Restart=on-failure\nRestartPreventExitStatus=2"
WRITTEN = ("home", "logs")  # by every program


def write_server(folder: Path, port: int) -> None:
    """Units, compose file and monitoring of a server's folder."""
    app = (*WRITTEN, "state", "metrics", "link")  # the SuperLink starts the app, which writes them
    follower = (*WRITTEN, "registered", "audit")
    texts = {
        SUPERLINK: _unit(folder, SUPERLINK, app, ("keys", "app")),
        PROXY: _unit(folder, PROXY, ("proxy",), ("keys",), after=SUPERLINK),
        RUN: _unit(folder, RUN, follower, ("keys", "app", "state"), after=SUPERLINK),
    }
    for part, text in texts.items():
        private.write_new(_made(folder, "units", f"fair-{part}.service"), text)
    words = {"FOLDER": str(folder), "UID": _user(), "PORT": str(port)}
    _write_container(folder, "server-compose.yaml.tmpl", words)
    for name in ("alerts.yml", "dashboard.json"):
        private.write_new(_made(folder, "monitoring", name), _text(name))


def write_site(folder: Path, site: str, data: Path, memory: str | None) -> None:
    """Unit and compose file of a site's folder."""
    writes = (*WRITTEN, "keep", "ledger", "audit")
    reads = ("keys", "bin", "site.toml", "join.json", str(data))
    text = _unit(folder, SUPERNODE, writes, reads, site, memory or "8G")
    private.write_new(_made(folder, "units", f"fair-{site}.service"), text)
    words = {"FOLDER": str(folder), "UID": _user(), "NAME": site.lower(), "DATA": str(data)}
    words["MEMORY"] = (memory or "8G").lower()
    _write_container(folder, "site-compose.yaml.tmpl", words)


def _write_container(folder: Path, template: str, words: Mapping[str, str]) -> None:
    private.write_new(_made(folder, "container", "compose.yaml"), _filled(template, words))
    private.write_new(_made(folder, "container", "Dockerfile"), _text("Dockerfile"))


def _unit(
    folder: Path,
    part: str,
    writes: tuple[str, ...],
    reads: tuple[str, ...],
    site: str = "",
    memory: str = "4G",
    after: str = "",
) -> str:
    """The unit of one program: it may write what it must, and read the rest of its folder."""
    name = f"fair-{site or part}.service"
    inside_home = any(folder.is_relative_to(home) for home in ("/home", "/root", "/run/user"))
    inside_home |= any(Path(sys.executable).is_relative_to(home) for home in ("/home", "/root"))
    return _filled(
        "unit.service.tmpl",
        {
            "ABOUT": f"{_what(part, site)}, as `fedmaba flower` wrote it for this folder.",
            "FILE": str(folder / "units" / name),
            "NAME": name,
            "WHAT": _what(part, site),
            "AFTER": f" fair-{after}.service" if after else "",
            "USER": getpass.getuser(),
            "FOLDER": str(folder),
            "PYTHON": sys.executable,
            "PART": part,
            "RESTART": UNTIL_DONE if part == RUN else ALWAYS,
            "HOME": f"ProtectHome={'read-only' if inside_home else 'yes'}",
            "WRITES": _paths(folder, writes),
            "READS": _paths(folder, reads),
            "MEMORY": memory,
        },
    )


def _what(part: str, site: str) -> str:
    told = {
        SUPERLINK: "The federation's SuperLink",
        PROXY: "The proxy before the federation's SuperLink",
        RUN: "The federation's run, to its end",
        SUPERNODE: f"The SuperNode of site {site}",
    }
    return told[part]


def _paths(folder: Path, names: tuple[str, ...]) -> str:
    """Paths as a unit has them; "-" lets one be missing."""
    return " ".join(f"-{folder / name}" for name in names)


def _filled(template: str, words: Mapping[str, str]) -> str:
    """A template with its words; a path with blanks or quotes would be several there."""
    for name in ("FOLDER", "DATA", "PYTHON"):
        if re.search(r"[\s\"'%$\\:]", words.get(name, "")):
            raise InputError(f"{words[name]!r}: units and compose files cannot name it: move it")
    return re.sub("@([A-Z]+)@", lambda found: words[found[1]], _text(template))


def _text(name: str) -> str:
    return (resources.files("fedmaba.deploy.operate") / "files" / name).read_text(encoding="utf-8")


def _made(folder: Path, kind: str, name: str) -> Path:
    private.new_folder(folder / kind)
    return folder / kind / name


def _user() -> str:
    return f"{os.getuid()}:{os.getgid()}"
