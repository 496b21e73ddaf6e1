"""A federation of real processes, attacked from outside its proxy. Run with make test-flower."""

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmaba.deploy.flower_app.net import LINK, PROXY, Net
from fedmaba.deploy.flower_app.new import new
from fedmaba.deploy.flower_app.proxy import CALLS, LOG, find_nginx
from fedmaba.deploy.operate import control
from fedmaba.results.state_folder import read_rounds

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed: nothing to attack"),
]
SITES, ROUNDS = 2, 3
OUTSIDE = "outside"  # what the attacker calls the proxy in flwr's own configuration
REFUSED = b"only SuperNodes are served here"


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """A SuperLink behind its proxy, two sites, and a run that goes on while it is attacked."""
    folder = tmp_path_factory.mktemp("proxy")
    new(folder / "app")
    rng = np.random.default_rng(0)
    with Net(folder) as net:
        for c in range(SITES):
            x, y = rng.random((40, 1, 28, 28), np.float32), rng.integers(10, size=40)
            np.savez(folder / f"site-{c}.npz", x=x, y=y, x_test=x, y_test=y)
            net.register(f"site-{c}")
            net.supernode(f"site-{c}", data=str(folder / f"site-{c}.npz"))
        settings = {"rounds": ROUNDS, "sites": SITES, "evaluate": False}
        net.run = net.submit(folder / "app", {**settings, "state": str(folder / "state")})
        yield net


@pytest.fixture(scope="module")
def attacker(net, tmp_path_factory) -> dict[str, str]:
    """The environment of somebody who has ca.pem and flwr, and knows the proxy's address."""
    home = tmp_path_factory.mktemp("attacker")
    ca = home / "ca.pem"
    ca.write_bytes((net.keys / "ca.pem").read_bytes())
    (home / "config.toml").write_text(
        f'[superlink.{OUTSIDE}]\naddress = "localhost:{net.sites_port}"\n'
        f"root-certificates = {json.dumps(str(ca))}\n"
    )
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", home / "mine"], check=True
    )
    return {**os.environ, **net.env, "FLWR_HOME": str(home)}


def controlled(net: Net) -> int:
    """How often the SuperLink was asked to control anything."""
    return len(re.findall(r"ControlServicer|/v1/control|/openapi|/docs", net.log(LINK)))


def tls(net: Net) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=net.keys / "ca.pem")


