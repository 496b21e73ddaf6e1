"""What `fedmaba reproduce` shows of a target: our tables beside the paper's, row by row. No torch.

Three questions are kept apart: which model (the last server model, as the paper; or the deployed
one), at which round (last, best picked on test or on validation data, mean of the last five
evaluations), and whether a difference to FedAvg is one (paired over seeds, 95 % t-interval).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba import compact, targets
from fedmaba.compact import Batch
from fedmaba.config import Experiment
from fedmaba.errors import InputError
from fedmaba.history import At, FloatArray, History, Model, Row, RunHistory
from fedmaba.metrics import Fairness
from fedmaba.report.document import Cell, Document, Grid, number
from fedmaba.report.table import columns, ranks
from fedmaba.targets import Job, Key, Target

T95 = (  # 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
REFERENCE = "fedavg"
FIGURES = ("variance", "accuracy", "worst", "best")


class Choice(NamedTuple):
    """At which round a table looks."""

    name: str
    words: str
    at: At
    on: str  # "": needs no pick


CHOICES = {
    c.name: c
    for c in (
        Choice("last", "at the last round", "last", ""),
        Choice("best", "at its best round, picked on test data", "best", "test"),
        Choice("valid", "at its best round, picked on validation data", "best", "validation"),
        Choice("last5", "mean of the last five evaluations", "last5", ""),
    )
}


@cache
def paper() -> dict[str, Any]:
    """The paper's numbers."""
    text = resources.files("fedmaba").joinpath("paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def document(target: Target, batches: Sequence[Batch]) -> Document:
    """The page of a target, from what has been run."""
    out = Document(target.view.title)
    jobs = target.every_job()
    found = {job.digest: compact.collect(batches, job) for job in jobs}
    if not any(history.runs for history, _, _ in found.values()):
        raise InputError(
            f"{target.name}: none of its runs is there: run `fedmaba reproduce {target.name}` "
            "first, or name their folder with --from"
        )
    out.text += _about(target, jobs, found)
    shows: dict[str, Callable[[Document, Target, Sequence[Batch]], None]] = {
        "table": _table,
        "grid": _search,
        "figure": _figure,
        "sweep": _sweep,
        "readings": _readings,
        "claims": _claims,
        "all": lambda *_: None,
    }
    shows[target.view.kind](out, target, batches)
    return out


# --- what is said above the tables ---------------------------------------------------------------


def _about(target: Target, jobs: Sequence[Job], found: dict[str, Any]) -> list[str]:
    """Cut down or whole, the set-up, what has not been run, where and how long it ran."""
    view, text = target.view, []
    cut = list(dict.fromkeys(change for job in jobs for change in targets.changes(job)))
    some = list(dict.fromkeys(part for job in jobs if (part := targets.part(job))))
    if some and not cut:
        text.append(f"A part of it: {'; '.join(some)}.")
    if cut:
        text.append(
            "CUT-DOWN VERSION, not the paper's experiment: "
            + "; ".join([*cut, *some])
            + ". Its numbers do not compare with the paper's."
        )
    text += [part for part in (view.note, view.rule and f"Rule: {view.rule}") if part]
    if target.jobs and not view.variant:
        text.append(f"Set-up: {_setup(target.jobs[0].experiment)}.")
    missing = [key for _, _, keys in found.values() for key in keys]
    if missing:
        listed = _listed(missing) if target.jobs else _lacking(target, found)
        text.append(f"Not run yet: {listed}.")
    used = {batch.path: batch for _, own, _ in found.values() for batch in own}
    text.append(_ran(list(used.values())))
    return text


def _setup(asked: Experiment) -> str:
    data, train = asked.data, asked.train
    some = "all" if train.participants == "all" else f"{train.participants} of them"
    work = f"{train.steps} steps" if train.steps else f"{train.epochs} epoch"
    tests = {"local": "a fifth of each client's own data as test images"}
    held = (
        f", {data.validation} of the training images held back" if data.validation != "0%" else ""
    )
    return (
        f"{data.name}, {data.partition}, {data.clients} clients, {some} in each round, "
        f"{train.rounds:,} rounds, {work} of minibatch {train.minibatch} at step size "
        f"{train.lr:g} · {train.lr_decay:g}^round, model {asked.model}, "
        f"{tests.get(data.test or '', 'official test images by training labels')}{held}, "
        f"evaluation every {f'{asked.eval.every} rounds' if asked.eval.every > 1 else 'round'}"
    )


def _listed(keys: Sequence[Key]) -> str:
    """Runs as rows with their seeds."""
    rows: dict[str, list[int]] = {}
    for key in keys:
        rows.setdefault(name_of(key.label), []).append(key.seed)
    named = [f"{row} (seed {', '.join(map(str, sorted(set(s))))})" for row, s in rows.items()]
    return "; ".join(named[:8]) + (f"; and {len(named) - 8} more rows" if len(named) > 8 else "")


def _lacking(target: Target, found: dict[str, Any]) -> str:
    """Which of the targets that are shown lack runs."""
    out = []
    for used in target.uses:
        lost = [k in set(found[job.digest][2]) for job in used.every_job() for k in job.runs]
        if any(lost):
            out.append(f"{used.name} ({sum(lost)} of {len(lost)} runs)")
    return "; ".join(out)


def _ran(batches: Sequence[Batch]) -> str:
    runs = sum(len(batch.keys) for batch in batches)
    seconds = sum(float(batch.about["seconds"]) for batch in batches)
    where = sorted(
        {
            f"{b.about['device']}, {b.about['dtype']}, torch {b.about['versions']['torch']}, "
            f"fedmaba {b.about['versions']['fedmaba']}"
            for b in batches
        }
    )
    many = f"{len(batches)} batch{'es' * (len(batches) > 1)}"
    return f"The files behind it: {runs} runs in {many}, {seconds:,.0f} s on {'; '.join(where)}."


def name_of(label: str) -> str:
    """What a row is called."""
    return str(paper()["names"].get(label, label))


# --- figures of runs -----------------------------------------------------------------------------


def at_choice(history: History, choice: Choice) -> tuple[History, At] | None:
    """The history whose `at` looks at that round; None where there is nothing to pick on."""
    held = any("last_validation.accuracy" in run.tables for run in history.runs)
    if choice.on == "validation":
        return (history, choice.at) if held else None
    if choice.on == "test" and held:
        runs = [
            replace(r, tables={k: v for k, v in r.tables.items() if "_validation" not in k})
            for r in history.runs
        ]
        history = History(runs, history.share)
    return history, choice.at


def of_deploy(history: History, deploy: str | None) -> History:
    """The runs with one deployed model; None: the first each row has."""
    first: dict[str, str] = {}
    for run in history.runs:
        first.setdefault(run.label, run.deploy)
    runs = [r for r in history.runs if r.deploy == (deploy or first[r.label])]
    return History(runs, history.share)


def values(history: History, model: Model, choice: Choice) -> dict[str, dict[int, Fairness]]:
    """Figures by row and seed; runs that diverged are left out."""
    chosen = at_choice(history, choice)
    out: dict[str, dict[int, Fairness]] = {}
    if chosen is None:
        return out
    for run in chosen[0].runs:
        if not run.diverged and "evaluated" in run.tables:
            found = run.fairness(model, history.share, run.chosen(chosen[1], model))
            out.setdefault(run.label, {})[run.seed] = Fairness(*np.mean(found, axis=0))
    return out


class Interval(NamedTuple):
    """A mean over seeds with its 95 % t-interval."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def distinguishable(self) -> bool:
        return self.low > 0 or self.high < 0


def interval(sample: Sequence[float] | FloatArray) -> Interval:
    """Of one value per seed; no interval with fewer than two."""
    x = np.asarray(sample, np.float64)
    n = len(x)
    if not np.isfinite(x).all():  # a share of nothing
        return Interval(np.nan, -np.inf, np.inf, n)
    if n < 2:
        return Interval(float(x.mean()) if n else np.nan, -np.inf, np.inf, n)
    half = (T95[n - 2] if n <= len(T95) + 1 else 1.96) * float(x.std(ddof=1)) / np.sqrt(n)
    return Interval(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half, n)


def paired(
    found: dict[str, dict[int, Fairness]], row: str, figure: str, base: str = REFERENCE
) -> tuple[FloatArray, FloatArray]:
    """A figure of a row and of the row it is held against, under the seeds both have."""
    both = sorted(found.get(row, {}).keys() & found.get(base, {}).keys())
    ours, theirs = (
        np.array([getattr(found[label][seed], figure) for seed in both]) for label in (row, base)
    )
    return ours, theirs


# --- tables --------------------------------------------------------------------------------------


def _table(out: Document, target: Target, batches: Sequence[Batch]) -> None:
    history = compact.collect(batches, target.jobs[0])[0]
    first = of_deploy(history, None)
    like = target.view.paper and not targets.changes(target.jobs[0])
    known = paper().get(target.view.paper, {}) if like else {}
    if like:
        out.text.append(f"The paper: {paper()['source']}. {paper()['missing']}")
    for name in ("best", "last", "valid", "last5"):
        _add(out, first, "last", CHOICES[name], known)
    for name in ("last", "best", "last5"):
        _add_pairs(out, first, "last", CHOICES[name])
    models: list[str | None] = [*target.view.deploy] or [None]
    for deploy in models:
        own = of_deploy(history, deploy)
        _add(out, own, "deployed", CHOICES["last"], {}, deploy)
        _add_pairs(out, own, "deployed", CHOICES["last"], deploy)
        _add_gain(out, own, deploy)
    _note_diverged(out, history)
    kinds = target.view.figures or ["variance", "tradeoff"]
    _draw(out, first, kinds)


def _draw(out: Document, history: History, kinds: Sequence[str], smooth: int = 1) -> None:
    """Wide figures of the last server model whose rows have their names."""
    from fedmaba.report import figures

    named = History([replace(r, label=name_of(r.label)) for r in history.runs], history.share)
    size = (figures.WIDE, 4.0)
    out.figures |= {kind: partial(figures.of, named, kind, "last", size, smooth) for kind in kinds}


def _note_diverged(out: Document, history: History) -> None:
    told = dict.fromkeys(run.diverged for run in history.runs if run.diverged)
    if told:
        out.text.append(f"Left out of every mean: {'; '.join(told)}.")


def _of(model: Model, deploy: str | None) -> tuple[str, str]:
    """A short name and the words for a model."""
    if model == "last":
        return "", "Last server model"
    short = f"-{(deploy or 'deployed').replace(':', '')}"
    return short, f"Deployed model ({deploy or 'poly:8; AFL: the mean of all rounds'})"


def _add(
    out: Document,
    history: History,
    model: Model,
    choice: Choice,
    known: dict[str, Any],
    deploy: str | None = None,
) -> None:
    """A table of rows by figures, with the paper's and the difference where it has any."""
    chosen = at_choice(history, choice)
    if chosen is None or not history.runs:
        return
    rows = chosen[0].summary(model, chosen[1])
    short, words = _of(model, deploy)
    head, body = ["row", "seeds"], [[Cell(name_of(r.label)), Cell(str(r.seeds))] for r in rows]
    for column in columns(history.share):
        told = {label: row[column.field] for label, row in known.items() if column.field in row}
        head += [column.title, *(["paper", "difference"] if told else [])]
        for row, line, rank in zip(rows, body, ranks(rows, column), strict=True):
            ours = getattr(row.mean, column.field)
            line.append(number(ours, getattr(row.sd, column.field), rank))
            if told:
                line += _theirs(told.get(row.label), ours)
    title = f"{words}, {choice.words}; mean ± sd over seeds"
    if any(row.note for row in rows):
        head.append("note")
        for row, line in zip(rows, body, strict=True):
            line.append(Cell(row.note))
    out.grids.append(Grid(f"{choice.name}{short}", title, head, body))


def _theirs(told: Sequence[float] | None, ours: float) -> list[Cell]:
    if told is None:
        return [Cell(""), Cell("")]
    text = f"{told[0]:g}" + (f" ± {told[1]:g}" if len(told) > 1 else "")
    return [
        Cell(text, told[0], told[1] if len(told) > 1 else None),
        number(ours - told[0], sign=True),
    ]


def _add_pairs(
    out: Document, history: History, model: Model, choice: Choice, deploy: str | None = None
) -> None:
    """Each row's differences to FedAvg."""
    found = values(history, model, choice)
    if REFERENCE not in found or len(found) < 2:
        return
    short, words = _of(model, deploy)
    spans = {
        label: [interval(np.subtract(*paired(found, label, f))) for f in FIGURES]
        for label in found
        if label != REFERENCE
    }
    title = f"{words}, {choice.words}: difference to FedAvg under the same seeds, 95 % t-interval"
    out.grids.append(_differences(f"pairs-{choice.name}{short}", title, history, spans))


def _add_gain(out: Document, history: History, deploy: str | None) -> None:
    """What handing out the average does to each row, the reference included."""
    last, handed = (values(history, m, CHOICES["last"]) for m in ("last", "deployed"))
    spans = {label: [interval(gains(last, handed, label, f)) for f in FIGURES] for label in last}
    short, words = _of("deployed", deploy)
    title = f"{words} minus last server model of the same runs, at the last round, 95 % t-interval"
    if spans:
        out.grids.append(_differences(f"gain{short}", title, history, spans))


def gains(
    last: dict[str, dict[int, Fairness]],
    handed: dict[str, dict[int, Fairness]],
    row: str,
    figure: str,
) -> FloatArray:
    """A figure of a row's deployed models minus that of its last ones, by seed."""
    return np.array(
        [getattr(handed[row][s], figure) - getattr(f, figure) for s, f in last[row].items()]
    )


def _differences(name: str, title: str, history: History, spans: dict[str, list[Interval]]) -> Grid:
    """Rows of differences with their intervals."""
    head = ["row", "seeds", *(c.title for c in columns(history.share)), "not distinguishable in"]
    body = []
    for label, row in spans.items():
        same = [f for f, s in zip(FIGURES, row, strict=True) if not s.distinguishable]
        what = {"worst": "worst 5 %", "best": "best 5 %"}
        listed = ", ".join(what.get(f, f) for f in same) if len(same) < 4 else "any"
        listed = listed if row[0].seeds > 1 else "one seed"
        cells = [Cell(span_text(s), s.mean) for s in row]
        body.append([Cell(name_of(label)), Cell(str(row[0].seeds)), *cells, Cell(listed)])
    return Grid(name, title, head, body)


def span_text(span: Interval) -> str:
    """A difference with its interval."""
    if span.mean != span.mean:
        return "–"
    if span.seeds < 2:
        return f"{span.mean:+.2f}"
    return f"{span.mean:+.2f} [{span.low:+.2f}, {span.high:+.2f}]"


# --- the hyper-parameter search ------------------------------------------------------------------


def _validated(history: History) -> History:
    """The same runs, judged on validation images."""
    runs = [
        replace(
            r,
            tables={
                name.replace("_validation", ""): table
                for name, table in r.tables.items()
                if "_validation" in name or name == "evaluated"
            },
        )
        for r in history.runs
    ]
    return History(runs, history.share)


def pick(rows: Sequence[Row]) -> Row | None:
    """The smallest variance among rows at most one point of accuracy below the best."""
    good = [row for row in rows if row.seeds]
    top = max((row.mean.accuracy for row in good), default=0.0)
    near = [row for row in good if row.mean.accuracy >= top - 1.0]
    return min(near, key=lambda row: row.mean.variance, default=None)


def _search(out: Document, target: Target, batches: Sequence[Batch]) -> None:
    history = of_deploy(compact.collect(batches, target.jobs[0])[0], None)
    held = _validated(history).summary("last")
    tested = {row.label: row for row in history.summary("last")}
    groups: dict[str, list[Row]] = {}
    for row in held:
        groups.setdefault(row.label.partition(":")[0], []).append(row)
    head = ["setting", "seeds", "picked", "validation variance %²", "validation accuracy %"]
    head += [f"test {c.title}" for c in columns(history.share)]
    body = []
    for rows in groups.values():
        best = pick(rows)
        for row in rows:
            test = tested[row.label]
            body.append(
                [
                    Cell(row.label),
                    Cell(str(row.seeds)),
                    Cell("yes" if row is best else row.note, rank=0 if row is best else 2),
                    number(row.mean.variance, row.sd.variance),
                    number(row.mean.accuracy, row.sd.accuracy),
                    *(number(getattr(test.mean, f), getattr(test.sd, f)) for f in FIGURES),
                ]
            )
    title = "Every setting of the grid; last server model, at the last round; mean ± sd over seeds"
    out.grids.append(Grid("grid", title, head, body))


# --- figures -------------------------------------------------------------------------------------


def _figure(out: Document, target: Target, batches: Sequence[Batch]) -> None:
    history = of_deploy(compact.collect(batches, target.jobs[0])[0], None)
    _draw(out, history, target.view.figures, target.view.smooth)
    runs = [r for r in history.runs if "evaluated" in r.tables]
    marks = sorted({int(t) for r in runs for t in r.evaluated})
    at = [marks[round(q * (len(marks) - 1))] for q in (0.1, 0.25, 0.5, 0.75, 1.0)]
    at = list(dict.fromkeys(at))
    body: list[list[Cell]] = []
    tails: dict[str, dict[int, FloatArray]] = {}
    for label in dict.fromkeys(r.label for r in runs):
        own = [r for r in runs if r.label == label and not r.diverged]
        curves = [_variances(r, "last") for r in own]
        cells = []
        for t in at:
            got = [
                c[int(np.flatnonzero(r.evaluated == t)[0])]
                for r, c in zip(own, curves, strict=True)
            ]
            sd = float(np.std(got, ddof=1)) if len(got) > 1 else np.nan
            cells.append(number(float(np.mean(got)) if got else np.nan, sd))
        tails[label] = {r.seed: _tail(c) for r, c in zip(own, curves, strict=True)}
        mine, base = tails[label], tails.get(REFERENCE, {})
        for look in (np.mean, np.std):
            got = [float(look(x)) for x in mine.values()]
            cells.append(number(float(np.mean(got)) if got else np.nan))
        both = [float(np.mean(mine[s]) - np.mean(base[s])) for s in mine.keys() & base.keys()]
        cells.append(Cell("" if label == REFERENCE else span_text(interval(both))))
        body.append([Cell(name_of(label)), Cell(str(len(own))), *cells])
    head = ["row", "seeds", *(f"round {t:,}" for t in at)]
    head += ["mean of the last fifth", "sd within it", "mean minus FedAvg's"]
    title = "Variance over clients (%²) of the last server model; mean ± sd over seeds"
    out.grids.append(Grid("curve", title, head, body))
    _note_diverged(out, history)


def _tail(curve: FloatArray) -> FloatArray:
    """The last fifth of the evaluations, at least two."""
    return curve[-max(2, len(curve) // 5) :]


def _sweep(out: Document, target: Target, batches: Sequence[Batch]) -> None:
    job, parameter = target.jobs[0], target.view.sweep
    history = of_deploy(compact.collect(batches, job)[0], None)
    along = {
        label: float(getattr(s, parameter))
        for label, s in job.strategies.items()
        if hasattr(s, parameter)
    }
    from fedmaba.report import figures

    draw = partial(figures.sweep, history, parameter, along)
    out.figures |= {"sweep": partial(draw, "last"), "sweep-deployed": partial(draw, "deployed")}
    titled = History(
        [
            replace(r, label=f"{parameter} = {along[r.label]:g}") if r.label in along else r
            for r in history.runs
        ],
        history.share,
    )
    for name in ("last", "best", "last5"):
        _add(out, titled, "last", CHOICES[name], {})
    _add(out, titled, "deployed", CHOICES["last"], {})
    _add_pairs(out, titled, "last", CHOICES["last"])


# --- other readings ------------------------------------------------------------------------------


def _readings(out: Document, target: Target, batches: Sequence[Batch]) -> None:
    for name in ("last", "last5"):
        head = ["reading", "seeds"]
        for title in ("variance %²", "accuracy %", "worst 5 %"):
            head += [f"FedAvg, {title}", f"FedMABA, {title}"]
        head.append("variance, FedMABA − FedAvg")
        body = []
        for job in target.jobs:
            history = of_deploy(compact.collect(batches, job)[0], None)
            found = values(history, "last", CHOICES[name])
            row = next((label for label in job.strategies if label != REFERENCE), "")
            cells = []
            for figure in ("variance", "accuracy", "worst"):
                for label in (REFERENCE, row):
                    got = [getattr(f, figure) for f in found.get(label, {}).values()]
                    sd = float(np.std(got, ddof=1)) if len(got) > 1 else np.nan
                    cells.append(number(float(np.mean(got)) if got else np.nan, sd))
            span = interval(np.subtract(*paired(found, row, "variance")))
            seeds = str(len(found.get(REFERENCE, {})))
            body.append([Cell(job.title), Cell(seeds), *cells, Cell(span_text(span), span.mean)])
        title = f"Last server model, {CHOICES[name].words}; mean ± sd over seeds, 95 % t-interval"
        out.grids.append(Grid(name, title, head, body))


# --- statements of the paper ---------------------------------------------------------------------


def _claims(out: Document, target: Target, batches: Sequence[Batch]) -> None:
    out.text.append(
        "Each statement is held against the last server model at the last round and at its best "
        "round picked on test data, and against the deployed model (ema:0.98 with 10 of 100 "
        "clients, else poly:8) at the last round, paired over seeds with a 95 % t-interval. "
        "Holds: our mean reaches the number, and the interval leaves out no effect. Within the "
        "interval: the mean does not reach it, but the interval does. Smaller: the direction "
        "holds, the size does not. Not distinguishable: the interval contains no effect, and not "
        "the number. Cannot tell: it contains both. Contradicted: the effect goes the other way. "
        "Not contradicted: the interval contains no loss, and no loss is all that is said. "
        "The paper's sentences were not at hand: what each number is held against is our reading."
    )
    known = {t.name: t for t in target.uses}
    head = ["the paper", "our reading", "where", "row", "seeds"]
    head += ["last round", "best round", "deployed model"]
    body = []
    for claim in paper()["claim"]:
        told = [claim["says"], claim["reading"]]
        for name in claim["targets"]:
            history = of_deploy(compact.collect(batches, known[name].jobs[0])[0], None)
            rows = {name_of(row): row for row in claim["rows"]}
            if not values(history, "last", CHOICES["last"]):
                rows = {"": ""}
            for title, row in rows.items():
                spans = [_measure(claim, history, row, model, at) for model, at in LOOKS]
                texts = [claim_text(claim, span) for span in spans]
                if claim["measure"] == "steadier":  # said of many rounds: none is the best
                    texts[1] = "–"
                line = [*told, name, title, str(spans[0].seeds), *texts]
                body.append([Cell(text) for text in line])
                told = ["", ""]
    out.grids.append(Grid("claims", "Statement by statement", head, body))


LOOKS: tuple[tuple[Model, str], ...] = (("last", "last"), ("last", "best"), ("deployed", "last"))


def claim_text(claim: dict[str, Any], span: Interval) -> str:
    """Our number with its interval and the verdict."""
    said = verdict(claim, span)
    if span.seeds < 2 or np.isnan(span.mean):
        return said
    sign, unit = {"times": ("", " x"), "less": ("+", " %"), "more": ("+", " %")}.get(
        claim["measure"], ("+", "")
    )
    shown = [f"{x:{sign}.2f}" for x in span[:3]]
    return f"{shown[0]}{unit} [{shown[1]}, {shown[2]}]: {said}"


def _measure(claim: dict[str, Any], history: History, row: str, model: Model, at: str) -> Interval:
    """Our number for a statement."""
    base, measure = claim.get("against", REFERENCE), claim["measure"]
    if measure == "steadier":
        found = {
            label: {
                r.seed: float(np.std(_tail(_variances(r, model))))
                for r in history.runs
                if r.label == label and not r.diverged and "evaluated" in r.tables
            }
            for label in (row, base)
        }
        both = sorted(found[row].keys() & found[base].keys())
        ours, theirs = (np.array([found[label][s] for s in both]) for label in (row, base))
        return interval(theirs - ours)
    seen = values(history, model, CHOICES[at])
    ours, theirs = paired(seen, row, claim["figure"], base)
    with np.errstate(divide="ignore", invalid="ignore"):
        sample = {
            "less": 100 * (1 - ours / theirs),
            "more": 100 * (ours / theirs - 1),
            "times": theirs / ours,
            "points": ours - theirs,
        }[measure]
    return interval(sample)


def _variances(run: RunHistory, model: Model) -> NDArray[np.float64]:
    """(E,) over clients, at each evaluation, %²."""
    return np.asarray(1e4 * run.accuracy(model).var(axis=1))


def verdict(claim: dict[str, Any], span: Interval) -> str:
    """What our number says of a statement."""
    nothing = 1.0 if claim["measure"] == "times" else 0.0
    if span.seeds < 2:
        return "not run" if not span.seeds else "one seed only"
    if np.isnan(span.mean):
        return "undefined: FedAvg's is 0"
    if span.low <= nothing <= span.high:
        if claim.get("at_least"):
            return "not contradicted"
        return "cannot tell" if nothing < claim["number"] <= span.high else "not distinguishable"
    if span.high < nothing:
        return "contradicted"
    if span.mean >= claim["number"]:
        return "holds"
    return "within the interval" if span.high >= claim["number"] else "smaller"
