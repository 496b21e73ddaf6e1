"""What was asked of a real federation, and the commands that resume or repeat it. No torch."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from fedmaba.results.state_folder import FederationState


def as_toml(state: FederationState) -> str:
    """What was asked for, as lines of TOML; settings that were not recorded are left out."""
    told = state.about.get("federation") or {}
    parts = [("terms", state.terms), *((key, told.get(key)) for key in ("participation", "train"))]
    lines = [f"rounds = {state.asked}"] if state.asked else []
    for name, values in parts:
        known = {k: v for k, v in _flat(values or {}).items() if v is not None}
        if known:
            lines += [f"\n[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in known.items())]
    return "\n".join(lines).strip() + "\n"


def _flat(tree: Mapping[str, Any], front: str = "") -> dict[str, Any]:
    """Settings by dotted keys, as TOML has them."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        name = front + (key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key))
        out |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return out


def resume_command(state: FederationState) -> str:
    """The command that goes on with a federation; APP and LINK are the operator's own."""
    return _command({"rounds": state.asked, "state": str(state.path.absolute())})


def rerun_command(state: FederationState) -> str:
    """The command that runs the same federation again, from its first round."""
    told = (state.about.get("federation") or {}).get("train") or {}
    config = {key: state.terms.get(key) for key in ("strategy", "seed", "lr")}
    config |= {"lr-decay": state.terms.get("lr_decay"), "rounds": state.asked}
    config |= {key: told.get(key) for key in ("epochs", "minibatch")}
    return _command({**config, "state": "NEW"})


def _command(config: Mapping[str, Any]) -> str:
    """A run of the app that `fedmaba flower new` writes, with these settings."""
    words = " ".join(f"{k}={json.dumps(v)}" for k, v in config.items() if v is not None)
    return f"flwr run APP LINK --stream --run-config {shlex.quote(words)}"