def send(net: Net, raw: bytes) -> bytes:
    """What the proxy answers to bytes."""
    got = b""
    with (
        socket.create_connection(("127.0.0.1", net.sites_port), timeout=20) as plain,
        tls(net).wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # it may close meanwhile
            secure.sendall(raw)
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            while part := secure.recv(65536):
                got += part
    return got


def request(target: str, method: str = "POST", body: bytes = b"", **headers: str) -> bytes:
    """A request as text; an underscore in a header's name stands for a hyphen."""
    fields = {
        "Host": "localhost",
        "Content_Type": "application/protobuf",
        "Content_Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()]
    return f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1") + body


def status(answer: bytes) -> int:
    """Of the first answer; 0 where the connection was closed without one."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@pytest.mark.parametrize(
    "words",
    [
        ("supernode", "register", "MINE", OUTSIDE, "--name", "mine"),
        ("supernode", "list", OUTSIDE),
        ("run", "APP", OUTSIDE),
        ("list", OUTSIDE),
        ("log", "RUN", OUTSIDE, "--show"),
        ("stop", "RUN", OUTSIDE),
        ("pull", "RUN", OUTSIDE),
    ],
    ids=" ".join,
)
def test_flowers_own_command_line_controls_nothing_from_outside(net, attacker, words):
    before = controlled(net)
    home = Path(attacker["FLWR_HOME"])
    real = {"MINE": str(home / "mine.pub"), "APP": str(net.folder / "app"), "RUN": net.run}
    done = subprocess.run(
        ["flwr", *(real.get(word, word) for word in words)],
        env=attacker,
        executable=Path(sys.executable).parent / "flwr",
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "404" in said, said  # refused by the proxy, not by a slip of this test
    assert controlled(net) == before


TARGETS = [
    "/v1/control/list-runs",
    "/v1/control/stream-logs",
    "/v1/control/start-run",
    "/v1/control/stop-run",
    "/v1/control/register-node",
    "/v1/control/pull-artifacts",
    "/v1/runtime/acquire-task",
    "/v1/runtime/pull-object",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/activate-node/../../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "/v1/fleet/..;/control/list-runs",
    "/v1/fleet/..\\control/list-runs",
    "/v1/control/../fleet/activate-node",
    "/v1/%63ontrol/list-runs",
    "/v1/control%2flist-runs",
    "//v1/control/list-runs",
    "/v1//control/list-runs",
    "/V1/FLEET/ACTIVATE-NODE",
    "/v1/fleet/activate-node/",
    "/v1/fleet//activate-node",
    "/v1/fleet/activate-node?x=/v1/control/list-runs",
    "/v1/control/list-runs?/v1/fleet/activate-node",
    "/v1/control/list-runs#/v1/fleet/activate-node",
    "/v1/control/list-runs%00/v1/fleet/activate-node",
    "/v1/control/list-runs%20/v1/fleet/activate-node",
    "/v1/fleet/activate-node%0d%0aX:/v1/control/list-runs",
    "https://localhost/v1/control/list-runs",
    "http://127.0.0.1:8000/v1/control/list-runs",
    "https://localhost/v1/fleet/../control/list-runs",
    "/",
    "*",
    "/docs",
    "/openapi.json",
    "/health",
    "/v1/responses",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_no_spelling_of_a_path_reaches_control(net, target, method):
    before = controlled(net)
    answer = send(net, request(target, method))
    assert status(answer) in (400, 404), answer[:300]
    assert status(answer) == 400 or REFUSED in answer
    assert controlled(net) == before


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "X"]
)
@pytest.mark.parametrize("target", ["/v1/control/list-runs", "/v1/fleet/activate-node"])
def test_no_other_method_passes(net, method, target):
    before = controlled(net)
    assert status(send(net, request(target, method))) in (0, 400, 404, 405)
    assert controlled(net) == before


UPGRADE = {"Connection": "Upgrade, HTTP2-Settings, close", "HTTP2_Settings": "AAMAAABkAAQAAP__"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:8000"},
        {"Host": "evil.example"},
        {"X_Original_URL": "/v1/control/list-runs"},
        {"X_Rewrite_URL": "/v1/control/list-runs"},
        {"X_Forwarded_Prefix": "/v1/control", "X_Forwarded_Host": "localhost"},
        {"X_HTTP_Method_Override": "GET"},
        {**UPGRADE, "Upgrade": "h2c"},
        {"Connection": "Upgrade, close", "Upgrade": "websocket"},
        {"Connection": "close, Content-Length"},
    ],
    ids=str,
)
def test_no_header_turns_a_fleet_request_into_another(net, headers):
    before = controlled(net)
    hidden = request("/v1/control/list-runs", **headers)
    assert status(send(net, hidden)) == 404
    answer = send(net, request("/v1/fleet/activate-node", **headers))
    assert status(answer) == 401, answer[:300]  # the SuperLink's own answer to who has no key
    assert controlled(net) == before


INNER = request("/v1/control/list-runs")


@pytest.mark.parametrize(
    "fields",
    [
        f"Content-Length: {len(INNER)}\r\nTransfer-Encoding: chunked",
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        f"Content-Length: 0\r\nContent-Length: {len(INNER)}",
        f"Content-Length: +{len(INNER)}",
        "Content-Length: 0\r\n\tContent-Length: 9",
    ],
)
def test_no_request_is_smuggled_behind_another(net, fields):
    before = controlled(net)
    head = f"POST /v1/fleet/activate-node HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
    head += "Content-Type: application/protobuf\r\nConnection: keep-alive\r\n\r\n"
    answers = send(net, head.encode("latin-1") + b"0\r\n\r\n" + INNER)
    assert b"HTTP/1.1 200" not in answers, answers[:500]
    assert controlled(net) == before


def test_a_request_in_the_body_of_another_stays_a_body(net):
    before = controlled(net)
    answers = send(net, request("/v1/fleet/activate-node", body=INNER))
    assert answers.count(b"HTTP/1.1 ") == 1
    chunked = request("/v1/fleet/activate-node").replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    answers = send(net, chunked + f"{len(INNER):x}\r\n".encode() + INNER + b"\r\n0\r\n\r\n")
    assert answers.count(b"HTTP/1.1 ") == 1
    assert controlled(net) == before


def test_no_other_protocol_is_spoken(net):
    before = controlled(net)
    context = tls(net)
    context.set_alpn_protocols(["h2"])
    with (
        contextlib.suppress(ssl.SSLError),  # refused in the handshake
        socket.create_connection(("127.0.0.1", net.sites_port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        assert secure.selected_alpn_protocol() is None
    assert status(send(net, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))) in (0, 400)
    assert b"200" not in send(net, b"POST /v1/control/list-runs\r\n\r\n")  # HTTP/0.9
    with socket.create_connection(("127.0.0.1", net.sites_port), timeout=20) as plain:
        plain.sendall(INNER)
        assert plain.recv(65536).startswith(b"HTTP/1.1 400")
    assert controlled(net) == before


def test_huge_requests_are_refused(net):
    assert status(send(net, request("/v1/fleet/activate-node", X="x" * 40_000))) == 400
    assert status(send(net, request("/v1/fleet/" + "x" * 40_000))) == 414
    huge = request("/v1/fleet/activate-node", Content_Length=str(17 << 20))
    assert status(send(net, huge)) == 413
    large = request("/v1/fleet/activate-node", body=bytes(65 << 10))
    assert status(send(net, large)) == 413
    whole = request("/v1/fleet/push-object", body=bytes(6_000_000))  # not valid protobuf
    assert status(send(net, whole)) == 400
    assert not any((net.folder / PROXY / "tmp").iterdir()), "a body went to the disk"


def test_a_key_that_is_not_registered_gets_nothing_from_the_fleet(net):
    secret, public = generate_key_pairs()
    spoken = NodeAuthHttpInterceptor(secret, public)
    ca = (net.keys / "ca.pem").read_bytes()
    calls = {
        "ActivateNode": ActivateNodeRequest(
            public_key=public_key_to_bytes(public), heartbeat_interval=30
        ),
        "PullMessages": PullMessagesRequest(node=Node(node_id=1)),
        "PullObject": PullObjectRequest(node=Node(node_id=1), run_id=int(net.run), object_id="0"),
    }
    with FleetHttpClient.from_server_address(
        f"localhost:{net.sites_port}", False, ca, [spoken]
    ) as fleet:
        for name, message in calls.items():
            with pytest.raises(Exception, match=r"\b4\d\d\b"):
                getattr(fleet, name)(message)


def test_the_proxy_passes_what_a_registered_supernode_may_ask_for():
    known = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    own = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}  # of nodes without a key
    assert {f"/v1/fleet/{call}" for call in CALLS} == known - own


def flower_check(net: Net, port: int, *more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "fedmaba", "flower", "check", f"localhost:{port}", *more],
        cwd=net.folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_check_tells_an_open_superlink_from_a_protected_one(net):
    ca = ("--ca", str(net.keys / "ca.pem"))
    done = flower_check(net, net.sites_port, *ca)
    assert done.returncode == 0, done
    fleet, control, clock = done.stdout.splitlines()
    assert clock.endswith("near enough")
    assert fleet.endswith("reachable, and it refuses who has no key")
    assert control.startswith(f"control at localhost:{net.sites_port}: not reachable")
    done = flower_check(net, net.port, *ca)
    assert done.returncode == 2, done
    fleet, control, _ = done.stdout.splitlines()
    assert fleet.endswith("reachable, and it refuses who has no key")
    assert "REACHABLE: POST /v1/control/list-runs is answered with 200" in control
    done = flower_check(net, net.sites_port)
    assert done.returncode == 2
    assert re.fullmatch(r".*certificate is not trusted.*--ca ca.pem.*\n", done.stderr)


def test_the_superlink_listens_on_loopback_only(net):
    """Addresses of this machine other than 127.0.0.1 find nobody at the SuperLink's port."""
    for name in ("127.0.0.2", socket.gethostbyname(socket.gethostname())):
        if name != "127.0.0.1":
            with socket.socket() as probe:
                assert probe.connect_ex((name, net.port)) != 0


def test_the_refused_are_noted_with_their_address(net):
    send(net, request("/v1/control/noted"))
    noted = (net.folder / PROXY / LOG).read_text()
    assert re.search(r'^127\.0\.0\.1 \S+ 404 "POST /v1/control/noted HTTP/1\.1"$', noted, re.M)


def test_a_proxy_that_was_away_finds_its_sites_again(net):
    """What comes after is seen in the next test."""
    net.stop(PROXY)
    end = time.monotonic() + 120  # the sites ask every 3 seconds, except while they train
    try:
        while not any("retrying" in net.log(f"site-{c}") for c in range(SITES)):
            assert time.monotonic() < end, net.log("site-0")[-3000:]
            time.sleep(0.5)
    finally:
        net.serve_proxy()


def test_the_sites_train_on_to_the_end(net):
    end = time.monotonic() + 300
    while not (net.folder / "state" / "models" / "last.safetensors").exists():
        net.check()
        assert time.monotonic() < end, net.log(LINK)[-3000:]
        time.sleep(0.5)
    rounds = [line for line in read_rounds(net.folder / "state", 0) if "sites" in line]
    assert [line["round"] for line in rounds] == list(range(1, ROUNDS + 1))
    assert not any(line["refused"] for line in rounds)
    heard = [len(line["sites"]) for line in rounds]  # the proxy may be away when a round begins
    assert max(heard) == SITES, rounds
    assert min(heard) >= 1, rounds
    while not net.status(net.run).startswith("finished"):
        assert time.monotonic() < end
    assert net.status(net.run) == "finished:completed"
    assert len(control.nodes(net.folder)) == SITES  # nobody was registered


def test_only_this_account_can_read_what_a_federation_writes(net):
    for base in ("keys", "logs", "home", "state", PROXY):
        for path in (net.folder / base, *(net.folder / base).rglob("*")):
            if not path.is_symlink() and os.stat(path).st_uid == os.getuid():
                assert not path.stat().st_mode & 0o077, path


GUARD = """
import fcntl, os, pwd, socket, struct, subprocess, sys
up = struct.pack("16sH14x", b"lo", 0x41)
fcntl.ioctl(socket.socket(), 0x8914, up)  # SIOCSIFFLAGS: this namespace has its own loopback
subprocess.run(["nft", "-f", "-"], input=sys.stdin.buffer.read(), check=True)
server = socket.create_server(("127.0.0.1", 8000))
for name in ("nobody", "daemon"):
    if os.fork() == 0:
        os.setuid(pwd.getpwnam(name).pw_uid)
        refused = socket.socket().connect_ex(("127.0.0.1", 8000)) != 0
        os._exit(refused)
    print(name, "refused" if os.waitstatus_to_exitcode(os.wait()[1]) else "let in")
"""


def test_the_firewall_rule_of_the_page_lets_one_account_in():
    able = ["unshare", "-n", "nft", "list", "ruleset"]  # needs root, in a namespace of its own
    if not all(map(shutil.which, ("unshare", "nft"))) or subprocess.run(able).returncode:
        pytest.skip("no nftables here, or not root")
    page = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text()
    (rule,) = re.findall(r"^```text\n(table inet.*?)^```$", page, re.M | re.S)
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", GUARD],
        input=rule.replace('"fair"', '"nobody"'),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "nobody let in\ndaemon refused\n", done.stderr
