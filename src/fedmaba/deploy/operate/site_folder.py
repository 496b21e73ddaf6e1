"""The folder of a site: its key, its rules, and what runs there. No torch.

site.toml   where its examples are, and its policy; never sent
join.json   the file that the operator sent
keys/       its private key, which never leaves the site, and ca.pem
peers.toml  if it is there: the sites with which it forms secure sums, by key
keep/ ledger/ audit/ home/ logs/ bin/ units/   for the programs that run
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmaba.deploy.flower_app import commands, private, proxy
from fedmaba.deploy.operate import keys, services
from fedmaba.deploy.operate.audit import Audit
from fedmaba.deploy.operate.forms import Comparison, Form, no_save, read_bytes
from fedmaba.deploy.operate.ledger import Ledger
from fedmaba.deploy.operate.policy import APP, Policy
from fedmaba.deploy.operate.server_folder import site_list
from fedmaba.errors import InputError
from fedmaba.results import files, run_folder

FILE, JOIN_FILE, PEERS_FILE = "site.toml", "join.json", "peers.toml"
JOIN_KEYS = ("site", "server", "fedmaba", "flwr", "app", "secure", "asks", "form", "ca")
FOLDERS = ("keys", "home", "logs", "keep", "ledger", "audit", "bin")
CLIENT_PROGRAM = "flwr-clientapp"  # which Flower starts by name for each message
PLACE = "FEDMABA_SITE"  # in the environment: the folder whose policy holds


@dataclass(frozen=True)
class SiteFolder:
    """A site as its administrator set it up."""

    path: Path
    joined: Mapping[str, Any]  # the operator's file
    data: Path
    port: int
    policy: Policy

    @classmethod
    def read(cls, path: Path) -> SiteFolder:
        path = path.absolute()
        with run_folder.reading(path / FILE, "correct it, or make it by `fedmaba flower join`"):
            told = files.parse_toml(files.read(path / FILE, files.MAX_TOML_BYTES))
        if wrong := sorted(told.keys() - {"data", "port", "policy"}):
            raise InputError(f"{path / FILE}: {wrong[0]!r} is not known: remove it")
        data, port = told.get("data"), told.get("port", 9094)
        if not isinstance(data, str):
            raise InputError(f"{path / FILE}: data is missing: name the file of examples")
        if type(port) is not int or not 1 <= port <= 65535:
            raise InputError(f"{path / FILE}: port = {port!r}: say a free port of 127.0.0.1")
        policy = Policy.read(told.get("policy", {}), str(path / FILE))
        return cls(path, read_join_file(path / JOIN_FILE), Path(data), port, policy)

    @property
    def name(self) -> str:
        return str(self.joined["site"])

    @property
    def key(self) -> Path:
        return self.path / "keys" / self.name

    @property
    def audit(self) -> Audit:
        return Audit(self.path / "audit")

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.path / "ledger")

    @property
    def form(self) -> Form:
        return Form.read(self.joined["form"])

    def command(self) -> list[str]:
        """What starts Flower's SuperNode here."""
        told: dict[str, object] = {
            "data": str(self.data),
            "keep": str(self.path / "keep"),
            "most-share": self.policy.most_share,
        }
        if (self.path / PEERS_FILE).exists():
            told |= {"peers": str(self.path / PEERS_FILE), "signing-key": str(self.key)}
        where, folder = str(self.joined["server"]), self.path / "keys"
        return commands.supernode_command(where, folder, self.name, self.port, **told)

    def environment(self) -> dict[str, str]:
        """In which every client process is this site's guard instead of Flower's own program."""
        threads = {} if self.policy.threads is None else {"OMP_NUM_THREADS": self.policy.threads}
        return {
            **commands.environment(self.path, self.path / "bin"),
            **{key: str(value) for key, value in threads.items()},
            PLACE: str(self.path),
        }


def read_join_file(path: Path) -> dict[str, Any]:
    """The operator's file, checked."""
    content = read_bytes(path)
    with run_folder.reading(path, "ask the operator to send it again"):
        found = files.parse_json(content)
    if not isinstance(found, dict) or set(found) != set(JOIN_KEYS):
        raise InputError(
            f"{path} is no join file of this version of fedmaba: ask the operator which one to use"
        )
    proxy.address(str(found["server"]))
    site_list([found["site"]])
    if not isinstance(found["form"], dict) or not APP.fullmatch(str(found["app"])):
        raise InputError(f"{path} is damaged: ask the operator to send it again")
    return found


def join(
    file: Path, data: Path, path: Path | None = None, port: int = 9094
) -> tuple[SiteFolder, str, Comparison]:
    """Make a site's folder; the line to send back, and what its examples are."""
    told = read_join_file(file)
    path = (path or Path(told["site"])).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists and is not an empty folder: choose another --folder")
    found = Form.read(told["form"]).check(data)
    try:
        for name in ("", *FOLDERS):
            private.new_folder(path / name)
        private.write_new(path / JOIN_FILE, json.dumps(told, indent=1))
        private.write_new(path / "keys" / "ca.pem", told["ca"])
        private.write_new(path / FILE, _site_toml(told, data.absolute(), port))
        line = keys.new_site_key(
            path / "keys" / told["site"], f"fedmaba {told['site']} {found.train}"
        )
        program = path / "bin" / CLIENT_PROGRAM
        where = f"#!{sys.executable}\nfrom fedmaba.deploy.operate.guard import main\n\nmain()\n"
        private.write_new(program, where)
        program.chmod(0o700)
        made = SiteFolder.read(path)
        services.write_site(path, made.name, made.data, made.policy.memory)
        made.audit.add("join", server=told["server"], app=told["app"], key=keys.fingerprint(line))
    except OSError as error:
        raise no_save(Path(str(error.filename or path)), error) from error
    return made, line, found


def _site_toml(told: Mapping[str, Any], data: Path, port: int) -> str:
    """site.toml as `join` writes it: what the operator asks for is what is allowed."""
    asks = told["asks"]
    more = 5 + asks["rounds"] // 10  # rounds that the server repeats after a crash
    epsilon = ""
    for part in str(asks["dp"]).split(","):
        key, _, value = part.partition("=")
        if key.strip() == "epsilon":
            epsilon = value.strip()
    spent = f"epsilon = {epsilon}" if epsilon else "# epsilon = 8.0"
    return (
        "# What this site allows. The file is never sent. After a change: fedmaba flower check.\n"
        f"data = {json.dumps(str(data))}\n"
        f"port = {port}  # of 127.0.0.1, for this site's own processes\n\n"
        "[policy]\n"
        f'app = "{told["app"]}"  # the app that may run; look at it before you allow another\n'
        f"rounds = {asks['rounds'] + more}  # in which it trains at most; a repeated one counts\n"
        f"{spent}  # what its examples may cost in all, counted here\n"
        "# least-noise = 1.0  # of a round, in multiples of what one site can change\n"
        f"secure = {json.dumps(bool(told['secure']))}  # only sums that hide this site's change\n"
        "most-share = 0.9  # of such a sum that one site may hold\n"
        '# scores = ["loss", "accuracy"]  # what may leave of the examples, [] for none\n'
        '# hours = "20:00-06:00"  # when it trains, by the clock here\n'
        '# memory = "4G"  # of the process that trains\n'
        "# threads = 2\n"
    )
