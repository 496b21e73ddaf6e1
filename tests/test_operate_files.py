"""Dockerfile, compose.yaml and systemd units: their commands are those that the demo runs.

Docker itself is not run here.
"""

import contextlib
import os
import re
import shlex
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import yaml

from fedmaba.deploy.flower_app import commands, proxy

ROOT = Path(__file__).parents[1]
FILES = ROOT / "examples" / "operate"
SITES = ("north", "south", "west")
PROXY = proxy.serve_command("fedmaba", Path("proxy"))


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((FILES / "compose.yaml").read_text())["services"]


@pytest.fixture(scope="module")
def dockerfile():
    """The instructions of the Dockerfile, each on one line, in order."""
    text = (FILES / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], " ".join(line.split(" ", 1)[1].split())) for line in lines]


def unit(name: str) -> dict[str, list[str]]:
    """The values of a systemd unit, by key."""
    text = (FILES / "systemd" / name).read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def command(name: str, instance: str = "") -> list[str]:
    """What a unit starts, its program without its folder."""
    first, *words = shlex.split(unit(name)["ExecStart"][0].replace("%i", instance))
    return [Path(first).name, *words]


def test_containers_run_the_commands_of_the_demo(services):
    assert set(services) == {"superlink", "proxy", *SITES}
    assert services["superlink"]["command"] == commands.superlink_command(8000, "keys", "link.db")
    assert services["proxy"]["command"] == PROXY
    for site in SITES:
        data = f"/federation/data/{site}.npz"
        expected = commands.supernode_command("superlink:8443", "keys", site, data=data)
        assert services[site]["command"] == expected


def test_only_the_proxy_can_be_reached_and_it_alone_reaches_the_superlink(services):
    assert services["superlink"]["ports"] == ["8443:8443"]
    assert services["proxy"]["network_mode"] == "service:superlink"
    assert not [name for name in ("proxy", *SITES) if "ports" in services[name]]
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["user"].startswith("${FAIR_USER")
        assert "privileged" not in service


def test_a_site_sees_its_own_key_and_examples_and_nothing_else(services):
    for site in SITES:
        mine = [volume.split(":")[0] for volume in services[site]["volumes"]]
        assert sorted(mine) == [
            f"./federation/data/{site}.npz",
            f"./federation/homes/{site}",
            "./federation/keys/ca.pem",
            f"./federation/keys/{site}",
        ]
    keys = [v for v in services["proxy"]["volumes"] if "/keys/" in v]
    assert len(keys) == 3
    assert all(v.endswith(":ro") for v in keys)


KEYS = {"image", "build", "user", "restart", "cap_drop", "security_opt", "init", "command"}
KEYS |= {"volumes", "ports", "healthcheck", "network_mode", "depends_on", "logging", "tmpfs"}


def test_compose_says_what_compose_understands(services):
    """What `docker compose config` would find: words that nobody knows, and names of nobody."""
    folder = yaml.safe_load((FILES / "compose.yaml").read_text())
    assert {key for key in folder if not key.startswith("x-")} == {"name", "services"}
    for name, service in services.items():
        assert set(service) <= KEYS, name
        assert set(service.get("depends_on", ())) <= set(services) - {name}
        mode = service.get("network_mode", "service:superlink")
        assert mode.removeprefix("service:") in services
        assert all(isinstance(word, str) for word in service["command"])
        for volume in service["volumes"]:
            source, inside, *flags = volume.split(":")
            assert source.startswith("./federation")
            assert inside.startswith("/federation")
            assert flags in ([], ["ro"])


def test_every_container_can_be_asked_whether_it_is_healthy(services):
    for name, service in services.items():
        told = service["healthcheck"]
        assert told["test"][:3] == ["CMD", "python", "-c"], name
        compile(told["test"][3], name, "exec")
        assert told["retries"] >= 3
        for key in ("interval", "timeout"):
            assert re.fullmatch(r"\d+s", told[key])
    shown = [volume.split(":")[1] for volume in services["proxy"]["volumes"]]
    assert f"/federation/{services['proxy']['healthcheck']['test'][-1]}" in shown


def ask(service, port: int, *more: str) -> int:
    """The exit code of a service's own question, at another port."""
    words = [service["healthcheck"]["test"][3], str(port), *more]
    return subprocess.run([sys.executable, "-c", *words], capture_output=True).returncode


def test_healthchecks_see_who_listens(services, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ask(services["north"], port) == ask(services["superlink"], port) == 0
    assert ask(services["north"], port) != 0
    assert ask(services["superlink"], port) != 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs OpenSSL")
def test_the_healthcheck_of_the_proxy_sees_a_certificate_that_sites_trust(services, tmp_path):
    for name in ("own", "other"):
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        made += ["-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext"]
        made += ["subjectAltName=DNS:localhost", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem", tmp_path / "own.key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve():
            for _ in range(2):
                with contextlib.suppress(OSError):
                    context.wrap_socket(server.accept()[0], server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert ask(services["proxy"], port, str(tmp_path / "own.pem")) == 0
        assert ask(services["proxy"], port, str(tmp_path / "other.pem")) != 0
        thread.join()


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="docker compose is not installed",
)
def test_docker_compose_reads_the_file():
    words = ["docker", "compose", "-f", "compose.yaml", "config", "--quiet"]
    done = subprocess.run(words, cwd=FILES, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_accepts_the_dockerfile():
    # versions of Debian's packages are those of the day on which the image is built
    words = ["hadolint", "--ignore", "DL3008", "Dockerfile"]
    done = subprocess.run(words, cwd=FILES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_dockerfile_keeps_to_the_usual_rules(dockerfile):
    """Those of hadolint that apply here, for machines without it."""
    known = {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER"}
    assert {word for word, _ in dockerfile} <= known
    for word, rest in dockerfile:
        if word == "FROM":
            assert re.fullmatch(r"[a-z]+:[0-9.]+(-[a-z]+)?", rest)  # a version, and not latest
        if word == "WORKDIR":
            assert rest.startswith("/")
        if word == "RUN":
            assert not re.search(r"\b(sudo|curl|wget)\b", rest)
        if "apt-get install" in rest:
            assert rest.startswith("apt-get update &&")
            assert "-y --no-install-recommends" in rest
            assert rest.endswith("rm -rf /var/lib/apt/lists/*")
        if "pip install" in rest:
            assert "pip install --no-cache-dir" in rest
            assert '"$wheel[sim,flower,privacy]"' in rest  # what sites, server and dp= need


def test_units_run_the_commands_of_the_demo():
    assert command("fair-superlink.service") == commands.superlink_command(8000, "keys", "link.db")
    assert command("fair-proxy.service") == PROXY
    node = command("fair-supernode@.service", "north")
    where, data = "server.example.org:8443", "/srv/fair/data/north.npz"
    assert node == commands.supernode_command(where, "keys", "north", data=data)


@pytest.mark.parametrize("name", sorted(p.name for p in (FILES / "systemd").iterdir()))
def test_units_start_again_as_an_ordinary_account_and_read_little(name):
    found = unit(name)
    assert found["User"] == ["fair"]
    assert (found["Restart"], found["RestartSec"]) == (["always"], ["20"])
    assert found["UMask"] == ["0077"]
    assert found["NoNewPrivileges"] == ["yes"]
    if name == "fair-proxy.service":  # state and logs apart
        assert found["BindPaths"] == [f"/var/log/fair:/srv/fair/{PROXY[-1]}/{proxy.LOG.parent}"]
    else:
        told = dict(word.split("=", 1) for word in found["Environment"][0].split())
        assert commands.OFFLINE.items() <= told.items()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_units(tmp_path):
    for path in (FILES / "systemd").iterdir():
        text = path.read_text().replace("/opt/fedmaba/bin/", f"{tmp_path}/")
        text = text.replace("/usr/sbin/", f"{tmp_path}/").replace("User=fair", "User=root")
        (tmp_path / path.name).write_text(text)
    for name in ("flower-superlink", "flower-supernode", "fedmaba"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    shutil.copy(tmp_path / "fair-supernode@.service", tmp_path / "fair-supernode@north.service")
    units = [*tmp_path.glob("fair-*[!@].service")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True
    )
    mine = [line for line in done.stderr.splitlines() if "fair-" in line]
    assert len(units) == 3
    assert mine == []


def test_the_docs_show_the_same_commands():
    text = (ROOT / "docs" / "deploy.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for b in blocks for line in b.replace("\\\n", " ").splitlines()]
    shown = [shlex.split(line, comments=True) for line in lines]
    where, data = "server.example.org:8443", "/data/north.npz"
    assert commands.superlink_command(8000, "keys", "link.db") in shown
    assert commands.supernode_command(where, "keys", "north", data=data) in shown
    assert commands.register_command("keys", "north") in shown
    assert PROXY in shown


def test_the_image_is_built_of_the_wheel_and_is_nobody_special():
    lines = (FILES / "Dockerfile").read_text().splitlines()
    told = [line.split(" ", 1) for line in lines if line[:1].isupper()]
    assert told[0] == ["FROM", "python:3.12-slim"]
    assert told[-1] == ["USER", "1000:1000"]
    (env,) = [dict(w.split("=") for w in rest.split()) for word, rest in told if word == "ENV"]
    assert env == {**commands.OFFLINE, "FLWR_HOME": "/federation/home"}
    assert ["COPY", "dist/*.whl /tmp/"] in told
    assert ["WORKDIR", "/federation"] in told


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs OpenSSL and OpenSSH"
)
def test_prepare_makes_what_the_containers_need(tmp_path):
    tools, place = tmp_path / "bin", tmp_path / "federation"
    tools.mkdir()
    place.mkdir()
    (tools / "fedmaba").write_text(f'#!/bin/sh\nexec {sys.executable} -m fedmaba "$@"\n')
    (tools / "fedmaba").chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    env["PYTHONPATH"] = str(ROOT / "src")
    words = ["sh", str(FILES / "prepare.sh"), *SITES]
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("keys/ca.pem", "keys/server.pem", "proxy/nginx.conf", "app/pyproject.toml"):
        assert (place / name).is_file()
    for site in SITES:
        assert (place / "keys" / site).is_file()
        assert (place / "homes" / site).is_dir()
    for path in (place / "keys").iterdir():
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    told = tomllib.loads((place / "home" / "config.toml").read_text())
    assert told == tomllib.loads(commands.link_config(8000, place / "keys" / "ca.pem"))
    names = ["openssl", "x509", "-in", "keys/server.pem", "-noout", "-ext", "subjectAltName"]
    shown = subprocess.run(names, cwd=place, capture_output=True, text=True).stdout
    assert "DNS:superlink, DNS:localhost, IP Address:127.0.0.1" in shown
    again = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True)
    assert again.returncode == 2
    assert "keys exists: choose an empty folder" in again.stderr
