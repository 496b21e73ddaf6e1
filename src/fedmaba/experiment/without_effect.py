"""Options that change nothing for some strategies, or on this machine: one line, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch

from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.experiment.config import Experiment
from fedmaba.strategies.base import Strategy, optimiser_of_server


class Unused(NamedTuple):
    """An option, whom it does not change, and why."""

    option: str
    strategies: tuple[str, ...]
    why: str


def refuse(experiment: Experiment, listed: Sequence[Strategy]) -> None:
    """Refuse an option that changes nothing of what is asked for."""
    for found in unused(experiment, listed):
        if len(found.strategies) == len(listed):
            raise InputError(f"{_in_words(found)}: leave it out")


def refuse_precision(experiment: Experiment) -> None:
    """Refuse a precision of GPUs on a CPU, whatever strategies there are."""
    if why := _why_no_precision(experiment.machine):
        raise InputError(f"--dtype {experiment.machine.dtype} changes nothing: {why}: leave it out")


def warnings(experiment: Experiment, listed: Sequence[Strategy]) -> list[str]:
    """A line for each option that does not change all strategies."""
    return [_in_words(found) for found in unused(experiment, listed)]


def unused(experiment: Experiment, listed: Sequence[Strategy]) -> Iterator[Unused]:
    """The options that were given and change nothing, with the strategies that they leave alone."""
    told = {key.name: key for key in config.options()}
    given = experiment.model_dump()
    for name, key in told.items():
        section, _, word = name.rpartition(".")
        value = (given[section] if section else given)[word]
        if value == key.default:
            continue
        whom: dict[str, list[str]] = {}
        for strategy in listed:
            with suppress(Exception):  # What is wrong with a user's strategy is said later.
                if why := _why_unused(name, experiment, strategy):
                    whom.setdefault(why, []).append(strategy.label())
        for why, labels in whom.items():
            yield Unused(f"{key.flag} {value}", tuple(labels), why)


def _why_unused(name: str, experiment: Experiment, strategy: Strategy) -> str:
    """Why a key that was given does not change a strategy; empty where it does."""
    local, train = strategy.local(), experiment.train
    alone = local.personal is not None and local.personal.only
    steps: tuple[str, ...] = ("train.epochs", "train.steps", "train.minibatch")
    if name == "train.momentum" and train.optimiser != "nesterov":
        steps += (name,)
    if name == "train.step_schedule" and not train.step_schedule.startswith("warmup"):
        steps += (name,)
    reasons = {
        "each client takes one step on all of its examples": local.full_batch and name in steps,
        "clients train alone, without a server's model": alone
        and name in ("server.lr", "server.momentum", "server.deploy", "train.own_layers"),
        "clients have models of their own, which are evaluated": local.own_model
        and name == "eval.finetune",
        "it says itself which layers stay with clients": bool(local.own_layers)
        and name == "train.own_layers",
        "it has a server optimiser of its own": name == "server.momentum"
        and optimiser_of_server(strategy) is not None,
    }
    if name == "machine.dtype":
        return _why_no_precision(experiment.machine)
    return next((why for why, holds in reasons.items() if holds), "")


def _why_no_precision(machine: config.Machine) -> str:
    """Why a precision changes nothing; empty where it does."""
    on_cpu = machine.device == "cpu" or (machine.device == "auto" and not torch.cuda.is_available())
    of_gpus = machine.dtype in ("tf32", "bf16")
    return "a CPU computes in float32 or float64" if on_cpu and of_gpus else ""


def _in_words(found: Unused) -> str:
    some = ", ".join(found.strategies[:5]) + ", ..." * (len(found.strategies) > 5)
    return f"{found.option} changes nothing for {some}: {found.why}"
