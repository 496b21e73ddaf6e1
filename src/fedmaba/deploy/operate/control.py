"""Flower's own command line, asked for one thing at a time, on the server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmaba.deploy.flower_app import commands, private
from fedmaba.deploy.operate.server_folder import ServerFolder
from fedmaba.errors import FedmabaError
from fedmaba.results import files

SECONDS = 120.0
REGISTERED = Path(
    "registered", "nodes.json"
)  # site -> the key and the node that the SuperLink gave it


class Unavailable(FedmabaError):
    """The SuperLink, or Flower's command line, gave no answer."""

    exit_code = 69


def listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for_link(folder: ServerFolder, say: Callable[[str], None]) -> None:
    """Wait until the SuperLink listens, and say so once."""
    if not listening(folder.superlink):
        say(f"waiting for the SuperLink on 127.0.0.1:{folder.superlink}")
        while not listening(folder.superlink):
            time.sleep(1)


def flwr(folder: Path, *words: object) -> Any:
    """What Flower's command line answers, as JSON."""
    command = ["flwr", *map(str, words), "--format", "json"]
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **commands.environment(folder)}, text=True,
            capture_output=True, timeout=SECONDS, errors="replace", umask=private.UMASK,
        )  # fmt: skip
        start = done.stdout.find("{")
        found = json.loads(done.stdout[start:]) if start >= 0 else {}
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Unavailable(f"{' '.join(command[:3])} gave no answer: {error}") from error
    if done.returncode or not found.get("success", True):
        said = found.get("error-message") or done.stderr or done.stdout
        why = " ".join(str(said).split()).rpartition("... ")[2]  # after what it was about to do
        raise Unavailable(f"{' '.join(command[:3])} failed: {why[-300:]}")
    return found


def nodes(folder: Path) -> dict[str, str]:
    """The status of each node that the SuperLink knows."""
    found = flwr(folder, "supernode", "list", commands.LINK)
    return {str(node["node-id"]): str(node["status"]) for node in found["nodes"]}


def registered(folder: ServerFolder) -> dict[str, dict[str, str]]:
    file = folder.path / REGISTERED
    return dict(files.read_json(file)) if file.exists() else {}


def register(folder: ServerFolder) -> list[str]:
    """Let the SuperLink accept the keys of exactly the sites that are admitted; what was done."""
    lock = folder.path / REGISTERED.parent / "lock"  # `admit` and the run may both be at it
    with files.open_to_append(lock, private=True) as held:
        files.wait_for_lock(held.fileno())
        return _register(folder)


def _register(folder: ServerFolder) -> list[str]:
    known, there, wanted = registered(folder), nodes(folder.path), folder.admitted
    done = []
    for site, entry in list(known.items()):
        gone = there.get(entry["node"], "unregistered") == "unregistered"
        if wanted.get(site) != entry["key"] and not gone:
            flwr(folder.path, "supernode", "unregister", entry["node"], commands.LINK)
            folder.audit.add("unregistered", site=site, key=entry["key"])
            done.append(f"{site}'s key {entry['key']} is refused from now on")
        if wanted.get(site) != entry["key"] or gone:
            del known[site]
    for site, key in wanted.items():
        if site not in known:
            words = commands.register_command(folder.keys, site)[1:]
            node = str(flwr(folder.path, *words)["node-id"])
            known[site] = {"key": key, "node": node}
            folder.audit.add("registered", site=site, key=key)
            done.append(f"{site} may connect")
    files.write(folder.path / REGISTERED, json.dumps(known).encode(), private=True)
    return done


def online(folder: ServerFolder) -> dict[str, str]:
    """For each site that is admitted, whether its node is online."""
    there, known = nodes(folder.path), registered(folder)
    unknown = {"node": ""}
    return {
        site: there.get(known.get(site, unknown)["node"], "not registered")
        for site in folder.admitted
    }


def runs(folder: Path) -> dict[str, str]:
    """The runs that have not ended, by id."""
    found = flwr(folder, "list", commands.LINK)["runs"]
    told = {str(run["run-id"]): str(run["status"]) for run in found}
    return {run: status for run, status in told.items() if not status.startswith("finished")}


def submit(folder: Path, app: Path, told: Mapping[str, object]) -> str:
    """Begin a run of an app that is told this; its id."""
    words = ("--run-config", commands.assignments(told))
    return str(flwr(folder, "run", app, commands.LINK, *words)["run-id"])


def run_status(folder: Path, run: str) -> str:
    found = flwr(folder, "list", commands.LINK, "--run-id", run)["runs"]
    return str(found[0]["status"]) if found else "unknown"
