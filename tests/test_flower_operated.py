"""From nothing to the last round by the commands of docs/operate.md, with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from fedmaba.data.federation import Federation
from fedmaba.deploy.flower_app.demo import write_site
from fedmaba.deploy.flower_app.net import free_ports
from fedmaba.deploy.flower_app.proxy import find_nginx
from fedmaba.deploy.operate.processes import family_of
from fedmaba.results.state_folder import read_rounds

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed"),
]
FEDMABA = [sys.executable, "-m", "fedmaba", "flower"]
SITES = ("north", "south", "east")
PATIENCE = 900


class Operator:
    """Somebody who types commands in a folder, counted."""

    def __init__(self, folder):
        self.folder, self.typed, self.begun = folder, [], []

    def does(self, *words, code=0):
        self.typed.append(words[0])
        done = subprocess.run(
            [*FEDMABA, *map(str, words)], cwd=self.folder, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    def starts(self, place):
        self.typed.append("start")
        with open(self.folder / f"{place}.log", "w") as log:
            process = subprocess.Popen(
                [*FEDMABA, "start", place], cwd=self.folder, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.begun.append(process)
        return process

    def said(self, place):
        return (self.folder / f"{place}.log").read_text()

    def ends_everything(self):
        for process in self.begun:
            family = family_of(process.pid)
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                for pid in family:
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def operator(tmp_path):
    one = Operator(tmp_path)
    fed = Federation.make("sample", "shards:2", clients=len(SITES))
    for c, site in enumerate(SITES):
        write_site(tmp_path / f"{site}.npz", fed, c)
    yield one
    one.ends_everything()


def the_program(folder, word):
    """The process that the server's supervisor began for a program."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word in one for one in words[:3]) and any(str(folder) in one for one in words):
            return int(path.parent.name)
    raise AssertionError(f"no process {word} of {folder}")


def wait_for(condition, what, operator):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, (what, operator.said("server"))
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("words", "rounds"),
    [
        pytest.param((), 2, id="plain"),
        pytest.param(
            ("--secure", "--dp", "epsilon=8,delta=1e-5,clip=1.0"),
            3,
            id="secure and private",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_federation_of_three_sites_from_nothing_to_its_end(operator, words, rounds):
    """Also over a SuperLink and an nginx that are killed."""
    folder, began = operator.folder, time.monotonic()
    door, link, *own = free_ports(2 + len(SITES))
    ports = ("--port", door, "--superlink-port", link)
    operator.does("init", "server", "--sites", ",".join(SITES), "--rounds", rounds, *ports, *words)
    lines, read_out = [], []
    for site, port in zip(SITES, own, strict=True):
        told = operator.does(
            "join", f"server/join/{site}.json", "--data", f"{site}.npz", "--port", port
        )
        lines += re.findall(r"^ecdsa-.*$", told, re.M)
        read_out += ["--fingerprint", re.search(r"telephone: (\S+)", told)[1]]
    operator.does("admit", "server", *lines, *read_out)
    operator.does("check", "server")
    for site in SITES:
        operator.starts(site)
    run = operator.starts("server")
    assert len(operator.typed) == 3 + 2 * len(SITES) + 1

    wait_for(lambda: re.search(r"^run \d+", operator.said("server"), re.M), "a run", operator)
    os.kill(the_program(folder / "server", "flower-superlink"), signal.SIGKILL)
    os.kill(the_program(folder / "server/proxy", "nginx"), signal.SIGKILL)
    wait_for(lambda: run.poll() is not None, "the end", operator)
    assert run.returncode == 0, operator.said("server")
    seconds = time.monotonic() - began

    state = folder / "server" / "state"
    done = [line for line in read_rounds(state, 0) if "deployed" not in line]
    assert [line["round"] for line in done] == list(range(1, rounds + 1))
    assert all(sorted(line["sites"]) == sorted(SITES) for line in done)
    assert [one["site"] for one in done[0]["names"]] == sorted(SITES)
    assert (state / "models" / "deployed.safetensors").exists()
    told = json.loads(operator.does("status", "server", "--format", "json"))
    assert (told["run"], told["round"]) == ("ended", rounds)
    assert f"fedmaba_rounds {rounds}" in (folder / "server/metrics/fedmaba.prom").read_text()
    for place in ("server", *SITES):
        assert "whole" in operator.does("audit", "verify", place)
    told = json.loads(operator.does("status", "north", "--format", "json"))
    assert told["rounds, of at most"][0] >= rounds
    for site in SITES:
        operator.does("stop", site)
    print(f"{len(operator.typed)} commands, {seconds:.0f} s")


def test_a_site_refuses_another_app_and_a_former_site_is_refused(operator):
    """One line at both ends; the server goes on with the others."""
    folder = operator.folder
    door, link, *own = free_ports(2 + len(SITES))
    ports = ("--port", door, "--superlink-port", link)
    operator.does("init", "server", "--sites", ",".join(SITES), "--rounds", 1, *ports)
    for site, port in zip(SITES, own, strict=True):
        told = operator.does(
            "join", f"server/join/{site}.json", "--data", f"{site}.npz", "--port", port
        )
        (line,) = re.findall(r"^ecdsa-.*$", told, re.M)
        shown = re.search(r"telephone: (\S+)", told)[1]
        operator.does("admit", "server", line, "--fingerprint", shown)
    text = (folder / "east" / "site.toml").read_text()
    (folder / "east" / "site.toml").write_text(
        re.sub('app = "[0-9a-f]+"', f'app = "{"0" * 64}"', text)
    )
    operator.does("remove", "server", "south")
    path = folder / "server" / "federation.toml"
    path.write_text(path.read_text() + "sites = 2\n")
    for site in SITES:
        operator.starts(site)
    run = operator.starts("server")
    wait_for(lambda: run.poll() is not None, "the end", operator)
    assert run.returncode == 0, operator.said("server")
    (line,) = [x for x in read_rounds(folder / "server" / "state", 0) if "deployed" not in x]
    assert list(line["sites"]) == ["north"]
    assert any("none that this site allows" in why for why in line["refused"])
    assert "none that this site allows" in operator.does("status", "east")
    link = (folder / "server" / "logs" / "superlink.log").read_text()
    assert "No SuperNode found with the given public key" in link
