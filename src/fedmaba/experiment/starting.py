"""Start an experiment: with one Python call, in a run folder, or from where an earlier run stopped.

A run folder that was begun before is resumed only by the same experiment, data and code.
"""

from __future__ import annotations

import hashlib
import json
import platform
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from fedmaba import stop, strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.data.paths import is_file
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.experiment import checks, config
from fedmaba.experiment.config import Experiment
from fedmaba.experiment.initial import Init
from fedmaba.experiment.keywords import Options
from fedmaba.experiment.session import (
    Session,
    UserObjects,
    environment,
    partition_digests,
    prepare,
    require_same_experiment,
)
from fedmaba.results import files, run_folder, schema
from fedmaba.results.array_files import Arrays, pack
from fedmaba.results.history import History
from fedmaba.rows import LossFn, models
from fedmaba.simulation import engine
from fedmaba.simulation.client_scores import ClientMetricFn
from fedmaba.simulation.local_training import MetricFn
from fedmaba.strategies.base import Strategy
from fedmaba.user_code import allow_working_folder, say_sources


def compare(
    strategies: Sequence[str | Strategy] | str | Strategy,
    *,
    data: str | Path | datasets.Dataset | Federation = "sample",
    model: str | models.Factory = "mlp",
    loss: LossFn | None = None,
    metric: str | MetricFn | None = None,
    client_metric: ClientMetricFn | None = None,
    init: Init | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **options: Unpack[Options],
) -> History:
    """Run strategies on a federation and return their history.

    Options are those of `fedmaba compare`, with underscores: rounds=40, clients=20, lr=0.05.
    A `metric` is a name of `--metric`, or a function that scores each example; a `client_metric`
    scores all predictions (outputs, targets) of one client with one number. How far the runs are is
    shown on standard error, and told to the logger `fedmaba`.
    """
    from fedmaba.experiment.trained import SessionModels, new_module
    from fedmaba.report import call_progress

    if isinstance(strategies, str | Strategy | type):
        strategies = [strategies]
    if not isinstance(strategies, Iterable):
        raise InputError(f"{strategies!r} is no list of strategies: name them, as ['fedavg']")
    listed = [s for item in strategies for s in _parse_strategy(item)]
    flags = {key.argument: key for key in config.options()}
    tree: dict[str, Any] = {"strategies": [s.label() for s in listed]}
    data = str(data) if isinstance(data, Path) else data
    if not isinstance(data, str | datasets.Dataset | Federation):
        raise InputError(
            f"data of type {type(data).__name__}: give a name, a file, or "
            "fedmaba.Federation.from_arrays(x, y, client)"
        )
    own = UserObjects(
        data=None if isinstance(data, str) else data,
        model=None if isinstance(model, str) else model,
        loss=loss,
        metric=None if isinstance(metric, str) else metric,
        client_metric=client_metric,
        init=None if init is None or isinstance(init, str | Path) else init,
    )
    tree["model"] = model if isinstance(model, str) else getattr(model, "__name__", "own")
    config.set_key(tree, "data.name", data if isinstance(data, str) else "own")
    if init is not None:
        tree["init"] = str(init) if isinstance(init, str | Path) else "own"
    if isinstance(metric, str):
        config.set_key(tree, "eval.metric", metric)
    for name, value in options.items():
        if name not in flags:
            raise unknown("option", name, flags)
        config.set_key(tree, flags[name].name, value)
    experiment = config.build(tree)
    if isinstance(data, datasets.Dataset) and experiment.data.normalise is not None:
        raise InputError(
            f"normalise={experiment.data.normalise!r}: a Dataset is used as it is: leave it out, "
            "or name a published set"
        )
    session = prepare(experiment, own, listed)
    if out is not None:
        open_run_folder(session, Path(out))
    # Ctrl-C waits for the round if there is a folder to save into and no handler of the caller's.
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    numbers = [signal.SIGINT] if out is not None and usual else []
    with ExitStack() as held:
        speaker, show = held.enter_context(call_progress.speaking(session, progress))
        asked = held.enter_context(stop.after_the_round(speaker.warn, numbers))
        for snapshot in session.rounds(asked):
            show(snapshot)
    if session.stopped or asked():  # also in the last round, to end a loop of calls
        done = session.batch.progress.round
        more = "the same call resumes it" if session.stopped else "it is complete"
        raise KeyboardInterrupt(f"stopped after round {done}, saved in {out}: {more}")
    saved = out is not None and session.batch.ranks.rank == 0  # the others may not see the folder
    kept = run_folder.SavedModels(Path(str(out))) if saved else SessionModels(session)
    session.history.keep_models(kept, partial(new_module, session.batch.rows.model))
    return session.history


