"""The figures of runs by model and round, as of one moment: the same for everything on a page.

A finished run's come from its tables, as in `fedmaba table`. A run in progress has newer lines in
rounds.jsonl than tables in its checkpoint: they count too, up to the newest round at which its runs
have all been evaluated, and everything on a page is of that round. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmaba.report.data import MODELS, Source, combine
from fedmaba.report.table import FIGURES
from fedmaba.results.history import History, Row
from fedmaba.results.metrics import PLAIN_UNIT, Fairness, Unit
from fedmaba.results.run_history import At, Model, RunHistory, ends
from fedmaba.results.selection import Found


@dataclass
class ReachedRound:
    """How far a run that is not finished has come."""

    done: int = 0  # rounds
    clock: int = 0  # This is the round of every figure on the page, 0 before the first evaluation.
    rounds: int | None = None  # asked for
    left: str = ""  # This names the unfinished parts of a folder that has parts.

    @property
    def words(self) -> str:
        """ "round 12 of 60": what a verdict so far is of."""
        return self.left or f"round {self.clock}" + (f" of {self.rounds}" if self.rounds else "")


class CurrentFigures:
    """Figures of all runs of some folders; worst and best by the runs' own share unless told."""

    def __init__(self, sources: Sequence[Source], share: float | None = None) -> None:
        self.sources, self.history = sources, combine(sources)
        self.share = self.history.share if share is None else share
        self.unit = _unit(sources, self.history)
        # which source, by run
        self.owner = [i for i, source in enumerate(sources) for _ in source.history.runs]
        self.progress = [_progress(source) for source in sources]
        own = [run.label for source in sources for run in source.history.runs]
        # lines after the tables, by run
        self.newer: list[list[Mapping[str, Any]]] = [
            [] if self.sources[i].finished else self._newer(run, label, i)
            for run, label, i in zip(self.history.runs, own, self.owner, strict=True)
        ]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(run.label for run in self.history.runs))

    @property
    def current(self) -> bool:
        """Whether the tables hold all there is."""
        return not any(self.newer)

    def _newer(self, run: RunHistory, label: str, i: int) -> list[Mapping[str, Any]]:
        """The lines of a run, which has this label in its own folder."""
        last = int(run.tables["evaluated"][-1]) if len(run.tables.get("evaluated", ())) else 0
        return [
            line
            for line in self.sources[i].lines
            if "deployed" in line
            and (line.get("strategy"), line.get("seed")) == (label, run.seed)
            and last < line["round"] <= self.progress[i].clock
        ]

    def line(self, line: Mapping[str, Any], model: Model, source: Source) -> Fairness:
        """What a line says, without the worst and best of another share of clients."""
        written = source.history.runs[0].metric.unit(True)  # as the run folder writes its lines
        told = line.get(model, line["deployed"])  # These clients have no model of their own.
        factor = self.unit.scale / written.scale
        scale = {"variance": factor**2} | dict.fromkeys(
            ("accuracy", "by_sample", "worst", "best", "gap"), factor
        )
        other = ("worst", "best") if self.share != source.history.share else ()
        known = {
            name: told[name] * scale.get(name, 1.0)
            for name in Fairness._fields
            if name not in other and isinstance(told.get(name), int | float)
        }
        return Fairness(*(known.get(name, math.nan) for name in Fairness._fields))

    def values(self, model: Model, at: At) -> Found:
        """The figures by row and seed, of runs that have been evaluated and did not diverge."""
        out: Found = {}
        for r, run in enumerate(self.history.runs):
            found = [] if run.diverged else self.chosen(r, model, at)
            if found:
                with np.errstate(over="ignore", invalid="ignore"):  # shortly before it diverges
                    out.setdefault(run.label, {})[run.seed] = Fairness(*np.mean(found, axis=0))
        return out

    def chosen(self, r: int, model: Model, at: At) -> list[Fairness]:
        """The evaluations of one run that are looked at: the last, the best, or the last five."""
        run, newer = self.history.runs[r], self.newer[r]
        count = len(run.tables.get("evaluated", ()))
        tables = [] if not count else [*run.chosen(at, model)]
        source = self.sources[self.owner[r]]
        told = [self.line(line, model, source) for line in newer]
        if at == "best" and count and f"{model}_validation.accuracy" in run.tables:
            told = []  # The lines say nothing of validation data.
        old = run.fairness(model, self.share, tables, self.unit) if count else []
        if not told:
            return old
        if at == "best":
            return [max([*old, *told], key=lambda f: self.unit.sign * f.accuracy)]
        keep = {"last": 1, "last5": 5}[at]
        return [*old, *told][-keep:]

    def rows(self, model: Model, at: At) -> list[Row]:
        """One row per strategy: as `History.summary`, of now."""
        if self.current:
            return self.history.summary(model, at, self.share, self.unit)
        found, out = self.values(model, at), []
        for label in self.labels:
            own = np.array([*found.get(label, {}).values()]).reshape(-1, len(Fairness._fields))
            nothing = np.full(len(Fairness._fields), np.nan)
            mean = own.mean(0) if len(own) else nothing
            sd = own.std(0, ddof=1) if len(own) > 1 else nothing
            note = "; ".join(ends(r for r in self.history.runs if r.label == label))
            out.append(Row(label, len(own), Fairness(*mean), Fairness(*sd), note))
        return out


def _progress(source: Source) -> ReachedRound:
    """The newest round, and the newest evaluation, that all runs of a source have reached."""
    runs = source.history.runs
    tables = [int(run.tables["round"][-1]) for run in runs if len(run.tables.get("round", ()))]
    tested = [int(r.tables["evaluated"][-1]) for r in runs if len(r.tables.get("evaluated", ()))]
    at: dict[int, int] = {}  # how many runs have a line, by round
    for line in source.lines:
        at[line["round"]] = at.get(line["round"], 0) + 1
    whole = max(at, default=0)
    # The line is half written, or a run has just diverged.
    if at.get(whole, 0) < at.get(whole - 1, 0):
        whole -= 1
    found = [line["round"] for line in source.lines if "deployed" in line]
    clock = max([*tested, *(t for t in found if t <= whole)], default=0)
    return ReachedRound(max([whole, *tables]), clock, source.rounds, source.left)


def _unit(sources: Sequence[Source], history: History) -> Unit:
    """As the history's; of a run without a checkpoint its lines tell, which are in percent."""
    told = [line.get(model) for source in sources for line in source.lines for model in MODELS]
    scores = [f.get(name) for f in told if isinstance(f, dict) for name in FIGURES[1:]]
    odd = any(isinstance(x, int | float) and not -1e-4 <= x <= 100 + 1e-4 for x in scores)
    fixed = any(run.metric.shares is not None for run in history.runs)
    unit = history.unit
    return PLAIN_UNIT._replace(name=unit.name, lower=unit.lower) if odd and not fixed else unit
