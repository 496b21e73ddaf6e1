"""Find every mistake in an experiment, in one line, before any data are read. Rarely needs torch.

`config` checks each key by itself. Here the words inside a key are read (strategies, partition,
deployed model, data set), and keys are compared with each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from fedmaba import strategies
from fedmaba.data import attack, datasets, partition, published
from fedmaba.data.model_folder import folder_of
from fedmaba.data.tables import Reading
from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.layer_names import patterns
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.optimiser import Optimiser, parse_schedule, round_schedule
from fedmaba.strategies import deployed
from fedmaba.turnout.plan import Turnout


def build_checked(tree: Mapping[str, Any], source: str = "") -> config.Experiment:
    """Check the keys and the words in them; return the experiment, or raise one line of errors."""
    found = []
    try:
        asked = config.build(tree)
    except InputError as error:
        found.append(str(error))
    found += [problem for problem in _problems(tree) if problem not in found]
    if found:
        text = "; ".join(found)
        raise InputError(f"{source}: {text}" if source else text)
    return asked


def user_modules(tree: Mapping[str, Any]) -> dict[str, str]:
    """The module of each strategy and model of an experiment that is not fedmaba's own."""
    found = {}
    for spec in _specs(tree):
        name = spec.partition(":")[0]
        if name not in strategies.REGISTRY and "." in name:
            found[f"strategy {name!r}"] = name.rpartition(".")[0]
    model = tree.get("model")
    if isinstance(model, str) and ":" in model and folder_of(model) is None:
        found[f"model {model!r}"] = model.partition(":")[0]
    return found


def _specs(tree: Mapping[str, Any]) -> list[str]:
    """The strategies that were named; what is not text is left to `config`."""
    specs = tree.get("strategies")
    specs = [specs] if isinstance(specs, str) else specs if isinstance(specs, list) else []
    return [spec for spec in specs if isinstance(spec, str)]


def _problems(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the words inside keys; what is not text is left to `config`."""
    labels: list[str] = []
    for spec in _specs(tree):
        try:
            labels += [s.label() for s in strategies.parse(spec)]
        except InputError as error:
            yield str(error)
    for label in dict.fromkeys(labels):
        if labels.count(label) > 1:
            yield f"strategy {label!r} is listed twice: each row of a table is one"
    words: dict[str, Callable[[str], object]] = {
        "server.deploy": deployed.parse_rule,
        "data.partition": partition.parse_partition,
        "data.validation": partition.parse_share,
        "attack.does": attack.parse_attack,
        "attack.share": partition.parse_share,
        "data.name": datasets.check_name,
        "model": _model,
        "train.schedule": parse_schedule,
        "train.step_schedule": partial(parse_schedule, what="step_schedule"),
        "train.augment": parse_augment,
        "train.own_layers": patterns,
    }
    for name, read in words.items():
        value = config.value_at(tree, name)
        number = read is partition.parse_share and isinstance(value, int | float)
        if isinstance(value, str) or number:
            try:
                read(str(value))
            except InputError as error:
                yield re.sub("^share ", f"{name}=", str(error))
    yield from _training_problems(tree.get("train"))
    told = tree.get("turnout")
    if isinstance(told, dict):
        try:
            Turnout.parse(config.Turnout(**told).model_dump())
        except InputError as error:
            yield str(error)
        except ValueError:  # told of already
            pass
    clients, m = (
        _whole(config.value_at(tree, name)) for name in ("data.clients", "train.participants")
    )
    if clients is not None and m is not None and 0 < clients < m:
        yield f"participants={m}, but clients={clients}: lower it or say 'all'"
    yield from _unfit_for_data(tree)


def _unfit_for_data(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the data cannot give; wrong words were told of already."""
    name, how, share, rule = (
        config.value_at(tree, key)
        for key in ("data.name", "data.normalise", "data.validation", "server.deploy")
    )
    with suppress(InputError):
        datasets.check_name(str(name or "sample"))
        if isinstance(how, str) and how in published.NORMALISE:
            try:
                datasets.check_normalise(str(name or "sample"), how)
            except InputError as error:
                yield str(error)
        said: dict[str, Any] = {
            key: config.value_at(tree, f"data.{key}") or None for key in Reading._fields
        }
        try:
            datasets.check_reading(str(name or "sample"), Reading(**said))
        except InputError as error:
            yield str(error)
    with suppress(InputError):
        held = partition.parse_share(str(share or "0%")) > 0
        if not held and isinstance(rule, str) and deployed.needs_validation(rule):
            yield deployed.no_validation(rule)


def _training_problems(train: object) -> Iterator[str]:
    """Yield which keys of local training do not go together; a wrong one is left to `config`."""
    try:
        read = config.build({"strategies": ["fedavg"], "train": train or {}}).train
    except InputError:
        return
    for look in (Optimiser.from_settings, lambda t: round_schedule(t.schedule, t.lr_decay)):
        try:
            look(read)
        except InputError as error:
            if not str(error).startswith("schedule="):  # a wrong word, told of already
                yield str(error)


def _model(name: str) -> None:
    if name != "mlp":
        from fedmaba.rows import models

        models.find_factory(name)


def _whole(value: object) -> int | None:
    """A whole number, given as a number or as text; else None."""
    try:
        return int(value) if isinstance(value, int | str) else None
    except ValueError:
        return None
