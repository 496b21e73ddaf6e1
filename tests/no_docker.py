"""`docker compose` where there is no Docker: the services of compose.yaml as local processes.

It runs the commands of compose.yaml as they are, each in a folder in place of its container, which
holds what the service's volumes show it and nothing else. What containers have of their own and
processes of one machine share is mapped: the folder /federation, the name `superlink`, the ports.

    no_docker.py PLACE compose build | run --rm SERVICE ... | exec SERVICE ... | up -d ...
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

INSIDE = "/federation"  # the working folder of the image


class Compose:
    """The services of compose.yaml in the current folder; `place` holds what Docker would hold."""

    def __init__(self, place: Path) -> None:
        import yaml

        self.place, self.image = place, place / "image"
        self.services = yaml.safe_load(Path("compose.yaml").read_text())["services"]
        told = json.loads((place / "mapped.json").read_text())
        self.mapped, self.ports = told["words"], told["ports"]

    def folder(self, service: str) -> Path:
        """What the container of a service would see as /federation."""
        folder = self.place / service
        for volume in self.services[service]["volumes"]:
            source, inside = volume.split(":")[:2]
            target, source = Path(f"{folder}{inside.removeprefix(INSIDE)}"), Path(source).absolute()
            if not source.exists():  # Docker would make an empty folder here
                sys.exit(f"{service}: {source} does not exist")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.is_symlink():
                target.symlink_to(source)
        return folder

    def words(self, service: str, words: list[str]) -> list[str]:
        """A command as it runs on this machine."""
        out = [self.mapped.get(w, w).replace(INSIDE, str(self.place / service)) for w in words]
        if words[0] == "flower-supernode":  # its port is on the loopback of its own container
            out += ["--port", str(self.ports[service])]
        return out

    def env(self, service: str) -> dict[str, str]:
        """The environment that the Dockerfile sets, and the programs of its image."""
        lines = Path("Dockerfile").read_text().splitlines()
        told = dict(
            w.split("=") for line in lines if line.startswith("ENV ") for w in line.split()[1:]
        )
        told = {
            key: value.replace(INSIDE, str(self.place / service)) for key, value in told.items()
        }
        path = [str(self.image / "bin"), str(self.place / "bin"), os.environ["PATH"]]
        shared = {"PYTHONPATH": str(self.image), "OMP_NUM_THREADS": "1", "HOME": str(self.place)}
        return {**os.environ, **shared, **told, "PATH": os.pathsep.join(path)}

    def build(self) -> int:
        """Install the wheel, as the Dockerfile does; other packages are those of this machine."""
        (wheel,) = Path("dist").glob("*.whl")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        return subprocess.run([*pip, "--target", str(self.image), str(wheel)]).returncode

    def run(self, service: str, words: list[str]) -> int:
        folder = self.folder(service)
        words = self.words(service, words)
        return subprocess.run(words, cwd=folder, env=self.env(service), umask=0o077).returncode

    def up(self, services: list[str], wait: bool) -> int:
        """Start services; each has a process that starts it again when it ends."""
        for service in services or self.services:
            if (self.place / f"{service}.pid").exists():
                continue
            with open(self.place / f"{service}.log", "ab") as log:
                keeper = subprocess.Popen(
                    [sys.executable, __file__, str(self.place), "keep", service],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            (self.place / f"{service}.pid").write_text(str(keeper.pid))
        return max((self.healthy(service) for service in services), default=0) if wait else 0

    def healthy(self, service: str) -> int:
        """Wait until a service is healthy: 0 if it is."""
        told = self.services[service]["healthcheck"]
        words = self.words(service, told["test"][1:])
        for _ in range(told["retries"]):
            time.sleep(float(told["interval"].removesuffix("s")))
            if not subprocess.run(
                words, env=self.env(service), stderr=subprocess.DEVNULL
            ).returncode:
                return 0
        return 1

    def keep(self, service: str) -> int:
        """restart: unless-stopped"""
        stopped = []
        signal.signal(signal.SIGTERM, lambda *_: (stopped.append(1), child.terminate()))
        folder, env = self.folder(service), self.env(service)
        words = self.words(service, self.services[service]["command"])
        while not stopped:
            child = subprocess.Popen(words, cwd=folder, env=env, umask=0o077)
            child.wait()
            time.sleep(0 if stopped else 1)
        return child.returncode


def main(place: str, what: str, *words: str) -> int:
    compose = Compose(Path(place))
    if what == "keep":
        return compose.keep(words[0])
    assert what == "compose"
    if words == ("build",):
        return compose.build()
    if words[:2] == ("up", "-d"):
        return compose.up([w for w in words[2:] if w != "--wait"], "--wait" in words)
    if words[:2] == ("run", "--rm"):
        return compose.run(words[2], list(words[3:]))
    assert words[0] == "exec", words
    return compose.run(words[1], list(words[2:]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
