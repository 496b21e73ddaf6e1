"""What one site of a real federation does: train and evaluate a model on its own data.

It knows the model, the site's data and the server's task, but no network. Training uses the same
rows, minibatch order and random streams as the simulator, so both give the same numbers. A class
has the same number at every site: each site looks up the name of the class, which is a word of a
CSV file or a number of an array, in the federation's list of classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from fedmaba.deploy.validation import printable, some_names
from fedmaba.errors import InputError
from fedmaba.rows import LossFn, compile, models
from fedmaba.rows.batchnorm import Choice, too_few
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.rows.tasks import FUNCTIONS, TaskFunctions
from fedmaba.rows.workers import Workers
from fedmaba.simulation.augmentation import Augmentation, parse_augment
from fedmaba.simulation.batch import needs_full_gradient
from fedmaba.simulation.engine import load_examples, lower_is_better
from fedmaba.simulation.evaluation import MetricFn, evaluate
from fedmaba.simulation.kept_vectors import (
    TrainedClients,
    added_terms,
    full_gradients,
    kept_after,
)
from fedmaba.simulation.local_training import Pool, TrainingJob, train_chunk
from fedmaba.simulation.optimiser import Optimiser, counted_steps, parse_schedule
from fedmaba.strategies.base import PERSONAL, Local

Arrays = dict[str, NDArray[Any]]
OWN = "/model"  # among the kept vectors: the part of the model that a site keeps


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
    def agreed(self) -> tuple[str, ...]:
        """The names of all classes of the federation, in one order for all sites."""
        given, own = self.classes, self.data.classes
        if given is None:
            if own != tuple(map(str, range(len(own)))):
                raise InputError(
                    f"this site's labels are {some_names(own)}, and nothing says how the others "
                    "number them: give client_app(classes=[...]), the same list at all sites"
                )
            return own
        if isinstance(given, int):
            return tuple(map(str, range(given)))
        if isinstance(given, str) or len(set(given)) < len(given) or not given:
            raise InputError(f"classes={printable(given)!r}: give a list of names, each once")
        return tuple(map(str, given))

    @cached_property
    def target(self) -> TargetKind:
        """What the model is to predict: the same at all sites."""
        found = self.data.target
        if found.task == "classify":
            return replace(found, outputs=len(self.agreed))
        if found.task != "sequence":
            return found
        if self.classes is None:
            raise InputError(
                f"the task is sequence, and this site's targets reach {found.outputs - 1}: give "
                "client_app(classes=...), the number of classes of all sites together"
            )
        many = self.classes if isinstance(self.classes, int) else len(self.agreed)
        if int(self.data.y.max()) >= many:
            raise InputError(
                f"target {int(self.data.y.max())} of this site, but the federation has {many} "
                "classes, from 0: correct the file, or the number at all sites"
            )
        return replace(found, outputs=many)

    def labels(self) -> NDArray[Any]:
        """(n,) this site's labels by the federation's numbers, or its targets of another kind."""
        if self.data.task != "classify":
            return self.data.y
        y, own, agreed = self.data.y, self.data.classes, self.agreed
        used = np.unique(y)
        wrong = [str(k) for k in used if not 0 <= k < len(own)]
        place = {name: i for i, name in enumerate(agreed)}
        wrong = wrong or [own[k] for k in used if own[k] not in place]
        if wrong:
            raise InputError(
                f"label {some_names(wrong)} of this site is not among the federation's classes, "
                f"{some_names(agreed, 12)}: correct the file, or the list at all sites"
            )
        number = np.array([place.get(name, -1) for name in own], np.int64)
        numbered: NDArray[np.int64] = number[y]
        return numbered

    def train(self, weights: Arrays, task: Mapping[str, Any]) -> tuple[Arrays, dict[str, float]]:
        """Train; return the model and what the server is told: examples, loss, accuracy."""
        with torch.no_grad():
            return self._train(weights, task)

    def evaluate(self, weights: Arrays, task: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Accuracy of a model on the test rows; {} where there are none."""
        with torch.no_grad():
            rows, flat, pool = self._load(weights, 50)
            local = Local.from_task(task or {})
            before: dict[str, Tensor] = {}
            if rows.layout.kept_names() or local.personal:
                before = self._kept_before(rows, flat, task or {}, local)
            numbers = self._test(rows, flat, pool)
            if PERSONAL in before and self._known(task or {}):
                numbers |= self._test(rows, before[PERSONAL], pool, "personal-")
            return numbers

    def _train(self, weights: Arrays, task: Mapping[str, Any]) -> tuple[Arrays, dict[str, float]]:
        n = self.data.n_train
        minibatch, local = int(task.get("minibatch", 50)), Local.from_task(task)
        model = {name: w for name, w in weights.items() if not name.startswith("mean/")}
        rows, flat, pool = self._load(model, minibatch)
        self._check_minibatches(rows, minibatch, task, local)
        before = self._kept_before(rows, flat, task, local)
        means = self._means(rows, weights, local)
        numbers = {"num-examples": n, **self._test(rows, flat, pool)}
        if PERSONAL in before and self._known(task):
            numbers |= self._test(rows, before[PERSONAL], pool, "personal-")
        keeps = bool(local.keep or local.personal or rows.layout.kept_names())
        if keeps and self.kept.lost(KeptVectorsTask.from_task(task)):
            numbers["started-anew"] = 1
        where = task.get("loss-at", "start")
        if where == "start":
            numbers["loss"] = self._mean_loss(rows, flat, pool)
        job, graphs = self._job(task, minibatch, local), GraphCache(flat.device, recordable=False)
        gradient = None
        if needs_full_gradient(local):
            gradient = full_gradients(rows, pool, flat, job, graphs)
        trained, told, own = flat, torch.zeros(2, 1), {}
        if local.personal is not None:
            pulled = (Local(prox=local.personal.prox),)
            mine = replace(job, local=pulled, begin=lambda into: into.copy_(before[PERSONAL]))
            own[PERSONAL], told = train_chunk(rows, pool, flat, mine, graphs)
            if task.get("tell-alone"):
                numbers["alone-loss"] = float(told[0, 0])
        if local.personal is None or not local.personal.only:
            if local.add or local.add_mean:

                def added(into: Tensor, factor: NDArray[np.float64], towards: bool) -> None:
                    start = flat[0] if towards else None
                    added_terms(local, before, means, into, float(factor[0]), start)

                job = replace(job, added=added)
            trained, told = train_chunk(rows, pool, flat, job, graphs)
        counted = counted_steps(job.optimiser, job.schedule, int(job.steps[0]))
        if task.get("count-steps"):
            numbers["num-steps"] = counted
        if where == "mean":
            numbers["loss"] = float(told[0, 0])
        if where == "end":
            numbers["loss"] = self._mean_loss(rows, trained, pool)
        known = TrainedClients(flat, trained, flat.new_tensor([[job.lr * counted]]), gradient)
        after = {
            n: kept_after(k, known, before[n], means.get(n), torch.empty_like(flat))
            for n, k in local.keep.items()
        }
        after |= own
        if keeps:
            both = (
                _named(rows, before) | _own(rows, flat),
                _named(rows, after) | _own(rows, trained),
            )
            self.kept.save(KeptVectorsTask.from_task(task), *both)
        named = _arrays(rows, trained)
        sent = {name: named[name] for name in rows.layout.sent_names()}
        for name, mean in means.items():  # moved by as much as the site's vector
            moved = _arrays(rows, mean + after[name] - before[name])
            moved = {mean_name(local, name, weight): value for weight, value in moved.items()}
            sent |= {place: value for place, value in moved.items() if place in weights}
        return {**weights, **sent}, numbers

    def _known(self, task: Mapping[str, Any]) -> bool:
        """Whether this site has a model of its own from an earlier round."""
        told = KeptVectorsTask.from_task(task)
        return bool(told.counted) and not self.kept.lost(told)

    def _means(self, rows: Any, sent: Arrays, local: Local) -> dict[str, Tensor]:
        """(P,) each: the means over all sites that the server sent; those of statistics are 0."""
        found = {name: mean_in(sent, local, name) for name in local.means}
        found = {name: mean for name, mean in found.items() if mean}
        used = {n for n in local.means if n in local.add_mean or local.keep[n].mean}
        shapes = dict(zip(rows.layout.names, map(tuple, rows.layout.natural), strict=True))
        weights = {n: shapes[n] for n, _ in rows.model.named_parameters() if n in shapes}
        fits = all(
            n in mean and mean[n].shape == shape
            for mean in found.values()
            for n, shape in weights.items()
        )
        if used - set(found) or not fits or (found and rows.layout.kept_names()):
            raise InputError(
                "the server's message has no means of kept vectors that fit this site's model: use "
                "the same model, batchnorm and version of fedmaba on all hosts"
            )
        zeros = {n: torch.zeros(shape) for n, shape in shapes.items()}
        given = {
            m: {n: torch.from_numpy(np.array(v[n])) for n in weights} for m, v in found.items()
        }
        device = self.device
        return {m: rows.layout.pack_named(zeros | v).to(device) for m, v in given.items()}

    def _check_minibatches(
        self, rows: Any, minibatch: int, task: Mapping[str, Any], local: Local
    ) -> None:
        """Refuse a minibatch of one example where a layer takes the variance over examples."""
        n, layer = self.data.n_train, too_few(rows.model, 1)
        last = n if local.full_batch else (n - 1) % minibatch + 1
        reached = int(task.get("steps", 0)) == 0 or int(task["steps"]) >= -(-n // minibatch)
        if layer and last == 1 and reached:
            raise InputError(
                f"this site has {n} training examples, so one minibatch of {minibatch} has a "
                f"single one, and {layer!r} takes the variance over examples: choose another "
                "minibatch, or batchnorm='group' or 'frozen'"
            )

    def _kept_before(
        self, rows: Any, flat: Tensor, task: Mapping[str, Any], local: Local
    ) -> dict[str, Tensor]:
        """The vectors that this site trains with, each (1, P) by its name.

        The part of the model that the site keeps is put into `flat`.
        """
        own = rows.layout.kept_names()
        if not local.keep and not own and not local.personal:
            return {}
        every, first = _arrays(rows, flat), _own(rows, flat)
        if local.personal is not None:
            first[PERSONAL] = every | _first_model(task, every)
        told, in_mean = KeptVectorsTask.from_task(task), bool(local.means)
        found = self.kept.load(told, local.keep, every, first, in_mean)
        mine = found.pop(OWN, {})
        packed = {
            name: rows.layout.pack_named({n: torch.from_numpy(w) for n, w in vector.items()})
            for name, vector in (found | {OWN: every | mine}).items()
        }
        flat[:] = packed.pop(OWN)
        return {name: vector[None].to(flat.device) for name, vector in packed.items()}

    def _load(self, weights: Arrays, minibatch: int) -> tuple[Any, Tensor, Pool]:
        """The model as one row with these weights, and the data as a pool."""
        make = models.find_factory(self.model) if isinstance(self.model, str) else self.model
        data, device = self.data, torch.device(self.device)
        labels, free = self.labels(), self.loss is not None and self.metric is not None
        kind = self.target
        net = models.build_model(
            make, data.shape, kind.outputs, 0, self.batchnorm, target=kind, free=free
        )
        sent = models.sent_weights(net)
        here = {name: value for name, value in net.state_dict().items() if name not in sent}
        if extra := set(weights) & set(here):
            raise InputError(
                f"the server's model has {some_names(extra)}, which no server sends: it is frozen "
                "or kept here: let the server begin with initial_arrays of the same model"
            )
        given = {n: torch.from_numpy(np.array(w)) for n, w in weights.items()}
        try:
            net.load_state_dict({**here, **given})
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"the server's model is not this site's: {reason}") from error
        x, y = load_examples(net, make, data, device, torch.float32, labels)
        net, many = net.to(device), max(2, min(minibatch, len(y)))
        example = trees.mapped(lambda v: v[:many], x)
        rows = compile(net, example, self.loss or self._usual.loss, target=y[:many])
        pool = Pool(rows.prepare(x), y, torch.arange(data.n_train, device=device))
        return rows, rows.layout.pack(net.cpu())[None].to(device), pool

    def _job(self, task: Mapping[str, Any], minibatch: int, local: Local) -> TrainingJob:
        """The work that the server asked for, in the simulator's terms."""
        n = self.data.n_train
        epochs = int(task.get("epochs", 1)) * -(-n // minibatch)
        return TrainingJob(
            run=np.array([0]),
            first=np.array([0]),
            size=np.array([n]),
            key=np.array([int(task.get("stream", 0))]),
            steps=np.array([1 if local.full_batch else int(task.get("steps", 0)) or epochs]),
            minibatch=minibatch,
            lr=float(task["lr"]),
            optimiser=Optimiser.from_task(task),
            schedule=parse_schedule(str(task.get("step-schedule", "constant")), "step-schedule"),
            augment=self._augment(task),
            local=(local,),
        )

    def _augment(self, task: Mapping[str, Any]) -> Augmentation | None:
        """The random changes of images that the server asks for."""
        if "augment" not in task:
            return None
        found = parse_augment(str(task["augment"]))
        found.check(self.data.shape)
        return found

    def _scores(self, rows: Any, flat: Tensor, pool: Pool, a: int, b: int) -> tuple[float, float]:
        """Mean loss and score over rows a..b of the pool."""
        index = torch.arange(a, b, device=flat.device)
        metric = self.metric or self._usual.metric
        losses, scores = evaluate(rows, flat, index, pool.x, pool.y, Workers(1), metric)
        return float(losses.double().mean()), float(scores.double().mean())

    def _mean_loss(self, rows: Any, flat: Tensor, pool: Pool) -> float:
        """Mean loss over the training rows."""
        return self._scores(rows, flat, pool, 0, self.data.n_train)[0]

    def _test(self, rows: Any, flat: Tensor, pool: Pool, whose: str = "") -> dict[str, float]:
        """Accuracy on the test rows; "error" where the lower score is the better one."""
        if self.data.n_train == len(self.data.y):
            return {}
        _, score = self._scores(rows, flat, pool, self.data.n_train, len(self.data.y))
        name = "error" if lower_is_better(self.data.task, self.metric) else "accuracy"
        return {whose + name: score}

    @property
    def _usual(self) -> TaskFunctions:
        return FUNCTIONS[self.data.task]


def _arrays(rows: Any, flat: Tensor) -> Arrays:
    """The weights of one row (1, P) by name."""
    return {name: w.cpu().numpy() for name, w in rows.layout.unpack(flat[0]).items()}


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


def _own(rows: Any, flat: Tensor) -> Vectors:
    """The part of a model (1, P) that the site keeps, as one more vector; {} where none is."""
    named, own = _arrays(rows, flat), rows.layout.kept_names()
    return {OWN: {name: named[name] for name in own}} if own else {}


def _named(rows: Any, vectors: Mapping[str, Tensor]) -> Vectors:
    return {name: _arrays(rows, vector) for name, vector in vectors.items()}


def first_model(
    model: models.Factory | str,
    shape: models.InputShapes,
    classes: int,
    seed: int,
    batchnorm: Choice = "refuse",
    task: str | None = None,
) -> Arrays:
    """The initial weights of a model by name, those of the simulator's run with this seed.

    Only what is sent: frozen weights and what sites keep are not among them. Only sites know the
    shape of targets, so for tasks other than classify they check whether the model fits.
    """
    make = models.find_factory(model) if isinstance(model, str) else model
    target = TargetKind(check_task(task) or "classify", (), classes)
    net = models.build_model(make, shape, classes, seed, batchnorm, target=target, free=True)
    state = models.sent_weights(net)
    return {name: value.detach().cpu().numpy() for name, value in state.items()}
