"""Run an experiment: load its data, simulate its runs, save checkpoints, resume from them.

Configuration, engine and run folder meet only here. `Session.rounds` is a generator, so whoever
consumes it shows the progress.
"""

from __future__ import annotations

import hashlib
import json
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedmaba
from fedmaba import stop, strategies
from fedmaba.data import attack, datasets, partition, published
from fedmaba.data.federation import Federation, attacked
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.experiment import checks, config
from fedmaba.experiment.config import Experiment
from fedmaba.experiment.driver import drive
from fedmaba.results import files, run_folder, schema
from fedmaba.results.array_files import Arrays, pack
from fedmaba.results.history import History, RunHistory
from fedmaba.results.metrics import ACCURACY, OF_TASK, Metric
from fedmaba.rows import LossFn, models
from fedmaba.simulation import distributed, engine
from fedmaba.simulation.local_training import MetricFn
from fedmaba.strategies import deployed
from fedmaba.strategies.base import Strategy
from fedmaba.user_code import allow_working_folder, fingerprints, say_sources


@dataclass(frozen=True)
class UserObjects:
    """Objects that a caller in Python passes instead of names."""

    data: datasets.Dataset | Federation | None = None
    model: models.Factory | None = None
    loss: LossFn | None = None
    metric: MetricFn | None = None


@dataclass
class Session:
    """An experiment in progress."""

    experiment: Experiment
    batch: engine.Batch
    history: History
    data: datasets.Dataset  # as read; the batch may also hold copies with flipped labels
    folder: run_folder.Folder | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # shown even with --quiet
    fingerprints: dict[str, str] = field(default_factory=dict)  # of the user's own code
    needs_python_call: bool = False  # no command can name all it is made of
    stopped: bool = False
    _provenance: dict[str, Any] | None = None

    def rounds(self, stop: Callable[[], bool] = lambda: False) -> Iterator[engine.Snapshot]:
        """Simulate, recording and checkpointing along the way, until done or told to stop."""
        save, folder = self.experiment.save, self.folder
        sink = MemorySink(self) if folder is None else FolderSink(self, folder)
        self.stopped = yield from drive(self.batch, sink, stop, save.seconds, save.every)

    def meta(self) -> dict[str, Any]:
        """The part of a checkpoint that is not arrays."""
        at, layout = self.batch.progress, self.batch.rows.layout
        named = zip(layout.names, layout.natural, strict=True)
        return {
            "chunk": at.chunk,
            "diverged": at.diverged,
            "weights": [f"{name} {tuple(shape)}" for name, shape in named],
            "order": layout.order_in_words(),
            "made": self.provenance(),
        }

    def provenance(self) -> dict[str, Any]:
        """What the numbers come from: the settings, the data and the partition."""
        if self._provenance is None:
            data = self.batch.runs[0].federation.data.sha256()
            asked = json.loads(json.dumps(config.result_settings(self.experiment)))
            self._provenance = {"asked": asked, "data": data, "partition": _partition_digests(self)}
        return self._provenance

    def restore(self, arrays: Arrays, meta: dict[str, Any], out: Path) -> None:
        """Continue from a checkpoint, if it belongs to these runs."""
        self._check_weights(meta, out)
        history = run_folder.history_from_checkpoint(arrays, meta, out / "checkpoint")
        wrong = self.batch.progress.misfit(arrays, meta, self.batch.plan.rounds)
        if not wrong and [(r.label, r.seed, r.n_clients) for r in history.runs] != [
            (r.label, r.seed, r.n_clients) for r in self.history.runs
        ]:
            wrong = "other runs"
        if wrong:
            raise InputError(
                f"{out}: its newest checkpoint is not of this experiment ({wrong}): restore it, or "
                "choose another --out"
            )
        self.batch.progress.restore(arrays, meta)
        self.history = history

    def _check_weights(self, meta: Mapping[str, Any], out: Path) -> None:
        """Refuse a checkpoint whose model has other weights, or the same in another order."""
        told, mine = meta.get("weights"), self.meta()
        told = told if isinstance(told, list) else []
        for was, now in zip_longest(told, mine["weights"], fillvalue="nothing"):
            if was != now:
                raise InputError(
                    f"{out} was begun with another model ({was}; now {now}): restore it, or "
                    "begin another run in another folder"
                )
        if meta.get("order") != mine["order"]:
            raise InputError(
                f"{out} was begun on a device that keeps weights in another order: go on there, or "
                "begin another run in another folder"
            )

    def models(self) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
        """Named weights of every run's last, deployed and best model."""
        at, layout = self.batch.progress, self.batch.rows.layout
        out = {}
        for d, (run, r) in enumerate(zip(self.history.runs, at.owner, strict=True)):
            name = run_folder.run_file_stem(d, run.label, run.seed)
            flat = {"last": at.model[r], "deployed": at.deployed[d], "best": at.best[r]}
            for kind, weights in flat.items():
                named = layout.unpack(weights)
                out[f"{name}-{kind}"] = {key: w.cpu().numpy() for key, w in named.items()}
        return out

    def close(self) -> None:
        self.batch.workers.close()
        if self.folder is not None:
            self.folder.close()


