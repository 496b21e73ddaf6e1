"""What people call in Python to run something: `compare` and `tune`, with progress and trackers."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from fedmaba import stop
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.errors import InputError
from fedmaba.experiment import config, sweep
from fedmaba.experiment.config import Experiment
from fedmaba.experiment.initial import Init
from fedmaba.experiment.keywords import Options
from fedmaba.experiment.session import Session, UserObjects
from fedmaba.experiment.starting import RunGroup, python_call
from fedmaba.experiment.trained import keep_models
from fedmaba.experiment.trials import Trial
from fedmaba.experiment.tune import Search, Tuning, with_grid
from fedmaba.report import call_progress, trackers
from fedmaba.results.history import History
from fedmaba.rows import LossFn, models
from fedmaba.simulation import distributed
from fedmaba.simulation.client_scores import ClientMetricFn
from fedmaba.simulation.evaluation import MetricFn
from fedmaba.strategies import parse
from fedmaba.strategies.base import Strategy


def compare(
    strategies: Sequence[str | Strategy] | str | Strategy,
    *,
    data: str | Path | list[str] | datasets.Dataset | Federation = "sample",
    model: str | list[str] | models.Factory | None = None,
    loss: LossFn | None = None,
    metric: str | MetricFn | None = None,
    client_metric: ClientMetricFn | None = None,
    init: Init | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    track: str | Sequence[str] = (),
    **options: Unpack[Options],
) -> History:
    """Run strategies on a federation and return their history.

    Options are those of `fedmaba compare`, with underscores: rounds=40, clients=20, lr=0.05.
    A `metric` is a name of `--metric`, or a function that scores each example; a `client_metric`
    scores all predictions (outputs, targets) of one client with one number. How far the runs are is
    shown on standard error, and told to the logger `fedmaba`; `track` names trackers that see every
    round: "tensorboard", "wandb" or "mlflow".
    """
    if isinstance(strategies, str | Strategy | type):
        strategies = [strategies]
    if not isinstance(strategies, Iterable):
        raise InputError(f"{strategies!r} is no list of strategies: name them, as ['fedavg']")
    listed = [s for item in strategies for s in _parse_strategy(item)]
    given: dict[str, Any] = {"data": data, "model": model, "loss": loss, "metric": metric}
    given |= {"client_metric": client_metric, "init": init}
    tree, own = python_call([s.label() for s in listed], {**given, **options})
    swept = sweep.combinations(tree)
    asked = [config.build(one) for one in swept.trees]
    for experiment in asked:
        if isinstance(own.data, datasets.Dataset) and experiment.data.normalise is not None:
            raise InputError(
                f"normalise={experiment.data.normalise!r}: a Dataset is used as it is: leave it "
                "out, or name a published set"
            )
    objects = {s.label(): s for s in listed}
    if len(objects) < len(listed):
        labels = [s.label() for s in listed]
        label = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"strategy {label!r} is listed twice: each row of a table is one")
    folder = None if out is None else Path(out)
    used = _trackers_for(track, folder)
    whole = RunGroup(
        asked, dict(zip(objects, objects, strict=True)), swept.keys, folder, own, objects
    )
    return whole.history(_run_all(whole.sessions(), progress, folder, used))


def _with_options(text: str) -> str:
    """A docstring with every option of an experiment that is no parameter by itself."""
    named = compare.__kwdefaults__ or {}
    keys = [key for key in config.options() if key.argument not in named]
    lines = [f"    {key.argument}: {key.text} [{key.default}]" for key in keys]
    return "\n".join([text.rstrip(), "", "    Options, with their defaults:", "", *lines])


compare.__doc__ = _with_options(compare.__doc__ or "")


def _trackers_for(track: str | Sequence[str], out: Path | None) -> list[str]:
    """The trackers that a call asks for; refused before any work if one cannot be used."""
    if not track:
        return []
    if out is None:
        raise InputError(f"track={track!r} needs a run folder: name one, as out='runs/mine'")
    return trackers.check(track)


def _run_all(
    sessions: Iterable[Session], progress: bool, out: Path | None, used: Sequence[str] = ()
) -> list[tuple[Experiment, History]]:
    """Run the sessions of a call one after another; their histories know their models."""
    # Ctrl-C waits for the round if there is a folder to save into and no handler of the caller's.
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    numbers = [signal.SIGINT] if out is not None and usual else []
    finished: list[tuple[Experiment, History]] = []
    speaker = call_progress.speaker_for(progress, distributed.join().rank)
    with stop.after_the_round(speaker.warn, numbers) as told:
        for session in sessions:
            call_progress.follow(session, speaker, told, used)
            # This is also said in the last round, to end a loop of calls.
            if session.stopped or told():
                done = session.batch.progress.round
                more = "the same call resumes it" if session.stopped else "it is complete"
                raise KeyboardInterrupt(f"stopped after round {done}, saved in {out}: {more}")
            keep_models(session)
            finished.append((session.experiment, session.history))
            del session  # This frees the device's memory for the next computation.
    return finished


class Tuned(NamedTuple):
    """The result of a search: the runs of what was picked, and all trials."""

    history: History
    trials: list[Trial]


def tune(
    strategies: Sequence[str] | str,
    grid: Mapping[str, Any],
    *,
    out: str | Path,
    sampler: str = "grid",
    trials: int | None = None,
    pick: str = "best:accuracy",
    search_seeds: int = 3,
    progress: bool = True,
    track: str | Sequence[str] = (),
    **options: Any,
) -> Tuned:
    """Try settings, pick the best of each strategy on validation data, and run fresh seeds of it.

    Options are those of `compare`. The same call again goes on, or returns the finished result.
    """
    named = [strategies] if isinstance(strategies, str) else list(strategies)
    if not all(isinstance(spec, str) for spec in named):
        raise InputError("tune takes strategies by name, as 'fedmaba:alpha=[0.5,0.8]'")
    given = python_call(named, options)
    search = Search(tuple(named), with_grid(given.tree, grid), sampler, trials, pick, search_seeds)
    own = None if given.own == UserObjects() else given.own
    tuning, used = Tuning(search, Path(out), own), _trackers_for(track, Path(out))
    finished = _run_all(tuning.sessions(), progress, tuning.out, used)
    return Tuned(tuning.history([history.trained for _, history in finished]), tuning.trials)


def _parse_strategy(item: object) -> list[Strategy]:
    if isinstance(item, type) and issubclass(item, Strategy):
        raise InputError(f"{item.__name__} is a class: write {item.__name__}(), or its name")
    if not isinstance(item, str | Strategy):
        raise InputError(f"{item!r} is no strategy: give a name, or an object as fedmaba.FedMABA()")
    return parse(item) if isinstance(item, str) else [item]
