"""Read the state folder of a server on Flower: its rounds as the history of one run. No torch.

rounds.jsonl      a line per round: who answered, weights, losses, accuracy, who was left out and
                  why; and one at the end, how the deployed model serves each site
timing.jsonl      when each round ended, and how long it took; folders of version 0.1.0 have none
about.json        settings and versions of the server; folders of version 0.1.0 have none
checkpoint/*.ckpt the settings and the sites, beside the models and the strategy's state
models/           last and deployed, once the federation has ended

Sites are the clients of the history. Accuracy in a round is of the model that the sites received,
which is the server's after the round before. Sites send no test loss and no number of test
examples, so what needs those is nan.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedmaba.errors import InputError
from fedmaba.results import array_files, files, metrics, round_lines, run_folder, schema
from fedmaba.results.history import History, TrainedModel
from fedmaba.results.metrics import ACCURACY, Fairness, Metric, Unit
from fedmaba.results.run_history import At, FloatArray, GrowingArray, IntArray, Model, RunHistory

if TYPE_CHECKING:
    from torch import nn

META = ("terms", "sites", "owners", "changes", "counted", "refused")  # of a checkpoint
MAX_CELLS = 5_000_000  # A folder that is read may have this many rounds times sites.
# Sites tell their scores so where lower is better.
ERROR_METRIC = Metric("error", lower=True, shares=False)
NEARLY_ALL = 0.9  # With one site that holds so much of the weight, a sum is nearly its change.
# The newest lines of the log that are kept, and how far back they are looked for.
NEWEST_EVENTS, EVENT_BYTES = 12, 64 * 1024
RESTORE = "restore it, or name another state folder"
RoundLine = Mapping[str, Any]


@dataclass(repr=False)
class FederationRun(RunHistory):
    """The run of a real federation: each evaluation is of the sites that told a score."""

    UNJUDGED: ClassVar[str] = "Sites that told no {name} are not in the figures."
    SIZES_KNOWN: ClassVar[bool] = False

    def fairness(
        self,
        model: Model = "deployed",
        share: float = 0.05,
        at: Iterable[int] | None = None,
        unit: Unit | None = None,
    ) -> list[Fairness]:
        """The fairness numbers over the sites that told a score, at each evaluation."""
        if not 0 < share <= 1:
            raise InputError(f"share={share}: give a share of the clients above 0 and at most 1")
        accuracy = self.accuracy(model)
        out = []
        for row in accuracy if at is None else accuracy[list(at)]:
            told = row[~np.isnan(row)]
            if not len(told):
                out.append(Fairness(*[math.nan] * len(Fairness._fields)))
                continue
            loss, one = np.full(told.shape, np.nan), np.ones(told.shape, np.int64)
            (found,) = metrics.every(told[None], loss[None], one, share, unit or self.unit)
            out.append(found._replace(by_sample=math.nan))  # nobody says how many examples
        return out

    def chosen(self, at: At, model: Model = "deployed") -> IntArray:
        """Of the evaluations at which a site told a score: the last, the best, or the last five."""
        found = super().chosen(at, model)  # refuses a wrong word
        if not len(self.tables.get("evaluated", ())):
            return found
        told = np.flatnonzero(~np.isnan(self.accuracy(model)).all(axis=1))
        if at == "best" or not len(told):
            return found
        return told[-5:] if at == "last5" else told[-1:]

    def judged(self, model: Model = "deployed", at: At = "last") -> int:
        """How many sites told a score at all evaluations that are looked at."""
        if not len(self.tables.get("evaluated", ())):
            return 0
        seen = self.accuracy(model)[self.chosen(at, model)]
        return int((~np.isnan(seen)).all(axis=0).sum())


@dataclass
class FederationState:
    """A state folder, as far as the federation has come."""

    path: Path
    terms: Mapping[str, Any]  # settings that stay the same
    sites: Sequence[str]
    rounds: Sequence[RoundLine] = ()  # what happened, by round
    # It says how the deployed model served the sites, at each end.
    finals: Sequence[RoundLine] = ()
    done: int = 0  # rounds that are saved
    timing: Mapping[int, RoundLine] = field(default_factory=dict)  # by round
    about: Mapping[str, Any] = field(default_factory=dict)
    held: bool = False  # by a server that works on it
    has_models: bool = False
    events: Sequence[RoundLine] = ()  # the newest lines of its log
    spent: bool = False  # Too few sites may still be asked, because their privacy is spent.

    @property
    def asked(self) -> int | None:
        """How many rounds were asked for, if it was recorded."""
        return (self.about.get("federation") or {}).get("rounds")

    @property
    def finished(self) -> bool:
        enough = self.spent or self.done >= (self.asked or 0)
        return self.has_models and not self.held and enough

    @property
    def metric(self) -> Metric:
        """What sites score: the error where no site told an accuracy."""
        rows = [row for line in self.rounds for row in line["sites"].values()]
        right = any(row.get("accuracy") is not None for row in rows)
        right = right or any("accuracy" in line for line in self.finals)
        wrong = any(row.get("error") is not None for row in rows)
        wrong = wrong or any("error" in line for line in self.finals)
        return ERROR_METRIC if wrong and not right else ACCURACY

    def history(self) -> History:
        """Its rounds as the history of one run."""
        label, seed = str(self.terms["strategy"]), int(self.terms["seed"])
        deploy = str(self.terms["deploy"])
        run = FederationRun(label, seed, deploy, np.ones(len(self.sites), np.int64))
        run.metric = self.metric
        tables = {**self._by_round(), **self._by_evaluation(deploy)}
        run.tables = {name: GrowingArray(table) for name, table in tables.items()}
        history = History([run])
        if self.has_models:
            history.trained = StateModels(self.path.resolve())
        return history

    def _by_round(self) -> dict[str, Any]:
        """Weights and losses of all sites, nan where a site did not answer."""
        if not self.rounds:
            return {}
        shape = (len(self.rounds), len(self.sites))
        out: dict[str, Any] = {
            "round": np.array([line["round"] for line in self.rounds], np.int64),
            "client": np.broadcast_to(np.arange(shape[1]), shape),
            "weight": self._column("weight"),
        }
        loss = self._column("loss")
        if not np.isnan(loss).all():
            out["reported_loss"] = loss
        told = [line.get("info") or {} for line in self.rounds]
        for name in dict.fromkeys(name for one in told for name in one):
            values = [one.get(name) for one in told]
            out[f"info.{name}"] = np.array([math.nan if v is None else v for v in values])
        return out

    def _column(self, name: str) -> FloatArray:
        """(T, N) a number of each site in each round, nan where it told none."""
        place = {site: i for i, site in enumerate(self.sites)}
        out = np.full((len(self.rounds), len(self.sites)), np.nan)
        for row, line in zip(out, self.rounds, strict=True):
            for site, told in line["sites"].items():
                if told.get(name) is not None:
                    row[place[site]] = told[name]
        return out

    def _by_evaluation(self, deploy: str) -> dict[str, Any]:
        """Scores of both models, nan where a site told none.

        A round's scores are of the server's model after the round before; those of the end are of
        the deployed model. With the rule `last` both are the same model.
        """
        place = {site: i for i, site in enumerate(self.sites)}
        scores = self._column("error" if self.metric is ERROR_METRIC else "accuracy")
        last = {
            int(line["round"]) - 1: row
            for line, row in zip(self.rounds, scores, strict=True)
            if line["round"] > 1 and not np.isnan(row).all()
        }
        deployed = {}
        for line in self.finals:
            if line["deployed"]:
                row = np.full(len(self.sites), np.nan)
                for site, score in line["deployed"].items():
                    row[place[site]] = score
                deployed[int(line["round"])] = row
        if deploy == "last":
            last = deployed = last | deployed
        when = sorted({*last, *deployed})
        if not when:
            return {}
        nobody = np.full(len(self.sites), np.nan)
        out: dict[str, Any] = {"evaluated": np.array(when, np.int64)}
        for model, found in (("deployed", deployed), ("last", last)):
            out[f"{model}.accuracy"] = np.stack([found.get(t, nobody) for t in when])
            out[f"{model}.loss"] = np.full((len(when), len(self.sites)), np.nan)
        return out

    def notes(self) -> list[str]:
        """How far it is, and what the folder does not say, a line each."""
        of = f" of {self.asked}" if self.asked else ""
        out = []
        if not self.finished:
            how = "it is running" if self.held else "run it again with the same state to go on"
            out.append(f"unfinished, saved up to round {self.done}{of}: {how}")
        elif self.spent:
            out.append(
                f"ended after round {self.done}{of}, because the privacy budget is spent: too few "
                "sites may still be asked"
            )
        missing = self.done - len(self.rounds)
        if missing > 0:
            out.append(f"rounds.jsonl lacks {missing} of {self.done} rounds: they are not shown")
        name = self.metric.name
        told = [t for line in self.rounds for t in line["sites"].values()]
        scored = any(t.get(what) is not None for t in told for what in ("accuracy", "error"))
        handed = any(line["deployed"] for line in self.finals)
        if self.rounds and not scored and not handed:
            out.append(f"no site told any {name}: none has test examples")
            return out
        if self.rounds and not handed and self.terms["deploy"] != "last":
            when = "it is, after the last round" if not self.finished else "evaluate was off"
            out.append(f"the deployed model was not evaluated ({when}): --model last has figures")
        if scored and self.terms["deploy"] != "last":
            out.append(
                f"sites tell the {name} of the model they receive: the last model's figures are "
                f"as of round {max(0, self.rounds[-1]['round'] - 1)}"
            )
        if self.rounds:
            out.append(
                "sites send no test losses and no numbers of test examples: figures that need "
                "them are left out"
            )
        return out


class StateModels:
    """The models of a federation that has ended, read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def weights(self, run: RunHistory, which: TrainedModel) -> array_files.Arrays:
        """The named weights of the last or the deployed model."""
        if which not in ("last", "deployed"):
            raise InputError(f"a federation has no model {which!r}: choose last or deployed")
        name = f"models/{which}.safetensors"
        with run_folder.reading(self._path / name, RESTORE):
            return array_files.read_weights(files.path_inside(self._path, name))

    def new_module(self, run: RunHistory) -> nn.Module:
        """Nothing: the code of the model is in the app of the federation."""
        raise InputError(
            "module=True: a state folder holds weights, not the code of the model: give the "
            "module to fill, as module=MyModel()"
        )


