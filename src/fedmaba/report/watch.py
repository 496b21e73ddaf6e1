"""The page of a run that still goes on, served to this machine alone.

Binds to 127.0.0.1 and nothing else, answers GET (and HEAD) and nothing else, and refuses a request
whose Host is another name: a page elsewhere cannot reach it by rebinding a domain.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedmaba.errors import FedmabaError, usable
from fedmaba.experiment import parts
from fedmaba.report import data, escape, html

ADDRESS = "127.0.0.1"
LOOKS = 0.5  # seconds between looks for a folder that is not there yet
LIVING = (
    "runs.json",
    "rounds.jsonl",
    "checkpoint",
    "experiment.toml",
    "timing.jsonl",
    "events.jsonl",
)


def serve(folder: Path, port: int = 0, share: float | None = None) -> Server:
    """A server for one run folder, ready to `serve_forever`."""
    data.load_parts(folder)  # says at once what is wrong with it
    with usable(f"port {port}", "choose another --port, or 0 for any"):
        return Server(folder, port, share)


def wait_for(folder: Path, tell: Callable[[str], None]) -> None:
    """Return once there is a run in the folder, which may be about to be written."""
    if os.path.lexists(folder):
        return
    tell(f"Waiting for {folder}/ to appear (Ctrl-C to stop).")
    while True:
        time.sleep(LOOKS)
        with suppress(FedmabaError, OSError):
            data.load_parts(folder)
            return


class Server(ThreadingHTTPServer):
    """One run folder as a page that renews itself."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int, share: float | None) -> None:
        super().__init__((ADDRESS, port), Handler)
        self.folder, self.share = folder, share
        self._made: tuple[str, bytes] | None = None
        self._making = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def hosts(self) -> set[str]:
        """What a browser on this machine may call us."""
        port = self.server_address[1]
        names = {f"{name}:{port}" for name in (ADDRESS, "localhost")}
        return names | {ADDRESS, "localhost"} if port == 80 else names

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away before it had the whole page is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def version(self) -> str:
        """Changes whenever a file of the run does."""
        seen = []
        for file in (part / name for part in parts.folders(self.folder) for name in LIVING):
            try:
                found = file.stat()
                seen.append(f"{found.st_mtime_ns:x}-{found.st_size:x}")
            except OSError:
                seen.append("0")
        seen.append(str(parts.any_in_use(self.folder)))
        return ".".join(seen)

    def page(self) -> bytes:
        """The page of now; made once per state of the run."""
        with self._making:
            version = self.version()
            if self._made is None or self._made[0] != version:
                self._made = version, html.page(self._load(), self.share, version).encode()
            return self._made[1]

    def _load(self) -> list[data.Source]:
        """The run; once more where it moved on between two of its files."""
        try:
            return data.load_parts(self.folder)
        except (FedmabaError, OSError):
            time.sleep(0.2)
            return data.load_parts(self.folder)


class Handler(BaseHTTPRequestHandler):
    """GET / and GET /version."""

    server: Server
    server_version, sys_version = "fedmaba", ""
    protocol_version = "HTTP/1.1"
    timeout = 30  # A connection that says nothing is closed.

    def do_GET(self) -> None:
        if self.headers.get("Host", "").lower() not in self.server.hosts():
            self._answer(403, b"this page is for this machine only\n")
            return
        origin = self.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts():
            self._answer(403, b"this page is for this machine only\n")
            return
        path = self.path.partition("?")[0]
        if path == "/version":
            self._answer(200, self.server.version().encode())
        elif path == "/":
            try:
                self._answer(200, self.server.page(), "text/html; charset=utf-8")
            except FedmabaError as error:
                text = escape.one_line(f"fedmaba: {error}")
                self._answer(503, f"{text}\n".encode())
        else:
            self._answer(404, b"there is only /\n")

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self.close_connection = True  # its body is not read
        self._answer(405, b"GET only\n", allow="GET, HEAD")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(
        self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8", allow: str = ""
    ) -> None:
        self.send_response(code)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": html.policy(live=True) + "; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        if allow:
            headers["Allow"] = allow
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the user."""
