"""`fedmaba flower proxy` and `fedmaba flower check` without Flower: what they write and say."""

import re
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedmaba.cli import app
from fedmaba.deploy.flower_app import check as checking
from fedmaba.deploy.flower_app import proxy
from fedmaba.deploy.flower_app.check import OTHERS, check
from fedmaba.errors import InputError

NOT_AUTHENTICATED = '{"detail":"Invalid SuperNode authentication"}'


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """A certificate for localhost, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return certified(tmp_path_factory.mktemp("keys"), "DNS:localhost,IP:127.0.0.1")


def certified(folder: Path, names: str) -> Path:
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    words += f" -subj /CN=test -addext subjectAltName={names} -keyout server.key -out server.pem"
    subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    shutil.copy(folder / "server.pem", folder / "ca.pem")
    return folder


@contextmanager
def server(answer, keys: Path | None = None):
    """A port where each connection gets `answer(first line)`: bytes, or nothing said at all."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    context, done, held = None, threading.Event(), []
    if keys is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.pem", keys / "server.key")

    def serve() -> None:
        while not done.is_set():
            try:
                plain, _ = listener.accept()
                plain.settimeout(5)
                link = plain if context is None else context.wrap_socket(plain, server_side=True)
                first = link.recv(65536).decode("latin-1").split("\r\n")[0]
                said = answer(first)
                if said is None:
                    held.append(link)
                    continue
                link.sendall(said)
                link.close()
            except OSError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"localhost:{listener.getsockname()[1]}"
    finally:
        done.set()
        thread.join()
        for link in held:
            link.close()
        listener.close()


def http(status: int, body: str = "", kind: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status} Words\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n{body}".encode()


def guarded(first: str, other: bytes | None = None, only: str = "") -> bytes:
    """The fleet's answer, and a refusal to everything else; `other` to lines that have `only`."""
    if first.startswith("POST /v1/fleet/activate-node "):
        return http(401, NOT_AUTHENTICATED, "application/json")
    return other if other is not None and only in first else http(404, "no")


def test_a_guarded_fleet_is_well(keys):
    with server(guarded, keys) as where:
        found = check(where, keys / "ca.pem")
    assert found.ok
    assert found.lines() == [
        f"fleet at {where}: reachable, and it refuses who has no key",
        f"control at {where}: not reachable: all {len(OTHERS)} requests beside the fleet "
        "were refused",
        "clock of this machine: not known: the answer has no Date",
    ]


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (0, "0 s"),
        (3, "about 3 s ahead of the server's, near enough"),
        (-290, "about 290 s behind the server's, near enough"),
        (7, "WRONG: about 7 s ahead of the server's: a site more than 5 s ahead or 300 s behind"),
        (-400, "WRONG: about 400 s behind the server's"),
    ],
)
def test_the_clock_of_a_site_is_compared(keys, ahead, words, monkeypatch):
    now = 1_800_000_000.5  # however slow this machine is
    monkeypatch.setattr(checking, "time", SimpleNamespace(time=lambda: now))

    def answer(first: str) -> bytes:
        date = formatdate(now - ahead, usegmt=True).encode()
        return guarded(first).replace(b"\r\n", b"\r\nDate: " + date + b"\r\n", 1)

    with server(answer, keys) as where:
        found = check(where, keys / "ca.pem")
    assert words in found.lines()[2]
    assert found.ok == ("WRONG" not in words)
    assert found.ok or "as if its key were wrong: let both machines" in found.lines()[2]


def test_clocks_may_differ_as_far_as_flower_lets_them():
    constant = pytest.importorskip("flwr.common.constant", reason="flwr is an extra")
    assert constant.SYSTEM_TIME_TOLERANCE == checking.AHEAD_SECONDS
    assert constant.TIMESTAMP_TOLERANCE == checking.BEHIND_SECONDS


