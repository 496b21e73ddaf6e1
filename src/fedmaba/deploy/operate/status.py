"""How a federation goes, at its server or at a site: `fedmaba flower status`. No torch."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmaba.deploy.operate import control, keys, processes
from fedmaba.deploy.operate.audit import Audit
from fedmaba.deploy.operate.server_folder import ServerFolder
from fedmaba.deploy.operate.site_folder import SiteFolder
from fedmaba.errors import FedmabaError, InputError
from fedmaba.results import state_folder
from fedmaba.strategies.base import LOSSES_INFO, PRIVACY_INFO

Status = dict[str, Any]


def of_server(folder: ServerFolder) -> Status:
    """What is known of a federation now."""
    state = state_folder.load_state_folder(folder.state)
    known = dict.fromkeys(folder.sites, "not admitted") | dict.fromkeys(folder.admitted, "unknown")
    link = control.listening(folder.superlink)
    if link:
        with suppress(FedmabaError):
            known |= control.online(folder)
    out: Status = {
        "programs": _programs(folder.path),
        "superlink": "listens" if link else "does not listen",
        "proxy": "listens" if control.listening(folder.port) else "does not listen",
        "sites": known,
        "round": 0 if state is None else state.done,
        "rounds": None if state is None else state.asked,
        "run": "no round yet" if state is None else _run_words(state),
    }
    if state is not None and state.rounds:
        last = state.rounds[-1]
        out["answered last"] = sorted(last["sites"])
        out["refused last"] = list(last["refused"])
        for name in (PRIVACY_INFO[0], LOSSES_INFO[0]):
            if (spent := (last.get("info") or {}).get(name)) is not None:
                out["epsilon spent"] = spent
    errors = [e for e in ([] if state is None else state.events) if e["level"] == "error"]
    if errors:
        out["last error"] = f"{errors[-1]['time']}: {errors[-1]['text']}"
    out["certificate, days left"] = round(keys.days_left(folder.keys / "server.pem"), 1)
    return out | _place(folder.path, folder.audit)


def of_site(site: SiteFolder) -> Status:
    """What is known at a site now."""
    count, refused = site.ledger.now(), site.audit.newest("refused")
    out: Status = {
        "programs": _programs(site.path),
        "server": site.joined["server"],
        "supernode": "listens" if control.listening(site.port) else "does not listen",
        "rounds, of at most": [count.rounds, site.policy.rounds],
    }
    if count.private:
        out["epsilon spent, of at most"] = [round(count.epsilon(), 4), site.policy.epsilon]
    if (left := site.audit.newest("left")) is not None:
        out["last answer"] = f"{left['time']}: {left['kind']} {left['group']}"
    if refused is not None:
        out["last refusal"] = f"{refused['time']}: {refused['why']}"
    return out | _place(site.path, site.audit)


def lines(found: Status) -> list[str]:
    """A status for people."""
    return [f"{key}: {_words(value)}" for key, value in found.items()]


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {told}" for key, told in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join("no limit" if v is None else str(v) for v in value) or "none"
    return "not known" if value is None else str(value)


def _programs(folder: Path) -> str:
    return "run here" if processes.is_running(folder) else "not begun by `fedmaba flower start`"


def _run_words(state: state_folder.FederationState) -> str:
    if state.finished:
        return "ended"
    return "runs" if state.held else "stopped, and goes on when it is started"


def _place(folder: Path, audit: Audit) -> Status:
    try:
        chain = audit.verify()
        kept = f"{chain.lines} lines, newest {chain.head[:16]}"
    except InputError as error:
        kept = f"BROKEN: {error}"
    free = shutil.disk_usage(folder).free
    return {"audit": kept, "free on the disk": f"{free / 1e9:.1f} GB"}