def load_state_folder(path: Path) -> FederationState | None:
    """The state folder at this path; None where there is something else."""
    named = (run_folder.EXPERIMENT_FILE, "runs.json")
    if not path.is_dir() or any(files.exists(path / name) for name in named):
        return None
    about = run_folder.load_about(path)
    begun = about.get("federation") is not None
    if not run_folder.checkpoints(path):
        if not begun:
            return None
        terms = about["federation"]["terms"]
        held, events = run_folder.in_use(path), _read_events(path)
        return FederationState(path, terms, (), about=about, held=held, events=events)
    _, meta, _ = run_folder.load_checkpoint(path, lambda name: False)
    if meta.get("terms") is None:
        return None
    with run_folder.reading(path / "checkpoint", RESTORE):
        terms = schema.check(schema.Terms, meta["terms"])
        if lacks := [key for key in META if meta.get(key) is None]:
            raise ValueError(f"it lacks {lacks[0]!r}")
        if wrong := misfit(meta):
            raise ValueError(f"{wrong} cannot be of a federation")
    sites = [str(site) for site in meta["sites"]]
    rounds, finals = _read_lines(path, sites, meta["lines"], meta["round"])
    models = [path / "models" / f"{name}.safetensors" for name in ("last", "deployed")]
    return FederationState(
        path,
        terms,
        sites,
        rounds,
        finals,
        meta["round"],
        _read_timing(path),
        about,
        run_folder.in_use(path),
        all(map(files.exists, models)),
        _read_events(path),
        run_folder.load_ledger(path).get("ended") == meta["round"],
    )


