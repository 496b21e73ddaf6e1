"""The command lines of a federation on Flower. The demo starts these, and docs, compose.yaml and
systemd units show them: tests hold them together. Needs no torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

LINK = "fair"  # the name of this SuperLink in Flower's own configuration
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def environment(folder: Path, *first: Path) -> dict[str, str]:
    """In which Flower's programs keep to a folder, and find their own others by name.

    The programs in the folders of `first` go before those of this installation.
    """
    places = [*map(str, first), str(Path(sys.executable).parent)]
    return {
        **OFFLINE,
        "FLWR_HOME": str(folder / "home"),
        "PATH": os.pathsep.join([*places, os.environ.get("PATH", os.defpath)]),
    }


def superlink_command(port: int, keys: str | Path, database: str = "") -> list[str]:
    """Start a SuperLink: on loopback, with TLS, for registered keys only.

    Without a database it forgets the registered keys when it ends.
    """
    return [
        "flower-superlink",
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-ca-certfile", f"{keys}/ca.pem"),
        *("--ssl-certfile", f"{keys}/server.pem"),
        *("--ssl-keyfile", f"{keys}/server.key"),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *(["--database", database] if database else []),
    ]


def supernode_command(
    where: str, keys: str | Path, site: str, port: int | None = None, **settings: object
) -> list[str]:
    """Start a site's SuperNode; `settings` are its node configuration besides its name."""
    return [
        "flower-supernode",
        *("--superlink", where),
        *("--root-certificates", f"{keys}/ca.pem"),
        *("--auth-supernode-private-key", f"{keys}/{site}"),
        *(["--port", str(port)] if port is not None else []),
        *("--node-config", assignments({"site": site, **settings})),
    ]


def register_command(keys: str | Path, site: str) -> list[str]:
    """Let the SuperLink accept a site's key."""
    return ["flwr", "supernode", "register", f"{keys}/{site}.pub", LINK, "--name", site]


def assignments(settings: Mapping[str, object]) -> str:
    """Settings as Flower's command line takes them."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())


def link_config(port: int, ca: str | Path) -> str:
    """The configuration by which Flower's command line finds the SuperLink."""
    return (
        f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n'
        f'address = "127.0.0.1:{port}"\n'
        f"root-certificates = {json.dumps(str(ca))}\n"
    )
