"""Which node may speak for which site of a real federation. No torch.

A node is known by its key, which the network has checked, and never by what it says of itself. The
operator may list which key belongs to which site. Without a list, a name belongs to the first node
that gives it, for good, even while that node is away. Every change is recorded.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmaba.deploy.validation import SITE_NAME, Refused, printable
from fedmaba.errors import InputError
from fedmaba.results import files, run_folder

KEY = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@dataclass(frozen=True)
class Node:
    """A node as the network knows it."""

    number: int
    key: str = ""  #   fingerprint of its public key, as `ssh-keygen -lf` prints it
    name: str = ""  #  what the operator registered it as

    @property
    def label(self) -> str:
        return f"node {self.number}"

    @property
    def id(self) -> str:
        """Its key, or its number if it has none."""
        return self.key or self.label


def key_fingerprint(public_key: bytes) -> str:
    """The fingerprint of a node's public key, as OpenSSH prints it; "" if it has none."""
    from cryptography.hazmat.primitives import (  # type: ignore[import-not-found,unused-ignore]
        serialization,  # it comes with flwr
    )

    if not public_key:
        return ""
    try:
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        written = serialization.load_pem_public_key(public_key).public_bytes(*form)
        public_key = base64.b64decode(written.split()[1])
    except ValueError:  # not a key: Flower's simulation gives random bytes
        pass
    digest = base64.b64encode(hashlib.sha256(public_key).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


class SiteNames:
    """The names of sites, and which node may speak for each."""

    def __init__(
        self,
        listed: Mapping[str, str] | None = None,
        source: str = "sites",
        examples: Mapping[str, int] | None = None,
    ) -> None:
        self.listed, self.source = listed, source
        self.examples = examples or {}  # site -> how many it may say that it has
        self.owners: dict[str, str] = {}  # site -> the id of the node that has the name
        self.changes: list[dict[str, str | None]] = []  # not yet in rounds.jsonl
        self._sites = {owner: site for site, owner in (listed or {}).items()}  # owner -> site

    def restore(self, owners: Mapping[str, str], changes: list[dict[str, str | None]]) -> None:
        """Go on from what was saved; the operator's list wins over it."""
        self.owners, self.changes = dict(owners), list(changes)
        if self.listed is None:
            self._sites = {owner: site for site, owner in owners.items()}

    def site_of(self, node: Node) -> str | None:
        """The site that a node speaks for, if it is known."""
        return self._sites.get(node.id) or self._sites.get(node.label)

    def check(self, node: Node, site: str) -> None:
        """Raise Refused unless this node may take this name."""
        if self.listed is not None:
            raise Refused(self.unlisted(node))
        if node.name and node.name != site:
            said = f"it calls itself {site!r}, but is registered as {printable(node.name)!r}"
            raise Refused(f"{said}: make the two the same, or list who is who in `sites`")
        owner = self.owners.get(site)
        if owner is not None:
            new = f'"{node.key}"' if node.key else str(node.number)
            remedy = f"to give it away, list all sites in the file of `sites`, here {site} = {new}"
            raise Refused(f"site {site!r} belongs to {owner}: {remedy}")

    def unlisted(self, node: Node) -> str:
        """The line about a node that is not in the operator's list."""
        return f"{node.id} is not in {self.source}: only listed sites take part"

    def assign(self, node: Node, site: str) -> str | None:
        """Let a node speak for a site; return a line about it if that is new."""
        before = self.owners.get(site)
        if before == node.id:
            return None
        self.owners[site] = node.id
        if self.listed is None:
            self._sites = {o: s for o, s in self._sites.items() if s != site} | {node.id: site}
        self.changes.append(
            {"site": site, "node": str(node.number), "id": node.id, "before": before}
        )
        return f"site {site!r} is {node.id}" + (f", no longer {before}" if before else "")


def read_sites(source: str | Path | Mapping[str, object]) -> SiteNames:
    """The operator's list: a mapping or a TOML file of name = "SHA256:..." or = a node's number.

    A value may also be { key = "SHA256:...", examples = 800 }: so many the site may say it has.
    """
    where, found = "sites", source
    if isinstance(source, str | Path):
        where = str(source)
        with run_folder.reading(Path(source), "give a TOML file of name = key"):
            found = files.parse_toml(files.read(Path(source), files.MB, links=True))
    assert isinstance(found, Mapping)
    listed: dict[str, str] = {}
    examples: dict[str, int] = {}
    for site, told in found.items():
        value = told
        if isinstance(told, Mapping) and told.keys() == {"key", "examples"}:
            value, most = told["key"], told["examples"]
            if not isinstance(most, int) or isinstance(most, bool) or most < 1:
                raise InputError(f"{where}: {site}: examples={printable(most)}: say a count from 1")
            examples[str(site)] = most
        number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        key = isinstance(value, str) and KEY.fullmatch(value)
        if not SITE_NAME.fullmatch(str(site)) or not (number or key):
            form = f"{printable(site, 64)} = {printable(value)!r}"
            rule = 'write name = "SHA256:..." as `ssh-keygen -lf` prints it, or a node\'s number'
            raise InputError(f"{where}: {form}: {rule}")
        owner = f"node {value}" if number else str(value)
        if owner in listed.values():
            raise InputError(f"{where}: {owner} stands for two sites: give each its own key")
        listed[str(site)] = owner
    if not listed:
        raise InputError(f"{where} names no site: write a line for each, name = key")
    return SiteNames(listed, where, examples)
