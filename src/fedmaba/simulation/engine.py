"""Start a batch of runs, play its rounds and evaluate them.

This module knows no algorithm, writes no file and prints nothing. `simulate` is a generator:
progress bars, checkpoints and early stops belong into the loop that consumes it. One `Progress`
holds everything that a round hands to the next; saved and loaded it continues bit for bit.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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
from fedmaba.rows.base import Inputs, call
from fedmaba.rows.batchnorm import too_few, unused_statistics
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.rows.tasks import FUNCTIONS
from fedmaba.rows.weights import GivenWeights
from fedmaba.rows.workers import Workers
from fedmaba.simulation import pipeline
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.batch import Batch, RunParts, precision
from fedmaba.simulation.client_scores import (
    ClientMetricFn,
    client_scores,
    score_of_client,
    whole_models,
)
from fedmaba.simulation.cohort import kept_rows, out_of_memory
from fedmaba.simulation.distributed import Ranks
from fedmaba.simulation.evaluation import MetricFn
from fedmaba.simulation.fine_tuning import fine_tuned
from fedmaba.simulation.group_counts import group_counts
from fedmaba.simulation.local_training import Pool
from fedmaba.simulation.measurements import ModelsOf, client_means, server_models
from fedmaba.simulation.optimiser import Optimiser, parse_schedule, round_schedule
from fedmaba.simulation.private import mechanisms
from fedmaba.simulation.state import (
    Candidates,
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
from fedmaba.strategies.base import PERSONAL, check_state, optimiser_of_server
from fedmaba.strategies.contract import check_strategy
from fedmaba.strategies.server_optimisers import ServerOptimiser

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
    _check(runs, plan)
    ranks = ranks or Ranks()
    data = runs[0].federation.data
    make = models.find_factory(model) if isinstance(model, str) else model
    device = _device(plan.device, ranks)
    dtype = torch.float64 if plan.dtype == "float64" else torch.float32
    judge = metric if client_metric is None else client_metric
    free = loss is not None and judge is not None  # to make anything of the outputs
    kind, lower = data.target, lower_is_better(data.task, judge)
    if lower and any("best:fair" in run.rules for run in runs):
        raise InputError(
            "deploy='best:fair' goes by points of a score where higher is better, but here lower "
            "is: say best:accuracy, which picks the lowest"
        )
    initial = {
        seed: models.build_model(
            make, data.shape, kind.outputs, seed, plan.batchnorm, target=kind, free=free
        )
        for seed in dict.fromkeys(run.seed for run in runs)
    }
    if init is not None:
        for made in initial.values():
            unused = unused_statistics(made, init.named)
            given = {name: v for name, v in init.named.items() if name not in unused}
            GivenWeights(given, init.source).put_into(made.to(dtype))
    models.require_same_constants(initial)
    first = initial[runs[0].seed]
    x, y = load_examples(first, make, data, device, dtype)
    template = copy.deepcopy(first).to(device, dtype)
    many = max(2, min(plan.minibatch, len(y)))
    example, target = trees.mapped(lambda v: v[:many], x), y[:many]
    count = plan.threads or torch.get_num_threads()
    with Workers(1, count).threads():
        _try(template, example, target, loss, metric)
        _try_client_metric(template, x, y, runs[0], client_metric)
    _check_minibatches(template, runs, plan)
    usual = FUNCTIONS[data.task]
    loss, metric = loss or usual.loss, metric or usual.metric
    rows = compile(template, example, loss, dtype=plan.dtype, target=target)
    flat = torch.stack([rows.layout.pack(initial[r.seed]) for r in runs]).to(device, dtype)
    ranks.first(flat)
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
    none_yet = Candidates(flat[:0], np.zeros(0), np.zeros(0), nobody)
    progress = Progress(
        round=0,
        model=flat,
        deployed=flat[torch.from_numpy(owner).to(device)],
        owner=owner,
        best=flat.clone(),
        best_score=np.full(len(runs), -np.inf),
        best_round=np.full(len(runs), -1, np.int64),
        velocity=torch.zeros_like(flat) if plan.server_momentum or any(optimisers) else None,
        second=_second_moments(flat, optimisers),
        states=[check_state(r.strategy, r.strategy.init(r.federation.n_clients)) for r in runs],
        kept=[KeptChanges(flat[:0], nobody, nobody) for _ in runs],
        vectors=_kept_vectors(runs, flat),
        means=[
            {name: torch.zeros_like(flat[0]) for name in r.strategy.local().means} for r in runs
        ],
        picks=dict.fromkeys(picking, none_yet),
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
    pool = Pool(rows.prepare(x), y, trained.entries)
    parts = (trained, validated, tested)
    graphs = GraphCache(device, rows.recordable)
    held = (runs, plan, rows, pool, metric, progress, *parts, workers, graphs, ranks)
    by_group = not free and all(groups.judged(run.federation).yes for run in runs)
    batch = Batch(*held, lower_is_better=lower, client_metric=client_metric)
    batch.judges_groups = by_group
    batch.private = mechanisms(runs, plan, rows.layout)
    return batch


def _second_moments(flat: Tensor, optimisers: list[ServerOptimiser | None]) -> Tensor | None:
    """(R, P) The second moments before the first round; None if no run has any."""
    start = [how.tau**2 if how is not None and how.adaptive else 0.0 for how in optimisers]
    if not any(start):
        return None
    return torch.tensor(start, dtype=torch.float64).to(flat)[:, None].expand_as(flat).clone()


MOST_KEPT = 1 / 8  # of a GPU's memory that kept vectors may take


def _kept_vectors(runs: Sequence[Run], flat: Tensor) -> list[dict[str, Tensor]]:
    """What the clients of each run keep: zeros, and models of their own, which begin as the run's.

    They lie in the host's memory where they would take more than a part of a GPU's.
    """
    local = [run.strategy.local() for run in runs]
    many = [len(o.keep) + (o.personal is not None) for o in local]
    size = sum(k * run.federation.n_clients for k, run in zip(many, runs, strict=True))
    where = flat.device
    if flat.is_cuda:
        total = torch.cuda.get_device_properties(where).total_memory
        if size * flat[0].nbytes > MOST_KEPT * total:
            where = torch.device("cpu")
    out = []
    for r, (run, o) in enumerate(zip(runs, local, strict=True)):
        n, own = run.federation.n_clients, dict[str, Tensor]()
        for name in o.keep:
            own[name] = torch.zeros(n, flat.shape[1], dtype=flat.dtype, device=where)
        if o.personal is not None:
            own[PERSONAL] = flat[r].to(where).repeat(n, 1)
        out.append(own)
    return out


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
    read = models.as_read(model.eval(), data.shape)
    numbers = isinstance(read, Shape) and read.kind == "f"
    if not numbers:
        models.check_tokens(model, make, data.x)

    def send(values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(values)
        real = numbers or tensor.is_floating_point()
        return tensor.to(device, dtype if real else tensor.dtype)

    targets = torch.from_numpy(data.y if y is None else y)
    if data.task == "regress":
        out = models.outputs_of(model, read)
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
                evaluations = _evaluate(batch) if due else None
            yield Snapshot(t, rounds, evaluations, at)
            if at.chunk < chunk:
                warnings.warn(f"out of memory: the chunk is {at.chunk} from now on", stacklevel=2)
    finally:
        begun = None
        batch.graphs.forget()  # free the device's memory for the next batch


def _evaluate(batch: Batch) -> list[Evaluation | None]:
    """Every live run's models on every client; remembers the best rounds' models."""
    at = batch.progress
    alive = [r for r, why in enumerate(at.diverged) if not why]
    handed_out = [d for d, r in enumerate(at.owner) if not at.diverged[r]]
    alone = [r for r in alive if (own := batch.local[r].personal) is not None and own.only]
    averaged = [
        d for d in handed_out if batch.handed_out[d][1] != "last" and at.owner[d] not in alone
    ]
    found: dict[int, Evaluation] = {d: {} for d in handed_out}
    tested, held = (
        _scores(batch, parts, at.model, {r: r for r in alive})
        for parts in (batch.test, batch.validation)
    )
    for r in alone:  # whose clients have no other models than their own
        mine: ModelsOf = partial(kept_rows, batch, r, PERSONAL)
        tested |= _personal_scores(batch, batch.test, r, mine)
        held |= _personal_scores(batch, batch.validation, r, mine)
    for d in handed_out:
        if d in at.picks:
            _pick(batch, d, held[int(at.owner[d])])
    for parts, last, suffix in ((batch.test, tested, ""), (batch.validation, held, "_validation")):
        deployed = _scores(batch, parts, at.deployed, {d: int(at.owner[d]) for d in averaged})
        for d, mine in _personal_models(batch, handed_out).items():
            r = int(at.owner[d])
            if r in (served := _personal_scores(batch, parts, r, mine)):
                found[d]["personal" + suffix] = served[r]
        for d in handed_out:
            r = int(at.owner[d])
            if r in last:
                found[d] |= {
                    "last" + suffix: last[r],
                    "deployed" + suffix: deployed.get(d, last[r]),
                }
    judged = tested | held  # on validation examples, where there are such
    for r in alive:
        scores = judged[r].accuracy
        score = np.nan if np.isnan(scores).all() else float(np.nanmean(scores))
        score = -score if batch.lower_is_better else score
        if score > at.best_score[r]:
            at.best_score[r], at.best_round[r] = score, at.round - 1
            at.best[r] = at.model[r]
    return [found.get(d) for d in range(len(at.owner))]


def _personal_models(batch: Batch, handed_out: list[int]) -> dict[int, ModelsOf]:
    """The clients' own models, by deployed model: kept ones, or the deployed one fine-tuned."""
    out: dict[int, ModelsOf] = {}
    for d in handed_out:
        r = int(batch.progress.owner[d])
        if batch.local[r].personal is not None:
            out[d] = partial(kept_rows, batch, r, PERSONAL)
        elif batch.plan.finetune:
            out[d] = partial(fine_tuned, batch, d)
    return out