class MemorySink:
    """Keeps the rounds of a session in its history and writes nothing."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def take(self, snapshot: engine.Snapshot) -> None:
        self.session.history.add(snapshot)

    def checkpoint(self) -> None:
        """There is no folder to save into."""

    def finish(self) -> None:
        """There is no folder to write results into."""

    def close(self) -> None:
        self.session.close()


class FolderSink(MemorySink):
    """Also writes the rounds of a session, its checkpoints and its results into a run folder."""

    def __init__(self, session: Session, folder: run_folder.Folder) -> None:
        super().__init__(session)
        self.folder = folder
        self._written = session.batch.progress.round  # the last round that rounds.jsonl tells of
        self._timing: list[dict[str, object]] = []  # lines that timing.jsonl does not have yet
        self._before = time.monotonic()

    def take(self, snapshot: engine.Snapshot) -> None:
        super().take(snapshot)
        now = time.monotonic()
        done, seconds = self.session.batch.progress.round, round(now - self._before, 4)
        self._timing.append({"round": done, "seconds": seconds})
        self._before = now
        if snapshot.evaluations is not None:
            self._write_rounds()

    def checkpoint(self) -> None:
        self._write_rounds()
        session, progress = self.session, self.session.batch.progress
        self.folder.save(progress.round, progress.arrays(), session.meta(), session.history)

    def finish(self) -> None:
        self._write_rounds()
        self.folder.finish(self.session.history, self.session.models(), self.session.provenance())

    def _write_rounds(self) -> None:
        self.folder.append_rounds(self.session.history, self._written)
        self.folder.append_timing(self._timing)
        self._written, self._timing = self.session.batch.progress.round, []


def prepare(
    experiment: Experiment,
    own: UserObjects | None = None,
    listed: Sequence[Strategy] | None = None,
    chosen: Sequence[tuple[Strategy, int, str | None]] | None = None,
) -> Session:
    """Check and load everything; write nothing.

    `chosen` names the runs one by one (strategy, seed, deployed model) instead of every strategy
    with every seed.
    """
    called, own = own is not None, own or UserObjects()
    if listed is None:
        listed = [s for spec in experiment.strategies for s in strategies.parse(spec)]
    labels = [s.label() for s in listed]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"strategy {label!r} is listed twice: each row of a table is one")
    if experiment.server.deploy is not None:
        deployed.parse_rule(experiment.server.deploy)
    does, share = _attack(experiment.attack)
    make = own.model or models.find_factory(experiment.model)
    federations = _federations(experiment, own)
    data = next(iter(federations.values())).data
    if does is not None:
        federations = attacked(federations, does, share)
    if chosen is None:
        chosen = [(s, seed, experiment.server.deploy) for s in listed for seed in federations]
    rules: dict[tuple[int, int], list[str]] = {}  # of one strategy and seed: trained once
    for s, seed, deploy in chosen:
        rules.setdefault((listed.index(s), seed), []).append(deploy or s.deploy)
    runs = [
        engine.Run(listed[i], seed, federations[seed], tuple(deploy))
        for (i, seed), deploy in rules.items()
    ]
    together = distributed.join()
    if together.count > 1:
        together.alike(_identity_for_ranks(experiment, federations))
    batch = engine.start(runs, _plan(experiment), make, own.loss, own.metric, together)
    tables = [
        RunHistory(
            run.strategy.label(),
            run.seed,
            rule,
            run.federation.test.size,
            metric=_metric(data, own.metric),
        )
        for run, rule in batch.handed_out
    ]
    history = History(tables, experiment.eval.share)
    notes = [f"model: {batch.rows.path}", _task_note(data, tables[0].metric, own.metric)]
    if together.count > 1:
        notes.append(f"ranks: {together.count}")
    if (lies := runs[0].federation.hostile) is not None:
        notes.append(
            f"hostile: {lies.who.sum()} of {len(lies.who)} clients ({experiment.attack.does}); "
            "figures are of the others"
        )
    things = {"model": make, "loss": own.loss, "metric": own.metric}
    code = fingerprints({what: thing for what, thing in things.items() if thing is not None})
    custom = fingerprints({f"strategy {s.name}": type(s) for s in listed})
    common = _shared_settings(experiment, own, data)
    for table, (run, _) in zip(tables, batch.handed_out, strict=True):
        parts = [common, code, custom.get(f"strategy {run.strategy.name}")]
        table.of = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    # A strategy class that a caller passed has only a short name, which no command could find.
    objects = called and (own != UserObjects() or bool(custom))
    return Session(experiment, batch, history, data, None, notes, [], code | custom, objects)


def _metric(data: datasets.Dataset, own: MetricFn | None) -> Metric:
    """What a client's score is: by the task, or as the user's own function says."""
    if own is None:
        return OF_TASK[data.task]
    lower = engine.lower_is_better(data.task, own)
    name = getattr(own, "__name__", "score").strip("<>_").replace("_", " ")
    if data.task == "classify" and not lower:
        return ACCURACY
    return Metric("score" if name == "lambda" else name, lower, shares=False)


def _task_note(data: datasets.Dataset, metric: Metric, own: MetricFn | None) -> str:
    """The line that says what is predicted, who said so, and how it is judged."""
    said = "" if data.task_given or data.task == "classify" else " (by the shape and type of y)"
    way = "lower" if metric.lower else "higher"
    judged = "" if metric == ACCURACY else f"; {metric.name}, {way} is better"
    if own is not None and data.task != "classify" and not metric.lower:
        judged += " (if lower is, set lower_is_better = True on your metric)"
    return f"task: {data.task}{said}: {data.target.in_words()}{judged}"


def _shared_settings(
    experiment: Experiment, own: UserObjects, data: datasets.Dataset
) -> list[object]:
    """All that decides the numbers of a run, except its strategy and seed."""
    tree = config.result_settings(experiment)
    del tree["strategies"], tree["seeds"], tree["eval"]["share"]
    tree["machine"] = tree["machine"]["dtype"]
    fixed = own.data is None and not data.name.endswith((".npz", ".csv"))  # its name says it all
    split = own.data.split.sha256() if isinstance(own.data, Federation) else ""
    return [tree, "" if fixed else data.sha256(), split]


def _attack(asked: config.Attack) -> tuple[attack.Attack | None, float]:
    """What hostile clients do, and which share of the clients they are."""
    does = None if asked.does is None else attack.parse_attack(asked.does)
    return does, partition.parse_share(asked.share)


def begin(session: Session, out: Path, command: Sequence[str] = ()) -> None:
    """Start in a new run folder, or resume from one. Only rank 0 touches the folder."""
    together, at = session.batch.ranks, session.batch.progress
    if together.rank == 0:
        saved = _open_folder(session, out, command)
        together.tell(b"" if saved is None or together.count == 1 else b"".join(pack(*saved)))
    elif body := together.tell():
        saved = run_folder.unpack_from_rank(body)
        at.restore(*saved)
        session.history = run_folder.history_from_checkpoint(*saved, out / "checkpoint")
    at.chunk = int(together.tell(str(at.chunk).encode()))


def _open_folder(
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
        _check_folder(session.experiment, out)  # again: until now another process could change it
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
    with suppress(InputError):  # if it was begun before, the same chunks give the same bits
        before = run_folder.load_about(folder.path)
        session.batch.progress.chunk = before.get("chunk", session.batch.progress.chunk)
        command = command or before.get("command", command)
    folder.write(run_folder.EXPERIMENT_FILE, config.dump(session.experiment).encode())
    folder.write_json("about.json", _about(session, command))
    folder.write_npz("partition.npz", _partition_arrays(session))


def _partition_arrays(session: Session) -> Arrays:
    """Which examples each client has, and its label counts, by seed."""
    arrays: Arrays = {}
    for run in session.batch.runs:
        for name, value in run.federation.split.to_arrays().items():
            arrays[f"seed{run.seed}.{name}"] = value
        if (labels := run.federation.labels()) is not None:
            arrays[f"seed{run.seed}.labels"] = labels
    return arrays


def resume(out: Path, trust: bool = False) -> Session:
    """Resume the experiment of a run folder; `trust` allows the import of modules that it names."""
    source = out / run_folder.EXPERIMENT_FILE
    if not published.is_file(source):
        raise InputError(f"{out} is no run folder: name one that fedmaba wrote")
    if (out / "runs.json").exists():
        with suppress(FedmabaError):  # a process may have died before it removed them
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
    begin(session, out)
    return session


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
    if made["data"] != mine["data"]:
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


def require_same_experiment(
    session: Session, meta: Mapping[str, Any], out: Path, apart: str = ""
) -> None:
    """Refuse a checkpoint of other settings or data; the section `apart` may differ."""
    made, mine = meta.get("made"), session.provenance()
    if made is None:  # of an earlier version
        return
    other = [
        key
        for key in config.changed_keys(made["asked"], mine["asked"])
        if key.split(".")[0] != apart
    ]
    other += [key for key in ("data", "partition") if made[key] != mine[key]]
    if other:
        raise InputError(
            f"{out}: its newest checkpoint is not of this experiment ({', '.join(other)}): restore "
            "it, or choose another --out"
        )


def _check_same_code(session: Session, about: Mapping[str, Any], out: Path) -> None:
    """Refuse to resume if the user's own code has changed."""
    told, mine = about.get("own"), session.fingerprints
    if told is None:
        return
    wrote = about.get("versions", {}).get("python", "")
    same = wrote.split(".")[:2] == platform.python_version().split(".")[:2]
    for what in sorted({*told, *mine}):
        was, now = told.get(what, "none"), mine.get(what, "none")
        if was != now if same else was.split(" ")[0] != now.split(" ")[0]:  # else other bytecode
            raise InputError(
                f"{out} was begun with another {what} ({was}; now {now}): restore it, or choose "
                "another --out"
            )