@pytest.mark.parametrize("date", ["", "yesterday", " Mon, 99 Foo 2024 99:00:00 GMT"])
def test_a_date_that_is_none_is_not_known(keys, date):
    def answer(first: str) -> bytes:
        return guarded(first).replace(b"\r\n", f"\r\nDate: {date}\r\n".encode(), 1)

    with server(answer, keys) as where:
        found = check(where, keys / "ca.pem")
    assert found.ok
    assert "not known" in found.lines()[2]


@pytest.mark.parametrize(
    ("other", "only"),
    [
        (http(200, "", "application/protobuf"), "/v1/control/list-runs"),
        (http(200, "", "application/protobuf"), "/../control"),
        (http(200, "", "application/protobuf"), "%2e%2e"),
        (http(200, "", "application/protobuf"), "%63ontrol"),
        (http(200, "", "application/protobuf"), "//v1//"),
        (http(401, '{"detail":"log in"}', "application/json"), "/v1/control/"),
        (http(404, '{"detail":"Not Found"}', "application/json"), "/v1/control/"),
        (http(405, '{"detail":"Method Not Allowed"}', "application/json"), "GET /v1/runtime"),
        (http(502, "bad gateway"), "/v1/control/"),  # passed on to a SuperLink that is down
        (http(307, ""), "/v1/control/"),
        (http(200, "{}", "application/json"), "/openapi.json"),
    ],
)
def test_any_way_to_the_superlink_is_told(keys, other, only):
    with server(lambda first: guarded(first, other, only), keys) as where:
        found = check(where, keys / "ca.pem")
    assert not found.ok
    fleet, control, _ = found.lines()
    assert "reachable" in fleet
    assert "REACHABLE" in control
    assert only in control
    assert "fedmaba flower proxy" in control


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        (http(502, "bad gateway"), "the proxy answers 502: start the SuperLink"),
        (http(404, "no"), "it answers 404: is this the port for SuperNodes?"),
        (http(200, "hello"), "it answers 200"),
        (b"", "it closes the connection"),
    ],
)
def test_a_fleet_that_does_not_answer_is_told(keys, fleet, words):
    def answer(first: str) -> bytes:
        return fleet if "activate-node" in first else http(404, "no")

    with server(answer, keys) as where:
        found = check(where, keys / "ca.pem")
    assert not found.ok
    assert "NOT reachable" in found.lines()[0]
    assert words in found.lines()[0]


def test_the_check_asks_for_nothing_that_changes_anything():
    """A stranger's look must not start, stop or take anything where control is open."""
    for method, path in OTHERS:
        assert method == "GET" or "list-" in path, path


def one_line(*words: str) -> str:
    done = CliRunner().invoke(app, ["flower", *words])
    error = done.exception
    assert isinstance(error, InputError), done
    assert error.exit_code == 2
    assert "\n" not in str(error)
    return str(error)