def _personal_scores(batch: Batch, parts: RunParts, r: int, own: ModelsOf) -> dict[int, Scores]:
    """How the clients' own models serve them, by run; {} where there are no such examples."""
    if not len(parts.parts[r].index):
        return {}
    scores = _scores_apart(batch, parts, r, own)
    return {r: _with_groups(batch, parts, r, own, scores, shared=False)}


def _scores_apart(batch: Batch, parts: RunParts, r: int, models: ModelsOf) -> Scores:
    """Loss and score of each client, where each has a model of its own."""
    if batch.client_metric is not None:
        return client_scores(batch, parts, r, models, shared=False)
    everyone = np.arange(batch.runs[r].federation.n_clients)
    found = client_means(batch, parts, r, models, everyone, scored=True)
    return Scores(*(value.cpu().numpy() for value in found))


def _pick(batch: Batch, d: int, held: Scores) -> None:
    """Deploy the best model so far by the rule of d; keep those that may yet be the best."""
    at, rule = batch.progress, batch.handed_out[d][1]
    r, known = int(at.owner[d]), at.picks[d]
    mean = -np.nanmean(held.accuracy) if batch.lower_is_better else np.nanmean(held.accuracy)
    accuracy = np.append(known.accuracy, mean)
    variance = np.append(known.variance, np.nanvar(held.accuracy))
    round_ = np.append(known.round, at.round - 1)
    models = torch.cat([known.model, at.model[r : r + 1]])
    at.deployed[d] = models[average.pick_round(rule, accuracy, variance)]
    keep = average.can_still_win(rule, accuracy, variance)
    at.picks[d] = Candidates(models[keep.tolist()], accuracy[keep], variance[keep], round_[keep])


