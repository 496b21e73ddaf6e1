"""What is refused before the first round: runs that do not fit together, and users' functions.

Losses and metrics are tried on some examples, so that what is wrong with them is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedmaba.data import groups, trees
from fedmaba.errors import FedmabaError, InputError
from fedmaba.rows import LossFn, Rows, objectives
from fedmaba.rows.base import Inputs, call, seed_torch
from fedmaba.rows.batchnorm import too_few
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.client_scores import ClientMetricFn, score_of_client
from fedmaba.simulation.evaluation import MetricFn
from fedmaba.simulation.local_training import Pool
from fedmaba.simulation.optimiser import parse_schedule, round_schedule
from fedmaba.simulation.state import Plan, Run
from fedmaba.stop import Ended
from fedmaba.strategies import deployed as average
from fedmaba.strategies.contract import check_strategy
from fedmaba.user_code import error_in_user_code


def check_runs(runs: Sequence[Run], plan: Plan) -> None:
    """Refuse runs without what their strategies need, and plans that no round can follow."""
    if not runs:
        raise InputError("no runs: name at least one strategy and one seed")
    for run in runs:
        if run.federation.data is not runs[0].federation.data:
            raise InputError("runs of one batch must share one data set: simulate them apart")
        check_strategy(run.strategy, run.federation.n_clients)
        own, others = (plan.local(each.strategy).own_layers for each in (run, runs[0]))
        if own != others:
            raise InputError(
                f"{run.strategy.label()} has own_layers={own}, but {runs[0].strategy.label()} has "
                f"{others}, and runs of one batch share one form of model: simulate them apart"
            )
        m, n = plan.participants, run.federation.n_clients
        if m is not None and not 1 <= m <= n:
            raise InputError(
                f"participants={m}, but the federation has {n} clients: lower it or say 'all'"
            )
        for rule in run.rules:
            if average.needs_validation(rule) and not len(run.federation.validation.index):
                raise InputError(average.no_validation(rule))
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


def check_picks(runs: Sequence[Run], lower_is_better: bool) -> None:
    """Refuse a rule of the deployed model that the score does not fit."""
    if lower_is_better and any("best:fair" in run.rules for run in runs):
        raise InputError(
            "deploy='best:fair' goes by points of a score where higher is better, but here lower "
            "is: say best:accuracy, which picks the lowest"
        )


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


def check_minibatches(model: torch.nn.Module, runs: Sequence[Run], plan: Plan) -> None:
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


def try_functions(
    model: torch.nn.Module,
    example: Inputs,
    target: Tensor,
    loss: LossFn | None,
    metric: MetricFn | None,
) -> None:
    """Refuse a loss or metric that does not give one value per example, as training needs it."""
    if loss is not None:
        outputs = _asked("model", lambda: call(model, example))
        value = _tried("loss", loss, outputs, target)
        if not value.requires_grad:
            raise InputError(
                "the loss has no gradient, so nothing would be trained: compute it by torch from "
                "the outputs, without .detach(), .numpy() and argmax"
            )
    if metric is not None:
        with torch.no_grad():
            _tried("metric", metric, _asked("model", lambda: call(model, example)), target)


def _tried(name: str, function: LossFn | MetricFn, outputs: Tensor, target: Tensor) -> Tensor:
    """The values of a function of a user's for some outputs, the same when asked again."""
    if not callable(function):
        raise InputError(f"{name}={function!r}: give a function of (outputs, targets)")
    values = []
    for _ in range(2):
        seed_torch(0)
        given = outputs.clone(), target.clone()
        value = _asked(name, lambda: function(*given))  # noqa: B023
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape != (len(target),):
            raise InputError(
                f"the {name} gave {shape} for {len(target)} examples: it must give one value "
                "per example, as with reduction='none'"
            )
        if not bool(value.isfinite().all()):
            advice = "1 for right and 0 for wrong" if name == "metric" else "0 where all is right"
            raise InputError(
                f"the {name} gave a value that is not finite: give each example a number, as "
                f"{advice}"
            )
        values.append(value)
        if not all(torch.equal(*pair) for pair in zip(given, (outputs, target), strict=True)):
            raise InputError(f"the {name} changes what it is given: copy it first, as .clone()")
    if not torch.allclose(values[0], values[1], 1e-4, 1e-6):
        raise InputError(
            f"the {name} gives other values for the same outputs when it is asked again: draw "
            "random numbers by torch, not by numpy or random"
        )
    return values[0]


def _asked(name: str, ask: Callable[[], Tensor]) -> Tensor:
    """What code of a user's gives; an error in it becomes one line."""
    try:
        return ask()
    except (FedmabaError, Ended):
        raise
    except Exception as error:  # user code can raise anything
        raise error_in_user_code(f"the {name}", error) from error


def try_client_metric(
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
            outputs = _asked("model", lambda: call(model, trees.mapped(lambda v: v[mine], x)))
        outputs_on_host = outputs.double().cpu().numpy()
        score_of_client(metric, outputs_on_host, y[mine].cpu().numpy(), f"client {who}")


def try_objectives(runs: Sequence[Run], rows: Rows, models: Tensor, pool: Pool) -> None:
    """Refuse an objective of a strategy that does not give what training needs."""
    asked = (run.strategy.local().objective for run in runs)
    for one in {o.form: o for o in asked if o is not None}.values():
        objectives.check(one.name, one.numbers, one.sees, rows, models, pool.x, pool.y)
