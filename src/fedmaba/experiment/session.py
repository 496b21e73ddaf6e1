"""An experiment in progress: load its data, simulate its runs, record them and save checkpoints.

`Session.rounds` is a generator, so whoever consumes it shows the progress.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import fedmaba
from fedmaba import strategies
from fedmaba.data import datasets, groups
from fedmaba.data.federation import Federation, attacked
from fedmaba.errors import InputError
from fedmaba.experiment import experiment_file, session_notes, without_effect
from fedmaba.experiment.config import Experiment
from fedmaba.experiment.driver import drive
from fedmaba.experiment.federations import ReadData, attack_of, data_notes, load_federations
from fedmaba.experiment.fingerprint import FINGERPRINT_DIGITS, fingerprints
from fedmaba.experiment.initial import given_weights
from fedmaba.layer_names import patterns
from fedmaba.privacy.mechanism import Privacy
from fedmaba.results import client_metrics, run_folder
from fedmaba.results.array_files import Arrays
from fedmaba.results.groups import Groups
from fedmaba.results.history import History
from fedmaba.results.metrics import ACCURACY, OF_TASK, Metric
from fedmaba.results.run_history import RunHistory, RunOrigin
from fedmaba.rows import LossFn, base, models, objectives
from fedmaba.simulation import distributed, engine
from fedmaba.simulation.client_scores import ClientMetricFn
from fedmaba.simulation.evaluation import MetricFn
from fedmaba.simulation.parts.own_layers import OWN
from fedmaba.simulation.parts.privacy import mechanisms_of
from fedmaba.strategies import combine, deployed
from fedmaba.strategies.base import PERSONAL, Strategy
from fedmaba.turnout.plan import Turnout

AskedRun = tuple[Strategy, int, str | None]  # strategy, seed, deployed model


@dataclass(frozen=True)
class UserObjects:
    """Objects that a caller in Python passes instead of names."""

    data: datasets.Dataset | Federation | None = None
    model: models.Factory | None = None
    loss: LossFn | None = None
    metric: MetricFn | None = None
    client_metric: ClientMetricFn | None = None
    init: Mapping[str, Any] | nn.Module | None = None


@dataclass
class Session:
    """An experiment in progress."""

    experiment: Experiment
    batch: engine.Batch
    history: History
    # These are the data as read; the batch may also hold copies with flipped labels.
    data: datasets.Dataset
    folder: run_folder.Folder | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # shown even with --quiet
    fingerprints: dict[str, str] = field(default_factory=dict)  # of the user's own code
    needs_python_call: bool = False  # No command can name all of its parts.
    stopped: bool = False
    done: bool = False  # Its folder was finished before, so nothing is left to simulate.
    init: str = ""  # The runs start from weights with this digest.
    constants: str = ""  # This is the digest of frozen weights and buffers.
    _provenance: dict[str, Any] | None = None

    def rounds(self, stop: Callable[[], bool] = lambda: False) -> Iterator[engine.Snapshot]:
        """Simulate round after round, record and save them, until the end or until told to stop."""
        if self.done:
            return
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
            **({"constants": self.constants} if self.constants else {}),
            **({"privacy": told} if (told := self.privacy()) else {}),
        }

    def privacy(self) -> dict[str, Any]:
        """What makes the runs private, by their label and seed; nothing where they are not."""
        both = zip(self.batch.runs, mechanisms_of(self.batch), strict=False)
        return {f"{run.strategy.label()}, seed {run.seed}": m.facts() for run, m in both}

    def provenance(self) -> dict[str, Any]:
        """What the numbers come from: settings, data, partition, and given weights."""
        if self._provenance is None:
            data = self.batch.runs[0].federation.data.sha256()
            asked = json.loads(json.dumps(experiment_file.result_settings(self.experiment)))
            self._provenance = {"asked": asked, "data": data, "partition": partition_digests(self)}
            self._provenance |= {"init": self.init} if self.init else {}
        return self._provenance

    def source(self) -> dict[str, Any]:
        """The data as read and how each seed divides them: the same whichever seeds are here."""
        feds = {str(run.seed): run.federation for run in self.batch.runs}
        divided = {seed: fed.division_digest() for seed, fed in feds.items()}
        used = self.batch.runs[0].federation.data
        data = self.provenance()["data"] if used is self.data else self.data.sha256()
        return {"data": data, "partition": divided}

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
        for run, mine in zip(history.runs, self.history.runs, strict=True):
            run.of = mine.of if run.of else ""  # It differs where rounds are being added.
            run.origin = mine.origin
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
        if meta.get("constants", mine.get("constants")) != mine.get("constants"):
            raise InputError(
                f"{out} was begun with other frozen weights: restore the file or code that they "
                "come from, or begin another run in another folder"
            )
        was, now = (told.get("privacy", {}) for told in (meta, mine))
        for run in now:
            begun = was.get(run, {}) if isinstance(was, dict) else {}
            if begun.get("noise multiplier") != now[run]["noise multiplier"]:
                raise InputError(
                    f"{out} was begun with other noise of dp for {run} ("
                    f"{begun.get('accountant', 'no accountant is noted')}): install that version "
                    "of dp-accounting, or begin another run in another folder"
                )
        if meta.get("order") != mine["order"]:
            raise InputError(
                f"{out} was begun on a device that keeps weights in another order: go on there, or "
                "begin another run in another folder"
            )

    def models(self) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
        """Named weights of every run's last, deployed and best model.

        The deployed one is whole: frozen weights are in it, too. Where clients keep a part of the
        model, one more file has that part of every client, (N, ...) each; where clients have
        models of their own, another one has those.
        """
        at, layout = self.batch.progress, self.batch.rows.layout
        frozen = {n: v.cpu().numpy() for n, v in base.constants(self.batch.rows.model).items()}
        out = {}
        for d, (run, r) in enumerate(zip(self.history.runs, at.owner, strict=True)):
            name = run_folder.run_file_stem(d, run.label, run.seed)
            flat = {"last": at.model[r], "deployed": at.deployed[d], "best": at.best[r]}
            for kind, weights in flat.items():
                named = layout.unpack(weights)
                out[f"{name}-{kind}"] = {key: w.cpu().numpy() for key, w in named.items()}
            out[f"{name}-deployed"] |= frozen
            if PERSONAL in at.memory.columns[r]:
                own = [layout.unpack(w) for w in at.memory.columns[r][PERSONAL]]
                out[f"{name}-personal"] = {
                    key: np.stack([w[key].cpu().numpy() for w in own]) for key in own[0]
                }
            if OWN in at.memory.columns[r]:
                kept = layout.kept_views(at.memory.columns[r][OWN])
                each = {key: w.contiguous().cpu().numpy() for key, w in kept.items()}
                out[f"{name}-clients"] = each
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
        # This is the last round that is in rounds.jsonl.
        self._written = session.batch.progress.round
        self._timing: list[dict[str, object]] = []  # timing.jsonl does not have these lines yet.
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
        self.checkpoint()  # This file stays, so that more rounds can be added.
        self.folder.finish(self.session.history, self.session.models(), self.session.provenance())

    def _write_rounds(self) -> None:
        self.folder.append_rounds(self.session.history, self._written)
        self.folder.append_timing(self._timing)
        self._written, self._timing = self.session.batch.progress.round, []


def prepare(
    experiment: Experiment,
    own: UserObjects | None = None,
    listed: Sequence[Strategy] | None = None,
    chosen: Sequence[AskedRun] | None = None,
    before: ReadData | None = None,
) -> Session:
    """Check and load everything; write nothing.

    `chosen` names the runs one by one instead of every strategy with every seed. Data that were
    read before are not read again.
    """
    called, own = own is not None, own or UserObjects()
    listed = _distinct(experiment, listed)
    if experiment.server.deploy is not None:
        deployed.parse_rule(experiment.server.deploy)
    does, share = attack_of(experiment.attack)
    make = own.model or models.find_factory(experiment.model)
    named = own.init if own.init is not None else experiment.init
    init = None if named is None else given_weights(named)
    data, federations = load_federations(experiment, own.data, before)
    if does is not None:
        federations = attacked(federations, does, share)
    runs = _runs(experiment, listed, federations, chosen)
    together = distributed.join()
    if together.count > 1:
        together.alike(_identity_for_ranks(experiment, federations))
    whole = _client_metric(experiment, own, data)
    undefined = [] if whole is None else session_notes.undefined(whole, runs)
    batch = engine.start(runs, _plan(experiment), make, own.loss, own.metric, together, init, whole)
    metric = _metric(data, own.metric, whole)
    history = History(_histories(batch, data, metric), experiment.eval.share)
    code = _own_code(batch, own, make, listed)
    if together.count > 1:
        together.alike(json.dumps(code.texts))
    session = Session(
        experiment,
        batch,
        history,
        data,
        fingerprints=code.texts,
        # A class that a caller passed has only a short name, which no command could find.
        needs_python_call=called and (own != UserObjects() or len(code.texts) > len(code.shared)),
        init="" if init is None else init.sha256(),
        constants=_constants(batch),
    )
    _set_origins(session, own, code)
    asked = own.metric if own.client_metric is None else own.client_metric
    session.notes += data_notes(runs[0].federation, data, own.data is not None)
    task = session_notes.task_note(data, metric, asked)
    session.notes += session_notes.notes(
        batch, task, undefined, experiment.attack.does, code.unseen
    )
    again = before is not None and before.shown and before.data is data
    session.warnings += without_effect.warnings(experiment, listed)
    session.warnings += session_notes.warnings(batch, with_data=not again)
    return session


def _distinct(experiment: Experiment, listed: Sequence[Strategy] | None) -> list[Strategy]:
    """The strategies asked for, each of them once."""
    if listed is None:
        listed = [s for spec in experiment.strategies for s in strategies.parse(spec)]
    labels = [s.label() for s in listed]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"strategy {label!r} is listed twice: each row of a table is one")
    return list(listed)


def _runs(
    experiment: Experiment,
    listed: Sequence[Strategy],
    federations: Mapping[int, Federation],
    chosen: Sequence[AskedRun] | None,
) -> list[engine.Run]:
    """The runs of a batch; deployed models of one strategy and seed are trained once."""
    if chosen is None:
        chosen = [(s, seed, experiment.server.deploy) for s in listed for seed in federations]
    handed_out: dict[tuple[int, int], list[str]] = {}
    for s, seed, deploy in chosen:
        handed_out.setdefault((listed.index(s), seed), []).append(deploy or s.deploy)
    return [
        engine.Run(listed[i], seed, federations[seed], tuple(deploy))
        for (i, seed), deploy in handed_out.items()
    ]


def _histories(batch: engine.Batch, data: datasets.Dataset, metric: Metric) -> list[RunHistory]:
    """An empty history of each run and deployed model."""
    return [
        RunHistory(
            run.strategy.label(),
            run.seed,
            rule,
            **_test_examples(batch.plan, run),
            metric=metric,
            groups=_groups(batch, data),
        )
        for run, rule in batch.handed_out
    ]


class OwnCode(NamedTuple):
    """Fingerprints of what a user brings to a batch: code, a model's files, tables of absences."""

    texts: dict[str, str]
    shared: dict[str, str]  # those that all runs share
    unseen: str  #            a line on what cannot be compared; empty where all can


