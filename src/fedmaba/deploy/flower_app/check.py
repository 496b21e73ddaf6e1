"""`fedmaba flower check HOST:PORT`: which parts of a SuperLink answer from here. Needs no torch.

It asks as a stranger would, without a key, and changes nothing on the server. It also compares the
clocks, because Flower refuses a site whose clock is wrong as it refuses a wrong key.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection, IncompleteRead
from pathlib import Path

from fedmaba.deploy.flower_app.proxy import address
from fedmaba.errors import InputError

SECONDS_TO_WAIT = 10.0  # seconds to wait for each answer
# Flower takes what a site signed by a clock that is so far ahead or behind at most.
AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 300.0
DATE_SECONDS = 1.0  # The server's time is in whole seconds, and travels.
ENOUGH = 65536  # bytes of an answer that are read
STRANGER = b"Invalid SuperNode authentication"  # the fleet's answer to a node without a key
FLEET = ("POST", "/v1/fleet/activate-node")
# Everything else that Flower serves on that port, and ways around a careless proxy.
OTHERS = (
    ("POST", "/v1/control/list-runs"),
    ("POST", "/v1/control/list-nodes"),
    ("GET", "/v1/control/start-run"),
    ("GET", "/v1/runtime/acquire-task"),
    ("GET", "/openapi.json"),
    ("GET", "/health"),
    ("POST", "/v1/fleet/../control/list-runs"),
    ("POST", "/v1/fleet/%2e%2e/control/list-runs"),
    ("POST", "/v1/fleet/..%2fcontrol/list-runs"),
    ("POST", "//v1//control/list-runs"),
    ("POST", "/v1/%63ontrol/list-runs"),
    ("POST", "/v1/control%2flist-runs?/v1/fleet/"),
)
REFUSALS = (0, 400, 403, 404, 405, 421)  # 0: the connection was closed without an answer


@dataclass(frozen=True)
class Answer:
    """The answer to one request; with its body if the header arrived in time."""

    status: int
    kind: str
    body: bytes
    ahead: float | None = None  # seconds by which this machine's clock is ahead of the server's

    @property
    def refused(self) -> bool:
        """Whether a proxy refused the request: the SuperLink itself would answer in JSON."""
        return self.status in REFUSALS and "json" not in self.kind


@dataclass(frozen=True)
class Findings:
    """Whether the fleet answers at an address, and what else does."""

    where: str
    fleet: Answer
    reached: list[str]  # requests that got past the fleet, each with its answer

    @property
    def ok(self) -> bool:
        return self._fleet and not self.reached and not self._wrong_clock

    @property
    def _fleet(self) -> bool:
        return self.fleet.status == 401 and STRANGER in self.fleet.body

    @property
    def _wrong_clock(self) -> bool:
        ahead = self.fleet.ahead or 0.0
        return not -BEHIND_SECONDS < ahead < AHEAD_SECONDS - DATE_SECONDS

    def _clock(self) -> str:
        ahead = self.fleet.ahead
        if ahead is None:
            return "not known: the answer has no Date"
        side = "ahead of" if ahead > 0 else "behind"
        if not self._wrong_clock:
            return f"about {abs(ahead):.0f} s {side} the server's, near enough"
        return (
            f"WRONG: about {abs(ahead):.0f} s {side} the server's: a site more than "
            f"{AHEAD_SECONDS:g} s ahead or {BEHIND_SECONDS:g} s behind is refused as if its key "
            "were wrong: let both machines take their time from NTP"
        )

    def lines(self) -> list[str]:
        """The findings, a line each."""
        if self._fleet:
            fleet = "reachable, and it refuses who has no key"
        elif self.fleet.status in (502, 503, 504):
            fleet = f"NOT reachable: the proxy answers {self.fleet.status}: start the SuperLink"
        else:
            fleet = f"NOT reachable: {_said(self.fleet)}: is this the port for SuperNodes?"
        if self.reached:
            control = (
                f"REACHABLE: {self.reached[0]}: whoever reaches this port can control every site: "
                "let the SuperLink listen on 127.0.0.1, behind `fedmaba flower proxy`"
            )
        else:
            control = f"not reachable: all {len(OTHERS)} requests beside the fleet were refused"
        return [
            f"fleet at {self.where}: {fleet}",
            f"control at {self.where}: {control}",
            f"clock of this machine: {self._clock()}",
        ]


def check(where: str, ca: Path | None) -> Findings:
    """Ask for the fleet, then for everything else."""
    host, port = address(where)
    context = _context(ca)
    fleet = _ask(where, host, port, context, *FLEET)
    reached = []
    for method, path in OTHERS:
        answer = _ask(where, host, port, context, method, path)
        if not answer.refused:
            reached.append(f"{method} {path} is answered with {answer.status}")
    return Findings(where, fleet, reached)


def _context(ca: Path | None) -> ssl.SSLContext:
    """TLS settings as a SuperNode has them: the certificate must match the name."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ValueError) as error:  # SSLError is an OSError; a NUL byte in the name
        why = "not a certificate" if isinstance(error, ssl.SSLError) else _why(error)
        raise InputError(f"{str(ca)!r}: {why}: give the ca.pem of the federation") from error


