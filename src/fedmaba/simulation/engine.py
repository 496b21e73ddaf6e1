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

import numpy as np
import torch
from torch import Tensor

from fedmaba.errors import InputError, NoRoom
from fedmaba.rows import LossFn, Rows, compile, models
from fedmaba.rows.batchnorm import too_few
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.rows.workers import Workers
from fedmaba.simulation import pipeline
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.batch import Batch, RunParts, precision
from fedmaba.simulation.cohort import out_of_memory
from fedmaba.simulation.distributed import Ranks
from fedmaba.simulation.local_training import MetricFn, Pool
from fedmaba.simulation.measurements import client_means
from fedmaba.simulation.optimiser import Optimiser, parse_schedule, round_schedule
from fedmaba.simulation.state import (
    Evaluation,
    KeptChanges,
    Plan,
    Progress,
    Round,
    Run,
    Scores,
    Snapshot,
)
from fedmaba.strategies import deployed as average
from fedmaba.strategies.base import check_state

__all__ = [
    "Batch",
    "Evaluation",
    "KeptChanges",
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


def start(
    runs: Sequence[Run],
    plan: Plan,
    model: models.Factory | str = "mlp",
    loss: LossFn | None = None,
    metric: MetricFn | None = None,
    ranks: Ranks | None = None,
) -> Batch:
    """A batch at round 0: data on the device, initial models, initial states."""
    _check(runs, plan)
    ranks = ranks or Ranks()
    data = runs[0].federation.data
    make = models.find_factory(model) if isinstance(model, str) else model
    device = _device(plan.device, ranks)
    dtype = torch.float64 if plan.dtype == "float64" else torch.float32
    initial = {
        seed: models.build_model(make, data.x.shape[1:], len(data.classes), seed, plan.batchnorm)
        for seed in dict.fromkeys(run.seed for run in runs)
    }
    models.require_same_constants(initial)
    x = torch.from_numpy(data.x).to(device, dtype)
    template = copy.deepcopy(initial[runs[0].seed]).to(device, dtype)
    example = x[: max(2, min(plan.minibatch, len(x)))]
    count = plan.threads or torch.get_num_threads()
    with Workers(1, count).threads():
        _try(template, example, loss, metric)
    _check_minibatches(template, runs, plan)
    rows = compile(template, example, loss, dtype=plan.dtype)
    flat = torch.stack([rows.layout.pack(initial[r.seed]) for r in runs]).to(device, dtype)
    ranks.first(flat)
    nobody = np.zeros(0, np.int64)
    owner = np.repeat(np.arange(len(runs)), [len(run.rules) for run in runs])
    progress = Progress(
        round=0,
        model=flat,
        deployed=flat[torch.from_numpy(owner).to(device)],
        owner=owner,
        best=flat.clone(),
        best_score=np.full(len(runs), -np.inf),
        best_round=np.full(len(runs), -1, np.int64),
        velocity=torch.zeros_like(flat) if plan.server_momentum else None,
        states=[check_state(r.strategy, r.strategy.init(r.federation.n_clients)) for r in runs],
        kept=[KeptChanges(flat[:0], nobody, nobody) for _ in runs],
        vectors=[
            {name: flat.new_zeros(r.federation.n_clients, flat.shape[1]) for name in keep}
            for r, keep in ((r, r.strategy.local().keep) for r in runs)
        ],
        own=[
            flat[r, rows.layout.shared :].repeat(run.federation.n_clients, 1)
            for r, run in enumerate(runs)
        ],
        diverged=[""] * len(runs),
        chunk=ranks.least(plan.chunk or _chunk(rows, _most(runs, plan), flat)),
    )
    trained, validated, tested = (
        RunParts([getattr(run.federation, name) for run in runs], device)
        for name in ("train", "validation", "test")
    )
    apart = rows.parallel and device.type == "cpu"  # each piece of work on one thread
    workers = Workers(count, 1) if apart else Workers(1, count)
    pool = Pool(rows.prepare(x), torch.from_numpy(data.y).to(device), trained.entries)
    parts = (trained, validated, tested)
    graphs = GraphCache(device, rows.parallel)
    return Batch(runs, plan, rows, pool, metric, progress, *parts, workers, graphs, ranks=ranks)


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
                evaluations = _evaluate(batch) if due else None
            yield Snapshot(t, rounds, evaluations, at)
            if at.chunk < chunk:
                warnings.warn(f"out of memory: the chunk is {at.chunk} from now on", stacklevel=2)
    finally:
        begun = None
        batch.graphs.forget()  # free the device's memory for the next batch


def _evaluate(batch: Batch) -> list[Evaluation | None]:
    """Every live run's models on every client; remembers the best round's last model."""
    at = batch.progress
    alive = [r for r, why in enumerate(at.diverged) if not why]
    handed_out = [d for d, r in enumerate(at.owner) if not at.diverged[r]]
    averaged = [d for d in handed_out if batch.handed_out[d][1] != "last"]
    found: dict[int, Evaluation] = {d: {} for d in handed_out}
    judged: dict[int, Scores] = {}
    for parts, suffix in ((batch.test, ""), (batch.validation, "_validation")):
        last = _scores(batch, parts, at.model, {r: r for r in alive})
        deployed = _scores(batch, parts, at.deployed, {d: int(at.owner[d]) for d in averaged})
        for d in handed_out:
            r = int(at.owner[d])
            if r in last:
                found[d] |= {
                    "last" + suffix: last[r],
                    "deployed" + suffix: deployed.get(d, last[r]),
                }
        judged |= last  # on validation examples, where there are such
    for r in alive:
        scores = judged[r].accuracy
        score = np.nan if np.isnan(scores).all() else float(np.nanmean(scores))
        if score > at.best_score[r]:
            at.best_score[r], at.best_round[r] = score, at.round - 1
            at.best[r] = at.model[r]
    return [found.get(d) for d in range(len(at.owner))]


def _scores(
    batch: Batch, parts: RunParts, flat: Tensor, whose: dict[int, int]
) -> dict[int, Scores]:
    """Loss and score of each client under some models; `whose` maps rows of `flat` to runs."""
    whose = {row: r for row, r in whose.items() if len(parts.parts[r].index)}
    if not whose:
        return {}
    if batch.rows.layout.shared < batch.rows.layout.size:
        return {row: _own_scores(batch, parts, flat[row], r) for row, r in whose.items()}
    mine, found = batch.ranks.mine, flat.new_zeros(2, len(whose), len(parts.union))
    found[..., mine] = torch.stack(batch.evaluate(flat[list(whose)], parts.union[mine]))
    batch.ranks.sum(found)
    out = {}
    values = (v.double().cpu().numpy() for v in found)
    for (row, r), loss, score in zip(whose.items(), *values, strict=True):
        part = parts.parts[r]
        place = parts.host_place[parts.base[r] : parts.base[r] + len(part.index)]
        out[row] = Scores(part.means(loss[place]), part.means(score[place]))
    return out


def _own_scores(batch: Batch, parts: RunParts, model: Tensor, r: int) -> Scores:
    """Loss and score of each client under a model with the part that the client keeps."""
    everyone = np.arange(batch.runs[r].federation.n_clients)
    found = client_means(batch, parts, r, model, everyone, scored=True)
    return Scores(*(value.cpu().numpy() for value in found))


def _try(
    model: torch.nn.Module, example: Tensor, loss: LossFn | None, metric: MetricFn | None
) -> None:
    """Refuse a loss or metric that does not give one value per example."""
    target = torch.zeros(len(example), dtype=torch.int64, device=example.device)
    for name, function in (("loss", loss), ("metric", metric)):
        if function is not None:
            if not callable(function):
                raise InputError(f"{name}={function!r}: give a function of (outputs, targets)")
            value = function(model(example), target)
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            if shape != (len(example),):
                raise InputError(
                    f"the {name} gave {shape} for {len(example)} examples: it must give one value "
                    "per example, as with reduction='none'"
                )
            if name == "metric" and not bool(value.isfinite().all()):
                raise InputError(
                    "the metric gave a value that is not finite: give each example a score, as 1 "
                    "for right and 0 for wrong"
                )


def _check(runs: Sequence[Run], plan: Plan) -> None:
    if not runs:
        raise InputError("no runs: name at least one strategy and one seed")
    for run in runs:
        if run.federation.data is not runs[0].federation.data:
            raise InputError("runs of one batch must share one data set: simulate them apart")
        m, n = plan.participants, run.federation.n_clients
        if m is not None and not 1 <= m <= n:
            raise InputError(
                f"participants={m}, but the federation has {n} clients: lower it or say 'all'"
            )
        for rule in run.rules:
            average.parse_rule(rule)
    for federation in {id(run.federation): run.federation for run in runs}.values():
        federation.check()
    round_schedule(plan.schedule, plan.lr_decay)
    parse_schedule(plan.step_schedule, "step_schedule")
    if plan.augment is not None:
        x = runs[0].federation.data.x
        parse_augment(plan.augment).check(x.shape[1:], images=x.dtype.kind == "f")


def _check_minibatches(model: torch.nn.Module, runs: Sequence[Run], plan: Plan) -> None:
    """Refuse minibatches of one example where a layer takes the variance over examples."""
    if not (layer := too_few(model, 1)):
        return
    for run in runs:
        size = run.federation.train.size
        whole = run.strategy.local().full_batch
        minibatch = int(size.max()) if whole else plan.minibatch
        steps = plan.steps if plan.steps and not whole else np.inf
        last = (size - 1) % minibatch + 1  # examples in the last minibatch of an epoch
        if len(bad := np.flatnonzero((last == 1) & (steps >= -(-size // minibatch)))):
            raise InputError(
                f"client {bad[0]} has {size[bad[0]]} training examples, so one minibatch of "
                f"{minibatch} has a single one, and {layer!r} takes the variance over examples: "
                "choose another --minibatch, or --batchnorm group or frozen"
            )


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


def _chunk(rows: Rows, minibatch: int, flat: Tensor) -> int:
    """Rows trained at once: what fits a CPU's cache, or part of a GPU's free memory."""
    size = flat.element_size()
    if not flat.is_cuda:
        return max(1, int(14e6 / size / (rows.layout.size + rows.activations * minibatch)))
    each = size * rows.room(minibatch)
    return max(1, int(0.4 * torch.cuda.mem_get_info(flat.device)[0] / each))
