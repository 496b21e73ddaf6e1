"""The client x round table of every run, in memory; every number of a report is computed from it.

It is filled by the engine, round by round, or read from a run folder. No files and no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError, unknown
from fedmaba.results import group_tables, metrics
from fedmaba.results.group_tables import GroupRow
from fedmaba.results.groups import NO_GROUPS, Groups
from fedmaba.results.incentive import Incentive, gains_over_rounds, incentives
from fedmaba.results.joining import UNKNOWN, RunOrigin, require_joinable
from fedmaba.results.metrics import ACCURACY, PERCENT, Fairness, Metric, Unit
from fedmaba.results.table_checks import (
    SERVER_MODELS,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedmaba.simulation.state import Round, Snapshot

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Model = Literal["deployed", "last", "personal"]
At = Literal["last", "best", "last5"]
TrainedModel = Literal["deployed", "last", "best"]
ModuleType = TypeVar("ModuleType", bound="nn.Module")
On = Literal["test", "validation"]  # A score is of these examples of a client.
Arrays = dict[str, NDArray[Any]]
TRAINING = "training.loss"  # This is a table of what clients reported at each evaluation.
VIEWS = "fedmaba.report.history_views"  # Results import nothing of reports, so this is a name.


class GrowingArray(Sequence[NDArray[Any]]):
    """Rows of one shape in one growing array, which takes a tenth of the memory of a list."""

    def __init__(self, rows: NDArray[Any] | None = None) -> None:
        self._rows, self._count = rows, 0 if rows is None else len(rows)

    def append(self, row: NDArray[Any]) -> None:
        if self._rows is None:
            self._rows = np.empty((8, *row.shape), row.dtype)
        kind = np.result_type(self._rows, row)
        if self._count == len(self._rows) or kind != self._rows.dtype:
            wider = np.empty((2 * self._count + 8, *self._rows.shape[1:]), kind)
            wider[: self._count] = self.array()
            self._rows = wider
        if row.shape != self._rows.shape[1:]:
            raise ValueError(f"a row of shape {row.shape} among those of {self._rows.shape[1:]}")
        self._rows[self._count] = row
        self._count += 1

    def array(self) -> NDArray[Any]:
        return np.zeros(0) if self._rows is None else self._rows[: self._count]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.array(), dtype)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self.array()[index]


class Models(Protocol):
    """Where the trained models of a history come from."""

    def weights(self, run: RunHistory, which: TrainedModel) -> dict[str, NDArray[Any]]:
        """The named weights of one model of a run."""

    def new_module(self, run: RunHistory) -> nn.Module:
        """A new module of the kind that was trained; an InputError where it is not known."""


@dataclass(repr=False)
class RunHistory:
    """One run: what its server saw each round, and how its models served each client."""

    # This says why a client that has test examples can be left out of the figures.
    UNJUDGED: ClassVar[str] = (
        "Clients whose {name} is undefined, as where all test examples are of one class, are not "
        "in the figures."
    )
    SIZES_KNOWN: ClassVar[bool] = True  # else `test_size` only says who has test examples
    label: str
    seed: int
    deploy: str
    test_size: IntArray  # (N,)
    diverged: str = ""
    tables: dict[str, GrowingArray] = field(default_factory=dict)
    of: str = ""  # This is the digest of all settings except the seed, empty if the file has none.
    metric: Metric = ACCURACY  # what its scores are
    validation_size: IntArray | None = None  # (N,), where validation examples are held back
    groups: Groups = NO_GROUPS  # Predictions are counted by these, if they have names.
    reproduced: bool = False  # Results of `fedmaba reproduce` have fixed options.
    origin: RunOrigin = UNKNOWN  # This is where it comes from, as far as that is known.
    # For each table: itself, how many of its rows were checked, whether all were shares.
    _unit_cache: dict[str, tuple[Any, int, bool]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def unit(self) -> Unit:
        """As its metric says; else percent, unless a score lies outside 0 to 1."""
        for name, table in self.tables.items():
            if name.endswith(".accuracy"):
                seen, count, shares = self._unit_cache.get(name, (None, 0, True))
                count, shares = (count, shares) if seen is table else (0, True)
                if seen is not table or count != len(table):  # rows are added, never changed
                    shares = shares and metrics.are_shares(np.asarray(table[count:]))
                    self._unit_cache[name] = table, len(table), shares
        known = [self._unit_cache[name] for name in self._unit_cache if name in self.tables]
        return self.metric.unit(all(shares for _, _, shares in known))

    def __repr__(self) -> str:
        """What it is, in one line, without its tables."""
        return f"<RunHistory: {_views().run_in_words(self)}>"

    @property
    def n_clients(self) -> int:
        return len(self.test_size)

    def column(self, name: str) -> NDArray[Any]:
        """A recorded table; its first axis is rounds (`round`) or evaluations (`evaluated`)."""
        if name not in self.tables:
            raise InputError(f"no table {name!r}: choose one of {', '.join(self.tables)}")
        return np.array(self.tables[name])

    @property
    def evaluated(self) -> IntArray:
        """(E,) number of rounds done at each evaluation."""
        return self.column("evaluated")

    @property
    def has_personal(self) -> bool:
        """Whether clients were also evaluated under models of their own."""
        return "personal.accuracy" in self.tables

    def models(self) -> tuple[Model, ...]:
        """Which models clients were evaluated under."""
        return (*SERVER_MODELS, "personal") if self.has_personal else SERVER_MODELS

    def recorded(self, model: Model) -> Model:
        """The model that is shown: clients without one of their own use the deployed one."""
        return "deployed" if model == "personal" and not self.has_personal else model

    def accuracy(self, model: Model = "deployed") -> FloatArray:
        """(E, N) accuracy of each client at each evaluation.

        The "personal" model is the client's own; without one, the deployed.
        """
        return self.column(f"{self.recorded(model)}.accuracy").astype(np.float64)

    def loss(self, model: Model = "deployed") -> FloatArray:
        """(E, N) test loss of each client at each evaluation."""
        return self.column(f"{self.recorded(model)}.loss").astype(np.float64)

    def group_counts(self, model: Model = "deployed") -> IntArray:
        """(E, N, G, K) test examples by client, group and prediction, as `results.groups` reads."""
        model = self.recorded(model)
        if f"{model}.groups" not in self.tables:
            raise InputError(
                f"{self.label}, seed {self.seed}, has no groups: name the column that says them, "
                "as --group sex, and run it again"
            )
        return self.column(f"{model}.groups")

    def weights(self) -> FloatArray:
        """(T, N) aggregation weight of each client in each round; nan if it took no part."""
        client, weight = self.column("client"), self.column("weight")
        out = np.full((len(client), self.n_clients), np.nan)
        np.put_along_axis(out, client, weight, axis=1)
        return out

    def fairness(
        self,
        model: Model = "deployed",
        share: float = 0.05,
        at: Iterable[int] | None = None,
        unit: Unit | None = None,
    ) -> list[Fairness]:
        """The fairness numbers at each evaluation, or at those that are named."""
        if not 0 < share <= 1:
            raise InputError(f"share={share}: give a share of the clients above 0 and at most 1")
        accuracy, loss = self.accuracy(model), self.loss(model)
        if at is not None:
            some = list(at)
            accuracy, loss = accuracy[some], loss[some]
        return metrics.every(accuracy, loss, self.test_size, share, unit or self.unit)

    def test_noise(
        self, model: Model = "deployed", at: Iterable[int] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """The variance (%²) that finite test sets alone make, and the variance without it.

        At each evaluation, or at those that are named; nan where scores are not accuracies.
        """
        accuracy = self.accuracy(model)
        accuracy = accuracy if at is None else accuracy[list(at)]
        if self.unit != PERCENT:
            nothing = np.full(len(accuracy), np.nan)
            return nothing, nothing
        noise = metrics.sampling_noise(accuracy, self.test_size)
        return noise, metrics.variance(accuracy[:, self.test_size > 0]) - noise

    def chosen(self, at: At, model: Model = "deployed") -> IntArray:
        """Which evaluations a table shows: the last, the best, or the last five."""
        if at not in get_args(At):
            raise InputError(f"at={at!r}: choose one of {', '.join(get_args(At))}")
        if model not in get_args(Model):
            raise InputError(f"model={model!r}: choose one of {', '.join(get_args(Model))}")
        count = len(self.tables.get("evaluated", []))
        if at == "last5":
            return np.arange(max(0, count - 5), count)
        if at == "last":
            return np.arange(count)[-1:]
        model = self.recorded(model)
        name = f"{model}_validation.accuracy"
        judged = self.column(name if name in self.tables else f"{model}.accuracy")
        nobody = np.isnan(judged).all(axis=1, keepdims=True)
        better = self.metric.unit(True).sign * judged
        scores = np.nanmean(np.where(nobody, -np.inf, better), axis=1)
        return np.array([int(np.argmax(scores))])

    def judged(self, model: Model = "deployed", at: At = "last") -> int:
        """How many clients the figures are of: with test examples, and a score that is defined."""
        some = self.test_size > 0
        if len(self.tables.get("evaluated", ())):
            which = self.chosen(at, model)
            accuracy, loss = self.accuracy(model)[which], self.loss(model)[which]
            some &= ~metrics.undefined(accuracy, loss).any(axis=0)
        return int(some.sum())

    def add_training_losses(self, seen: Round) -> None:
        """Keep what clients reported in the round that was evaluated last; nan for the others."""
        if seen.loss is not None:
            losses = np.full(self.n_clients, np.nan)
            losses[seen.client] = seen.loss
            _append_row(self, {TRAINING: losses})

    def arrays(self) -> Arrays:
        """Every table as an array, to be saved; later rounds do not change these arrays."""
        tables = {name: self.tables[name].array() for name in sorted(self.tables)}
        held = self.validation_size
        sizes = {"test_size": self.test_size} | ({} if held is None else {"validation_size": held})
        return {**sizes, **tables}


class Row(NamedTuple):
    """One strategy in a table: mean and standard deviation over seeds."""

    label: str
    seeds: int
    mean: Fairness
    sd: Fairness
    note: str  # The reader must know this, such as runs that diverged.
    test_noise: float = np.nan  # Finite test sets alone make this part of the variance.
    corrected: float = np.nan  # variance without that part


@dataclass(repr=False)
class History:
    """All runs of an experiment."""

    runs: list[RunHistory]
    # This is the share of clients in "worst" and "best", unless a table says otherwise.
    share: float = 0.05
    on: On = "test"  # The scores are of these examples, and `judged_on` gives the others.

    def __post_init__(self) -> None:
        self.trained: Models | None = None  # This finds the trained models, if it can.
        require_joinable(self.runs)

    @property
    def unit(self) -> Unit:
        """How scores are shown: the same for all runs, which are compared."""
        found = dict.fromkeys(run.unit for run in self.runs) or {PERCENT: None}
        if len({(unit.name, unit.lower) for unit in found}) > 1:
            names = ", ".join(dict.fromkeys(unit.name for unit in found))
            raise InputError(f"these runs have different metrics ({names}): show them apart")
        return next((unit for unit in found if not unit.mark), next(iter(found)))

    def add(self, snapshot: Snapshot) -> None:
        """Add one round of all runs."""
        done = snapshot.round + 1
        for d, (run, r) in enumerate(zip(self.runs, snapshot.progress.owner, strict=True)):
            run.diverged = snapshot.progress.diverged[r]
            seen = snapshot.rounds[r]
            if seen is not None:
                row: dict[str, Any] = {"round": done, "client": seen.client, "weight": seen.weight}
                if seen.loss is not None:
                    row["reported_loss"] = seen.loss
                past = len(run.tables.get("round", []))
                told = {name: np.nan for name in run.tables if name.startswith("info.")}
                told |= {f"info.{name}": float(value) for name, value in seen.info.items()}
                for name in told.keys() - run.tables.keys():  # recorded for the first time
                    run.tables[name] = GrowingArray(np.full(past, np.nan))
                _append_row(run, row | told)
            found = snapshot.evaluations[d] if snapshot.evaluations else None
            if found is not None:
                rows: dict[str, Any] = {"evaluated": done}
                for name, scores in found.items():
                    rows[f"{name}.accuracy"] = scores.accuracy
                    rows[f"{name}.loss"] = scores.loss
                    if run.groups.names and scores.groups is not None:
                        rows[f"{name}.groups"] = scores.groups.astype(np.int32)
                _append_row(run, rows)

    def summary(
        self,
        model: Model = "deployed",
        at: At = "last",
        share: float | None = None,
        unit: Unit | None = None,
    ) -> list[Row]:
        """One row per strategy: mean and sd over its seeds that did not diverge."""
        require_joinable(self.runs)
        share, unit = self.share if share is None else share, unit or self.unit
        rows, labels = [], dict[str, list[RunHistory]]()
        for run in self.runs:
            labels.setdefault(run.label, []).append(run)
        for label, runs in labels.items():
            good = [run for run in runs if not run.diverged and "evaluated" in run.tables]
            found = [run.fairness(model, share, run.chosen(at, model), unit) for run in good]
            figures = np.array([np.mean(one, axis=0) for one in found])
            figures = figures.reshape(len(good), len(Fairness._fields))
            nothing = np.full(len(Fairness._fields), np.nan)
            with np.errstate(over="ignore", invalid="ignore"):  # huge just before a run diverges
                mean = figures.mean(0) if len(good) else nothing
                sd = figures.std(0, ddof=1) if len(good) > 1 else nothing
            lost = [run.seed for run in runs if run.diverged]
            notes = [f"diverged: seed {', '.join(map(str, lost))}"] if lost else []
            if model == "personal" and good and not any(run.has_personal for run in good):
                notes.append("the deployed model")
            note = "; ".join(notes)
            sure = [np.mean(run.test_noise(model, run.chosen(at, model)), axis=1) for run in good]
            noise, corrected = np.mean(sure, axis=0) if sure else (np.nan, np.nan)
            figures_of = Fairness(*mean), Fairness(*sd)
            rows.append(Row(label, len(good), *figures_of, note, float(noise), float(corrected)))
        return rows

    def models(self) -> tuple[Model, ...]:
        """Which models the clients of at least one run were evaluated under."""
        own = any(run.has_personal for run in self.runs)
        return (*SERVER_MODELS, "personal") if own else SERVER_MODELS

    def incentives(self, model: Model = "deployed", at: At = "last") -> list[Incentive]:
        """What clients gain over training alone, by strategy; empty without a row `local`."""
        return incentives(self, model, at)

    def group_summary(self, model: Model = "deployed", at: At = "last") -> list[GroupRow]:
        """One row per strategy: its groups of people, and the gaps between them, over its seeds."""
        require_joinable(self.runs)
        return group_tables.summary(self.runs, model, at)

    def picked_on(self) -> str:
        """Which data the best round is picked on."""
        held = any("deployed_validation.accuracy" in run.tables for run in self.runs)
        return "validation data" if held or self.on == "validation" else "test data"

    def judged_on(self, on: On) -> History:
        """The same runs with their scores on "test" or on "validation" examples."""
        if on not in get_args(On):
            raise InputError(f"on={on!r}: choose one of {', '.join(get_args(On))}")
        if on == self.on:
            return self
        if on == "test":
            raise InputError("these scores are on validation data: take the history as it was read")
        out = replace(self, runs=[_validated(run) for run in self.runs], on=on)
        out.trained = self.trained
        return out

    def to_pandas(self) -> Any:
        """A long table, one row per run, evaluation and client, as a pandas DataFrame.

        Scores on validation examples, where there are such, have columns of their own.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas() needs pandas: pip install pandas") from error
        frames = []
        for run in self.runs:
            if "evaluated" not in run.tables:
                continue
            evaluated = run.evaluated
            table = {
                "strategy": run.label,
                "seed": run.seed,
                "round": np.repeat(evaluated, run.n_clients),
                "client": np.tile(np.arange(run.n_clients), len(evaluated)),
            }
            for name in (*run.models(), *(f"{model}_validation" for model in get_args(Model))):
                for what in ("accuracy", "loss"):
                    if f"{name}.{what}" in run.tables:
                        scores = run.column(f"{name}.{what}").astype(np.float64)
                        table[f"{name}_{what}"] = scores.ravel()
            if (gained := gains_over_rounds(self, run)) is not None:
                table["gain_over_alone"] = gained.ravel()
            frames.append(pandas.DataFrame(table))
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    def groups_to_pandas(self) -> Any:
        """A long table, one row per run, evaluation, model, client and group of people."""
        return group_tables.to_pandas(self.runs)

    def table(
        self,
        to: str = "markdown",
        model: Model = "deployed",
        at: At = "last",
        share: float | None = None,
        against: str | None = None,
        on: On = "test",
    ) -> str:
        """The table as "markdown", "latex", "csv" or "json", also of differences to `against`."""
        shown = self if on == self.on else self.judged_on(on)
        return str(_views().table(shown, to, model, at, share, against))

    @overload
    def model(
        self, label: str, seed: int | None = None, model: TrainedModel = "deployed"
    ) -> dict[str, Tensor]: ...

    @overload
    def model(
        self,
        label: str,
        seed: int | None = None,
        model: TrainedModel = "deployed",
        *,
        module: Literal[True],
    ) -> nn.Module: ...

    @overload
    def model(
        self,
        label: str,
        seed: int | None = None,
        model: TrainedModel = "deployed",
        *,
        module: ModuleType,
    ) -> ModuleType: ...

    def model(
        self,
        label: str,
        seed: int | None = None,
        model: TrainedModel = "deployed",
        *,
        module: Any = None,
    ) -> Any:
        """The trained weights of a run, as a state dict of torch; with `module`, in a module."""
        if model not in get_args(TrainedModel):
            raise InputError(f"model={model!r}: choose one of {', '.join(get_args(TrainedModel))}")
        run = self._run(label, seed)
        if self.trained is None:
            raise InputError(
                "this history came without models: they are in the history that compare() "
                "returns, and in finished run folders"
            )
        filled = self.trained.new_module(run) if module is True else module
        found = self.trained.weights(run, model)
        import torch

        weights = {name: torch.from_numpy(value) for name, value in found.items()}
        if module is None:
            return weights
        if not isinstance(filled, torch.nn.Module):
            raise InputError(
                f"module={module!r}: give a module for the weights, or True for the one trained"
            )
        try:
            filled.load_state_dict(weights)
        except RuntimeError as error:
            why = " ".join(str(error).split())
            raise InputError(f"these weights do not fit the module: {why}") from error
        return filled

    def _run(self, label: str, seed: int | None) -> RunHistory:
        """The run of a strategy and a seed."""
        runs = [run for run in self.runs if run.label == label]
        if not runs:
            raise unknown("strategy", label, dict.fromkeys(run.label for run in self.runs))
        found = [run for run in runs if seed in (None, run.seed)]
        if len(found) != 1:
            seeds = ", ".join(str(run.seed) for run in runs)
            raise InputError(f"{label}, seed={seed}: choose one of its seeds: {seeds}")
        return found[0]

    def group_table(self, to: str = "markdown", model: Model = "deployed", at: At = "last") -> str:
        """The tables by groups of people as "markdown", "latex" or "csv"."""
        return str(_views().group_table(self, to, model, at))

    def plot(self, kind: str = "rounds", model: Model = "deployed") -> Any:
        """A figure of `fedmaba list figures` as a matplotlib Figure."""
        return _views().plot(self, kind, model)

    def _repr_html_(self) -> str:
        return str(_views().as_html(self))

    def __repr__(self) -> str:
        """Strategies, seeds, rounds and the best numbers, in one line."""
        return f"<History: {_views().history_in_words(self)}>"

    def __str__(self) -> str:
        return str(_views().as_text(self))


