"""An app's run configuration, as `fedmaba flower new` writes it, as arguments. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.settings import (
    FederationSettings,
    Participation,
    check_numbers,
    one_strategy,
    read_dp,
    read_losses,
)
from fedmaba.deploy.validation import Limits

# what a run configuration calls the arguments of FlowerStrategy, of SecureSum and of Limits
SAME = """strategy lr lr_decay schedule seed deploy state evaluate wait min_replies grace batchnorm
dp losses metrics min_train_nodes"""
RUN_KEYS = {key: key.replace("_", "-") for key in SAME.split()}
RUN_KEYS |= {"fraction_train": "fraction", "min_available_nodes": "sites", "sites": "site-list"}
SECURE_KEYS = {name: name.replace("_", "-") for name in ("threshold", "clip", "bits", "most_share")}
LIMIT_KEYS = {"loss": "most-loss", "count": "most-examples", "weight": "most-weight"}


def arguments(run: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of FlowerStrategy; keys of the app itself are left alone."""
    found = {key: run[name] for key, name in RUN_KEYS.items() if name in run}
    # in a run configuration an empty word says: as usual
    found = {k: None if v == "" and k != "strategy" else v for k, v in found.items()}
    most = {key: run[name] for key, name in LIMIT_KEYS.items() if name in run}
    if "loss" in most:
        check_numbers(0, **{LIMIT_KEYS["loss"]: most["loss"]})
        most["loss"] = (0.0, most["loss"])
    sums = {key: run[name] for key, name in SECURE_KEYS.items() if name in run}
    rule = SecureSum(**sums) if run.get("secure") else None
    losses = found.pop("losses", None) or "seen"
    return found | {"limits": Limits(**most), "secure": rule, "losses": losses}


def settings(run: Mapping[str, Any]) -> FederationSettings:
    """The settings of a whole run configuration, checked as at its start."""
    told = arguments(run)
    check_numbers(0, lr=told["lr"], lr_decay=told["lr_decay"])
    check_numbers(1, whole=True, rounds=run["rounds"])
    names = ("fraction_train", "min_train_nodes", "min_available_nodes", "min_replies", "grace")
    Participation(*(told[name] for name in names))
    words = ("seed", "lr", "lr_decay", "deploy", "batchnorm", "schedule", "secure")
    return FederationSettings(
        one_strategy(told["strategy"]),
        rounds=run["rounds"],
        dp=read_dp(told["dp"]),
        losses=read_losses(told["losses"]),
        **{name: told[name] for name in words},
    )