def _own_code(
    batch: engine.Batch, own: UserObjects, make: models.Factory, listed: Sequence[Strategy]
) -> OwnCode:
    things: dict[str, object] = {"model": make, "loss": own.loss, "metric": own.metric}
    things["client_metric"] = own.client_metric
    tables: dict[str, str] = {}
    if files := getattr(make, "sha256", ""):
        tables["files of the model"] = files
    if (turnout := batch.plan.turnout) is not None:
        things[f"selection {turnout.select.name}"] = type(turnout.select)
        tables |= turnout.tables()
    tables = {what: digest[:FINGERPRINT_DIGITS] for what, digest in tables.items()}
    rules = {f"strategy {s.name}": _code(s) for s in listed}
    texts, unseen = fingerprints(things | rules, batch.rows.model.modules())
    texts |= tables
    shared = {what: texts[what] for what in (*things, *tables) if what in texts}
    return OwnCode(texts, shared, unseen)


def _set_origins(session: Session, own: UserObjects, code: OwnCode) -> None:
    """Name in each history what decides its numbers, so that only runs alike are averaged."""
    batch, data, experiment = session.batch, session.data, session.experiment
    frozen = session.constants if session_notes.frozen_weights(batch) else ""
    also = [digest for digest in (session.init, frozen) if digest]
    common = [*_shared_settings(experiment, own, data), *also]
    settings = json.loads(json.dumps(experiment_file.result_settings(experiment)))
    for history, (run, _) in zip(session.history.runs, batch.handed_out, strict=True):
        own_text = code.texts.get(f"strategy {run.strategy.name}")
        history.of = _digest([common, code.shared, own_text])
        division = run.federation.division_digest()
        # The name of a published set says which data it holds.
        read = str(common[1]) or f"set {data.name}"
        history.origin = RunOrigin(read, division, _digest([code.shared, also]), settings)


