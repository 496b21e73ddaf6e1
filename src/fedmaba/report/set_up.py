"""What was asked for, where it ran, and the command that repeats it. No torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from fedmaba.report import escape
from fedmaba.report.data import Source, items

MOST = 50  # runs whose noise is told one by one


def of(source: Source) -> dict[str, Any]:
    """What was asked for, where it ran, the hashes, and the command that repeats it."""
    about = source.about
    command = [str(word) for word in about.get("command") or ()]
    if command:
        command[0] = "fedmaba"
    versions, model = about.get("versions") or {}, about.get("model") or {}
    facts = [(name, str(version)) for name, version in items(versions)]
    facts.append(("device", str(about.get("device", "unknown"))))
    facts += [(f"model {name}", str(value)) for name, value in items(model)]
    if "task" in source.data:
        words = source.data.get("target")
        facts.append(("task", f"{source.data['task']}: {words}" if words else source.data["task"]))
    facts += _promise(about.get("privacy"))
    hashes = [("data " + str(source.data.get("name", "")), str(source.data.get("sha256", "")))]
    partitions = items(about.get("partition") or {})
    hashes += [(f"partition, seed {seed}", str(digest)) for seed, digest in partitions]
    again = f"fedmaba run {quoted([source.name + '/experiment.toml'])} --out NEW"
    names = dict(enumerate(source.data.get("clients") or ()))
    for seed, who in source.hostile.items():
        listed = [str(names.get(c, c)) for c in who]
        more = ", ..." if len(listed) > 100 else ""
        facts.append((f"hostile clients, seed {seed}", ", ".join(listed[:100]) + more))
    return {
        "name": source.name,
        "experiment": source.experiment,
        "command": escape.one_line(quoted(command)),  # pasted, a second line would run at once
        "repeat": escape.one_line(str(about.get("repeat")) if about.get("python") else again),
        "facts": facts,
        "hashes": [(name, digest) for name, digest in hashes if digest],
        "finished": source.finished,
    }


def _promise(told: object) -> list[tuple[str, str]]:
    """What made the runs private: what all have in common, and each one's noise."""
    runs = [(name, dict(items(facts))) for name, facts in items(told or {})]
    if not runs:
        return []
    first = runs[0][1]
    alike = [name for name in first if all(facts.get(name) == first[name] for _, facts in runs)]
    out = [(f"privacy: {name}", _fact(first[name])) for name in alike]
    for name, facts in runs[:MOST]:
        own = [f"{what} {_fact(value)}" for what, value in facts.items() if what not in alike]
        out += [(f"privacy of {name}", ", ".join(own))] if own else []
    return out


def _fact(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def parts(command: str) -> list[str]:
    """A command in parts between which a line may end: an option stays with its value."""
    return re.findall(r"--[\w-]+(?:[ =](?!--)(?:'[^']*'|\S)+)?|(?:'[^']*'|\S)+", command)


def quoted(words: Sequence[str]) -> str:
    """Words as one would type them in a shell."""
    return shlex.join(words)
