"""What `fedmaba reproduce` can reproduce: targets, each a TOML file in `experiments/`. No torch.

A file is an experiment as `fedmaba run` takes it, plus a section `[target]` that says how it is
shown. `like` takes over another file's keys, `variant` repeats the experiment with changes, `more`
adds seeds for some rows, `uses` shows the runs of other targets, `search` tries settings before
(picks.py). A run is known by its settings, strategy, seed and deployed model, so targets that want
the same run share it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from fedmaba import strategies
from fedmaba.data import natural
from fedmaba.errors import InputError, unknown
from fedmaba.experiment import config, experiment_file
from fedmaba.experiment.config import Experiment, Section
from fedmaba.strategies.base import Strategy

OUT = Path("runs/reproduce")  # In this folder `fedmaba reproduce` keeps its results.
QUICK = 5_000  # A quick version has this many client updates: about a minute on two cores.
# What decides a run's numbers.
NUMBERS = (
    *("model", "init", "batchnorm", "data", "train", "attack"),
    *("dp", "server", "turnout", "eval"),
)


def parse_machine(device: str, dtype: str) -> config.Machine:
    """Read where and how precisely to compute."""
    machine = {"device": device, "dtype": dtype}
    return config.build({"strategies": ["fedavg"], "machine": machine}).machine


def parse_seeds(text: str) -> int | list[int]:
    """Read a count of seeds, or the seeds themselves."""
    return config.build({"strategies": ["fedavg"], "seeds": text}).seeds


class ExtraSeeds(Section):
    """Rows with seeds of their own."""

    strategies: list[str]
    seeds: int


class Variant(Section):
    """The same experiment with something changed."""

    title: str
    set: dict[str, Any] = Field(default={})
    strategies: list[str] | None = None
    name: str = ""  # Another variant refers to it by this name.
    # It names the variant that has the rows of the table that this one leaves as they are.
    rest: str = ""
    # No row of the paper's table names these hyper-parameters.
    apart: list[str] = Field(default=[])


class Ends(Section):
    """What a search tries beyond a grid whose end is picked, in this order, or why nothing."""

    low: list[float] | str
    high: list[float] | str


class View(Section):
    """The section [target] of a file."""

    kind: Literal[
        "table",
        "grid",
        "figure",
        "sweep",
        "readings",
        "fair",
        "attacks",
        "privacy",
        "turnout",
        "baselines",
        "claims",
        "all",
    ]
    title: str
    note: str = ""
    paper: str = ""  # It names the table of paper.toml that stands beside ours.
    rule: str = ""
    sweep: str = ""  # It names the hyper-parameter along the figure's axis.
    figures: list[str] = Field(default=[])
    smooth: int = Field(default=1, ge=1)  # A figure's lines are means of this many evaluations.
    # These models are handed out; if none, each strategy's own is.
    deploy: list[str] = Field(default=[])
    more: list[ExtraSeeds] = Field(default=[])
    variant: list[Variant] = Field(default=[])
    uses: list[str] = Field(default=[])
    # At evaluations, each client's training loss is kept.
    keep: list[Literal["losses"]] = Field(default=[])
    # This counts the clients of data that have clients of their own.
    clients: int = Field(default=0, ge=0)
    # Every trial has the seeds 0, 1, ...; with 0 nothing is searched.
    search: int = Field(default=0, ge=0)
    # Every row tries all of these with each of its own values.
    step_sizes: list[float] = Field(default=[])
    further: dict[str, Ends] = Field(default={})  # by row; `lr` stands for the step sizes
    # How this target tries a row that `like` names; "" leaves it out.
    instead: dict[str, str] = Field(default={})
    # It says which of a row's trials is picked, on validation data.
    pick: Literal["best:accuracy", "best:fair", "best:worst"] = "best:fair"


class RunKey(NamedTuple):
    """One run of a job."""

    label: str
    seed: int
    deploy: str


@dataclass(frozen=True)
class Job:
    """Runs that share their settings: one batch of the engine."""

    title: str
    experiment: Experiment
    strategies: dict[str, Strategy]  # by label, in the order of the rows
    runs: tuple[RunKey, ...]
    whole: Experiment  # This is how the file has it, before anything was cut down.
    every: frozenset[RunKey]  # These are the runs, as the file has them.
    keep: tuple[str, ...] = ()  # An archive keeps these beside accuracies.
    clients: int = 0  # This counts the clients of data that have clients of their own.
    fresh: tuple[int, ...] = ()  #     seeds of what a search picks
    every_fresh: tuple[int, ...] = ()  # the same, as the file has them

    @property
    def settings(self) -> dict[str, Any]:
        return settings(self.experiment)

    @cached_property
    def digest(self) -> str:
        return digest(self.settings)


@dataclass(frozen=True)
class Target:
    """One target, ready to be run or shown."""

    name: str
    view: View
    jobs: tuple[Job, ...]
    uses: tuple[Target, ...]
    scale: Scale

    def every_job(self) -> list[Job]:
        """Its own jobs and those of the targets it shows; jobs of the same settings as one."""
        jobs: dict[str, Job] = {}
        for job in [*self.jobs, *(j for t in self.uses for j in t.every_job())]:
            before = jobs.get(job.digest)
            if before is not None:
                runs = tuple(dict.fromkeys([*before.runs, *job.runs]))
                both = before.strategies | job.strategies
                keep = tuple(dict.fromkeys([*before.keep, *job.keep]))
                every = before.every | job.every
                job = replace(before, strategies=both, runs=runs, every=every, keep=keep)
            jobs[job.digest] = job
        return list(jobs.values())


@dataclass(frozen=True)
class Scale:
    """How a target is scaled down or up."""

    rounds: int | None = None
    # This says how many seeds every row has, or which of its own.
    seeds: int | Sequence[int] | None = None
    only: tuple[str, ...] = ()
    quick: bool = False
    without: tuple[str, ...] = ()  # These targets are left out of those that use them.


def folder() -> Path:
    """Where the files lie: beside this package."""
    return Path(__file__).parents[1]


def names() -> list[str]:
    """Every target, tables first."""
    order = (
        "table",
        "figure",
        "claims",
        "readings",
        "fair",
        "natural",
        "real",
        "attacks",
        "privacy",
        "turnout",
        "baselines",
        "equal",
        "all",
    )
    found = [path.stem for path in folder().glob("*.toml")]
    if not found:
        raise InputError(f"{folder()} holds no targets: restore the clone")
    return sorted(found, key=lambda n: (next(i for i, p in enumerate(order) if n.startswith(p)), n))


def _used(target: Target) -> set[str]:
    """The names of all targets that this one shows."""
    return set(target.view.uses).union(*map(_used, target.uses))


def command(target: Target) -> str:
    """What one types to run a target as it was asked for."""
    scale, words = target.scale, ["fedmaba", "reproduce", target.name]
    if scale.quick:
        words.append("--quick")
    if scale.rounds is not None:
        words += ["--rounds", str(scale.rounds)]
    if scale.seeds is not None:
        many = scale.seeds
        words += ["--seeds", str(many) if isinstance(many, int) else ",".join(map(str, many)) + ","]
    if scale.only:
        words += ["--only", ",".join(scale.only)]
    for other in scale.without:
        words += ["--without", other] if other in _used(target) else []
    return shlex.join(words)


def every_target() -> list[Target]:
    """Every target, tables first; what several of them show is read once."""
    known: dict[str, Target] = {}
    return [_load_scaled(name, Scale(), known) for name in names()]


def load_target(name: str, scale: Scale | None = None) -> Target:
    """A target, scaled as asked."""
    scale = scale or Scale()
    for other in scale.without:
        if other not in names():
            raise unknown("target", other, names())
    target = _load_scaled(name, scale, {})
    for other in scale.without:
        if other not in _used(target):
            raise InputError(f"--without {other}: {name} does not use it: leave it out")
    if scale.quick and scale.rounds is None:
        a_round = sum(updates(job, job.runs, 1) for job in target.every_job())
        rounds = max(3, min(40, QUICK // max(a_round, 1)))
        target = _load_scaled(name, replace(scale, rounds=rounds), {})
    if scale.only:
        _check_only(scale.only, target)
    for job in target.every_job():
        if job.every_fresh and not job.fresh:
            first, last = job.every_fresh[0], job.every_fresh[-1]
            raise InputError(
                f"{name}: --seeds leaves none of the seeds {first} to {last}, which no trial has: "
                "name one of them, or how many"
            )
    if not any(job.runs for job in target.every_job()):
        seeds = sorted(
            {key.seed for job in _load_scaled(name, Scale(), {}).every_job() for key in job.runs}
        )
        raise InputError(
            f"{name}: --only and --seeds leave no run: its seeds are {seeds[0]} to {seeds[-1]}"
        )
    return target


def settings(experiment: Experiment) -> dict[str, Any]:
    """All that decides the numbers of a run but strategy, seed and deployed model."""
    tree = {k: v for k, v in experiment_file.result_settings(experiment).items() if k in NUMBERS}
    del tree["server"]["deploy"]
    if tree["attack"]["does"] is None:
        del tree["attack"]
    return tree


def digest(tree: dict[str, Any]) -> str:
    """A short name of settings."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:8]