def _digest(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _code(strategy: Strategy) -> object:
    """What decides what a strategy does: its class, and functions of the user's own it names."""
    objective, rule = strategy.local().objective, strategy.combine()
    named: list[object] = []
    if objective is not None and objective.own:
        named.append(objectives.find(objective.name).function)
    if rule is not None and rule.own:
        named.append(combine.find(rule.name))
    return (type(strategy), *named) if named else type(strategy)


def _groups(batch: engine.Batch, data: datasets.Dataset) -> Groups:
    """The groups of people that the runs are judged by; none where they are not."""
    if not batch.judges_groups:
        return Groups()
    return Groups(
        groups.names(batch.runs[0].federation), data.classes[1] if data.target.outputs == 2 else ""
    )


def _client_metric(
    experiment: Experiment, own: UserObjects, data: datasets.Dataset
) -> ClientMetricFn | None:
    """The metric of all predictions of a client that was asked for."""
    name = experiment.eval.metric
    named = None if name is None else client_metrics.metric_named(name, data.task)
    given = {
        f"metric={name!r}": named,
        "metric, a function": own.metric,
        "client_metric": own.client_metric,
    }
    there = [word for word, value in given.items() if value is not None]
    if len(there) > 1:
        raise InputError(f"{' and '.join(there)} are given: a client has one score: give one")
    # Accuracy is the mean over examples, which the engine has by a faster way.
    return own.client_metric if named is None or named.name == "accuracy" else named


def _metric(
    data: datasets.Dataset, own: MetricFn | None, whole: ClientMetricFn | None = None
) -> Metric:
    """What a client's score is: by the task, as the metric's name or the user's function says."""
    if isinstance(whole, client_metrics.ClientMetric):
        return whole.described()
    judge = own if whole is None else whole
    if judge is None:
        return OF_TASK[data.task]
    lower = engine.lower_is_better(data.task, judge)
    name = getattr(judge, "__name__", "score").strip("<>_").replace("_", " ")
    if data.task == "classify" and not lower and whole is None:
        return ACCURACY
    return Metric("score" if name == "lambda" else name, lower, shares=False)


def _test_examples(plan: engine.Plan, run: engine.Run) -> dict[str, Any]:
    """How many examples the figures of a run are of, by client, and those kept apart."""
    fed = run.federation
    test, held = fed.test.size, fed.validation.size
    absent = None if plan.turnout is None else plan.turnout.absent(run.seed, fed.n_clients)
    if absent is None:
        return {"test_size": test, "validation_size": held if held.any() else None}
    if not test[~absent].any() or not test[absent].any():
        raise InputError(
            f"unseen: seed {run.seed} leaves test examples on one side only: take another share"
        )
    held = np.where(absent, 0, held)
    return {
        "test_size": np.where(absent, 0, test),
        "validation_size": held if held.any() else None,
        "unseen_size": np.where(absent, test, -1),
    }


def _plan(experiment: Experiment) -> engine.Plan:
    train, server, machine = experiment.train, experiment.server, experiment.machine
    return engine.Plan(
        rounds=train.rounds,
        participants=None if train.participants == "all" else int(train.participants),
        epochs=train.epochs,
        steps=train.steps,
        minibatch=train.minibatch,
        batchnorm=experiment.batchnorm,
        lr=train.lr,
        lr_decay=train.lr_decay,
        schedule=train.schedule,
        step_schedule=train.step_schedule,
        optimiser=engine.Optimiser.from_settings(train),
        augment=train.augment,
        own_layers=() if train.own_layers is None else patterns(train.own_layers),
        server_lr=server.lr,
        server_momentum=server.momentum,
        privacy=None if experiment.dp is None else Privacy.from_settings(experiment.dp),
        turnout=Turnout.parse(experiment.turnout.model_dump()),
        eval_every=experiment.eval.every,
        finetune=experiment.eval.finetune,
        dtype=machine.dtype,
        device=machine.device,
        chunk=machine.chunk,
        threads=machine.threads,
    )


def _constants(batch: engine.Batch) -> str:
    """The digest of what training does not change; empty where there is no such thing.

    It tells whether a run is resumed with another base than it was begun with.
    """
    digest, found = hashlib.sha256(), base.constants(batch.rows.model)
    for name, value in sorted(found.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest() if found else ""


def _shared_settings(
    experiment: Experiment, own: UserObjects, data: datasets.Dataset
) -> list[object]:
    """All that decides the numbers of a run, except its strategy and seed."""
    tree = experiment_file.result_settings(experiment)
    del tree["strategies"], tree["seeds"], tree["eval"]["share"]
    tree["machine"] = tree["machine"]["dtype"]
    # The name of a data set says which data it holds; the name of a file does not.
    fixed = own.data is None and not data.name.endswith(datasets.OWN_FILES)
    split = own.data.split.sha256() if isinstance(own.data, Federation) else ""
    return [tree, "" if fixed else data.sha256(), split]


def _identity_for_ranks(experiment: Experiment, federations: dict[int, Federation]) -> str:
    """What must be the same on all ranks, as text to compare."""
    versions = [fedmaba.__version__, torch.__version__, np.__version__, torch.cuda.is_available()]
    splits = [fed.split.sha256() for fed in federations.values()]
    data = next(iter(federations.values())).data.sha256()
    return json.dumps([versions, experiment_file.result_settings(experiment), data, splits])


def require_same_experiment(
    session: Session, meta: Mapping[str, Any], out: Path, apart: str = ""
) -> None:
    """Refuse a checkpoint of other settings or data; the section `apart` may differ."""
    made, mine = meta.get("made"), session.provenance()
    if made is None:  # of an earlier version
        return
    other = [
        key
        for key in experiment_file.changed_keys(made["asked"], mine["asked"])
        if key.split(".")[0] != apart
    ]
    other += [key for key in ("data", "partition") if made[key] != mine[key]]
    other += ["init"] if made.get("init") != mine.get("init") else []
    if other:
        raise InputError(
            f"{out}: its newest checkpoint is not of this experiment ({', '.join(other)}): restore "
            "it, or choose another --out"
        )


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


def partition_digests(session: Session) -> dict[str, str]:
    """The digest of which client has which examples, by seed."""
    return {str(run.seed): run.federation.split.sha256() for run in session.batch.runs}
