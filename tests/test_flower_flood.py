"""The proxy under attack by machines without a key: memory, log, and who is still served."""

import subprocess
import sys
import time

import pytest

from fedmaba.deploy.flower_app import proxy, serve
from fedmaba.deploy.flower_app.net import free_ports
from fedmaba.deploy.operate.processes import family_of
from fedmaba.errors import InputError
from proxy_attacks import BODY, Attacker, fill_log, fill_memory, log_bytes, rss, shut_out
from test_flower_check import guarded, keys, server  # noqa: F401

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    pytest.mark.skipif(proxy.find_nginx() is None, reason="nginx is not installed"),
]
SMALL, PIECE = "/v1/fleet/activate-node", "/v1/fleet/push-object"
FAR = "set_real_ip_from 127.0.0.0/8; real_ip_header X-From;"  # lets a test come from anywhere


@pytest.fixture(scope="module")
def shipped(keys, tmp_path_factory):  # noqa: F811
    """The proxy as it is shipped, its folder and an attacker; `FAR` is all that is added."""
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("proxy")
    with server(guarded, keys) as where:
        proxy.write_configs(folder, f"127.0.0.1:{port}", int(where.split(":")[1]), keys)
        config = folder / proxy.NGINX_FILE
        config.write_text(config.read_text().replace("http {", f"http {{ {FAR}", 1))
        words = [sys.executable, "-m", "fedmaba", "flower", "serve", str(folder)]
        process = subprocess.Popen(words, start_new_session=True)
        attacker = Attacker(port, keys / "ca.pem")
        try:
            end = time.monotonic() + 30
            while not asks(attacker) and time.monotonic() < end:
                time.sleep(0.2)
            yield process, folder, attacker
        finally:
            attacker.close()
            process.terminate()
            assert process.wait(30) == 0


@pytest.fixture(autouse=True)
def nothing_left(shipped):
    yield
    shipped[2].close()
    time.sleep(1)


def asks(attacker: Attacker) -> bool:
    """Whether a machine that does no harm is answered, as it is without a key."""
    return attacker.answer("127.0.9.9", attacker.head(SMALL, 0)) == 401


@pytest.mark.parametrize(("path", "size", "most"), [
    (SMALL, BODY, 20), (PIECE, BODY, 20), (SMALL, 64 * 1024, 20), (PIECE, 6 << 20, 80),
])  # fmt: skip
def test_bodies_without_a_key_take_little_memory(shipped, path, size, most):
    """Before: 648 MB, on every path, with 40 connections of one address."""
    process, _, attacker = shipped
    told = fill_memory(attacker, lambda: family_of(process.pid), path, size)
    assert told["MB"] < most
    assert asks(attacker)


def test_refused_requests_fill_no_disk(shipped, monkeypatch):
    """Before: 38 MB of log by 400 requests."""
    _, folder, attacker = shipped
    told = fill_log(attacker, folder / proxy.LOG)
    assert told["MB"] < 0.3
    lines = (folder / proxy.LOG).read_text().splitlines()
    assert len(lines) > 390
    assert max(map(len, lines)) < 600
    monkeypatch.setattr(serve, "LOG_BYTES", 1000)
    for _ in range(3):
        serve.put_aside(folder / proxy.LOG)
        fill_log(attacker, folder / proxy.LOG, 10)
    assert log_bytes(folder / proxy.LOG) < 20_000
    assert sorted(p.name for p in (folder / "logs").iterdir()) == ["refused.log", "refused.log.1"]


@pytest.mark.parametrize("path", [SMALL, PIECE])
def test_slow_bodies_of_eleven_machines_shut_nobody_out(shipped, path):
    """Before: 0 of 30 requests of another machine were answered."""
    _, _, attacker = shipped
    other = Attacker(attacker.port, attacker.ca)
    told = shut_out(attacker, path, lambda: asks(other), seconds=8)
    assert told["held"] < 11 * 70
    assert told["served"] == told["asked"] > 5


def test_addresses_of_one_ipv6_network_count_together(shipped):
    """Also where a byte of the network is a line break."""
    _, _, attacker = shipped

    def held(networks, each) -> int:
        for i, net in enumerate(networks):
            for k in range(each):
                more = f"X-From: {net}::{k + 1:x}:{i + 1:x}\r\n"
                attacker.hold("127.0.0.2", attacker.head(PIECE, 5000, more) + b"x", 0)
        time.sleep(1)
        found = attacker.still_held()
        attacker.close()
        time.sleep(1)
        return found

    assert held(["2001:db8:1:1"], 20) == 8
    assert held(["2001:a0a:1:1"], 20) == 8
    assert held(["2001:db8:1:2", "2001:db8:1:3", "2001:db8:1:4"], 5) == 15


def test_a_reload_loses_no_request_and_ends_old_connections_in_time(shipped):
    process, folder, attacker = shipped
    text = (folder / proxy.NGINX_FILE).read_text()
    assert f"worker_shutdown_timeout {proxy.RENEW_SECONDS}s;" in text
    master = family_of(process.pid)[1]
    for _ in range(5):
        subprocess.run(["kill", "-HUP", str(master)], check=True)
        assert all(asks(attacker) for _ in range(5))
    assert rss(family_of(process.pid)) < 400e6


def test_what_cannot_be_served_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"has no nginx\.conf: write it by"):
        serve.serve(tmp_path)
    monkeypatch.setattr(serve, "find_nginx", lambda: None)
    with pytest.raises(InputError, match="apt-get install nginx-light"):
        serve.serve(tmp_path)