def _ask(
    where: str, host: str, port: int, context: ssl.SSLContext, method: str, path: str
) -> Answer:
    """One request on a connection of its own."""
    link = HTTPSConnection(host, port, timeout=SECONDS_TO_WAIT, context=context)
    try:
        link.connect()
        return _answer(link, method, path)
    except ssl.SSLCertVerificationError as error:
        raise InputError(
            f"{where}: its certificate is not trusted ({error.verify_message}): "
            "give the federation's own with --ca ca.pem, and a name or address that it is made for"
        ) from error
    except TimeoutError as error:
        raise InputError(
            f"{where}: no answer within {SECONDS_TO_WAIT:g} seconds: is it the right port, and "
            "does a firewall let you through?"
        ) from error
    except socket.gaierror as error:
        raise InputError(f"{where}: the host {host!r} cannot be found: check the name") from error
    except ConnectionRefusedError as error:
        raise InputError(
            f"{where}: connection refused: nothing listens there; start the proxy"
        ) from error
    except ssl.SSLError as error:
        raise InputError(
            f"{where}: TLS failed ({(error.reason or 'unknown').lower()}): "
            "is it the port of the proxy?"
        ) from error
    except HTTPException as error:
        raise InputError(
            f"{where}: what answers does not speak HTTP: check host, port and network"
        ) from error
    except (OSError, UnicodeError) as error:
        raise InputError(f"{where}: {_why(error)}: check host, port and network") from error
    finally:
        link.close()


def _answer(link: HTTPSConnection, method: str, path: str) -> Answer:
    """What is answered to a request with this very path."""
    try:
        headers = {"Content-Type": "application/protobuf", "Content-Length": "0"}
        link.request(method, path, headers={**headers, "Connection": "close"})
        said = link.getresponse()
    except (ssl.SSLEOFError, ConnectionResetError):  # closed without an answer or a farewell
        return Answer(0, "", b"")
    body = b""
    with suppress(ssl.SSLEOFError, ConnectionResetError, IncompleteRead):
        body = said.read(ENOUGH)
    ahead = _ahead(said.getheader("Date", ""))
    return Answer(said.status, said.getheader("Content-Type", "").lower(), body, ahead)


def _ahead(date: str) -> float | None:
    """By how many seconds this machine's clock is ahead of the time that an answer names."""
    try:
        return time.time() - parsedate_to_datetime(date).timestamp() - DATE_SECONDS / 2
    except (ValueError, OverflowError):
        return None


def _said(answer: Answer) -> str:
    return f"it answers {answer.status}" if answer.status else "it closes the connection"


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
