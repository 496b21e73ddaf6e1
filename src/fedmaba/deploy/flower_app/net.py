"""A federation of real Flower processes on one machine: keys, SuperLink, proxy, SuperNodes, runs.

Each step is a command of docs/deploy.md. All processes listen on loopback only and need no
internet. Their files are in one folder that only this account may read. They are stopped when the
`with` block ends, also if it ends with an error.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from fedmaba.deploy.flower_app import commands, private, proxy
from fedmaba.deploy.flower_app.commands import LINK
from fedmaba.deploy.operate import control, keys
from fedmaba.deploy.operate.processes import Program, last_words
from fedmaba.errors import FedmabaError, InputError

PROXY = "proxy"


class NetError(FedmabaError):
    """A process of the federation failed; its log says more."""

    exit_code = 70


class Net:
    """A SuperLink with TLS and node authentication, its proxy, and SuperNodes by site name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.keys, self.logs = self.folder / "keys", self.folder / "logs"
        # the sites share this machine's cores
        self.env = {**commands.environment(self.folder), "OMP_NUM_THREADS": "1"}
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
        self.programs: dict[str, Program] = {}

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
            for program in self.programs.values():
                program.ask_to_end()
            for name in list(self.programs):
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
        control.flwr(self.folder, *commands.register_command(self.keys, site)[1:])

    def supernode(self, site: str, **settings: object) -> None:
        """Start a site's SuperNode; `settings` are its node configuration."""
        self.key(site)
        where, (port,) = f"127.0.0.1:{self.sites_port}", free_ports(1)
        self._start(site, *commands.supernode_command(where, self.keys, site, port, **settings))

    def submit(self, app: Path, settings: Mapping[str, object]) -> str:
        """Start a run of an app and return its id."""
        return control.submit(self.folder, app, settings)

    def status(self, run: str) -> str:
        """pending, starting, running, finished:completed, finished:failed, ..."""
        return control.run_status(self.folder, run)

    def log(self, name: str) -> str:
        """What a process has logged so far."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def last_words(self, name: str) -> str:
        """The last line of a process's log that says something."""
        return last_words(self.logs / f"{name}.log", {})

    def check(self) -> None:
        """Raise NetError if a process has ended."""
        for name, program in self.programs.items():
            if program.ended is not None:
                raise NetError(f"{name} has ended: {self.last_words(name)}")

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one process and all that it started; by force if they take too long."""
        if (program := self.programs.pop(name, None)) is not None:
            program.stop(number)

    def _certificates(self) -> None:
        """Make a certificate authority for this federation, and the SuperLink's certificate."""
        keys.new_authority(self.keys)
        keys.new_certificate(self.keys, "localhost")

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
        while not control.listening(port):
            if self.programs[name].ended is not None or time.monotonic() > end:
                raise NetError(f"{what} did not start: {self.last_words(name)}")
            time.sleep(0.2)

    def _start(self, name: str, *words: str) -> None:
        self.programs[name] = Program(name, words, self.env)
        self.programs[name].start(self.folder)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as probes:
        ports = []
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports
