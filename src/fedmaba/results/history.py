"""All runs of an experiment: their tables, summaries and models. No files and no torch.

How a history is shown is said above this room: `registry` knows who does it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args, overload

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError, installed, unknown
from fedmaba.results import group_tables, incentive, registry
from fedmaba.results.group_tables import GroupRow
from fedmaba.results.incentive import Incentive
from fedmaba.results.joining import require_joinable
from fedmaba.results.metrics import Fairness, Unit
from fedmaba.results.run_history import (
    At,
    GrowingArray,
    Model,
    RunHistory,
    append_row,
    common_unit,
    ends,
    judged_on_validation,
)
from fedmaba.results.table_checks import SERVER_MODELS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedmaba.simulation.state import Snapshot

TrainedModel = Literal["deployed", "last", "best"]
ModuleType = TypeVar("ModuleType", bound="nn.Module")
On = Literal["test", "validation"]  # A score is of these examples of a client.


class Models(Protocol):
    """Where the trained models of a history come from."""

    def weights(self, run: RunHistory, which: TrainedModel) -> dict[str, NDArray[Any]]:
        """The named weights of one model of a run."""

    def new_module(self, run: RunHistory) -> nn.Module:
        """A new module of the kind that was trained; an InputError where it is not known."""


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
        return common_unit(self.runs)

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
                row |= seen.columns
                past = len(run.tables.get("round", []))
                told = {name: np.nan for name in run.tables if name.startswith("info.")}
                told |= {f"info.{name}": float(value) for name, value in seen.info.items()}
                for name in told.keys() - run.tables.keys():  # recorded for the first time
                    run.tables[name] = GrowingArray(np.full(past, np.nan))
                append_row(run, row | told)
            found = snapshot.evaluations[d] if snapshot.evaluations else None
            if found is not None:
                rows: dict[str, Any] = {"evaluated": done}
                for name, scores in found.items():
                    rows[f"{name}.accuracy"] = scores.accuracy
                    rows[f"{name}.loss"] = scores.loss
                    if run.groups.names and scores.groups is not None:
                        rows[f"{name}.groups"] = scores.groups.astype(np.int32)
                append_row(run, rows)

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
            notes = ends(runs)
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
        return incentive.incentives(self.runs, model, at)

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
        out = replace(self, runs=[judged_on_validation(run) for run in self.runs], on=on)
        out.trained = self.trained
        return out

    def to_pandas(self) -> Any:
        """A long table, one row per run, evaluation and client, as a pandas DataFrame.

        Scores on validation examples, where there are such, have columns of their own.
        """
        with installed("to_pandas() needs pandas: pip install pandas"):
            import pandas
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
            if (gained := incentive.gains_over_rounds(self.runs, run)) is not None:
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
        return str(registry.views().table(shown, to, model, at, share, against))

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
        return str(registry.views().group_table(self, to, model, at))

    def plot(self, kind: str = "rounds", model: Model = "deployed") -> Any:
        """A figure of `fedmaba list figures` as a matplotlib Figure."""
        return registry.views().plot(self, kind, model)

    def _repr_html_(self) -> str:
        return str(registry.views().as_html(self))

    def __repr__(self) -> str:
        """Strategies, seeds, rounds and the best numbers, in one line."""
        return f"<History: {registry.views().history_in_words(self)}>"

    def __str__(self) -> str:
        return str(registry.views().as_text(self))
