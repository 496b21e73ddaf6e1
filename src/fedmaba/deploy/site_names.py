"""Which node may speak for which site of a real federation. No torch.

A node is known by what the network vouches for, its key, never by what it says of itself. The
operator may list who is who; without a list a name belongs for good to the first node that gives
it, whether that node is connected or not. Every change is noted.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmaba.deploy.validation import SITE, Refused, line
from fedmaba.errors import InputError

KEY = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@dataclass(frozen=True)
class Who:
    """A node as the network knows it."""

    node: int
    key: str = ""  #   fingerprint of its public key, as `ssh-keygen -lf` prints it
    name: str = ""  #  what the operator registered it as

    @property
    def number(self) -> str:
        return f"node {self.node}"

    @property
    def id(self) -> str:
        """What it is known by: its key, or its number where it has none."""
        return self.key or self.number


class Names:
    """Sites and who may speak for each."""

    def __init__(self, listed: Mapping[str, str] | None = None, where: str = "sites") -> None:
        self.listed, self.where = listed, where
        self.owners: dict[str, str] = {}  # site -> the id of the node that has the name
        self.changes: list[dict[str, str | None]] = []  # not yet in rounds.jsonl
        self._sites = {owner: site for site, owner in (listed or {}).items()}  # the way back

    def restore(self, owners: Mapping[str, str], changes: list[dict[str, str | None]]) -> None:
        """Go on from what was saved; an operator's list outweighs it."""
        self.owners, self.changes = dict(owners), list(changes)
        if self.listed is None:
            self._sites = {owner: site for site, owner in owners.items()}

    def site(self, who: Who) -> str | None:
        """The site that a node speaks for, if it is known."""
        return self._sites.get(who.id) or self._sites.get(who.number)

    def check(self, who: Who, site: str) -> None:
        """Refused, unless this node may take this name."""
        if self.listed is not None:
            raise Refused(self.unlisted(who))
        if who.name and who.name != site:
            said = f"it calls itself {site!r}, but is registered as {line(who.name)!r}"
            raise Refused(f"{said}: make the two the same, or list who is who in `sites`")
        owner = self.owners.get(site)
        if owner is not None:
            new = f'"{who.key}"' if who.key else str(who.node)
            remedy = f"to give it away, list all sites in the file of `sites`, here {site} = {new}"
            raise Refused(f"site {site!r} belongs to {owner}: {remedy}")

    def unlisted(self, who: Who) -> str:
        """What is said of a node that is not in the operator's list."""
        return f"{who.id} is not in {self.where}: only listed sites take part"

    def give(self, who: Who, site: str) -> str | None:
        """Let a node speak for a site; a line on it where that is new."""
        before = self.owners.get(site)
        if before == who.id:
            return None
        self.owners[site] = who.id
        if self.listed is None:
            self._sites = {o: s for o, s in self._sites.items() if s != site} | {who.id: site}
        self.changes.append({"site": site, "node": str(who.node), "id": who.id, "before": before})
        return f"site {site!r} is {who.id}" + (f", no longer {before}" if before else "")


def read_sites(source: str | Path | Mapping[str, object]) -> Names:
    """The operator's list: a mapping or a TOML file of name = "SHA256:..." or = a node's number."""
    where, found = "sites", source
    if isinstance(source, str | Path):
        where = str(source)
        try:
            found = tomllib.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # not there, not UTF-8, no TOML
            reason = getattr(error, "strerror", None) or line(error)
            raise InputError(f"{where}: {reason}: give a TOML file of name = key") from error
    assert isinstance(found, Mapping)
    listed: dict[str, str] = {}
    for site, value in found.items():
        number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        key = isinstance(value, str) and KEY.fullmatch(value)
        if not SITE.fullmatch(str(site)) or not (number or key):
            form = f"{line(site, 64)} = {line(value)!r}"
            rule = 'write name = "SHA256:..." as `ssh-keygen -lf` prints it, or a node\'s number'
            raise InputError(f"{where}: {form}: {rule}")
        owner = f"node {value}" if number else str(value)
        if owner in listed.values():
            raise InputError(f"{where}: {owner} stands for two sites: give each its own key")
        listed[str(site)] = owner
    if not listed:
        raise InputError(f"{where} names no site: write a line for each, name = key")
    return Names(listed, where)
