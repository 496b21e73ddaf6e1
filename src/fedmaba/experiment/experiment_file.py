"""An experiment in its file: read TOML, write it, and say which settings differ. No torch.

What the keys mean and which values they take is declared in `experiment/config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmaba.errors import InputError
from fedmaba.experiment.config import Experiment, options
from fedmaba.results import files


def read_toml(path: Path, links: bool = True) -> dict[str, Any]:
    """The tree of a TOML file; one that lies in a run folder is not read through a link."""
    try:
        return files.parse_toml(files.read(path, files.MAX_TOML_BYTES, links))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: name an experiment file (TOML)") from error
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def dump(experiment: Experiment) -> str:
    """The experiment as TOML; reads back as an equal one."""
    tree = experiment.model_dump(exclude_none=True)
    if experiment.attack.does is None:
        del tree["attack"]
    lines = [f"{k} = {toml_value(v)}" for k, v in tree.items() if not isinstance(v, dict)]
    for name, section in tree.items():
        if isinstance(section, dict) and section:
            lines += ["", f"[{name}]", *(f"{k} = {toml_value(v)}" for k, v in section.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """A value as it is written in a TOML file."""
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        plain = all(c.isprintable() for c in value)
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        if not plain:
            escaped = "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in escaped)
        return f'"{escaped}"'
    return repr(value)


def result_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings of an experiment that can change its results."""
    tree = experiment.model_dump()
    for key in options():
        *sections, last = key.path
        section = tree
        for name in sections:
            section = section[name]
        if key.newer and section[last] == key.default:
            del section[last]
    del tree["save"]
    if not tree["turnout"]:
        del tree["turnout"]
    tree["data"].pop("dir")
    tree["machine"].pop("threads")
    return tree


def changed_keys(
    there: Mapping[str, Any], here: Mapping[str, Any], head: str = ""
) -> dict[str, tuple[object, object]]:
    """The keys in which two trees differ, with both values.

    A key that is missing has its default value: it was added by a newer version.
    """
    usual = {key.name: key.default for key in options()}
    found: dict[str, tuple[object, object]] = {}
    newer = [key for key in there if key not in here and head + key in usual]
    newer += [key for key, value in there.items() if key not in here and isinstance(value, dict)]
    for key in (*here, *newer):
        value = here.get(key, {} if isinstance(there.get(key), dict) else usual.get(head + key))
        if isinstance(value, dict):
            inner = there.get(key, {})
            found |= changed_keys(inner if isinstance(inner, dict) else {}, value, f"{key}.")
        elif (was := there.get(key, usual.get(head + key))) != value:
            found[head + key] = (was, value)
    return found


def edited_message(file: Path, found: Mapping[str, tuple[object, object]]) -> str:
    """The message for an experiment file that was edited after its run was begun."""
    said = "; ".join(f"{key} was {was}, now {now}" for key, (was, now) in found.items())
    return f"{file} was edited since the run was begun ({said}): restore it"
