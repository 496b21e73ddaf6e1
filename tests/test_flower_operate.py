"""The files of examples/operate at work: what compose.yaml and the systemd units start, without
Docker and systemd. Real processes; tests/no_docker.py stands in for `docker compose`.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from fedmaba.data.federation import Federation
from fedmaba.deploy.flower_app import commands, proxy
from fedmaba.deploy.flower_app.demo import write_site
from fedmaba.deploy.flower_app.net import family_of, free_ports, read_rounds
from fedmaba.report import data
from test_operate_files import FILES, ROOT, SITES, unit

NGINX = proxy.find_nginx()
pytestmark = [
    pytest.mark.flower,
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
]


def end(pids: list[int]) -> None:
    """End processes and all that they started: ask them first, then use force."""
    family = [p for pid in pids for p in family_of(pid)]
    for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
        for pid in pids if number == signal.SIGTERM else family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + patience
        while time.monotonic() < until and any(map(running, family)):
            time.sleep(0.2)


def running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in (Path("/proc") / str(pid) / "status").read_text()
    return False


def prepare_with(ports: dict[str, int], target: Path) -> None:
    """prepare.sh with other ports than those that a container or a server has of its own."""
    text = (FILES / "prepare.sh").read_text()
    for usual, port in ports.items():
        assert usual in text
        text = text.replace(usual, str(port))
    target.write_text(text)
    target.chmod(0o755)


def test_the_commands_of_the_page_make_a_federation_of_three_containers(tmp_path):
    """From the wheel to the models, as docs/deploy.md writes it, with two rounds."""
    place, here, mine = tmp_path / "docker", tmp_path / "operate", tmp_path / "mine"
    for folder in (place / "bin", mine):
        folder.mkdir(parents=True)
    shutil.copytree(FILES, here, ignore=shutil.ignore_patterns("federation", "dist"))
    fed = Federation.make("sample", "shards:2", clients=len(SITES))
    for c, site in enumerate(SITES):
        write_site(mine / f"{site}.npz", fed, c)
    door, link, *own = free_ports(2 + len(SITES))
    prepare_with({"8443": door, "8000": link}, place / "bin" / "prepare.sh")
    mapped = {"superlink:8443": f"localhost:{door}", "8000": str(link)}
    told = {"words": mapped, "ports": dict(zip(SITES, own, strict=True))}
    (place / "mapped.json").write_text(json.dumps(told))
    stand_in = (
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "no_docker.py"} {place} "$@"\n'
    )
    (place / "bin" / "docker").write_text(stand_in)
    (place / "bin" / "docker").chmod(0o755)

    page = (ROOT / "docs" / "deploy.md").read_text()
    (block,) = [
        b for b in re.findall(r"```sh\n(.*?)```", page, re.S) if "docker compose build" in b
    ]
    for before, after in (
        ("python -m build", f"{sys.executable} -m build --no-isolation"),  # no package index here
        (" ../..", f" {ROOT}"),
        ("/path/to/", f"{mine}/"),
        ("rounds=20", "rounds=2"),
    ):
        assert block.count(before) == 1, before
        block = block.replace(before, after)
    path = [str(place / "bin"), str(Path(sys.executable).parent), str(Path(NGINX).parent)]
    env = {**os.environ, "PATH": os.pathsep.join([*path, os.environ["PATH"]])}
    try:
        done = subprocess.run(
            ["bash", "-e", "-c", block],
            cwd=here,
            env=env,
            capture_output=True,
            text=True,
            timeout=420,
        )
    finally:
        end([int(file.read_text()) for file in place.glob("*.pid")])
    logs = {file.stem: file.read_text(errors="replace") for file in place.glob("*.log")}
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:], logs)
    state = here / "federation" / "state"
    lines = [line for line in read_rounds(state, 0) if "deployed" not in line]
    assert [sorted(line["sites"]) for line in lines] == [sorted(SITES)] * 2
    assert not any(line["refused"] for line in lines)
    assert data.load_run_folder(state).finished
    # the code was the wheel's, and the proxy read nothing that its volumes do not show it
    assert (place / "image" / "fedmaba" / "__init__.py").is_file()
    conf = (here / "federation" / "proxy" / "nginx.conf").read_text()
    read = {Path(p).name for p in re.findall(r'"([^"]*/keys/[^"]*)"', conf)}
    assert read == {p.name for p in (place / "proxy" / "keys").iterdir()}
    assert {p.name for p in (place / "north" / "keys").iterdir()} == {"ca.pem", "north"}


class Unit:
    """What a systemd unit starts, with the folders and ports of this test."""

    def __init__(self, name: str, mapped: dict[str, str], instance: str = "") -> None:
        found = unit(name)

        def here(text: str) -> str:
            for before, after in {"%i": instance, **mapped}.items():
                text = text.replace(before, after)
            return text

        words = shlex.split(here(found["ExecStart"][0]))
        told = dict(
            w.split("=", 1) for line in found.get("Environment", []) for w in here(line).split()
        )
        if instance:  # sites share this machine with others that the tests start
            words += ["--port", str(free_ports(1)[0])]
        self.folder = Path(here(found["WorkingDirectory"][0]))
        self.log = self.folder / f"{name}.log"
        self.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **told}  # nothing of this account
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words, cwd=self.folder, env=self.env, stdout=log, stderr=log, umask=0o077
            )

    def until(self, what) -> None:
        """Wait until it is up."""
        limit = time.monotonic() + 90
        while not what(self):
            text = self.log.read_text(errors="replace")
            assert self.process.poll() is None, text
            assert time.monotonic() < limit, text
            time.sleep(0.2)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_each_unit_of_systemd_starts_what_it_says_and_stops_when_asked(tmp_path):
    srv = tmp_path / "fair"
    srv.mkdir()
    bin_ = Path(sys.executable).parent
    door, link = free_ports(2)
    prepare_with({"8443": door, "8000": link}, tmp_path / "prepare.sh")
    env = {**os.environ, **commands.OFFLINE, "PATH": f"{bin_}:{os.environ['PATH']}"}
    env["FLWR_HOME"] = str(srv / "home")
    ready = subprocess.run(
        [tmp_path / "prepare.sh", "north"], cwd=srv, env=env, capture_output=True, text=True
    )
    assert ready.returncode == 0, ready.stderr
    mapped = {
        "/opt/fedmaba/bin": str(bin_),
        "/srv/fair": str(srv),
        "server.example.org:8443": f"localhost:{door}",
        "--port 8000": f"--port {link}",
    }
    started: list[Unit] = []
    try:
        started.append(Unit("fair-superlink.service", mapped))
        started[-1].until(lambda _: listens(link))
        started.append(Unit("fair-proxy.service", mapped))
        started[-1].until(lambda _: listens(door))
        register = commands.register_command("keys", "north")
        done = subprocess.run(register, cwd=srv, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        started.append(Unit("fair-supernode@.service", mapped, "north"))
        started[-1].until(lambda u: "SuperNode ID" in u.log.read_text(errors="replace"))
        for one in reversed(started):  # systemd asks with SIGTERM, and waits 90 s
            one.process.terminate()
            assert one.process.wait(60) in (0, -signal.SIGTERM), one.log.read_text()
    finally:
        end([one.process.pid for one in started])
    assert (srv / "link.db").is_file()
