"""The client x round table of one run, in memory; every number of a report is computed from it.

It is filled by the engine, round by round, or read from a run folder. No files and no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError
from fedmaba.results import metrics, registry
from fedmaba.results.groups import NO_GROUPS, Groups
from fedmaba.results.metrics import ACCURACY, PERCENT, Fairness, Metric, Unit
from fedmaba.results.table_checks import SERVER_MODELS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Model = Literal["deployed", "last", "personal"]
At = Literal["last", "best", "last5"]
Arrays = dict[str, NDArray[Any]]
SILENT = "nobody answered"  # how a run ends whose server hears nobody for long


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


class RunOrigin(NamedTuple):
    """Where a run comes from; what is empty is not known, as in files of earlier versions."""

    data: str = ""  # the data as read: a published set's name, or a digest
    partition: str = ""  # the digest of which client has which example
    code: str = ""  # the digest of the caller's own code, and of the weights to start from
    settings: Mapping[str, Any] = {}
    whole: str = ""  # The folder, or the call, that it is a part of.

    def recorded(self) -> dict[str, str]:
        """What a file says of each run; the settings stand in it once."""
        return {"data": self.data, "partition": self.partition, "code": self.code}


UNKNOWN = RunOrigin()


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
    # (N,) test examples of clients that take no part in training, -1 for the others. Figures are of
    # the others: `test_size` is 0 where this is not -1. `of_unseen` gives those of the rest.
    unseen_size: IntArray | None = None
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

    @property
    def ended(self) -> str:
        """How it ended before its last round, in a word or two; "" where it did not."""
        if not self.diverged:
            return ""
        return SILENT if f": {SILENT} in " in self.diverged else "diverged"

    def __repr__(self) -> str:
        """What it is, in one line, without its tables."""
        return f"<RunHistory: {registry.views().run_in_words(self)}>"

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
        return self._scores(f"{self.recorded(model)}.accuracy")

    def loss(self, model: Model = "deployed") -> FloatArray:
        """(E, N) test loss of each client at each evaluation."""
        return self._scores(f"{self.recorded(model)}.loss")

    def _scores(self, name: str) -> FloatArray:
        """(E, N) scores; nan for clients that take no part, which are in no figure."""
        found: FloatArray = self.column(name).astype(np.float64)
        if self.unseen_size is not None:
            found[:, ~self.takes_part] = np.nan
        return found

    @property
    def takes_part(self) -> NDArray[np.bool_]:
        """(N,) which clients may take part in training."""
        if self.unseen_size is None:
            return np.ones(self.n_clients, bool)
        return np.asarray(self.unseen_size < 0)

    def group_counts(self, model: Model = "deployed") -> IntArray:
        """(E, N, G, K) test examples by client, group and prediction, as `results.groups` reads."""
        model = self.recorded(model)
        if f"{model}.groups" not in self.tables:
            raise InputError(
                f"{self.label}, seed {self.seed}, has no groups: name the column that says them, "
                "as --group sex, and run it again"
            )
        counts = self.column(f"{model}.groups")
        if self.unseen_size is not None:
            counts[:, ~self.takes_part] = 0
        return counts

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
        judged = self._scores(name if name in self.tables else f"{model}.accuracy")
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

    def arrays(self) -> Arrays:
        """Every table as an array, to be saved; later rounds do not change these arrays."""
        tables = {name: self.tables[name].array() for name in sorted(self.tables)}
        held = self.validation_size
        sizes = {"test_size": self.test_size} | ({} if held is None else {"validation_size": held})
        sizes |= {} if self.unseen_size is None else {"unseen_size": self.unseen_size}
        return {**sizes, **tables}


def ends(runs: Iterable[RunHistory]) -> list[str]:
    """Which runs ended early, and how: `diverged: seed 1, 2`."""
    found: dict[str, list[str]] = {}
    for run in runs:
        if run.ended:
            found.setdefault(run.ended, []).append(str(run.seed))
    return [f"{how}: seed {', '.join(seeds)}" for how, seeds in found.items()]


def common_unit(runs: Iterable[RunHistory]) -> Unit:
    """How scores of runs that are compared are shown: the same for all."""
    found = dict.fromkeys(run.unit for run in runs) or {PERCENT: None}
    if len({(unit.name, unit.lower) for unit in found}) > 1:
        names = ", ".join(dict.fromkeys(unit.name for unit in found))
        raise InputError(f"these runs have different metrics ({names}): show them apart")
    return next((unit for unit in found if not unit.mark), next(iter(found)))


def judged_on_validation(run: RunHistory) -> RunHistory:
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


def of_unseen(run: RunHistory) -> RunHistory:
    """A run whose figures are of the clients that took no part."""
    assert run.unseen_size is not None
    return replace(run, test_size=np.maximum(run.unseen_size, 0), unseen_size=None)


def append_row(run: RunHistory, row: dict[str, Any]) -> None:
    """Add a row to each of these tables, which begin with it where they are new."""
    for name, value in row.items():
        run.tables.setdefault(name, GrowingArray()).append(np.asarray(value))