def misfit(meta: Mapping[str, Any]) -> str:
    """What in the words of a checkpoint cannot be of a federation; empty if everything can."""
    sites, rounds = meta["sites"], meta.get("last_counted") or {}
    if len(set(sites)) < len(sites) or not all(map(schema.is_site, sites)):
        return "its list of sites"
    if meta["counted"] > meta["round"] or any(t > meta["round"] for t in rounds.values()):
        return "a number of its rounds"
    return ""


def _read_lines(
    path: Path, sites: Sequence[str], end: int, done: int
) -> tuple[list[RoundLine], list[RoundLine]]:
    """The lines of rounds.jsonl that its checkpoint counts: those of rounds, those of ends."""
    file, known = path / "rounds.jsonl", set(sites)
    rounds: list[RoundLine] = []
    finals: list[RoundLine] = []
    with run_folder.reading(file, RESTORE), contextlib.suppress(FileNotFoundError):
        for place, line in files.json_lines(file, end=end):
            try:
                told = schema.check(schema.StateLine, line)
                of_round = told.get("deployed") is None
                _check_line(told, known, rounds, done)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            (rounds if of_round else finals).append(told)
            if (len(rounds) + len(finals)) * max(1, len(sites)) > MAX_CELLS:
                raise ValueError(f"it has more than {MAX_CELLS:,} rounds times sites")
            if len(rounds) + len(finals) > round_lines.MAX_LINES:
                raise ValueError(f"it has more than {round_lines.MAX_LINES:,} lines to read")
    return rounds, finals