def _views() -> Any:
    """The module that shows histories, loaded when the first one is shown."""
    return import_module(VIEWS)


def _validated(run: RunHistory) -> RunHistory:
    """A run with its scores on validation examples in the place of those on test examples."""
    if "deployed_validation.accuracy" not in run.tables:
        if run.diverged:  # before it was evaluated
            return run
        if run.reproduced:
            raise InputError(
                f"{run.label}, seed {run.seed}: these results of reproduce keep no scores of the "
                "deployed model on validation data: leave out --on validation"
            )
        raise InputError(
            f"{run.label}, seed {run.seed}, has no scores on validation data: run it with "
            "--validation 10%, or leave out --on validation"
        )
    if run.validation_size is None:
        raise InputError(
            f"{run.label}, seed {run.seed}, was written by a version that did not note how many "
            "validation examples a client has: run it again, or leave out --on validation"
        )
    tested = {f"{model}.{what}" for model in get_args(Model) for what in ("accuracy", "loss")}
    kept = {
        name: table
        for name, table in run.tables.items()
        if name not in tested and not name.endswith(".groups")  # which count test examples
    }
    held = {name.replace("_validation", ""): table for name, table in kept.items()}
    return replace(
        run,
        tables=held,
        test_size=run.validation_size,
        validation_size=None,
        groups=NO_GROUPS,
    )


def _append_row(run: RunHistory, row: dict[str, Any]) -> None:
    for name, value in row.items():
        run.tables.setdefault(name, GrowingArray()).append(np.asarray(value))
