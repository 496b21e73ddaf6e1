"""What one site of a real federation does: train and evaluate a model on its own data.

It knows the model, the site's data and the server's task, but no network. The site is one row of
the simulator: the same parts, minibatch order and random streams, so both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.data import trees
from fedmaba.data.dataset import Dataset
from fedmaba.data.targets import TargetKind, check_task
from fedmaba.deploy.kept_vectors import KeptVectors, KeptVectorsTask, Vectors, mean_in, mean_name
from fedmaba.deploy.site_targets import SiteTargets
from fedmaba.deploy.validation import some_names
from fedmaba.errors import InputError
from fedmaba.rows import LossFn, compile, models, objectives
from fedmaba.rows.base import Layout
from fedmaba.rows.batchnorm import Choice, too_few
from fedmaba.rows.by_client import refuse_at_sites
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.rows.tasks import FUNCTIONS, TaskFunctions
from fedmaba.rows.workers import Workers
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.client import Chunk, Trainer, train_clients
from fedmaba.simulation.engine import load_examples, lower_is_better
from fedmaba.simulation.evaluation import MetricFn, evaluate
from fedmaba.simulation.local_training import Pool, TrainingJob
from fedmaba.simulation.memory import ClientMemory
from fedmaba.simulation.optimiser import Optimiser, parse_schedule
from fedmaba.simulation.part import Setting
from fedmaba.simulation.parts import columns_of, parts_of
from fedmaba.simulation.parts.own_layers import OWN, clients_end
from fedmaba.strategies.base import CLIENT_NUMBERS, PERSONAL, Local, Needs

Arrays = dict[str, NDArray[Any]]
ONE = np.zeros(1, np.int64)  # the one row, run and client of a site


@dataclass(frozen=True)
class LocalClient:
    """A model and one site's data: rows before `data.n_train` train, the rest test."""

    model: models.Factory | str
    data: Dataset
    classes: int | Sequence[str] | None = None  # of the whole federation; None: they are 0 to C-1
    loss: LossFn | None = None
    metric: MetricFn | None = None
    device: str = "cpu"
    kept: KeptVectors = KeptVectors(None, "site")
    batchnorm: Choice = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.data.as_they_are())

    @cached_property
    def targets(self) -> SiteTargets:
        """What the model is to predict: the same at all sites."""
        return SiteTargets(self.data, self.classes)

    @torch.no_grad()
    def train(self, weights: Arrays, task: Mapping[str, Any]) -> tuple[Arrays, dict[str, float]]:
        """Train; return the model and what the server is told: examples, loss, accuracy."""
        row = self._row({n: w for n, w in weights.items() if not n.startswith("mean/")}, task)
        self._check_minibatches(row)
        if row.columns:
            self._recall(row)
        means = self._means(row, weights)
        row.trainer.memory.means[0].update(means)
        numbers = {"num-examples": self.data.n_train, **self._scores_of(row)}
        if row.columns and self.kept.lost(row.kept_task):
            numbers["started-anew"] = 1
        moment = task.get("loss-at", "start")
        if moment == "start":
            numbers["loss"] = self._mean_loss(row, row.model_of_site())
        if (o := row.local.objective) is not None:
            rows, pool = row.trainer.rows, row.trainer.pool
            objectives.check(o.name, o.numbers, o.sees, rows, row.model, pool.x, pool.y)
        chunk = Chunk(ONE, ONE, ONE, ONE, row.model, self._job(row), {0: row.new})
        train_clients(row.trainer, chunk)
        numbers |= row.numbers_of(chunk)
        if "loss_after" in numbers_asked(task):
            numbers["loss_after"] = self._mean_loss(row, clients_end(row.trainer, chunk, ONE))
        if moment == "mean":
            numbers["loss"] = float(chunk.summary[0, 0])
        if moment == "end":
            numbers["loss"] = self._mean_loss(row, clients_end(row.trainer, chunk, ONE))
        if row.columns:
            self.kept.save(row.kept_task, row.named(row.columns), row.named(row.new))
        return {**weights, **self._sent(row, chunk, means, weights)}, numbers

    @torch.no_grad()
    def evaluate(self, weights: Arrays, task: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Accuracy of a model on the test rows; {} where there are none."""
        row = self._row(weights, task or {})
        if row.columns.keys() & {OWN, PERSONAL}:
            self._recall(row)
        return self._scores_of(row)

    def _sent(
        self, row: SiteRow, chunk: Chunk, means: Mapping[str, Tensor], weights: Arrays
    ) -> Arrays:
        """What the server gets: the model, and each mean moved by as much as the site's vector."""
        layout, local = row.trainer.rows.layout, row.local
        named = _arrays(layout, chunk.end)
        sent = {name: named[name] for name in layout.sent_names()}
        for name, mean in means.items():
            moved = _arrays(layout, mean + row.new[name] - row.columns[name])
            moved = {mean_name(local, name, weight): value for weight, value in moved.items()}
            sent |= {place: value for place, value in moved.items() if place in weights}
        return sent

    def _scores_of(self, row: SiteRow) -> dict[str, float]:
        """Scores of the server's model, and of the site's own from an earlier round."""
        numbers = self._test(row, row.model_of_site())
        if PERSONAL in row.columns and row.kept_task.counted and not self.kept.lost(row.kept_task):
            numbers |= self._test(row, row.columns[PERSONAL], "personal-")
        return numbers

    def _means(self, row: SiteRow, sent: Arrays) -> dict[str, Tensor]:
        """(P,) each: the means over all sites that the server sent; those of statistics are 0."""
        layout, local = row.trainer.rows.layout, row.local
        means = {name: mean for name in local.means if (mean := mean_in(sent, local, name))}
        used = {n for n in local.means if n in local.add_mean or local.keep[n].mean}
        zeros = layout.unpack(torch.zeros_like(row.model[0]))
        weights = [n for n, _ in row.trainer.rows.model.named_parameters() if n in zeros]
        fits = all(
            n in mean and mean[n].shape == zeros[n].shape
            for mean in means.values()
            for n in weights
        )
        if used - means.keys() or not fits or (means and layout.kept_names()):
            raise InputError(
                "the server's message has no means of kept vectors that fit this site's model: use "
                "the same model, batchnorm and version of fedmaba on all hosts"
            )
        given = {m: _tensors({n: mean[n] for n in weights}) for m, mean in means.items()}
        return {m: layout.pack_named(zeros | v).to(self.device) for m, v in given.items()}

    def _check_minibatches(self, row: SiteRow) -> None:
        """Refuse a minibatch of one example where a layer takes the variance over examples."""
        n, layer = self.data.n_train, too_few(row.trainer.rows.model, 1)
        minibatch, steps = row.trainer.minibatch, int(row.task.get("steps", 0))
        last = n if row.local.full_batch else (n - 1) % minibatch + 1
        if layer and last == 1 and (steps == 0 or steps >= -(-n // minibatch)):
            raise InputError(
                f"this site has {n} training examples, so one minibatch of {minibatch} has a "
                f"single one, and {layer!r} takes the variance over examples: choose another "
                "minibatch, or batchnorm='group' or 'frozen'"
            )

    def _recall(self, row: SiteRow) -> None:
        """Fill the columns of a row with what this site kept."""
        layout, first = row.trainer.rows.layout, row.named(row.columns)
        every = _arrays(layout, row.model)
        for name in first.keys() & row.local.models_kept:
            first[name] |= _first_model(row.task, every)
        kept = self.kept.load(row.kept_task, first, bool(row.local.means))
        for name, vector in kept.items():
            packed = layout.pack_named(_tensors(every | vector))[None].to(row.model.device)
            row.columns[name].copy_(packed[:, layout.shared :] if name == OWN else packed)

    def _row(self, weights: Arrays, task: Mapping[str, Any]) -> SiteRow:
        """The model as one row with these weights, and the data as a pool."""
        make = models.find_factory(self.model) if isinstance(self.model, str) else self.model
        data, device, local = self.data, torch.device(self.device), Local.from_task(task)
        minibatch = int(task.get("minibatch", 50))
        labels, free = self.targets.labels(), self.loss is not None and self.metric is not None
        kind = self.targets.target
        told: dict[str, Any] = {"target": kind, "free": free, "examples": data.x}
        told["own_layers"], seed = local.own_layers, int(task.get("model-seed", 0))
        net = models.build_model(make, data.shape, kind.outputs, seed, self.batchnorm, **told)
        refuse_at_sites(net)
        sent = models.sent_weights(net)
        here = {name: value for name, value in net.state_dict().items() if name not in sent}
        if extra := set(weights) & set(here):
            raise InputError(
                f"the server's model has {some_names(extra)}, which no server sends: it is frozen "
                "or kept here: let the server begin with initial_arrays of the same model"
            )
        try:
            net.load_state_dict({**here, **_tensors(weights)})
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"the server's model is not this site's: {reason}") from error
        x, y = load_examples(net, make, data, device, torch.float32, labels)
        net, many = net.to(device), max(2, min(minibatch, len(y)))
        example = trees.mapped(lambda v: v[:many], x)
        rows = compile(net, example, self.loss or self._usual.loss, target=y[:many])
        pool = Pool(rows.prepare(x), y, torch.arange(data.n_train, device=device))
        model = rows.layout.pack(net.cpu())[None].to(device)
        augment = parse_augment(str(task["augment"])) if "augment" in task else None
        if augment is not None:
            augment.check(data.shape)
        asked: dict[str, Any] = dict.fromkeys(numbers_asked(task), True)
        parts = parts_of(Setting([local], [Needs(**asked)], rows.layout, model))
        trainer = Trainer(
            rows,
            pool,
            GraphCache(device, recordable=False),
            [local],
            ClientMemory(columns_of(parts, 1), [1], model),
            parts,
            minibatch,
            Optimiser.from_task(task),
            parse_schedule(str(task.get("step-schedule", "constant")), "step-schedule"),
            augment,
        )
        return SiteRow(trainer, model, task)

    def _job(self, row: SiteRow) -> TrainingJob:
        """The work that the server asked for, in the simulator's terms."""
        n, trainer, task = self.data.n_train, row.trainer, row.task
        epochs = int(task.get("epochs", 1)) * -(-n // trainer.minibatch)
        return TrainingJob(
            run=ONE,
            first=ONE,
            size=np.array([n]),
            key=np.array([int(task.get("stream", 0))]),
            steps=np.array([1 if row.local.full_batch else int(task.get("steps", 0)) or epochs]),
            minibatch=trainer.minibatch,
            lr=float(task["lr"]),
            optimiser=trainer.optimiser,
            schedule=trainer.schedule,
            augment=trainer.augment,
        )

    def _scores(self, row: SiteRow, model: Tensor, a: int, b: int) -> tuple[float, float]:
        """Mean loss and score of a model (1, P) over rows a..b of the pool."""
        index, pool = torch.arange(a, b, device=model.device), row.trainer.pool
        metric = self.metric or self._usual.metric
        rows = row.trainer.rows
        losses, scores = evaluate(rows, model, index, pool.x, pool.y, Workers(1), metric)
        return float(losses.double().mean()), float(scores.double().mean())

    def _mean_loss(self, row: SiteRow, model: Tensor) -> float:
        """Mean loss over the training rows."""
        return self._scores(row, model, 0, self.data.n_train)[0]

    def _test(self, row: SiteRow, model: Tensor, whose: str = "") -> dict[str, float]:
        """Accuracy on the test rows; "error" where the lower score is the better one."""
        if self.data.n_train == len(self.data.y):
            return {}
        _, score = self._scores(row, model, self.data.n_train, len(self.data.y))
        name = "error" if lower_is_better(self.data.task, self.metric) else "accuracy"
        return {whose + name: score}

    @property
    def _usual(self) -> TaskFunctions:
        return FUNCTIONS[self.data.task]


@dataclass(frozen=True)
class SiteRow:
    """The model as one row, the site's data, and what it keeps: all that one message needs."""

    trainer: Trainer
    model: Tensor  # (1, P)  the server's
    task: Mapping[str, Any]

    @property
    def local(self) -> Local:
        """What the server asks for besides plain training."""
        return self.trainer.local[0]

    @cached_property
    def kept_task(self) -> KeptVectorsTask:
        """What the message says about what sites keep."""
        return KeptVectorsTask.from_task(self.task)

    @property
    def columns(self) -> dict[str, Tensor]:
        """(1, width) each: what the site keeps."""
        return self.trainer.memory.columns[0]

    @cached_property
    def new(self) -> dict[str, Tensor]:
        """(1, width) each: what it keeps after training."""
        return self.trainer.memory.fresh(0, 1, zeros=False)

    def model_of_site(self) -> Tensor:  # (1, P)
        """The server's model as this site uses it."""
        return self.trainer.used(0, ONE, self.model.clone())

    def named(self, columns: Mapping[str, Tensor]) -> Vectors:
        """Columns by the names of weights, as a file has them."""
        layout, out = self.trainer.rows.layout, {}
        for name, column in columns.items():
            if name == OWN:
                every = _arrays(layout, torch.cat([self.model[:, : layout.shared], column], 1))
                out[name] = {kept: every[kept] for kept in layout.kept_names()}
            else:
                out[name] = _arrays(layout, column)
        return out

    def numbers_of(self, chunk: Chunk) -> dict[str, float]:
        """The numbers of training that the server asks for."""
        known = {name: float(value[0]) for name, value in chunk.numbers.items()}
        known["steps"] = float(self.trainer.counted(chunk.job.steps)[0])
        return {name: known[name] for name in numbers_asked(self.task) if name in known}


def numbers_asked(task: Mapping[str, Any]) -> list[str]:
    """What the server asks of training besides the loss; a newer one may ask for more."""
    return [name for name in str(task.get("tell", "")).split() if name in CLIENT_NUMBERS]


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Arrays as tensors of their own."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _arrays(layout: Layout, flat: Tensor) -> Arrays:
    """The weights of one row (1, P) by name."""
    return {name: w.cpu().numpy() for name, w in layout.unpack(flat[0]).items()}


def _first_model(task: Mapping[str, Any], like: Arrays) -> Arrays:
    """The model that the run began with, where the server sent it: it has moved since then."""
    body = task.get("first-model")
    if body is None:
        return {}
    try:
        found = safetensors.numpy.load(bytes(body))
    except (TypeError, ValueError, safetensors.SafetensorError) as error:
        raise InputError(
            f"the server's message holds a first model that cannot be read ({error}): use the same "
            "version of fedmaba on all hosts"
        ) from error
    mine = {name: value for name, value in found.items() if name in like}
    if any(value.shape != like[name].shape for name, value in mine.items()):
        raise InputError(
            "the first model in the server's message has other shapes than this site's: use the "
            "same model on all hosts"
        )
    return {name: value.astype(like[name].dtype) for name, value in mine.items()}


def first_model(
    model: models.Factory | str,
    shape: models.InputShapes,
    classes: int,
    seed: int,
    batchnorm: Choice = "refuse",
    task: str | None = None,
    own_layers: Sequence[str] = (),
) -> Arrays:
    """The initial weights of a model by name, those of the simulator's run with this seed.

    Only what is sent: frozen weights and what sites keep are not among them. Only sites know the
    shape of targets, so for tasks other than classify they check whether the model fits.
    """
    make = models.find_factory(model) if isinstance(model, str) else model
    target = TargetKind(check_task(task) or "classify", (), classes)
    told: dict[str, Any] = {"target": target, "free": True, "own_layers": own_layers}
    net = models.build_model(make, shape, classes, seed, batchnorm, **told)
    refuse_at_sites(net)
    state = models.sent_weights(net)
    return {name: value.detach().cpu().numpy() for name, value in state.items()}
