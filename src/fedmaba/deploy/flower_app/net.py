"""A federation of real Flower processes on one machine: keys, SuperLink, proxy, SuperNodes, runs.

Each step is a command of docs/deploy.md. All processes listen on loopback only and need no
internet. Their files are in one folder that only this account may read. They are stopped when the
`with` block ends, also if it ends with an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedmaba.deploy.flower_app import commands, private, proxy
from fedmaba.deploy.flower_app.commands import LINK, OFFLINE
from fedmaba.deploy.operate import keys
from fedmaba.errors import FedmabaError, InputError
from fedmaba.results import files

PROXY = "proxy"


class NetError(FedmabaError):
    """A process of the federation failed; its log says more."""

    exit_code = 70


class Net:
    """A SuperLink with TLS and node authentication, its proxy, and SuperNodes by site name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.keys, self.logs = self.folder / "keys", self.folder / "logs"
        here = Path(sys.executable).parent  # prefer Flower's programs of this environment
        self.env = {
            **os.environ,
            **OFFLINE,
            "FLWR_HOME": str(self.folder / "home"),
            "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",  # the sites share this machine's cores
        }
        for name, remedy in (
            ("flower-superlink", "in a clone of fedmaba, pip install '.[flower]'"),
            ("ps", "install procps"),
        ):
            if shutil.which(name, path=self.env["PATH"]) is None:
                raise InputError(f"{name} is not on the PATH: {remedy}")
        for path in (self.folder, self.keys, self.logs, self.folder / "home"):
            private.new_folder(path)
        self.nginx = proxy.find_nginx(self.env["PATH"])
        self.port, other = free_ports(2)  # of the SuperLink: for this machine's operator
        self.sites_port = other if self.nginx else self.port  # for SuperNodes
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Net:
        try:
            self._certificates()
            self._superlink()
            self._proxy()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes: ask them first, then use force. A second Ctrl-C must wait."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in self.processes.values():
                process.terminate()
            for name in list(self.processes):
                self.stop(name)
        finally:
            signal.signal(signal.SIGINT, before)

    def key(self, site: str) -> Path:
        """Make a key pair for a site; in a real federation the private key stays on its host."""
        path = self.keys / site
        if not path.exists():
            keys.new_site_key(path)
        return path

    def register(self, site: str) -> None:
        """Let the SuperLink accept a site's key."""
        self.key(site)
        self._do(*commands.register_command(self.keys, site))

    def supernode(self, site: str, **settings: object) -> None:
        """Start a site's SuperNode; `settings` are its node configuration."""
        self.key(site)
        where, (port,) = f"127.0.0.1:{self.sites_port}", free_ports(1)
        self._start(site, *commands.supernode_command(where, self.keys, site, port, **settings))

    def submit(self, app: Path, settings: Mapping[str, object]) -> str:
        """Start a run of an app and return its id."""
        config = commands.assignments(settings)
        out = self.flwr("run", app, LINK, "--format", "json", "--run-config", config)
        return str(_field(out, "run-id"))

    def status(self, run: str) -> str:
        """pending, starting, running, finished:completed, finished:failed, ..."""
        out = self.flwr("list", LINK, "--run-id", run, "--format", "json")
        return str(_field(out, "runs", 0, "status"))

    def flwr(self, *words: object) -> str:
        """Flower's own command line."""
        return self._do("flwr", *words)

    def log(self, name: str) -> str:
        """What a process has logged so far."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def last_words(self, name: str) -> str:
        """The end of a process's log, on one line."""
        return " ".join(self.log(name).split())[-300:]

    def check(self) -> None:
        """Raise NetError if a process has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise NetError(f"{name} has ended: {self.last_words(name)}")

    def stop(self, name: str, number: int = signal.SIGTERM, patience: float = 15.0) -> None:
        """End one process and all that it started; by force if they take too long."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        family = family_of(process.pid)
        gone = process.poll() is not None  # it may have left children behind
        _signal(family if gone or number == signal.SIGKILL else [process.pid], number)
        end = time.monotonic() + patience
        while time.monotonic() < end and (process.poll() is None or _alive(family)):
            time.sleep(0.1)
        _signal(_alive(family), signal.SIGKILL)
        process.wait()

    def _certificates(self) -> None:
        """Make a certificate authority for this federation, and the SuperLink's certificate."""
        keys.new_authority(self.keys)
        secret, certificate = keys.new_certificate(self.keys, "localhost")
        private.write_new(self.keys / "server.key", secret)
        private.write_new(self.keys / "server.pem", certificate)

    def _superlink(self) -> None:
        """Start the SuperLink, tell Flower's command line where it is, wait until it listens."""
        private.write_new(
            self.folder / "home" / "config.toml",
            commands.link_config(self.port, self.keys / "ca.pem"),
        )
        self._start(LINK, *commands.superlink_command(self.port, self.keys))
        self._listening(LINK, self.port, "the SuperLink")

    def _proxy(self) -> None:
        """Start the proxy for SuperNodes, if nginx is installed."""
        if self.nginx is None:
            return
        folder = self.folder / PROXY
        proxy.write_configs(folder, f"127.0.0.1:{self.sites_port}", self.port, self.keys)
        self.serve_proxy()
        self._listening(PROXY, self.sites_port, "nginx")

    def serve_proxy(self) -> None:
        """Start the proxy, whose configuration is written."""
        self._start(
            PROXY, sys.executable, "-m", *proxy.serve_command("fedmaba", self.folder / PROXY)
        )

    def _listening(self, name: str, port: int, what: str) -> None:
        """Wait until a process listens on its port."""
        end = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if self.processes[name].poll() is not None or time.monotonic() > end:
                raise NetError(f"{what} did not start: {self.last_words(name)}")
            time.sleep(0.2)

    def _start(self, name: str, *words: object) -> None:
        with open(self.logs / f"{name}.log", "ab", opener=private.opener) as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in words],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only us; we stop the others in order
                umask=private.UMASK,
            )

    def _do(self, *words: object) -> str:
        """Run a command that ends by itself and return its output."""
        command = [str(word) for word in words]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.env,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=120,
                umask=private.UMASK,
            )
        except subprocess.TimeoutExpired as error:
            raise NetError(f"{' '.join(command[:3])} did not end within 120 seconds") from error
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise NetError(f"{' '.join(command[:3])} failed: {said}")
        return done.stdout


