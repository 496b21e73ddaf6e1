"""The dry run of a folder: what would fail is found before anything is started. No torch."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import fedmaba
from fedmaba.deploy.flower_app import check as reach
from fedmaba.deploy.flower_app import proxy
from fedmaba.deploy.operate import bundle, control, keys
from fedmaba.deploy.operate.server_folder import ServerFolder
from fedmaba.deploy.operate.site_folder import SiteFolder
from fedmaba.errors import FedmabaError, InputError

FREE_BYTES = 1_000_000_000
SOON_DAYS = 30.0
SPLIT = "a column split says train or test of each row"


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    good: bool | None  # None: to be known, and nothing is wrong
    text: str

    @property
    def shown(self) -> str:
        return f"{ {True: 'good', False: 'WRONG', None: 'note'}[self.good]:<5}  {self.text}"


def of_server(folder: ServerFolder) -> Iterator[Line]:
    """What a server needs, a line each."""
    yield Line(True, f"fedmaba {fedmaba.__version__}, flwr {metadata.version('flwr')}")
    found = proxy.find_nginx()
    yield Line(found is not None, found or "nginx is not installed: apt-get install nginx-light")
    yield _tried("the run's settings are sound", folder.check_run)
    yield _certificate(folder.keys / "server.pem")
    if (folder.keys / "ca.key").exists():
        yield Line(None, "keys/ca.key is on this host: move it away, and back for a renewal")
    yield from _rights(folder.path, ("keys/server.key", "audit", "state"))
    missing = [site for site in folder.sites if site not in folder.admitted]
    told = f"not admitted yet: {', '.join(missing)}" if missing else "all sites are admitted"
    yield Line(not missing, told)
    yield _same_app(folder)
    yield _room(folder.path)
    yield _tried("the audit log is whole", folder.audit.verify)
    if control.listening(folder.superlink) and control.listening(folder.port):
        yield from _reached(f"localhost:{folder.port}", folder.keys / "ca.pem")
    else:
        yield Line(None, "SuperLink and proxy are not up: start, then check again from a site")


def of_site(site: SiteFolder) -> Iterator[Line]:
    """What a site needs, a line each."""
    joined = site.joined
    yield _same_versions(str(joined["fedmaba"]), str(joined["flwr"]))
    yield _torch()
    yield from _data(site)
    yield from _rights(site.path, (f"keys/{site.name}", "site.toml", "audit", "ledger"))
    allowed = not site.policy.app or joined["app"] in site.policy.app
    told = "the policy allows the app that the operator named"
    yield Line(allowed, told if allowed else f"policy.app does not allow {joined['app'][:16]}...")
    hidden = bool(joined["secure"])
    told = "the server sees sums" if hidden else "the server sees this site's model"
    asked = "the policy asks for secure sums, and the federation has none"
    yield Line(True, told) if hidden or not site.policy.secure else Line(False, asked)
    most, asked = site.policy.rounds, joined["asks"]["rounds"]
    if most is not None and most < asked:
        yield Line(None, f"policy.rounds = {most}, and the federation asks for {asked} rounds")
    if {"accuracy", "error"}.isdisjoint(site.policy.scores):
        yield Line(None, "policy.scores: no accuracy leaves, so the figures lack this site")
    yield _room(site.path)
    yield _tried("the audit log is whole", site.audit.verify)
    yield _tried("the ledger is readable", site.ledger.now)
    yield from _reached(str(joined["server"]), site.path / "keys" / "ca.pem")


def _tried(good: str, act: Callable[[], object]) -> Line:
    try:
        act()
    except FedmabaError as error:
        return Line(False, str(error))
    return Line(True, good)


def _certificate(path: Path) -> Line:
    try:
        days = keys.days_left(path)
    except InputError as error:
        return Line(False, str(error))
    if days <= 0:
        return Line(False, f"the certificate ended {-days:.0f} days ago: fedmaba flower renew")
    soon = ": renew it soon, by `fedmaba flower renew`" if days < SOON_DAYS else ""
    return Line(True, f"the certificate is valid for {days:.0f} days{soon}")


def _same_versions(fedmaba_there: str, flwr_there: str) -> Line:
    """One minor version of difference is allowed, as the CHANGELOG promises."""
    here = (fedmaba.__version__, metadata.version("flwr"))
    said = (
        f"fedmaba {here[0]} here and {fedmaba_there} at the server, flwr {here[1]} and {flwr_there}"
    )
    near = _near(here[0], fedmaba_there)
    return Line(near, said if near else f"{said}: install a version at most one minor away")


def _near(mine: str, theirs: str) -> bool:
    def minor(text: str) -> tuple[int, int]:
        major, _, rest = text.partition(".")
        return int(major), int(rest.partition(".")[0])

    try:
        (a, b), (c, d) = minor(mine), minor(theirs)
    except ValueError:
        return False
    return a == c and abs(b - d) <= 1


def _torch() -> Line:
    try:
        return Line(True, f"torch {metadata.version('torch')}")
    except metadata.PackageNotFoundError:
        return Line(False, "torch is not installed: in a clone of fedmaba, pip install '.[sim]'")


def _data(site: SiteFolder) -> Iterator[Line]:
    try:
        found = site.form.check(site.data)
    except FedmabaError as error:
        yield Line(False, str(error))
        return
    told = f"{site.data}: {found.train:,} examples to train, {found.test:,} to test"
    yield Line(True, f"{told}, classes {', '.join(found.classes)}")
    if not found.test:
        yield Line(None, f"no rows to test, so no accuracy of this site is known: {SPLIT}")
    for doubt in found.doubts:
        yield Line(None, doubt)


def _rights(folder: Path, names: tuple[str, ...]) -> Iterator[Line]:
    """Whether others on this host can read what is secret."""
    open_to = [
        name
        for name in names
        if (folder / name).exists() and stat.S_IMODE(os.stat(folder / name).st_mode) & 0o077
    ]
    said = f"others on this host can use {', '.join(open_to)}: chmod -R go= {folder}"
    yield Line(not open_to, said if open_to else "keys and records are this account's alone")


def _same_app(folder: ServerFolder) -> Line:
    """Whether sites were told of the app that would run."""
    now = bundle.app_hash(folder.path / "app")
    told = folder.app_told()
    same = told == now
    said = f"the app is {now[:16]}..."
    other = f"{said}, and sites were told {told[:16]}...: send their new join files, by invite"
    return Line(same, said if same else other)


def _room(folder: Path) -> Line:
    free = shutil.disk_usage(folder).free
    return Line(free > FREE_BYTES, f"{free / 1e9:.1f} GB are free" +
                ("" if free > FREE_BYTES else ": 1 GB is needed"))  # fmt: skip


def _reached(where: str, ca: Path) -> Iterator[Line]:
    try:
        found = reach.check(where, ca)
    except FedmabaError as error:
        yield Line(False, str(error).replace("; start the proxy", ": is the server up?"))
        return
    for text in found.lines():
        wrong = any(word in text for word in ("NOT reachable", ": REACHABLE", "WRONG"))
        yield Line(not wrong, text)
