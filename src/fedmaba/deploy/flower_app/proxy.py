"""The proxy of a Flower federation: an nginx that lets through what SuperNodes need, no more.

Flower serves sites and operators on one port. Behind this proxy the SuperLink listens on loopback,
and machines elsewhere reach only what a SuperNode with a registered key needs. Needs no torch.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
from importlib import resources
from pathlib import Path

from fedmaba.deploy.flower_app import private
from fedmaba.errors import InputError, SaveFailed

# What a SuperNode with a registered key asks the SuperLink for: POST /v1/fleet/...
CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
NGINX_FILE = "nginx.conf"
LOG = Path("logs", "refused.log")  # in the proxy's folder: a folder of its own, for another disk
RENEW_SECONDS = 120  # after which nginx reloads, and after which connections of before are closed
SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # often not on the PATH of an ordinary account


def find_nginx(path: str | None = None) -> str | None:
    """The path of nginx, if it is installed."""
    places = os.environ.get("PATH", os.defpath) if path is None else path
    return shutil.which("nginx", path=os.pathsep.join([places, *SBIN]))


def nginx_command(nginx: str, folder: Path) -> list[str]:
    """What `serve` runs: nginx in the foreground."""
    return [nginx, "-e", "stderr", "-p", str(folder), "-c", NGINX_FILE]


def serve_command(fedmaba: str, folder: Path) -> list[str]:
    """The command that runs the proxy of a folder in the foreground."""
    return [fedmaba, "flower", "serve", str(folder)]


def address(text: str) -> tuple[str, int]:
    """The host and port of HOST:PORT; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        good = _version(host) == 6 and "%" not in host
    else:
        good = bool(re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})", host))
    number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 0
    if not (colon and good and 1 <= number <= 65535):
        raise InputError(
            f"{text[:80]!r} is not HOST:PORT: write server.example.org:8443, or [::1]:8443 for IPv6"
        )
    return host, number


def configuration(listen: str, superlink: int, keys: Path) -> str:
    """The text of nginx.conf."""
    host, port = address(listen)
    version = _version(host)
    if version is None:
        raise InputError(
            f"the proxy cannot listen on {host!r}: give an address of this machine, "
            "or 0.0.0.0 for all of them"
        )
    if not 1 <= superlink <= 65535:
        raise InputError(f"{superlink} is not a port: the SuperLink's is between 1 and 65535")
    if superlink == port:
        raise InputError(f"port {port} cannot be both the proxy's and the SuperLink's: choose two")
    words = {
        "CALLS": "|".join(CALLS),
        "RENEW": str(RENEW_SECONDS),
        "LISTEN": f"[{host}]:{port}" if version == 6 else f"{host}:{port}",
        "SUPERLINK": str(superlink),
        "CERTIFICATE": _quoted(keys / "server.pem"),
        "KEY": _quoted(keys / "server.key"),
        "CA": _quoted(keys / "ca.pem"),
    }
    text = (resources.files("fedmaba.deploy.flower_app") / f"{NGINX_FILE}.tmpl").read_text(
        encoding="utf-8"
    )
    return re.sub("@([A-Z]+)@", lambda found: words[found[1]], text)


def write_configs(folder: Path, listen: str, superlink: int, keys: Path) -> Path:
    """Write the configuration into a folder that only this account may read."""
    text = configuration(listen, superlink, keys)
    for name in ("server.pem", "server.key", "ca.pem"):
        if not (keys / name).is_file():
            raise InputError(f"{keys / name} is not a file: make the certificates first")
    target = folder / NGINX_FILE
    try:
        private.new_folder(folder)
        private.new_folder((folder / LOG).parent)
        private.write_new(target, text)
    except FileExistsError as error:
        raise InputError(f"{error.filename} exists: choose another folder, or remove it") from error
    except OSError as error:
        raise SaveFailed(f"{target} could not be written: {error.strerror}: fix that") from error
    return target


def _version(host: str) -> int | None:
    """4 or 6 for an IP address, None for anything else."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


def _quoted(path: Path) -> str:
    """A path as nginx.conf wants it; refused if it has characters that cannot be escaped there."""
    text = str(path.absolute())
    if not text.isprintable() or set(text) & set('"\\$'):
        raise InputError(f"{text!r}: nginx cannot name a file with such characters: rename it")
    return f'"{text}"'
