"""What was asked for, where it ran, and the command that repeats it. No torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmaba.report import escape
from fedmaba.report.data import Source, seeds_in_words
from fedmaba.results import run_folder
from fedmaba.results.run_history import RunHistory

MAX_RUNS_TOLD = 50  # runs whose noise is told one by one


def setup_of(source: Source) -> dict[str, Any]:
    """What was asked for, where it ran, the hashes, and the command that repeats it."""
    about, made = source.about, source.parts or [source]
    versions, model = about.get("versions") or {}, about.get("model") or {}
    facts = [(name, str(version)) for name, version in versions.items()]
    facts.append(("device", str(about.get("device", "unknown"))))
    facts += [(f"model {name}", str(value)) for name, value in model.items()]
    if "task" in source.data:
        words = source.data.get("target")
        facts.append(("task", f"{source.data['task']}: {words}" if words else source.data["task"]))
    facts += _promise(about.get("privacy"))
    hashes = [("data " + str(source.data.get("name", "")), str(source.data.get("sha256", "")))]
    partitions = about.get("partition") or {}
    hashes += [(f"partition, seed {seed}", str(digest)) for seed, digest in partitions.items()]
    names = dict(enumerate(source.data.get("clients") or ()))
    for seed, who in source.hostile.items():
        listed = [str(names.get(c, c)) for c in who]
        more = ", ..." if len(listed) > 100 else ""
        facts.append((f"hostile clients, seed {seed}", ", ".join(listed[:100]) + more))
    return {
        "name": source.name,
        "runs": _runs(source),
        "left": source.left,
        "experiment": source.experiment,
        "parts": len(made),
        "commands": list(dict.fromkeys(text for one in made if (text := _begun_with(one)))),
        "repeat": list(dict.fromkeys(_again(one) for one in made)),
        "facts": facts,
        "hashes": [(name, digest) for name, digest in hashes if digest],
        "finished": source.finished,
    }


def _begun_with(source: Source) -> str:
    """The command that began it, in one line: pasted, a second line would run at once."""
    command = [str(word) for word in source.about.get("command") or ()]
    return escape.one_line(shlex.join(["fedmaba", *command[1:]])) if command else ""


def _again(source: Source) -> str:
    """The command that runs the experiment of a folder again."""
    if source.about.get("python"):
        return escape.one_line(str(source.about.get("repeat")))
    file = (source.place or Path(source.name)) / run_folder.EXPERIMENT_FILE
    return escape.one_line(f"fedmaba run {shlex.quote(str(file))} --out NEW")


def _runs(source: Source) -> list[str]:
    """Which strategies, seeds and rounds are shown, strategies with the same in one line."""
    rows: dict[str, list[RunHistory]] = {}
    for run in source.history.runs:
        rows.setdefault(run.label, []).append(run)
    alike: dict[str, list[str]] = {}
    for label, runs in rows.items():
        done = max(map(_rounds, runs))
        told = f"{seeds_in_words(run.seed for run in runs)}, {done:,} round{'s' * (done != 1)}"
        alike.setdefault(told, []).append(label)
    return [f"{', '.join(labels)}: {told}" for told, labels in alike.items()]


def _rounds(run: RunHistory) -> int:
    """How many rounds of a run are there."""
    known = (run.tables[name] for name in ("evaluated", "round") if len(run.tables.get(name, ())))
    return max((int(found[-1]) for found in known), default=0)


def _promise(told: Mapping[str, Mapping[str, object]] | None) -> list[tuple[str, str]]:
    """What made the runs private: what all have in common, and each one's noise."""
    if not told:
        return []
    runs = list(told.items())
    first = runs[0][1]
    alike = [name for name in first if all(facts.get(name) == first[name] for _, facts in runs)]
    out = [(f"privacy: {name}", _fact(first[name])) for name in alike]
    for name, facts in runs[:MAX_RUNS_TOLD]:
        own = [f"{what} {_fact(value)}" for what, value in facts.items() if what not in alike]
        out += [(f"privacy of {name}", ", ".join(own))] if own else []
    return out


def _fact(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def parts(command: str) -> list[str]:
    """A command in parts between which a line may end: an option stays with its value."""
    return re.findall(r"--[\w-]+(?:[ =](?!--)(?:'[^']*'|\S)+)?|(?:'[^']*'|\S)+", command)
