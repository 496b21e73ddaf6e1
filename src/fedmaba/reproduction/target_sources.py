"""The runs of a reproduced target as something to report on: `fedmaba report results/TARGET`.

No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmaba.errors import InputError
from fedmaba.experiment import parts
from fedmaba.report import data
from fedmaba.reproduction import archive, picks, targets
from fedmaba.results import files, run_folder, state_folder
from fedmaba.results.history import History
from fedmaba.results.selection import of_deploy


def load_one(path: Path) -> list[data.Source]:
    """A run folder, a target by the folder of its archives and its name, or one archive file.

    A folder with parts has a source for each combination of settings; a target is one.
    """
    if _is_file_of_reproduce(path):
        return [_of_file(path)]
    if not _names_target(path):
        return data.load_parts(path)
    found = of_target(path.parent, path.name)
    return found if len(found) == 1 else [data.Source(path.name, data.combine(found))]


def load_history(path: Path | str) -> History:
    """The history of a run folder with all its parts, or of results of `fedmaba reproduce`.

    What is unfinished is read up to its checkpoint. Where experiments of a folder differ in a key,
    the labels say it: `fedavg, lr=0.01`. Results are named as `results/TARGET`, or by one of their
    `.npz` files. The state folder of a server on Flower is the history of one run, whose clients
    are its sites.
    """
    path = Path(path)
    if _is_file_of_reproduce(path) or _names_target(path):
        (source,) = load_one(path)
        return source.history
    if (state := state_folder.load_state_folder(path)) is not None:
        return state.history()
    return parts.load_history(path)


def _is_file_of_reproduce(path: Path) -> bool:
    return path.suffix == ".npz" and path.is_file()


def _names_target(path: Path) -> bool:
    """Whether this is FOLDER/TARGET and no run folder, whatever else is at that place."""
    named = (run_folder.EXPERIMENT_FILE, run_folder.RUNS_FILE, run_folder.PARTS_FOLDER)
    run = path.is_dir() and any(files.exists(path / name) for name in named)
    return not run and path.name in targets.names() and path.parent.is_dir()


def _of_file(path: Path) -> data.Source:
    """The runs of one archive file, each row with its first deployed model."""
    found = archive.read_file(path)
    share = found.about["settings"].get("eval", {}).get("share", 0.05)
    history = of_deploy(History(list(found.runs.values()), share), None)
    about: dict[str, Any] = {"python": True, "repeat": found.about["command"]}
    about |= {key: found.about[key] for key in ("data", "versions", "device") if key in found.about}
    return data.Source(path.stem, history, about)


def load_runs_and_targets(paths: Sequence[Path]) -> list[data.Source]:
    """Run folders, and targets by the folder of their archives and their name, each once."""
    out: list[data.Source] = []
    folders = [path for path in paths if path.is_dir() and not _names_target(path)]
    data.require_each_once(folders)
    for i, path in enumerate(paths):
        if path in folders:
            out += data.load_parts(path)
        elif _is_file_of_reproduce(path):
            out.append(_of_file(path))
        elif _names_target(path):
            if path in paths[:i]:
                raise InputError(f"{path} is named twice: name each target once")
            out += of_target(path.parent, path.name)
        else:
            out.append(data.load_run_folder(path))  # which says what is wrong with it
    return out


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
