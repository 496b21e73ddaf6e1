"""The app of a federation as Flower bundles it. Imports flwr."""

from __future__ import annotations

import hashlib
import warnings
from importlib import metadata
from pathlib import Path

from fedmaba.errors import installed

MISSING = "Flower is not installed here: in a clone of fedmaba, pip install '.[flower]'"


def flower_version() -> str:
    """The version of Flower here."""
    with installed(MISSING):
        return metadata.version("flwr")


def app_hash(app: Path) -> str:
    """The SHA-256 of the bundle that Flower makes of an app, by which sites know it."""
    with installed(MISSING):
        from flwr.cli.build import build_fab_from_disk
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own, of its libraries
        return hashlib.sha256(build_fab_from_disk(app)).hexdigest()
