"""Open the run folder of a session: begin it, go on in it, add rounds, or take its result.

A run folder that was begun before is used only by the same experiment, data and code.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmaba.errors import InputError, usable
from fedmaba.experiment import config, experiment_file, fingerprint, parts
from fedmaba.experiment.config import Experiment
from fedmaba.experiment.session import (
    Session,
    environment,
    partition_digests,
    require_same_experiment,
)
from fedmaba.results import files, run_folder, schema
from fedmaba.results.array_files import Arrays, pack
from fedmaba.results.history import History
from fedmaba.simulation.optimiser import round_schedule

FINISHED = b"finished"  # Rank 0 tells the others this of a folder with nothing left to do.


def open_run_folder(session: Session, out: Path, command: Sequence[str] = ()) -> None:
    """Start in a new run folder, or resume from one. Only rank 0 touches the folder."""
    together, at = session.batch.ranks, session.batch.progress
    if together.rank == 0:
        saved = _lock_and_check(session, out, command)
        told = FINISHED if session.done else b""
        together.tell(told if saved is None or together.count == 1 else b"".join(pack(*saved)))
    elif (body := together.tell()) == FINISHED:
        session.done = True
    elif body:
        saved = run_folder.unpack_from_rank(body)
        at.restore(*saved)
        session.history = run_folder.history_from_checkpoint(*saved, out / "checkpoint")
    at.chunk = int(together.tell(str(at.chunk).encode()))
    if session.done:
        session.close()


def _lock_and_check(
    session: Session, out: Path, command: Sequence[str]
) -> tuple[Arrays, dict[str, Any]] | None:
    """Lock the folder and write or check what is in it; return the checkpoint to resume from."""
    require_room(session)
    _check_folder(session.experiment, out)
    session.folder = run_folder.Folder(out)
    try:
        # Checked again: before the lock, another process could change the folder.
        _check_folder(session.experiment, out)
        if files.exists(out / run_folder.EXPERIMENT_FILE):
            rounds = parts.experiment_of(out).train.rounds
            if rounds != session.experiment.train.rounds:
                return _add_rounds(session, session.folder, out, rounds)
        if run_folder.is_finished(out):
            _take_result(session, session.folder, out)
            return None
        if run_folder.checkpoints(out):
            return _restore(session, session.folder, out)
        _create_folder(session, session.folder, command)
        return None
    except BaseException:
        session.close()
        raise


def require_room(session: Session) -> None:
    """Refuse more runs, or longer labels, than a folder can hold."""
    longest = max((run.label for run in session.history.runs), key=len)
    if len(longest) > schema.MAX_LABEL or len(session.history.runs) > schema.MAX_RUNS:
        raise InputError(
            f"{len(session.history.runs):,} runs, labels of up to {len(longest):,} characters: a "
            f"folder holds at most {schema.MAX_RUNS:,} runs, with labels of {schema.MAX_LABEL:,}"
        )


def check_beside(session: Session, there: Sequence[Path]) -> None:
    """Refuse to add runs to parts that were begun with other data or code under the same names."""
    mine, settings = session.provenance(), parts.run_settings(session.experiment)
    for part in there:
        about, theirs = run_folder.load_about(part), parts.run_settings(parts.experiment_of(part))
        if theirs["data"] == settings["data"]:
            # Data that are prepared for each seed are other numbers beside other seeds.
            now, begun = session.source(), about.get("source")
            if begun is None:  # An earlier version noted only what it trained on.
                now = {key: mine[key] for key in now}
                begun = {**about, "data": about.get("data", {}).get("sha256")}
            _check_same_data(session, _of_common_seeds(begun, now), now, about, part)
        if theirs == settings:
            _check_same_init(session, about.get("init"), part)
            _check_same_code(session, about, part, beside=True)


def _of_common_seeds(begun: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What was begun, as far as it can be compared: of the seeds that are both there and here."""
    there = begun.get("partition", {})
    split = {seed: there.get(seed, digest) for seed, digest in now["partition"].items()}
    return {"data": begun["data"], "partition": split}