def _parse_strategy(item: object) -> list[Strategy]:
    if isinstance(item, type) and issubclass(item, Strategy):
        raise InputError(f"{item.__name__} is a class: write {item.__name__}(), or its name")
    if not isinstance(item, str | Strategy):
        raise InputError(f"{item!r} is no strategy: give a name, or an object as fedmaba.FedMABA()")
    return strategies.parse(item) if isinstance(item, str) else [item]


def resume(out: Path, trust: bool = False) -> Session:
    """Resume the experiment of a run folder; `trust` allows importing the modules that it names."""
    source = out / run_folder.EXPERIMENT_FILE
    if not is_file(source):
        raise InputError(f"{out} is no run folder: name one that fedmaba wrote")
    if (out / "runs.json").exists():
        with suppress(FedmabaError):  # a killed process may have left them
            folder = run_folder.Folder(out)
            folder.remove_checkpoints()
            folder.close()
        raise InputError(f"{out} is finished: see `fedmaba table {out}`")
    if run_folder.load_about(out).get("python"):
        raise InputError(
            f"{out} was begun in Python, with more than names: {run_folder.resume_hint(out)}"
        )
    asked = config.build(config.read_toml(source), str(source))
    if named := checks.user_modules(asked.model_dump()):
        if not trust:
            raise InputError(
                f"{out} names code that is not fedmaba's: {say_sources(named)}: look at it, then "
                f"say fedmaba resume {out} --trust"
            )
        allow_working_folder()
    session = prepare(asked)
    open_run_folder(session, out)
    return session


def open_run_folder(session: Session, out: Path, command: Sequence[str] = ()) -> None:
    """Start in a new run folder, or resume from one. Only rank 0 touches the folder."""
    together, at = session.batch.ranks, session.batch.progress
    if together.rank == 0:
        saved = _lock_and_check(session, out, command)
        together.tell(b"" if saved is None or together.count == 1 else b"".join(pack(*saved)))
    elif body := together.tell():
        saved = run_folder.unpack_from_rank(body)
        at.restore(*saved)
        session.history = run_folder.history_from_checkpoint(*saved, out / "checkpoint")
    at.chunk = int(together.tell(str(at.chunk).encode()))


def _lock_and_check(
    session: Session, out: Path, command: Sequence[str]
) -> tuple[Arrays, dict[str, Any]] | None:
    """Lock the folder and write or check what is in it; return the checkpoint to resume from."""
    longest = max((run.label for run in session.history.runs), key=len)
    if len(longest) > schema.MAX_LABEL or len(session.history.runs) > schema.MAX_RUNS:
        raise InputError(
            f"{len(session.history.runs):,} runs, labels of up to {len(longest):,} characters: a "
            f"folder holds at most {schema.MAX_RUNS:,} runs, with labels of {schema.MAX_LABEL:,}"
        )
    _check_folder(session.experiment, out)
    session.folder = run_folder.Folder(out)
    try:
        # Checked again: before the lock, another process could change the folder.
        _check_folder(session.experiment, out)
        if run_folder.checkpoints(out):
            return _restore(session, session.folder, out)
        _create_folder(session, session.folder, command)
        return None
    except BaseException:
        session.close()
        raise


def _check_folder(experiment: Experiment, out: Path) -> None:
    """Refuse a folder that holds something else, or this experiment already finished."""
    file = out / run_folder.EXPERIMENT_FILE
    try:
        if run_folder.holds_something_else(out):
            raise InputError(f"{out} exists and is no run folder: choose another --out")
        begun = files.exists(file)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}: choose another --out") from error
    there = config.build(config.read_toml(file, links=False), str(file)) if begun else experiment
    if other := ", ".join(
        config.changed_keys(config.result_settings(there), config.result_settings(experiment))
    ):
        raise InputError(f"{out} holds another experiment, in {other}: choose another --out")
    if begun and files.exists(out / "runs.json"):
        raise InputError(
            f"{out} holds this experiment, finished: see `fedmaba table {out}`, or choose "
            "another --out"
        )