def _scores(
    batch: Batch, parts: RunParts, flat: Tensor, whose: dict[int, int]
) -> dict[int, Scores]:
    """Loss and score of each client under some models; `whose` maps rows of `flat` to runs."""
    whose = {row: r for row, r in whose.items() if len(parts.parts[r].index)}
    if not whose:
        return {}
    found = _client_scores(batch, parts, flat, whose)
    models = {row: partial(server_models, batch, r, flat[row]) for row, r in whose.items()}
    shared = whole_models(batch)
    return {
        row: _with_groups(batch, parts, whose[row], models[row], scores, shared=shared)
        for row, scores in found.items()
    }


def _with_groups(
    batch: Batch, parts: RunParts, r: int, models: ModelsOf, scores: Scores, *, shared: bool
) -> Scores:
    """The scores with counts by groups of people, where the data have groups to be judged by."""
    if not batch.judges_groups or not groups.known(batch.runs[r].federation, parts.parts[r]):
        return scores
    counts = group_counts(batch, parts, r, models, shared=shared)
    return dataclasses.replace(scores, groups=counts)


def _client_scores(
    batch: Batch, parts: RunParts, flat: Tensor, whose: dict[int, int]
) -> dict[int, Scores]:
    """Loss and score of each client, by the quickest way."""
    if batch.client_metric is not None and whole_models(batch):
        return {
            row: client_scores(
                batch, parts, r, partial(server_models, batch, r, flat[row]), shared=True
            )
            for row, r in whose.items()
        }
    if not whole_models(batch):
        return {
            row: _scores_apart(batch, parts, r, partial(server_models, batch, r, flat[row]))
            for row, r in whose.items()
        }
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


