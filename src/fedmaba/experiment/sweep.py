"""Keys with several values: every combination of them is an experiment of its own. No torch."""

from __future__ import annotations

import copy
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fedmaba.errors import InputError
from fedmaba.experiment import config, experiment_file

MAX_COMBINATIONS = 200  # of values in one folder
OWN_LISTS = ("data.drop", "data.categorical")  # One value of these is a list of columns.
ONE_VALUE = {  # keys that cannot be swept, and why
    "data.dir": "it does not change the results",
    "machine.threads": "it does not change the results",
    "save.out": "all runs go into one folder",
    "save.seconds": "it does not change the results",
    "save.every": "it does not change the results",
    "eval.metric": "one table has one metric",
    "eval.share": "one table has one share, which `fedmaba table --share` changes",
}


class Sweep(NamedTuple):
    """The combinations of all values that were listed."""

    trees: list[dict[str, Any]]  # one for each experiment
    keys: tuple[str, ...]  # that have several values


def combinations(tree: Mapping[str, Any]) -> Sweep:
    """Every combination of the keys whose value is a list, the last key fastest."""
    values = {key.name: found for key in config.options() if (found := values_of(tree, key))}
    count = 1
    for some in values.values():
        count *= len(some)
    if count > MAX_COMBINATIONS:
        told = " x ".join(f"{len(some)} of {name}" for name, some in values.items())
        raise InputError(
            f"{told} are {count:,} combinations: at most {MAX_COMBINATIONS} fit one folder: list "
            "fewer values, or use several folders"
        )
    trees = []
    for chosen in itertools.product(*values.values()):
        one = copy.deepcopy(dict(tree))
        for name, value in zip(values, chosen, strict=True):
            config.set_key(one, name, value)
        trees.append(one)
    return Sweep(trees, tuple(name for name, some in values.items() if len(some) > 1))


def values_of(tree: Mapping[str, Any], key: config.Key) -> list[Any]:
    """The values that a key lists; none where it has just one, or is not given."""
    value = config.value_at(tree, key.name)
    if key.name == "seeds":  # a list of seeds is one value
        return []
    found = list_of(value) if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        return []
    if key.name in OWN_LISTS and found is value and not any(isinstance(v, list) for v in found):
        return []
    if not found:
        raise InputError(f"{key.name}=[]: the list is empty: give a value, or leave it out")
    if key.name in ONE_VALUE and len(found) > 1:
        raise InputError(f"{key.name}={value!s}: {ONE_VALUE[key.name]}: give one value")
    for i, one in enumerate(found):
        if one in found[:i]:
            raise InputError(f"{key.name}: {one} is listed twice: list each value once")
    return list(found)


def list_of(text: str) -> list[Any] | None:
    """`[0.01,0.1]` or `["a", "b,c"]` as a list; None for text that is no list."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    with suppress(tomllib.TOMLDecodeError):
        found = tomllib.loads(f"x = {text}").get("x")
        if isinstance(found, list):
            return found
    return [word.strip() for word in text[1:-1].split(",")] if text[1:-1].strip() else []


def differing(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Of each experiment, the keys in which not all are the same, with its own values."""
    found = {
        name for one in settings[1:] for name in experiment_file.changed_keys(settings[0], one)
    }
    found |= {"dp" for name in found if name.startswith("dp.")}  # its keys are one value
    keys = [key for key in config.options() if key.name in found]
    return [
        {key.name: config.value_at(one, key.name, key.default) for key in keys} for one in settings
    ]


def suffix(values: Mapping[str, object]) -> str:
    """What tells the rows of experiments apart: `, lr=0.01`; keys of [train] by their last name."""
    return "".join(
        f", {name.removeprefix('train.')}={_shown(value)}" for name, value in values.items()
    )


def _shown(value: object) -> str:
    from fedmaba.strategies.hyper_parameters import format_value

    if isinstance(value, Mapping):  # of [dp], what is not as usual
        said = config.DP(**value).model_dump(exclude_defaults=True)
        return "+".join(f"{name}={format_value(one)}" for name, one in said.items())
    if isinstance(value, list):
        return "+".join(map(str, value))
    return "default" if value is None else format_value(value)