def family_of(pid: int) -> list[int]:
    """A process, the others of its group, and all that any of them started."""
    rows = _processes("pid=,ppid=,pgid=")
    found = [pid, *(int(p) for p, _, group in rows if int(group) == pid and int(p) != pid)]
    for one in found:
        found += [int(p) for p, above, _ in rows if int(above) == one and int(p) not in found]
    return found


def _alive(pids: Iterable[int]) -> list[int]:
    """Which of these processes still run."""
    running = {int(pid) for pid, state in _processes("pid=,stat=") if "Z" not in state}
    return [pid for pid in pids if pid in running]


def _processes(columns: str) -> list[list[str]]:
    """A table of all processes."""
    done = subprocess.run(["ps", "-axo", columns], capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as probes:
        ports = []
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def _field(text: str, *keys: str | int) -> object:
    """The value under these keys in the JSON that Flower's command line printed."""
    try:
        found = json.loads(text)
        for key in keys:
            found = found[key]
    except (ValueError, LookupError, TypeError) as error:
        said = " ".join(text.split())[-300:]
        raise NetError(f"Flower's answer has no {keys[0]!r}: {said}") from error
    return found


def read_rounds(state: Path, seen: int) -> Iterable[dict[str, Any]]:
    """The complete lines of a state folder's rounds.jsonl, after the first `seen`."""
    path = state / "rounds.jsonl"
    return [line for _, line in files.json_lines(path)][seen:] if path.exists() else []