def test_what_keeps_the_check_from_looking_is_one_line(keys, tmp_path, monkeypatch):
    ca = ("--ca", str(keys / "ca.pem"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nobody = f"localhost:{silent.getsockname()[1]}"
        monkeypatch.setattr(checking, "SECONDS_TO_WAIT", 0.3)
        assert "no answer within 0.3 seconds" in one_line("check", nobody, *ca)
        monkeypatch.undo()
    assert "connection refused: nothing listens there" in one_line("check", nobody, *ca)
    assert "host 'no-such.invalid' cannot be found" in one_line(
        "check", "no-such.invalid:8443", *ca
    )
    with server(guarded) as where:  # without TLS
        assert "TLS failed" in one_line("check", where, *ca)
    with server(guarded, keys) as where:
        assert re.search("not trusted.*--ca ca.pem", one_line("check", where))
    other = certified(tmp_path, "DNS:other.example")
    with server(guarded, other) as where:
        said = one_line("check", where, "--ca", str(other / "ca.pem"))
        assert re.search("not valid for 'localhost'.*a name or address that it is made for", said)
    with server(lambda first: b"SSH-2.0-OpenSSH\r\n", keys) as where:
        assert "does not speak HTTP" in one_line("check", where, *ca)
    monkeypatch.setattr(checking, "SECONDS_TO_WAIT", 0.5)
    with server(lambda first: None, keys) as where:
        assert "no answer within" in one_line("check", where, *ca)
    assert "No such file" in one_line("check", where, "--ca", str(tmp_path / "none.pem"))
    (tmp_path / "bad.pem").write_text("hello")
    assert "not a certificate" in one_line("check", where, "--ca", str(tmp_path / "bad.pem"))


@pytest.mark.parametrize(
    "text",
    [
        "", "host", "host:", ":8443", "host:0", "host:65536", "host:8a", "host:+1", "https://host:1",
        "ho st:1", "host\r\n:1", "::1:8443", "[::1", "[::1%;x]:1", "[host]:1", "a" * 300 + ":1",
        "host:٣", "user@host:1", "host/x:1", "\x1b[31m:1",
    ],
)  # fmt: skip
def test_an_address_is_host_and_port(text):
    with pytest.raises(InputError, match="is not HOST:PORT") as caught:
        proxy.address(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


def test_good_addresses():
    assert proxy.address("server.example.org:8443") == ("server.example.org", 8443)
    assert proxy.address("[::1]:1") == ("::1", 1)


def test_the_configuration_names_ports_and_files(keys, tmp_path):
    target = proxy.write_configs(tmp_path / "proxy", "[::]:9443", 9000, keys)
    text = target.read_text()
    assert "listen [::]:9443 ssl;" in text
    assert "proxy_pass https://127.0.0.1:9000;" in text
    assert f'ssl_certificate_key "{keys / "server.key"}";' in text
    assert "@" not in text
    assert target.stat().st_mode & 0o777 == 0o600
    assert target.parent.stat().st_mode & 0o777 == 0o700


def test_the_command_line_writes_it_and_says_how_to_start(keys, tmp_path):
    done = CliRunner().invoke(
        app, ["flower", "proxy", str(tmp_path / "proxy"), "--keys", str(keys)]
    )
    assert done.exit_code == 0, done
    assert f"fedmaba flower serve {tmp_path / 'proxy'}" in done.stdout.replace("\n", "")


def test_what_cannot_be_a_proxy_is_one_line(keys, tmp_path):
    def refused(*words: str) -> str:
        return one_line("proxy", str(tmp_path / "new"), "--keys", str(keys), *words)

    assert "cannot listen on 'server.example'" in refused("--listen", "server.example:1")
    assert "both the proxy's and the SuperLink's" in refused("--listen", "0.0.0.0:8000")
    assert "99999 is not a port" in refused("--superlink-port", "99999")
    assert "make the certificates first" in refused("--keys", str(tmp_path))
    odd = tmp_path / 'a"; include x; "'
    shutil.copytree(keys, odd)
    assert "cannot name a file" in refused("--keys", str(odd))
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "new" / "nginx.conf").symlink_to(tmp_path / "elsewhere")
    assert "exists: choose another folder" in refused()
    assert (tmp_path / "elsewhere").read_text() == "mine"
    (tmp_path / "file").write_text("")
    assert "exists" in one_line("proxy", str(tmp_path / "file"), "--keys", str(keys))


def test_nginx_takes_the_configuration(keys, tmp_path):
    """Also with spaces in every path, and an IPv6 address."""
    nginx = proxy.find_nginx()
    if nginx is None:
        pytest.skip("nginx is not installed")
    spaced = tmp_path / "my keys"
    shutil.copytree(keys, spaced)
    folder = tmp_path / "my proxy"
    proxy.write_configs(folder, "[::1]:9443", 9000, spaced)
    done = subprocess.run(
        [*proxy.nginx_command(nginx, folder), "-t"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr
