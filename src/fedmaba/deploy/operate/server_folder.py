"""The folder of a federation at its server: what it holds, and how it is made. No torch.

federation.toml   address, sites, and what the app is told; the operator edits it
app/              the Flower app that every site runs
join/             a file for each site, without any secret
sites.toml        the sites that were admitted: key and number of examples
peers.toml        their keys alone, for sites that want to know each other
keys/             certificates; ca.key may be kept elsewhere
state/            the run, saved each round
audit/            what happened, chained by hash
units/ container/ monitoring/    to install where they are wanted
proxy/ home/ logs/ metrics/ link/ registered/    of the programs that run
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedmaba
from fedmaba.deploy import run_config
from fedmaba.deploy.flower_app import commands, new, private, proxy
from fedmaba.deploy.operate import keys, services
from fedmaba.deploy.operate.audit import Audit
from fedmaba.deploy.operate.bundle import app_hash, flower_version
from fedmaba.deploy.operate.forms import Form, no_save, read_bytes, usual_form
from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.settings import FederationSettings, one_strategy, require_same_terms
from fedmaba.deploy.site_names import read_sites
from fedmaba.deploy.validation import SITE_NAME
from fedmaba.errors import InputError, unknown
from fedmaba.results import files, run_folder, state_folder

FILE = "federation.toml"
FOLDERS = ("keys", "home", "logs", "metrics", "join", "state", "link", "registered", "audit")
ADMITTED = re.compile(r"(\S+ \S+) fedmaba ([a-z0-9._-]+) (\d+)", re.I)  # what `join` prints


@dataclass(frozen=True)
class ServerFolder:
    """A federation as its operator set it up."""

    path: Path
    host: str
    port: int
    superlink: int
    sites: tuple[str, ...]
    run: Mapping[str, Any]  # what the app is told

    @classmethod
    def read(cls, path: Path) -> ServerFolder:
        path = path.absolute()
        if (path / "site.toml").exists() and not (path / FILE).exists():
            raise InputError(f"{path} is the folder of a site: this command is for the server's")
        with run_folder.reading(path / FILE, "correct it, or make it by `fedmaba flower init`"):
            told = files.parse_toml(files.read(path / FILE, files.MAX_TOML_BYTES))
        wanted = {"host": str, "port": int, "superlink-port": int, "sites": list, "run": dict}
        for key in told:
            if key not in wanted:
                raise InputError(f"{path / FILE}: {unknown('key', key, wanted)}")
        for key, kind in wanted.items():
            if not isinstance(told.get(key), kind) or isinstance(told[key], bool):
                raise InputError(f"{path / FILE}: {key} is missing or of another kind: restore it")
        numbers = (told["port"], told["superlink-port"])
        return cls(path, told["host"], *numbers, site_list(told["sites"]), told["run"])

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def state(self) -> Path:
        return self.path / "state"

    def app_told(self) -> str:
        """The hash of the app that the join files name."""
        return str(files.read_json(self.path / "join" / f"{self.sites[0]}.json")["app"])

    @property
    def audit(self) -> Audit:
        return Audit(self.path / "audit")

    @property
    def admitted(self) -> dict[str, str]:
        """The fingerprint of each site that was admitted."""
        file = self.path / "sites.toml"
        return dict(read_sites(file).listed or {}) if file.exists() else {}

    def run_config(self) -> dict[str, Any]:
        """What the app is told: the operator's own words over those that the folder decides."""
        own = {
            "sites": len(self.sites),
            "state": str(self.state),
            "site-list": str(self.path / "sites.toml"),
            "metrics": str(self.path / "metrics" / "fedmaba.prom"),
        }
        return own | dict(self.run)

    def rounds(self) -> int:
        """How many rounds are asked for."""
        return int((_app_config(self.path / "app") | dict(self.run))["rounds"])

    def check_run(self) -> None:
        """Refuse what the app is told before anything is started, in one line."""
        known = _app_config(self.path / "app")
        for key in self.run:
            if key not in known:
                raise InputError(f"{self.path / FILE}: [run]: {unknown('key', key, known)}")
        found = run_config.settings(known | self.run_config())
        if (state := state_folder.load_state_folder(self.state)) is not None:
            require_same_terms(str(self.state), state.terms, found)