def _try(
    model: torch.nn.Module,
    example: Inputs,
    target: Tensor,
    loss: LossFn | None,
    metric: MetricFn | None,
) -> None:
    """Refuse a loss or metric that does not give one value per example."""
    for name, function in (("loss", loss), ("metric", metric)):
        if function is not None:
            if not callable(function):
                raise InputError(f"{name}={function!r}: give a function of (outputs, targets)")
            value = function(call(model, example), target)
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            if shape != (len(target),):
                raise InputError(
                    f"the {name} gave {shape} for {len(target)} examples: it must give one value "
                    "per example, as with reduction='none'"
                )
            if name == "metric" and not bool(value.isfinite().all()):
                raise InputError(
                    "the metric gave a value that is not finite: give each example a score, as 1 "
                    "for right and 0 for wrong"
                )


def _try_client_metric(
    model: torch.nn.Module, x: Inputs, y: Tensor, run: Run, metric: ClientMetricFn | None
) -> None:
    """Refuse a metric of clients that does not give one number for the client with most tests."""
    if metric is not None:
        if not callable(metric):
            raise InputError(
                f"client_metric={metric!r}: give a function of all (outputs, targets) of a client"
            )
        who = int(np.argmax(run.federation.test.size))
        mine = torch.from_numpy(run.federation.test.of(who)[:1000]).to(y.device)
        with torch.no_grad():
            outputs = call(model, trees.mapped(lambda v: v[mine], x)).double().cpu().numpy()
        score_of_client(metric, outputs, y[mine].cpu().numpy(), f"client {who}")


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
            if average.needs_validation(rule) and not len(run.federation.validation.index):
                raise InputError(average.no_validation(rule))
        check_strategy(run.strategy)
        if plan.server_momentum and run.strategy.needs().trials:
            raise InputError(
                f"{run.strategy.label()} tries the server's step before it is taken, and momentum "
                "makes it another: leave out server_momentum"
            )
        if run.strategy.needs().groups:
            _check_groups(run)
        if run.strategy.needs().loss == "held" and not run.federation.validation.size.all():
            who = np.argmin(run.federation.validation.size)
            raise InputError(
                f"{run.strategy.label()} weighs by validation losses, but client {who} has no "
                "validation examples: add --validation 10%, or leave out loss_at=held"
            )
    for federation in {id(run.federation): run.federation for run in runs}.values():
        federation.check()
    round_schedule(plan.schedule, plan.lr_decay)
    parse_schedule(plan.step_schedule, "step_schedule")
    if plan.augment is not None:
        parse_augment(plan.augment).check(runs[0].federation.data.shape)


def _check_groups(run: Run) -> None:
    """Refuse a strategy that weighs by groups where there are none to weigh by."""
    fed, who = run.federation, run.strategy.label()
    if fed.data.group is None:
        raise InputError(
            f"{who} weighs clients by groups of people, but {fed.data.name} has no group column: "
            f"name one, as with --group sex, or leave {run.strategy.name} out"
        )
    if fed.data.task != "classify" or fed.data.target.outputs != 2:
        raise InputError(
            f"{who} weighs clients by groups of people, for which there must be two classes, but "
            f"the targets are {fed.data.target.in_words()}: leave {run.strategy.name} out"
        )
    if len(np.unique(fed.data.group[fed.train.index])) < 2 or not groups.known(fed, fed.train):
        raise InputError(
            f"{who} weighs clients by groups of people, but the training examples are of one "
            f"group: name another column, or leave {run.strategy.name} out"
        )


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
        fits = max(1, int(14e6 / size / (rows.layout.size + rows.activations * minibatch)))
        return min(fits, rows.max_rows or fits)
    each = size * rows.room(minibatch)
    return max(1, int(0.4 * torch.cuda.mem_get_info(flat.device)[0] / each))