def _federations(experiment: Experiment, own: UserObjects) -> dict[int, Federation]:
    """The clients of each seed."""
    seeds, asked = experiment.seed_list(), experiment.data
    if isinstance(own.data, Federation):
        _same_task(asked.task, own.data.data)
        for key in ("partition", "clients", "test", "validation", "dir"):
            if (value := getattr(asked, key)) != config.Data.model_fields[key].default:
                raise InputError(
                    f"{key}={value!r}: a Federation is split already: leave it out, or give arrays"
                )
        return dict.fromkeys(seeds, own.data)
    folder = None if asked.dir is None else Path(asked.dir)
    data = own.data or datasets.load(asked.name, folder, task=asked.task)
    _same_task(asked.task, data)
    given = data.client is not None
    spec = asked.partition or ("given" if given else "shards:2")
    clients = asked.clients
    if clients is None and spec != "given":
        clients = 20 if data.name == "sample" else 100
    test = asked.test or ("official" if data.n_train < len(data.y) else "local")
    share = partition.parse_share(asked.validation)
    return {
        seed: Federation.make(data, spec, clients, seed, test=test, validation=share)
        for seed in seeds
    }


def _same_task(asked: str | None, data: datasets.Dataset) -> None:
    """Refuse another task than that of data which were made in Python."""
    if asked not in (None, data.task):
        raise InputError(
            f"task={asked!r}, but the data given are for {data.task}: leave it out, or give "
            "from_arrays(..., task=...)"
        )


def _plan(experiment: Experiment) -> engine.Plan:
    train, server, machine = experiment.train, experiment.server, experiment.machine
    return engine.Plan(
        rounds=train.rounds,
        participants=None if train.participants == "all" else int(train.participants),
        epochs=train.epochs,
        steps=train.steps,
        minibatch=train.minibatch,
        lr=train.lr,
        lr_decay=train.lr_decay,
        optimiser=engine.Optimiser(
            **{f.name: getattr(train, f.name) for f in fields(engine.Optimiser)}
        ),
        server_lr=server.lr,
        server_momentum=server.momentum,
        eval_every=experiment.eval.every,
        dtype=machine.dtype,
        device=machine.device,
        chunk=machine.chunk,
        threads=machine.threads,
    )


def _digest(made: Mapping[str, Any]) -> str:
    """The SHA-256 of what decides the numbers."""
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def _identity_for_ranks(experiment: Experiment, federations: dict[int, Federation]) -> str:
    """What must be the same on all ranks, as text to compare."""
    versions = [fedmaba.__version__, torch.__version__, np.__version__, torch.cuda.is_available()]
    splits = [fed.split.sha256() for fed in federations.values()]
    data = next(iter(federations.values())).data.sha256()
    return json.dumps([versions, config.result_settings(experiment), data, splits])


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
            "classes": list(data.classes),
            "clients": list(batch.runs[0].federation.client_names()),
            "task": data.task,
            "target": data.target.in_words(),
        },
        "metric": session.history.runs[0].metric._asdict(),
        "partition": _partition_digests(session),
        "digest": _digest(session.provenance()),
        "hostile": {
            str(run.seed): np.flatnonzero(lies.who).tolist()
            for run in batch.runs
            if (lies := run.federation.hostile) is not None
        },
        "model": {"path": batch.rows.path, "parameters": _parameter_count(batch)},
        "ranks": batch.ranks.count,
        "chunk": batch.progress.chunk,
        **environment(batch),
    }


def environment(batch: engine.Batch) -> dict[str, object]:
    """The device and the versions that produce a result."""
    device, cuda = batch.pool.y.device, batch.pool.y.is_cuda
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.machine() or "cpu",
        "versions": {
            "fedmaba": fedmaba.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
        },
    }


def _partition_digests(session: Session) -> dict[str, str]:
    """The digest of which client has which examples, by seed."""
    return {str(run.seed): run.federation.split.sha256() for run in session.batch.runs}


def _parameter_count(batch: engine.Batch) -> int:
    return sum(shape.numel() for shape in batch.rows.layout.shapes)


def compare(
    strategies: Sequence[str | Strategy] | str | Strategy,
    *,
    data: str | Path | datasets.Dataset | Federation = "sample",
    model: str | models.Factory = "mlp",
    loss: LossFn | None = None,
    metric: MetricFn | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> History:
    """Run strategies on a federation and return their history.

    Options are those of `fedmaba compare`, with underscores: rounds=40, clients=20, lr=0.05.
    """
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
        metric=metric,
    )
    tree["model"] = model if isinstance(model, str) else getattr(model, "__name__", "own")
    config.set_key(tree, "data.name", data if isinstance(data, str) else "own")
    for name, value in options.items():
        if name not in flags:
            raise unknown("option", name, flags)
        config.set_key(tree, flags[name].name, value)
    session = prepare(config.build(tree), own, listed)
    if out is not None:
        begin(session, Path(out))
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    numbers = [signal.SIGINT] if out is not None and usual else []  # else nothing to save, or the
    with stop.after_the_round(_say, numbers) as asked:  # caller has a handler of its own
        for _ in session.rounds(asked):
            pass
    if session.stopped or asked():  # also in the last round: whoever calls this in a loop must end
        done = session.batch.progress.round
        more = "the same call resumes it" if session.stopped else "it is complete"
        raise KeyboardInterrupt(f"stopped after round {done}, saved in {out}: {more}")
    return session.history


def _say(text: str) -> None:
    print(f"fedmaba: {text}", file=sys.stderr, flush=True)


def _parse_strategy(item: object) -> list[Strategy]:
    if isinstance(item, type) and issubclass(item, Strategy):
        raise InputError(f"{item.__name__} is a class: write {item.__name__}(), or its name")
    if not isinstance(item, str | Strategy):
        raise InputError(f"{item!r} is no strategy: give a name, or an object as fedmaba.FedMABA()")
    return strategies.parse(item) if isinstance(item, str) else [item]