def _check_folder(experiment: Experiment, out: Path) -> None:
    """Refuse a folder that holds something else."""
    file = out / run_folder.EXPERIMENT_FILE
    with usable(out, "choose another --out"):
        if run_folder.holds_something_else(out):
            raise InputError(f"{out} exists and is no run folder: choose another --out")
        begun = files.exists(file)
    there = (
        config.build(experiment_file.read_toml(file, links=False), str(file))
        if begun
        else experiment
    )
    other = experiment_file.changed_keys(
        experiment_file.result_settings(there), experiment_file.result_settings(experiment)
    )
    if there.train.rounds < experiment.train.rounds:
        other.pop("train.rounds")
    if other:
        names = ", ".join(other)
        raise InputError(f"{out} holds another experiment, in {names}: choose another --out")


def _add_rounds(
    session: Session, folder: run_folder.Folder, out: Path, before: int
) -> tuple[Arrays, dict[str, Any]]:
    """Go on with a finished folder for more rounds, from the state that it ended with.

    The checkpoint is written first and says how many rounds there were, so that a process that is
    killed between two of these files leaves a folder that is finished, or can be resumed.
    """
    experiment = session.experiment
    _check_can_grow(experiment, out, before)
    there, done = run_folder.checkpoints(out), run_folder.is_finished(out)
    if done and not there:
        raise InputError(
            f"{out} has no state to go on from, as an earlier version ended it: choose another "
            "--out"
        )
    arrays, meta, damaged = run_folder.load_checkpoint(out) if there else ({}, {}, [])
    if not done and meta.get("extends") != before:
        raise InputError(
            f"{out} is not finished: first say {run_folder.resume_hint(out)}, then add rounds"
        )
    about = run_folder.load_about(out)
    _check_same_experiment(session, meta, about, out, grows_from=before)
    session.restore(arrays, meta, out)
    _check_same_code(session, about, out)
    if done and not _same_tables(session.history, run_folder.load_history(out)):
        raise InputError(
            f"{there[0]} is not the state that {out} ended with: restore it, "
            "or choose another --out"
        )
    folder.repair_rounds(session.history)
    folder.repair_npz("partition.npz", _partition_arrays(session))
    at, told = session.batch.progress, {**session.meta(), "extends": before}
    folder.save(at.round, at.arrays(), told, session.history)
    folder.reopen()
    folder.write(run_folder.EXPERIMENT_FILE, experiment_file.dump(experiment).encode())
    folder.write_json("about.json", {**_about(session, ()), "command": about.get("command", [])})
    session.warnings += damaged
    session.notes.append(f"goes on after round {at.round}, up to round {experiment.train.rounds}")
    return arrays, meta


def _check_can_grow(experiment: Experiment, out: Path, before: int) -> None:
    """Refuse more rounds where the result would not be that of one longer run."""
    train, every = experiment.train, experiment.eval.every
    grown = f"{out} cannot grow from {before} to {train.rounds} rounds"
    if round_schedule(train.schedule, train.lr_decay).shape == "cosine":
        raise InputError(
            f"{grown}: schedule={train.schedule} plans the step size over all rounds: choose "
            "another --out"
        )
    if experiment.dp is not None:
        raise InputError(
            f"{grown}: the noise of dp was made for {before} rounds, and more rounds would spend "
            f"more than epsilon={experiment.dp.epsilon:g}: choose another --out"
        )
    if before % every:
        raise InputError(
            f"{grown}: it was evaluated after round {before}, where one longer run with "
            f"eval_every={every} would not be: choose another --out"
        )


def _same_tables(one: History, other: History) -> bool:
    """Whether two histories are of the same runs with the same numbers."""
    pairs = [(a.arrays(), b.arrays()) for a, b in zip(one.runs, other.runs, strict=False)]
    return len(one.runs) == len(other.runs) and all(
        a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=True) for k in a)
        for a, b in pairs
    )


def _take_result(session: Session, folder: run_folder.Folder, out: Path) -> None:
    """Take the history of a finished folder, if its data, code and settings are the same."""
    about, mine = run_folder.load_about(out), session.provenance()
    made = run_folder.load_runs(out).get("made")
    if made is not None:  # version 0.1 did not note it
        if edits := experiment_file.changed_keys(made["asked"], mine["asked"]):
            raise InputError(
                experiment_file.edited_message(out / run_folder.EXPERIMENT_FILE, edits)
            )
        _check_same_source(session, made, about, out)
    _check_same_code(session, about, out)
    session.history = run_folder.load_history(out)
    folder.remove_checkpoints(keep=1)  # a killed process may have left more
    session.done = True