def site_list(names: Iterable[object]) -> tuple[str, ...]:
    """The names of the sites, each once."""
    found = tuple(str(name).strip() for name in names)
    for name in found:
        if not SITE_NAME.fullmatch(name) or name in (".", ".."):
            raise InputError(f"site {name[:80]!r}: give a name of letters, digits, '.', '_' or '-'")
        if found.count(name) > 1:
            raise InputError(f"site {name!r} stands twice: give each site a name of its own")
    if not found:
        raise InputError("no site is named: give --sites north,south,east")
    return found


def init(
    path: Path,
    sites: Sequence[str],
    host: str,
    port: int = 8443,
    superlink: int = 8000,
    secure: bool = False,
    dp: str = "",
    form: Path | None = None,
    strategy: str = "",
    rounds: int | None = None,
) -> ServerFolder:
    """Make the folder of a federation: app, certificates, proxy, units, a join file per site."""
    path = path.absolute()
    named = site_list(sites)
    if secure:
        SecureSum().least(len(named))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists and is not an empty folder: choose another one")
    proxy.address(f"{host}:{port}")
    shown = Form.of(form) if form else usual_form()
    run: dict[str, Any] = {"strategy": strategy} if strategy else {}
    run |= {} if rounds is None else {"rounds": rounds}
    run |= {"min-train-nodes": (len(named) + 1) // 2}  # one site alone would be the federation
    if strategy or rounds is not None:
        FederationSettings(one_strategy(strategy or "fedmaba"), rounds=rounds or 1)
    try:
        for name in ("", *FOLDERS):
            private.new_folder(path / name)
        path.chmod(0o711)  # so that a collector can read the metrics, and nobody lists the rest
        (path / "metrics").chmod(0o755)
        new.new(path / "app", secure, dp, shown.task() if form else "")
        keys.new_authority(path / "keys")
        keys.new_certificate(path / "keys", host)
        config = commands.link_config(superlink, path / "keys" / "ca.pem")
        private.write_new(path / "home" / "config.toml", config)
        proxy.write_configs(path / "proxy", f"0.0.0.0:{port}", superlink, path / "keys")
        private.write_new(path / FILE, _federation_toml(host, port, superlink, named, run))
        services.write_server(path, port)
        made = ServerFolder.read(path)
        made.check_run()
        for site in named:
            write_join_file(made, site, shown)
        made.audit.add("init", sites=list(named), app=app_hash(path / "app"))
    except OSError as error:
        raise no_save(Path(str(error.filename or path)), error) from error
    return made


def write_join_file(folder: ServerFolder, site: str, form: Form) -> Path:
    """The file that a site needs to join: nothing in it is secret."""
    told = _app_config(folder.path / "app") | dict(folder.run)
    found = {
        "site": site,
        "server": f"{folder.host}:{folder.port}",
        "fedmaba": fedmaba.__version__,
        "flwr": flower_version(),
        "app": app_hash(folder.path / "app"),
        "secure": bool(told["secure"]),
        "asks": {key: told[key] for key in ("strategy", "rounds", "dp", "losses")},
        "form": form.to_json(),
        "ca": (folder.keys / "ca.pem").read_text(),
    }
    target = folder.path / "join" / f"{site}.json"
    files.write(target, json.dumps(found, indent=1).encode())
    return target


def invite(folder: ServerFolder) -> list[Path]:
    """Write the join files anew: after a change of the app, the settings or the list of sites."""
    form = _form_before(folder)
    folder.audit.add("invite", sites=list(folder.sites), app=app_hash(folder.path / "app"))
    return [write_join_file(folder, site, form) for site in folder.sites]


def _form_before(folder: ServerFolder) -> Form:
    """The form that earlier join files have."""
    found = sorted((folder.path / "join").glob("*.json"))
    if not found:
        raise InputError(f"{folder.path / 'join'} has no file: restore it from a backup")
    return Form.read(files.read_json(found[0])["form"])


@dataclass(frozen=True)
class Applicant:
    """A site that asks to be admitted, by the line that `fedmaba flower join` printed."""

    site: str
    key: str  # the public key
    examples: int

    @classmethod
    def read(cls, text: str) -> Applicant:
        found = ADMITTED.fullmatch(text.strip())
        if found is None:
            raise InputError(
                f"{text[:60]!r} is not what `fedmaba flower join` prints: give its line, or the "
                "file that has it"
            )
        keys.fingerprint(found[1])
        return cls(found[2], found[1], int(found[3]))

    @property
    def fingerprint(self) -> str:
        return keys.fingerprint(self.key)


def applicant(text: str) -> Applicant:
    """An applicant by a line, or by a file that has it."""
    is_file = len(text) < 4096 and Path(text).is_file()
    return Applicant.read(read_bytes(Path(text)).decode(errors="replace") if is_file else text)


def admit(folder: ServerFolder, asked: Applicant) -> str:
    """Let a site in; what was done, in words."""
    if asked.site not in folder.sites:
        raise InputError(
            f"{asked.site!r} is no site of this federation, {', '.join(folder.sites)}: add it to "
            f"sites in {folder.path / FILE}, then `fedmaba flower invite`"
        )
    known = _listed(folder)
    before = known.get(asked.site)
    told = {"key": asked.fingerprint, "examples": asked.examples}
    if before == told:
        return f"{asked.site} is admitted already"
    for site, other in known.items():
        if site != asked.site and other["key"] == asked.fingerprint:
            raise InputError(f"{asked.fingerprint} is {site}'s key: each site has its own")
    folder.audit.add("admit", site=asked.site, before=before and before["key"], **told)
    line = f"{asked.key} {asked.site}\n"
    files.write(folder.keys / f"{asked.site}.pub", line.encode(), private=True)
    _write_listed(folder, known | {asked.site: told})
    return f"{asked.site} is admitted: {asked.fingerprint}, at most {asked.examples:,} examples"


def remove(folder: ServerFolder, site: str) -> None:
    """Take a site out for good: its key is refused from the next start of the run on."""
    known = _listed(folder)
    if site not in known:
        raise InputError(f"{site!r} is not admitted: {', '.join(known) or 'nobody is'}")
    folder.audit.add("remove", site=site, key=known.pop(site)["key"])
    _write_listed(folder, known)
    files.remove([folder.keys / f"{site}.pub"])


def renew(folder: ServerFolder) -> float:
    """Make the server's certificate anew; for how many days it is valid."""
    keys.new_certificate(folder.keys, folder.host)
    folder.audit.add("renew", what_was="certificate")
    return keys.days_left(folder.keys / "server.pem")


def _listed(folder: ServerFolder) -> dict[str, dict[str, Any]]:
    """The entries of sites.toml."""
    file = folder.path / "sites.toml"
    if not file.exists():
        return {}
    read_sites(file)
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _write_listed(folder: ServerFolder, known: Mapping[str, Mapping[str, Any]]) -> None:
    lines = ["# the sites that were admitted; `fedmaba flower admit` and `remove` write this\n"]
    for site, told in sorted(known.items()):
        most = f", examples = {told['examples']}"
        lines.append(f"{site} = {{ key = {json.dumps(told['key'])}{most} }}\n")
    peers = [f"{site} = {json.dumps(told['key'])}\n" for site, told in sorted(known.items())]
    found = {"sites.toml": lines, "peers.toml": peers}
    for name, text in found.items():
        if known:
            files.write(folder.path / name, "".join(text).encode(), private=True)
        else:
            files.remove([folder.path / name])


def _app_config(app: Path) -> dict[str, Any]:
    """What an app is told unless the operator says otherwise."""
    file = app / "pyproject.toml"
    with run_folder.reading(file, "restore it, as `fedmaba flower new` wrote it"):
        told = files.parse_toml(files.read(file, files.MAX_TOML_BYTES, links=True))
        return dict(told["tool"]["flwr"]["app"]["config"])


def _federation_toml(
    host: str, port: int, superlink: int, sites: Sequence[str], run: Mapping[str, Any]
) -> str:
    """federation.toml as `init` writes it."""
    own = "".join(f"{key} = {json.dumps(value)}\n" for key, value in run.items())
    return (
        "# The federation. After a change: fedmaba flower check, then start it again.\n"
        f"host = {json.dumps(host)}  # the name by which sites reach this server\n"
        f"port = {port}  # open this one in the firewall, and no other\n"
        f"superlink-port = {superlink}  # on 127.0.0.1\n"
        f"sites = {json.dumps(list(sites))}\n\n"
        "[run]  # any key of [tool.flwr.app.config] in app/pyproject.toml\n" + own
    )
