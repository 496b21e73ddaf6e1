"""Start a batch of runs, play its rounds and evaluate them.

This module knows no algorithm, writes no file and prints nothing. `simulate` is a generator:
progress bars, checkpoints and early stops belong into the loop that consumes it. One `Progress`
holds everything that a round hands to the next; saved and loaded it continues bit for bit.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.data import groups, trees
from fedmaba.data.dataset import Dataset
from fedmaba.data.trees import Shape
from fedmaba.errors import InputError, NoRoom
from fedmaba.rows import LossFn, Rows, compile, models
from fedmaba.rows.base import Inputs
from fedmaba.rows.batchnorm import unused_statistics
from fedmaba.rows.by_client import by_client
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.rows.tasks import FUNCTIONS
from fedmaba.rows.weights import GivenWeights
from fedmaba.rows.workers import Workers
from fedmaba.simulation import checks, pipeline
from fedmaba.simulation.batch import Batch, RunParts, precision
from fedmaba.simulation.client_scores import ClientMetricFn
from fedmaba.simulation.distributed import Ranks
from fedmaba.simulation.evaluation import MetricFn
from fedmaba.simulation.local_training import Pool
from fedmaba.simulation.memory import ClientMemory
from fedmaba.simulation.optimiser import Optimiser
from fedmaba.simulation.part import Part, Setting
from fedmaba.simulation.parts import carried_by, columns_of, parts_of
from fedmaba.simulation.parts.kinds import dealt
from fedmaba.simulation.scoring import evaluate_models
from fedmaba.simulation.state import (
    Candidates,
    Evaluation,
    Plan,
    Progress,
    Round,
    Run,
    Scores,
    Snapshot,
)
from fedmaba.simulation.work import out_of_memory
from fedmaba.strategies import deployed as average
from fedmaba.strategies.answers import check_state
from fedmaba.strategies.base import optimiser_of_server
from fedmaba.strategies.server_optimisers import ServerOptimiser

__all__ = [
    "Batch",
    "Evaluation",
    "Optimiser",
    "Plan",
    "Progress",
    "Round",
    "Run",
    "Scores",
    "Snapshot",
    "simulate",
    "start",
]


@models.generator_left_alone()
def start(
    runs: Sequence[Run],
    plan: Plan,
    model: models.Factory | str = "mlp",
    loss: LossFn | None = None,
    metric: MetricFn | None = None,
    ranks: Ranks | None = None,
    init: GivenWeights | None = None,
    client_metric: ClientMetricFn | None = None,
) -> Batch:
    """A batch at round 0: data on the device, initial models, initial states.

    A metric scores each example, and a client by the mean; a client metric scores all of a
    client's predictions at once.
    """
    checks.check_runs(runs, plan)
    ranks = ranks or Ranks()
    data, device = runs[0].federation.data, _device(plan.device, ranks)
    make = models.find_factory(model) if isinstance(model, str) else model
    dtype = torch.float64 if plan.dtype == "float64" else torch.float32
    judge = metric if client_metric is None else client_metric
    free = loss is not None and judge is not None  # to make anything of the outputs
    lower = lower_is_better(data.task, judge)
    checks.check_picks(runs, lower)
    initial = _first_models(runs, plan, make, init, free=free, dtype=dtype)
    first = initial[runs[0].seed]
    runs = dealt(runs, by_client(first))
    x, y = load_examples(first, make, data, device, dtype)
    template = copy.deepcopy(first).to(device, dtype)
    many = max(2, min(plan.minibatch, len(y)))
    example, target = trees.mapped(lambda v: v[:many], x), y[:many]
    count = plan.threads or torch.get_num_threads()
    with Workers(1, count).threads():
        checks.try_functions(template, example, target, loss, metric)
        checks.try_client_metric(template, x, y, runs[0], client_metric)
    checks.check_minibatches(template, runs, plan)
    usual = FUNCTIONS[data.task]
    rows = compile(template, example, loss or usual.loss, dtype=plan.dtype, target=target)
    flat = torch.stack([rows.layout.pack(initial[r.seed]) for r in runs]).to(device, dtype)
    ranks.first(flat)
    parts, memory = _parts_and_memory(runs, plan, rows, flat)
    trained, validated, tested = (
        RunParts([getattr(run.federation, name) for run in runs], device)
        for name in ("train", "validation", "test")
    )
    pool = Pool(rows.prepare(x), y, trained.entries)
    checks.try_objectives(runs, rows, flat, pool)
    apart = rows.parallel and device.type == "cpu"  # each piece of work on one thread
    return Batch(
        runs=runs,
        plan=plan,
        rows=rows,
        pool=pool,
        metric=metric or usual.metric,
        progress=_first_progress(runs, plan, rows, flat, memory, parts, ranks),
        train=trained,
        validation=validated,
        test=tested,
        workers=Workers(count, 1) if apart else Workers(1, count),
        graphs=GraphCache(device, rows.recordable),
        ranks=ranks,
        parts=parts,
        lower_is_better=lower,
        client_metric=client_metric,
        judges_groups=not free and all(groups.judged(run.federation).yes for run in runs),
    )


def _first_models(
    runs: Sequence[Run],
    plan: Plan,
    make: models.Factory,
    init: GivenWeights | None,
    *,
    free: bool,
    dtype: torch.dtype,
) -> dict[int, torch.nn.Module]:
    """The model that runs of each seed begin with; `free` says that it may give any outputs."""
    data = runs[0].federation.data
    kind = data.target
    initial = {
        seed: models.build_model(
            make,
            data.shape,
            kind.outputs,
            seed,
            plan.batchnorm,
            target=kind,
            free=free,
            examples=data.x,
            own_layers=plan.local(runs[0].strategy).own_layers,  # of all runs
        )
        for seed in dict.fromkeys(run.seed for run in runs)
    }
    if init is not None:
        for made in initial.values():
            unused = unused_statistics(made, init.named)
            given = {name: v for name, v in init.named.items() if name not in unused}
            GivenWeights(given, init.source).put_into(made.to(dtype))
    models.require_same_constants(initial)
    return initial


def _parts_and_memory(
    runs: Sequence[Run], plan: Plan, rows: Rows, flat: Tensor
) -> tuple[tuple[Part, ...], ClientMemory]:
    """What some runs have besides plain training, and what their clients keep."""
    strategies = [run.strategy for run in runs]
    local, needs = [plan.local(s) for s in strategies], [s.needs() for s in strategies]
    parts = parts_of(Setting(local, needs, rows.layout, flat, runs, plan))
    clients, labels = [run.federation.n_clients for run in runs], [s.name for s in strategies]
    return parts, ClientMemory(columns_of(parts, len(runs)), clients, flat, labels)


def _first_progress(
    runs: Sequence[Run],
    plan: Plan,
    rows: Rows,
    flat: Tensor,
    memory: ClientMemory,
    parts: Sequence[Part],
    ranks: Ranks,
) -> Progress:
    """Where runs stand that begin with the models flat (R, P)."""
    nobody = np.zeros(0, np.int64)
    owner = np.repeat(np.arange(len(runs)), [len(run.rules) for run in runs])
    rules = [rule for run in runs for rule in run.rules]
    picking = {d: rule for d, rule in enumerate(rules) if average.needs_validation(rule)}
    if picking and rows.layout.shared < rows.layout.size:
        raise InputError(
            f"deploy={next(iter(picking.values()))!r} hands out an earlier round's model, but the "
            "part that each client keeps of it has moved on: choose another --deploy or --batchnorm"
        )
    optimisers = [optimiser_of_server(run.strategy) for run in runs]
    return Progress(
        round=0,
        model=flat,
        deployed=flat[torch.from_numpy(owner).to(flat.device)],
        owner=owner,
        best=flat.clone(),
        best_score=np.full(len(runs), -np.inf),
        best_round=np.full(len(runs), -1, np.int64),
        velocity=torch.zeros_like(flat) if plan.server_momentum or any(optimisers) else None,
        second=_second_moments(flat, optimisers),
        states=[check_state(r.strategy, r.strategy.init(r.federation.n_clients)) for r in runs],
        memory=memory,
        picks=dict.fromkeys(picking, Candidates(flat[:0], np.zeros(0), np.zeros(0), nobody)),
        diverged=[""] * len(runs),
        chunk=ranks.least(plan.chunk or _chunk(rows, runs, plan, flat)),
        carried=carried_by(parts, len(runs)),
    )


def _second_moments(flat: Tensor, optimisers: list[ServerOptimiser | None]) -> Tensor | None:
    """(R, P) The second moments before the first round; None if no run has any."""
    start = [how.tau**2 if how is not None and how.adaptive else 0.0 for how in optimisers]
    if not any(start):
        return None
    return torch.tensor(start, dtype=torch.float64).to(flat)[:, None].expand_as(flat).clone()


def lower_is_better(task: str, metric: MetricFn | ClientMetricFn | None) -> bool:
    """Whether a lower score is better: as the user's function says, else as the task's metric."""
    if metric is None:
        return task == "regress"
    return bool(getattr(metric, "lower_is_better", False))


def load_examples(
    model: torch.nn.Module,
    make: models.Factory,
    data: Dataset,
    device: torch.device,
    dtype: torch.dtype,
    y: NDArray[Any] | None = None,
) -> tuple[Inputs, Tensor]:
    """The inputs and targets of all examples on a device, as this model on the CPU takes them.

    `y` are other targets than the data set's own, as a site of a federation numbers its classes.
    """
    read = models.as_read(model.eval(), data.shape, data.x)
    numbers = isinstance(read, Shape) and read.kind == "f"
    if not numbers:
        models.check_tokens(model, make, data.x)

    def send(values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(values)
        real = numbers or tensor.is_floating_point()
        return tensor.to(device, dtype if real else tensor.dtype)

    targets = torch.from_numpy(data.y if y is None else y)
    if data.task == "regress":
        out = models.outputs_of(model, read, data.x)
        targets = data.target.as_outputs(targets, out)
    floats = targets.is_floating_point()
    return trees.mapped(send, data.x), targets.to(device, dtype if floats else targets.dtype)


def simulate(batch: Batch) -> Iterator[Snapshot]:
    """The rounds of a batch, one after another, from where its progress stands."""
    plan, at, begun = batch.plan, batch.progress, None
    try:
        while at.round < plan.rounds and not all(at.diverged):
            t, chunk = at.round, at.chunk
            with torch.no_grad(), batch.workers.threads(), precision(plan.dtype), _room(t):
                if begun is None:
                    pipeline.compile_kernels(batch)
                rounds, begun = pipeline.play(batch, t, begun)
                at.round = t + 1
                due = at.round % plan.eval_every == 0 or at.round == plan.rounds
                evaluations = evaluate_models(batch) if due else None
            yield Snapshot(t, rounds, evaluations, at)
            if at.chunk < chunk:
                warnings.warn(f"out of memory: the chunk is {at.chunk} from now on", stacklevel=2)
    finally:
        begun = None
        batch.graphs.forget()  # free the device's memory for the next batch


def _device(name: str, ranks: Ranks) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if ranks.count > 1 and name.startswith("cuda"):
        return _own_device(name, ranks)
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("no such device here")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"device={name!r}: {reason}: say auto or cpu") from error
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # kernels of our own are launched on the current one
    return device


def _own_device(name: str, ranks: Ranks) -> torch.device:
    """The GPU of this rank, made the current one."""
    if name != "cuda":
        raise InputError(f"device={name!r}, but there are {ranks.count} ranks: say cuda")
    if ranks.local >= (have := torch.cuda.device_count()):
        raise InputError(
            f"rank {ranks.rank} is number {ranks.local + 1} on its host, which has {have} GPUs: "
            "lower --nproc-per-node or say --device cpu"
        )
    torch.cuda.set_device(ranks.local)
    return torch.device("cuda", ranks.local)


@contextmanager
def _room(t: int) -> Iterator[None]:
    """Turn running out of memory, where no smaller chunk would help, into a one-line error."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        reason = str(error).split("\n")[0]
        raise NoRoom(f"round {t + 1}: {reason}: take fewer runs at once") from error


def _most(runs: Sequence[Run], plan: Plan) -> int:
    """The most examples in a minibatch: at most all examples of the largest client."""
    return min(plan.minibatch, max(int(run.federation.train.size.max()) for run in runs))


def _chunk(rows: Rows, runs: Sequence[Run], plan: Plan, flat: Tensor) -> int:
    """Rows trained at once: what fits a CPU's cache, or part of a GPU's free memory."""
    size, minibatch = flat.element_size(), _most(runs, plan)
    if not flat.is_cuda:
        fits = max(1, int(14e6 / size / (rows.layout.size + rows.activations * minibatch)))
        return min(fits, rows.max_rows or fits)
    asked = (run.strategy.local().objective for run in runs)
    each = size * rows.room(minibatch, max(len(o.sees) if o else 0 for o in asked))
    return max(1, int(0.4 * torch.cuda.mem_get_info(flat.device)[0] / each))