def _create_folder(session: Session, folder: run_folder.Folder, command: Sequence[str]) -> None:
    """Write the files that a run folder has before its first round."""
    with suppress(InputError):  # if it was begun before: the same chunks give the same bits
        before = run_folder.load_about(folder.path)
        session.batch.progress.chunk = before.get("chunk", session.batch.progress.chunk)
        command = command or before.get("command", command)
    folder.write(run_folder.EXPERIMENT_FILE, config.dump(session.experiment).encode())
    folder.write_json("about.json", _about(session, command))
    folder.write_npz("partition.npz", _partition_arrays(session))


def _about(session: Session, command: Sequence[str]) -> dict[str, Any]:
    batch = session.batch
    data = batch.runs[0].federation.data
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
        **({"init": session.init} if session.init else {}),
        "digest": _digest(session.provenance()),
        "hostile": {
            str(run.seed): np.flatnonzero(lies.who).tolist()
            for run in batch.runs
            if (lies := run.federation.hostile) is not None
        },
        "model": {"path": batch.rows.path, "parameters": _parameter_count(batch)},
        **({"privacy": told} if (told := session.privacy()) else {}),
        "ranks": batch.ranks.count,
        "chunk": batch.progress.chunk,
        **environment(batch),
    }


def _parameter_count(batch: engine.Batch) -> int:
    return sum(shape.numel() for shape in batch.rows.layout.shapes)


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
    session: Session, meta: Mapping[str, Any], about: Mapping[str, Any], out: Path
) -> None:
    """Refuse to resume if the settings, the data or the partition have changed."""
    mine = session.provenance()
    told = {"data": about.get("data", {}).get("sha256"), "partition": about.get("partition")}
    made = meta.get("made")
    if made is None:
        session.warnings.append(
            f"{out}: its checkpoint is of an earlier version, which did not note the experiment: "
            "whether experiment.toml was edited since cannot be told"
        )
        made = {**mine, **told}
    elif about.get("digest") in (None, _digest(mine)):
        require_same_experiment(session, meta, out)
    elif edits := config.changed_keys(made["asked"], mine["asked"]):
        said = config.edited_message(out / run_folder.EXPERIMENT_FILE, edits)
        raise InputError(f"{said}, or choose another --out")
    if made.get("init") != mine.get("init"):
        raise InputError(
            f"the weights of init={session.experiment.init} are others than when {out} was begun: "
            "restore them, or choose another --out"
        )
    if made["data"] != mine["data"]:
        if _data_steps(session) and "steps" not in about.get("data", {}):
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
    if about.get("digest", _digest(mine)) != _digest(mine) or told != {k: mine[k] for k in told}:
        raise InputError(
            f"{out / 'about.json'} is not that of this run: restore it, or choose another --out"
        )


def _data_steps(session: Session) -> tuple[str, ...]:
    """What was done to the data of a session before its first round."""
    return session.batch.runs[0].federation.data.steps


def _check_same_code(session: Session, about: Mapping[str, Any], out: Path) -> None:
    """Refuse to resume if the user's own code has changed."""
    told, mine = about.get("own"), session.fingerprints
    if told is None:
        return
    wrote = about.get("versions", {}).get("python", "")
    # Another version of Python makes other bytecode, so only the names of things can be compared.
    same = wrote.split(".")[:2] == platform.python_version().split(".")[:2]
    for what in sorted({*told, *mine}):
        was, now = told.get(what, "none"), mine.get(what, "none")
        if was.split(" ")[0] != now.split(" ")[0] or (same and was != now):
            raise InputError(
                f"{out} was begun with another {what} ({was}; now {now}): restore it, or choose "
                "another --out"
            )


def _digest(made: Mapping[str, Any]) -> str:
    """The SHA-256 of what decides the numbers."""
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()