def _create_folder(session: Session, folder: run_folder.Folder, command: Sequence[str]) -> None:
    """Write the files that a run folder has before its first round."""
    with suppress(InputError):  # If the run was begun before, the same chunks give the same bits.
        before = run_folder.load_about(folder.path)
        session.batch.progress.chunk = before.get("chunk", session.batch.progress.chunk)
        command = command or before.get("command", command)
    folder.write(run_folder.EXPERIMENT_FILE, experiment_file.dump(session.experiment).encode())
    folder.write_json("about.json", _about(session, command))
    folder.write_npz("partition.npz", _partition_arrays(session))


def _about(session: Session, command: Sequence[str]) -> dict[str, Any]:
    batch = session.batch
    data = batch.runs[0].federation.data
    weights = sum(shape.numel() for shape in batch.rows.layout.shapes)
    return {
        "command": list(command),
        "repeat": "the Python call that began it, with another out"
        if session.needs_python_call
        else "fedmaba run experiment.toml --out NEW",
        "python": session.needs_python_call,
        "own": session.fingerprints,
        "seeds": session.experiment.seed_list(),
        "data": {
            "name": data.name,
            "sha256": data.sha256(),
            "inputs": data.inputs,
            "classes": list(data.classes),
            "clients": list(batch.runs[0].federation.client_names()),
            "groups": list(data.group_names),
            "steps": list(data.steps),
            "task": data.task,
            "target": data.target.in_words(),
        },
        "metric": session.history.runs[0].metric._asdict(),
        "partition": partition_digests(session),
        "source": session.source(),
        **({"init": session.init} if session.init else {}),
        "digest": _digest(session.provenance()),
        "hostile": {
            str(run.seed): np.flatnonzero(lies.who).tolist()
            for run in batch.runs
            if (lies := run.federation.hostile) is not None
        },
        "model": {"path": batch.rows.path, "parameters": weights},
        **({"privacy": told} if (told := session.privacy()) else {}),
        "ranks": batch.ranks.count,
        "chunk": batch.progress.chunk,
        **environment(batch),
    }


def _partition_arrays(session: Session) -> Arrays:
    """Which examples each client has, and its label counts, by seed."""
    arrays: Arrays = {}
    for run in session.batch.runs:
        for name, value in run.federation.split.to_arrays().items():
            arrays[f"seed{run.seed}.{name}"] = value
        if (labels := run.federation.labels()) is not None:
            arrays[f"seed{run.seed}.labels"] = labels
    return arrays


def _restore(
    session: Session, folder: run_folder.Folder, out: Path
) -> tuple[Arrays, dict[str, Any]]:
    arrays, meta, damaged = run_folder.load_checkpoint(out)
    about = run_folder.load_about(out)
    if not about:
        raise InputError(f"{out / 'about.json'} is not there: restore it, or choose another --out")
    _check_same_experiment(session, meta, about, out)
    session.restore(arrays, meta, out)
    _check_same_code(session, about, out)
    if folder.repair_rounds(session.history):
        session.warnings.append(f"{out / 'rounds.jsonl'} was damaged: written again")
    if folder.repair_npz("partition.npz", _partition_arrays(session)):
        session.warnings.append(f"{out / 'partition.npz'} was damaged: written again")
    wrote = about.get("versions", {}).get("torch")
    if wrote != torch.__version__:
        session.warnings.append(f"begun with torch {wrote}: bits may differ from here on")
    session.warnings += damaged
    session.notes.append(f"resumed after round {meta['round']}")
    return arrays, meta