def _check_line(told: RoundLine, known: set[str], rounds: Sequence[RoundLine], done: int) -> None:
    """Refuse a line that cannot be of this federation."""
    if told.get("deployed") is None and told.get("sites") is None:
        raise ValueError("it lacks 'sites'")
    for site in (*(told.get("sites") or ()), *(told.get("deployed") or ())):
        if site not in known:
            raise ValueError(f"{site[:80]!r} is no site of this federation")
    before = rounds[-1]["round"] if rounds else 0
    if told.get("deployed") is None and told["round"] <= before:
        raise ValueError(f"round {told['round']} follows round {before}")
    if told["round"] > done:
        raise ValueError(f"round {told['round']} is beyond the {done} that are saved")


def read_rounds(path: Path, seen: int) -> list[RoundLine]:
    """The complete lines of rounds.jsonl after the first `seen`, while a server writes it."""
    file = path / "rounds.jsonl"
    return [line for _, line in files.json_lines(file)][seen:] if file.exists() else []


def _read_timing(path: Path) -> dict[int, RoundLine]:
    """When each round ended, by timing.jsonl; nothing where it does not say."""
    found: dict[int, RoundLine] = {}
    try:
        for _, line in files.json_lines(path / "timing.jsonl"):
            told = schema.check(schema.StateTiming, line)
            found[told["round"]] = told
    except array_files.READ_ERRORS:  # Nothing rests on these wall-clock figures.
        return {}
    return found


def _read_events(path: Path) -> list[RoundLine]:
    """The newest lines of the log, oldest first; nothing rests on them: bad ones are left out."""
    found: list[RoundLine] = []
    text = b""
    with contextlib.suppress(OSError), files.open_plain(path / run_folder.EVENTS_FILE) as opened:
        opened.seek(max(0, opened.seek(0, 2) - EVENT_BYTES))
        text = opened.read(EVENT_BYTES)
    for line in text.split(b"\n"):
        with contextlib.suppress(ValueError):
            found.append(schema.check(schema.StateEvent, files.parse_json(line)))
    return found[-NEWEST_EVENTS:]