def changes(job: Job) -> list[str]:
    """Which settings were cut down, in words."""
    out = []
    for key in config.options():
        if key.path[0] in NUMBERS:
            now, then = (_at(e.model_dump(), key.path) for e in (job.experiment, job.whole))
            if now != then:
                out.append(f"{key.name} {now} instead of {then}")
    return out


def part(*jobs: Job) -> str:
    """How many of their runs were asked for, in words; nothing where all were."""
    asked = sum(len(job.every & set(job.runs)) for job in jobs)
    every = sum(len(job.every) for job in jobs)
    return f"{asked} of {every} runs" if asked < every else ""


def _load_scaled(
    name: str, scale: Scale, known: dict[str, Target], above: tuple[str, ...] = ()
) -> Target:
    """A target; `known` are those of the same scale that were loaded before."""
    if name in known:
        return known[name]
    tree = _read(name)
    try:
        view = View.model_validate(tree.pop("target"))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{name}.toml: target.{'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None
    above = (*above, name)
    for other in view.uses:
        if other in above:
            raise InputError(f"{name}.toml: uses {other!r}, which uses it: take one out")
    jobs = []
    if "strategies" in tree:
        listed = [view.instead.get(row_of(spec), spec) for spec in tree["strategies"]]
        tree["strategies"] = [spec for spec in listed if spec]
        steps = [
            Variant(title=f"step size {lr:g}", set={"train": {"lr": lr}}) for lr in view.step_sizes
        ]
        variants = view.variant or steps or [Variant(title=view.title)]
        jobs = [_job(name, tree, view, variant, scale) for variant in variants]
    if view.search:
        _check_search(name, view, jobs)
    shown = (other for other in view.uses if other not in scale.without)
    uses = tuple(_load_scaled(other, scale, known, above) for other in shown)
    known[name] = Target(name, view, tuple(jobs), uses, scale)
    return known[name]


def _job(name: str, tree: dict[str, Any], view: View, variant: Variant, scale: Scale) -> Job:
    tree = _merge(tree, variant.set)
    if variant.strategies:
        tree["strategies"] = variant.strategies
    whole = config.build(tree, f"{name}.toml")
    if scale.quick:
        tree = _merge(tree, _small(whole))
    if scale.rounds is not None:
        tree = _merge(tree, {"train": {"rounds": scale.rounds}})
    if scale.quick:
        often = 1 if whole.eval.finetune else 10  # fine-tuning all clients takes long
        every = max(1, tree["train"]["rounds"] // often)
        tree = _merge(tree, {"eval": {"every": every}})
    asked = config.build(tree)
    listed = {s.label(): s for spec in asked.strategies for s in strategies.parse(spec)}
    deploys = {label: view.deploy or [s.deploy] for label, s in listed.items()}
    seeds = dict.fromkeys(listed, asked.seed_list())
    for more in view.more:
        for spec in more.strategies:
            for s in strategies.parse(spec):
                seeds[s.label()] = list(range(more.seeds))
    every_fresh, fresh, tried = _fresh(asked, view, scale) if view.search else ((), (), None)
    if tried is not None:
        seeds = {label: list(range(view.search)) for label in listed}
    every = [RunKey(k, seed, d) for k in listed for seed in seeds[k] for d in deploys[k]]
    runs = [
        RunKey(label, seed, deploy)
        for label in listed
        for seed in (_seeds(seeds[label], scale) if tried is None else tried)
        for deploy in deploys[label]
        if not scale.only or any(_matches(word, label) for word in scale.only)
    ]
    # A part of the runs then has whole seeds, as far as it goes.
    runs.sort(key=lambda key: key.seed)
    return Job(
        title=variant.title,
        experiment=asked,
        strategies=listed,
        runs=tuple(runs),
        whole=whole,
        every=frozenset(every),
        keep=tuple(view.keep),
        clients=view.clients,
        fresh=fresh,
        every_fresh=every_fresh,
    )


def _fresh(
    asked: Experiment, view: View, scale: Scale
) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Of a search: the seeds of what is picked, those asked for, and the seeds of trials."""
    first = view.search
    every, some = range(first, first + len(asked.seed_list())), scale.seeds
    if some is None:
        chosen: Sequence[int] = every[: 2 if scale.quick else None]
    elif isinstance(some, int):
        chosen = range(first, first + some)
    else:
        chosen = [seed for seed in every if seed in some]
    return tuple(every), tuple(chosen), list(range(1 if scale.quick else first))


def step_size_of(job: Job) -> float:
    return job.experiment.train.lr


def with_step_size(job: Job, lr: float) -> Job:
    """A job of another step size, without runs."""
    title = f"step size {lr:g}"
    experiment, whole = (
        e.model_copy(update={"train": e.train.model_copy(update={"lr": lr})})
        for e in (job.experiment, job.whole)
    )
    return replace(
        job,
        title=title,
        experiment=experiment,
        whole=whole,
        strategies={},
        runs=(),
        every=frozenset(),
    )


def _check_search(name: str, view: View, jobs: Sequence[Job]) -> None:
    """Refuse a search in which rows have different chances, or nothing to pick on."""
    trials = Counter(row_of(label) for job in jobs for label in job.strategies)
    if not view.step_sizes and len(set(trials.values())) > 1:
        told = ", ".join(f"{row} {many}" for row, many in trials.items())
        raise InputError(f"{name}.toml: every row gets as many trials, but these differ: {told}")
    for job in jobs:
        if job.experiment.data.validation == "0%":
            raise InputError(f"{name}.toml: a search picks on validation data: set data.validation")
        if not isinstance(job.whole.seeds, int):
            raise InputError(f"{name}.toml: say how many seeds follow those of the trials")


def row_of(label: str) -> str:
    """The strategy of a label, without its hyper-parameters: a row of a search."""
    return label.partition(":")[0]


def _small(whole: Experiment) -> dict[str, Any]:
    """What --quick changes of images: the embedded sample, the MLP, a fifth of the clients."""
    some = whole.train.participants
    if natural.is_natural(whole.data.name):  # embedded and small as it is
        return {}
    return {
        "model": "mlp",
        "data": {"name": "sample", "clients": 20},
        "train": {"participants": some if some == "all" else max(2, int(some) // 5)},
    }


def _seeds(own: Sequence[int], scale: Scale) -> list[int]:
    """The seeds of a row: its own, the first few of any number, or those named among its own."""
    asked = scale.seeds
    if asked is None:
        return list(own[:2] if scale.quick else own)
    if isinstance(asked, int):
        return list(range(asked))
    return [seed for seed in own if seed in asked]


def parse_row_names(text: str) -> tuple[str, ...]:
    """`fedavg,fedmaba:alpha=0.8,eta_b=1` as the strategies it names."""
    return tuple(w.strip() for w in re.split(r",(?=\s*[\w.]+(?:[:,]|\s*$))", text) if w.strip())


def _matches(word: str, label: str) -> bool:
    if ":" not in word:
        return row_of(label) == word
    return label in {s.label() for s in strategies.parse(word)}


def _check_only(only: Iterable[str], target: Target) -> None:
    labels = [label for job in target.every_job() for label in job.strategies]
    for word in only:
        if not any(_matches(word, label) for label in labels):
            raise unknown("row", word, {*labels, *map(row_of, labels)})


def participants(job: Job) -> int:
    """Clients in a round."""
    some = job.experiment.train.participants
    own = job.clients or job.experiment.data.clients or 100
    return own if some == "all" else int(some)


def updates(job: Job, runs: Sequence[RunKey], rounds: int | None = None) -> int:
    """Client updates of some of a job's runs; those of another deployed model are trained once."""
    trained = len({(key.label, key.seed) for key in runs})
    return trained * participants(job) * (rounds or job.experiment.train.rounds)


def _read(name: str) -> dict[str, Any]:
    """The tree of a target with all that it takes over."""
    if name not in names():
        raise unknown("target", name, names())
    return _read_file(name)


def _read_file(name: str) -> dict[str, Any]:
    """The tree of a file, which is a target or lies in `like/`, where targets share their keys."""
    tree = experiment_file.read_toml(folder() / f"{name}.toml")
    if not isinstance(tree.get("target"), dict):
        raise InputError(f"{name}.toml has no section [target]: add one, with kind and title")
    like = tree["target"].pop("like", None)
    return tree if like is None else _merge(_read_file(like), tree)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A tree with another one's keys put in; neither is changed."""
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merge(out[key], value) if both else value
    return out


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        tree = tree[part]
    return tree
