"""The runs of a reproduced target as something to report on. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmaba.errors import InputError
from fedmaba.report import data
from fedmaba.results import files
from fedmaba.results.history import History
from fedmaba.results.run_history import RunOrigin
from laboratory import archive, picks, targets
from laboratory.selection import of_deploy


def load_one(path: Path) -> list[data.Source]:
    """One file, or a target by the folder of its archives and its name, as one source."""
    found = load_each_experiment(path)
    return found if len(found) == 1 else [data.Source(path.name, data.combine(found))]


def load_each_experiment(path: Path) -> list[data.Source]:
    """The same, with a source for each experiment of a target."""
    return [_of_file(path)] if path.is_file() else of_target(path.parent, path.name)


def _of_file(path: Path) -> data.Source:
    """The runs of one archive file, each row with its first deployed model."""
    found = archive.read_file(path)
    share = found.about["settings"].get("eval", {}).get("share", 0.05)
    history = of_deploy(History(list(found.runs.values()), share), None)
    about: dict[str, Any] = {"python": True, "repeat": found.about["command"]}
    about |= {key: found.about[key] for key in ("data", "versions", "device") if key in found.about}
    _note_origin(history, found.about, found.about.get("partition") or {}, str(path.resolve()))
    return data.Source(path.stem, history, about)


def _note_origin(
    history: History, told: Mapping[str, Any], partition: Mapping[str, str], whole: str
) -> None:
    """Say of each run which data and clients it had, and what it is a part of."""
    settings = told["settings"]
    # The digests are of copies where labels were flipped.
    as_read = {} if settings.get("attack", {}).get("does") else partition
    name = told.get("data", {}).get("name")
    for run in history.runs:
        division = as_read.get(str(run.seed), "")
        run.origin = RunOrigin(f"set {name}" if name else "", division, "", settings, whole)


def of_target(folder: Path, name: str) -> list[data.Source]:
    """One for each of a target's experiments that has runs in the folder."""
    batches = archive.read_folder(folder)
    target = picks.with_picks(targets.load_target(name), batches)
    jobs = target.every_job()
    text = files.read(targets.folder() / f"{name}.toml", files.MAX_TOML_BYTES).decode()
    out, fresh = [], target.view.search > 0
    for job in jobs[:1] if fresh else jobs:  # what a search picked is one table
        used = [file for one in (jobs if fresh else [job]) for file in _used(batches, one)]
        history = (
            picks.picked_history(target, batches)
            if fresh
            else archive.deployed_history(batches, job)
        )
        if not history.runs:
            continue
        about: dict[str, Any] = {"python": True, "repeat": targets.command(target)}
        told = used[0].about
        about |= {key: told[key] for key in ("data", "versions", "device") if key in told}
        found = [file.about.get("partition") or {} for file in used]
        about["partition"] = {seed: digest for one in found for seed, digest in one.items()}
        _note_origin(history, told, about["partition"], f"{folder.resolve()}/{name}")
        shown = name if len(jobs) == 1 or fresh else f"{name}: {job.title}"
        rounds = job.experiment.train.rounds
        out.append(data.Source(shown, history, about, text, rounds=rounds))
    if not out:
        raise InputError(
            f"{folder} holds no run of {name}: run `{targets.command(target)}`, or name another "
            "folder"
        )
    return out


def _used(batches: Sequence[archive.ArchiveFile], job: targets.Job) -> list[archive.ArchiveFile]:
    """The files that hold runs of a job."""
    return archive.collect(batches, job)[1]
