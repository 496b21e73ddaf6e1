"""The runs of a reproduced target as something to report on: `fedmaba report results/TARGET`.

No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmaba.errors import InputError
from fedmaba.report import data
from fedmaba.reproduction import archive, targets
from fedmaba.results import files


def load_runs_and_targets(paths: Sequence[Path]) -> list[data.Source]:
    """Run folders, and targets by the folder of their archives and their name, each once."""
    out: list[data.Source] = []
    folders = [path for path in paths if path.is_dir()]
    loaded = dict(zip(folders, data.load_all(folders), strict=True))
    for i, path in enumerate(paths):
        if path in loaded:
            out.append(loaded[path])
        elif path.name in targets.names() and path.parent.is_dir():
            if path in paths[:i]:
                raise InputError(f"{path} is named twice: name each target once")
            out += of_target(path.parent, path.name)
        else:
            out.append(data.load(path))  # which says what is wrong with it
    return out


def of_target(folder: Path, name: str) -> list[data.Source]:
    """One for each of a target's experiments that has runs in the folder."""
    target, batches = targets.load(name), archive.read_folder(folder)
    jobs = target.every_job()
    text = files.read(targets.folder() / f"{name}.toml", files.MAX_TOML_BYTES).decode()
    out = []
    for job in jobs:
        _, used, _ = archive.collect(batches, job)
        history = archive.deployed_history(batches, job)
        if not history.runs:
            continue
        about: dict[str, Any] = {"python": True, "repeat": targets.command(target)}
        told = used[0].about
        about |= {key: told[key] for key in ("data", "versions", "device") if key in told}
        found = [file.about.get("partition") or {} for file in used]
        about["partition"] = {seed: digest for one in found for seed, digest in one.items()}
        shown = name if len(jobs) == 1 else f"{name}: {job.title}"
        rounds = job.experiment.train.rounds
        out.append(data.Source(shown, history, about, text, rounds=rounds))
    if not out:
        raise InputError(
            f"{folder} holds no run of {name}: run `{targets.command(target)}`, or name another "
            "folder"
        )
    return out