def _check_same_experiment(
    session: Session,
    meta: Mapping[str, Any],
    about: Mapping[str, Any],
    out: Path,
    grows_from: int | None = None,
) -> None:
    """Refuse to resume if the settings, the data or the partition have changed."""
    mine = session.provenance()
    told = {"data": about.get("data", {}).get("sha256"), "partition": about.get("partition")}
    made, digests = meta.get("made"), {_digest(mine)}
    asked_for = mine["asked"]["train"]["rounds"]
    before = meta.get("extends") if grows_from is None else grows_from
    if made is not None and before is not None:
        # Rounds are being added: the files may still be those from before.
        rounds = {before, made["asked"]["train"]["rounds"]}
        if asked_for in rounds or grows_from is not None:
            digests |= {_digest(_with_rounds(mine, n)) for n in rounds}
            made = _with_rounds(made, asked_for)
            meta = {**meta, "made": made}
    if made is None:
        session.warnings.append(
            f"{out}: its checkpoint is of an earlier version, which did not note the experiment: "
            "whether experiment.toml was edited since cannot be told"
        )
        made = {**mine, **told}
    elif about.get("digest") in (None, *digests):
        require_same_experiment(session, meta, out)
    elif edits := experiment_file.changed_keys(made["asked"], mine["asked"]):
        said = experiment_file.edited_message(out / run_folder.EXPERIMENT_FILE, edits)
        raise InputError(f"{said}, or choose another --out")
    _check_same_source(session, made, about, out)
    digest = about.get("digest", _digest(mine))
    if digest not in digests or told != {k: mine[k] for k in told}:
        raise InputError(
            f"{out / 'about.json'} is not that of this run: restore it, or choose another --out"
        )


def _check_same_source(
    session: Session, made: Mapping[str, Any], about: Mapping[str, Any], out: Path
) -> None:
    """Refuse if the weights to start from, the data or the partition have changed."""
    _check_same_init(session, made.get("init"), out)
    _check_same_data(session, made, session.provenance(), about, out)


def _check_same_init(session: Session, made: object, out: Path) -> None:
    """Refuse if the weights to start from have changed."""
    if made != session.provenance().get("init"):
        raise InputError(
            f"the weights of init={session.experiment.init} are others than when {out} was begun: "
            "restore them, or choose another --out"
        )


def _check_same_data(
    session: Session,
    made: Mapping[str, Any],
    mine: Mapping[str, Any],
    about: Mapping[str, Any],
    out: Path,
) -> None:
    """Refuse if the data or the partition have changed."""
    if made["data"] != mine["data"]:
        if session.batch.runs[0].federation.data.steps and "steps" not in about.get("data", {}):
            raise InputError(
                f"{out} was begun by a version that used the numbers of a table as they are: "
                "finish it with that version, or begin anew (--standardise no)"
            )
        raise InputError(f"the data differ from those {out} was begun with: restore them")
    if made["partition"] != mine["partition"]:
        raise InputError(
            f"the clients' examples are divided otherwise than when {out} was begun: restore the "
            "split, or choose another --out"
        )


def _check_same_code(
    session: Session, about: Mapping[str, Any], out: Path, beside: bool = False
) -> None:
    """Refuse to resume if the user's own code has changed.

    Runs that are added `beside` others may have other strategies, but none changed since.
    """
    told, mine = about.get("own"), session.fingerprints
    if told is None:
        return
    wrote = about.get("versions", {}).get("python", "")
    # Another version of Python makes other bytecode, so only the names of things can be compared.
    same = wrote.split(".")[:2] == platform.python_version().split(".")[:2]
    for what in sorted({*told, *mine}):
        was, now = told.get(what, "none"), mine.get(what, "none")
        if beside and what.startswith("strategy ") and "none" in (was, now):
            continue
        if (
            same
            and len(was.split(" ")[-1]) < fingerprint.FINGERPRINT_DIGITS
            and was != "none" != now
        ):
            was, now = was.split(" ")[0], now.split(" ")[0]
            session.warnings.append(
                f"{out}: an earlier version did not note all that {what} reads: whether it was "
                "edited since cannot be told"
            )
        if was.split(" ")[0] != now.split(" ")[0] or (same and was != now):
            raise InputError(
                f"{out} was begun with another {what} ({was}; now {now}): restore it, or choose "
                "another --out (--fresh makes one)"
            )


def _with_rounds(made: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """The same origin, with another number of rounds."""
    asked = made["asked"]
    return {**made, "asked": {**asked, "train": {**asked["train"], "rounds": rounds}}}


def _digest(made: Mapping[str, Any]) -> str:
    """The SHA-256 of what decides the numbers."""
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()
