"""The tables of a history: strategies by figures, and differences to one of them. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedmaba.errors import InputError, unknown
from fedmaba.report import numbers
from fedmaba.report import ranks as ranks_of_rows
from fedmaba.report.document import Cell, Document, Grid, between, number, p_in_words
from fedmaba.report.paired import interval, subtract
from fedmaba.results import joining
from fedmaba.results.costs import silent_rounds
from fedmaba.results.history import History, On, Row
from fedmaba.results.metrics import PERCENT, FloatArray, Unit
from fedmaba.results.run_history import At, Model, RunHistory
from fedmaba.results.selection import Found, by_seed, fairness_by_seed

FIGURES = ("variance", "accuracy", "worst", "best")
MORE = (  # field, title, digits
    ("by_sample", "{name} by example{mark}", 2),
    ("gap", "gap{mark}", 2),
    ("gini", "Gini", 4),
    ("jain", "Jain", 4),
    ("entropy", "entropy", 4),
    ("loss_variance", "variance of loss", 4),
)


LISTED = 8  # A sentence names at most this many rows one by one.


class Column(NamedTuple):
    """A figure of the table and which way is better."""

    field: str
    title: str
    sign: int  # 1: more is better


Samples = Mapping[str, Sequence[FloatArray]]  # by row and figure, a difference for each seed
CorrectedP = dict[str, list[float]]  # by row, of each figure
SCORES_IN_WORDS = "scores as the metric gives them, not in per cent: some lie outside 0 to 1"


def unit_in_words(unit: Unit) -> str:
    """How scores are shown that are not in percent."""
    if unit.lower:
        worst = "lower is better, and the worst clients have the highest"
        return f"{unit.name}, not in per cent: {worst}"
    return (
        SCORES_IN_WORDS
        if unit.name == "accuracy"
        else f"{unit.name}, not in per cent: higher is better"
    )


def columns(share: float, unit: Unit = PERCENT) -> list[Column]:
    """The four figures of the paper's tables."""
    return [
        Column("variance", f"variance{unit.square}", -1),
        Column("accuracy", f"{unit.name}{unit.mark}", unit.sign),
        Column("worst", f"worst {100 * share:g} %", unit.sign),
        Column("best", f"best {100 * share:g} %", unit.sign),
    ]


def short_titles(share: float, unit: Unit = PERCENT) -> list[str]:
    """The four figures without their units."""
    return ["variance", unit.name, *(c.title for c in columns(share)[2:])]


def figures_in_words(share: float, which: Sequence[bool], unit: Unit = PERCENT) -> str:
    """Some of the four figures, in words."""
    named = [title for title, yes in zip(short_titles(share, unit), which, strict=True) if yes]
    return "all four" if len(named) == len(FIGURES) else ", ".join(named) or "none"


def rows_of_one_seed(seeds: Sequence[int]) -> list[bool]:
    """Which rows have one seed beside rows of more: no mean to be held against theirs."""
    return [n == 1 < max(seeds) for n in seeds]


def digits_of(values: Iterable[float], unit: Unit) -> int:
    """How many digits a column shows behind the point: two, and more where its numbers are small.

    Scores in percent have two.
    """
    most = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    return 2 if unit.mark or not most else min(9, max(2, 2 - math.floor(math.log10(most))))


def ranks(rows: Sequence[Row], column: Column, digits: int = 2) -> list[int]:
    """Each row's rank in a column, as shown; 2 for all where there are too few or all are equal."""
    value = np.array([round(getattr(row.mean, column.field), digits) for row in rows])
    value[rows_of_one_seed([row.seeds for row in rows])] = np.nan
    better = np.unique(column.sign * value[~np.isnan(value)])[::-1]
    if len(rows) < 3 or len(better) < 2:
        return [2] * len(rows)
    place = {float(v): min(i, 2) for i, v in enumerate(better)}
    return [place.get(float(column.sign * v), 2) for v in value]


def caption(history: History, model: Model, at: At, unit: Unit | None = None) -> str:
    """Which model and which round the table shows, and how, if not in per cent."""
    average = ", ".join(sorted({run.deploy for run in history.runs if run.deploy}))
    what = {"last": "last server model", "personal": "each client under its own model"}.get(
        model, "deployed model"
    )
    what += f" ({average})" if model == "deployed" and average else ""
    what += " on validation data" if history.on == "validation" else ""
    when = {
        "last": "at the last round",
        "best": f"at its best round, picked on {history.picked_on()}",
        "last5": "mean of the last five evaluations",
    }[at]
    counts = {(run.judged(model, at), run.n_clients) for run in history.runs}
    some = " or ".join(f"{k:,} of {n:,}" for k, n in sorted(counts) if k < n)
    labels = [run.label for run in history.runs]
    over = "one seed" if len(labels) == len({*labels}) else "mean ± sd over seeds"
    text = f"{what}, {when}; {over}" + (f"; {some} clients" if some else "")
    unit = unit or history.unit
    text = text if unit.mark else f"{text}; {unit_in_words(unit)}"
    return "; ".join([text, *joining.differences(history.runs)])


def noise_note(rows: Sequence[Row], runs: Sequence[RunHistory], on: On = "test") -> str:
    """How much of the variances finite test sets alone make; "" where scores are no counts."""
    known = [row for row in rows if math.isfinite(row.test_noise) and row.mean.variance > 0]
    if not known:
        return _unknown_noise(runs, on)
    shares = [100 * row.test_noise / row.mean.variance for row in known]
    noise = f"{_range([row.test_noise for row in known], '.2f')} %²"
    if min(shares) > 100:
        seen = _range([row.mean.variance for row in known], ".2f")
        return (
            f"warning: the {on} sets are too small to compare these clients: chance alone would "
            f"make a variance of about {noise}, and {seen} %² was measured"
        )
    each = ", ".join(f"{row.label} {row.corrected:.2f}" for row in known)
    if len(known) > LISTED:
        ends = [pick(known, key=lambda row: row.corrected) for pick in (min, max)]
        each = " to ".join(f"{row.corrected:.2f} ({row.label})" for row in ends)
    text = (
        f"the noise of finite {on} sets alone makes a variance of about {noise}, "
        f"{_range(shares, '.0f')} % of what is shown; variance without it: {each}"
    )
    if max(shares) > 50:
        most = [row.label for row, share in zip(known, shares, strict=True) if share > 50]
        who = ", ".join(most) if len(most) <= LISTED else f"{len(most)} rows"
        text += f"; warning: the {on} sets are too small to compare clients under {who}"
    return text


def _unknown_noise(runs: Sequence[RunHistory], on: On) -> str:
    """Why the noise of finite test sets is not known, where that is for clients with one example.

    Such a client's accuracy is 0 or 100 %, so the variance is mostly noise.
    """
    judged = [r for r in runs if r.SIZES_KNOWN and r.unit == PERCENT and not r.diverged]
    single = {(int((run.test_size == 1).sum()), int((run.test_size > 0).sum())) for run in judged}
    most, many = max(single, default=(0, 0))
    if not most:
        return ""
    return (
        f"warning: {most:,} of {many:,} clients have a single {on} example, so how much of these "
        f"variances is noise of finite {on} sets cannot be told; --min-examples leaves small "
        "clients out"
    )


def privacy_note(runs: Iterable[RunHistory], lines: Iterable[Mapping[str, Any]] = ()) -> str:
    """What the rounds cost the privacy of a client; "" where nothing was promised."""
    rows = numbers.spent_by_row(runs, lines)
    if not rows:
        return ""
    each = ", ".join(f"{row.label} {row.epsilon:.3g}" for row in rows)
    if len(rows) > LISTED or len({f"{row.epsilon:.3g}" for row in rows}) == 1:
        each = f"{_range([row.epsilon for row in rows], '.3g')}"
        each += " in every row" if len(rows) > 1 else ""
    delta = _range([row.delta for row in rows], "g")
    return f"privacy of a client (its data replaced): epsilon spent {each}, at delta {delta}"


def silence(runs: Iterable[RunHistory]) -> list[str]:
    """In which rounds nobody answered, in words, by the runs in which it was so."""
    found: dict[str, list[RunHistory]] = {}
    for run in runs:
        if stretches := silent_rounds(run):
            told = [f"{a:,} to {b:,}" if b > a else f"{a:,}" for a, b in stretches[:LISTED]]
            more = f" and {len(stretches) - LISTED:,} times more" * (len(stretches) > LISTED)
            one = len(stretches) == 1 and stretches[0][0] == stretches[0][1]
            words = f"nobody answered in round{'' if one else 's'} {', '.join(told)}{more}"
            found.setdefault(words, []).append(run)
    out = []
    for words, same in found.items():
        named = [f"{run.label}, seed {run.seed}" for run in same[:LISTED]]
        rest = f" and {len(same) - LISTED:,} more" * (len(same) > LISTED)
        out.append(f"{words} ({'; '.join(named)}{rest})")
    return out


def _range(values: Sequence[float], form: str) -> str:
    """One number, or the least and the most."""
    ends = [format(v, form) for v in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def document(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    share: float | None = None,
    against: str | None = None,
    title: str = "",
) -> Document:
    """Every strategy, and each one's differences to the row `against`."""
    history = history if share is None else replace(history, share=share)
    told = dict.fromkeys(run.diverged for run in history.runs if run.diverged)
    text = [f"Left out of every mean: {'; '.join(told)}."] if told else []
    noise = noise_note(history.summary(model, at), history.runs, history.on)
    grids = [summary(history, model, at), *incentive_grids(history, model, at)]
    if against is not None:
        grids.append(differences(history, model, at, against))
    notes = noise, privacy_note(history.runs), *silence(history.runs)
    below = [f"{capitalised(note)}." for note in notes if note]
    return Document(title, text, grids, foot=below)


def summary(
    history: History, model: Model = "deployed", at: At = "last", share: float | None = None
) -> Grid:
    """The table of a history: strategies by figures."""
    share = history.share if share is None else share
    rows, title = history.summary(model, at, share), capitalised(caption(history, model, at))
    return grid_of_rows("levels", title, rows, share, unit=history.unit)


def grid_of_rows(
    name: str,
    title: str,
    rows: Sequence[Row],
    share: float,
    named: Callable[[str], str] = str,
    unit: Unit = PERCENT,
) -> Grid:
    """Rows by figures, mean ± sd over seeds, the best marked."""
    head, body = ["row", "seeds"], [[Cell(named(r.label)), Cell(str(r.seeds))] for r in rows]
    for column in columns(share, unit):
        head.append(column.title)
        digits = digits_of((getattr(row.mean, column.field) for row in rows), unit)
        for row, line, rank in zip(rows, body, ranks(rows, column, digits), strict=True):
            value, sd = (getattr(f, column.field) for f in (row.mean, row.sd))
            line.append(number(value, sd, rank, digits=digits))
    if any(row.note for row in rows):
        head.append("note")
        for row, line in zip(rows, body, strict=True):
            line.append(Cell(row.note))
    return Grid(name, title, head, body)


def incentive_grids(history: History, model: Model = "deployed", at: At = "last") -> list[Grid]:
    """What clients gain over training alone; no table where there is no row `local`."""
    found, unit = history.incentives(model, at), history.unit
    if not found:
        return []
    digits = digits_of((row.gain for row in found), unit)
    body = [
        [
            Cell(row.label),
            Cell(str(row.seeds)),
            number(100 * row.better, np.nan),
            number(100 * row.equal, np.nan),
            *(number(value, np.nan, digits=digits) for value in (row.gain, row.least)),
        ]
        for row in found
    ]
    what = f"{unit.name}{unit.mark}"
    head = ["row", "seeds", "better off %", "equal %", f"gain in {what}", "least gain"]
    told = caption(history, model, at).partition(";")[0]
    title = f"Incentive: clients beside training alone ({told})"
    return [Grid("incentive", title, head, body)]


def for_screen(grid: Grid) -> Grid:
    """A table of strategies as a screen shows it: without seeds, notes behind the names.

    A note that several rows share stands once, above them.
    """
    keep = [i for i, name in enumerate(grid.head) if name not in ("row", "seeds", "note")]
    notes = [row[grid.head.index("note")].text if "note" in grid.head else "" for row in grid.rows]
    shared = [note for note in dict.fromkeys(notes) if note and notes.count(note) > 1]
    marks = {note: " " + "*" * (i + 1) for i, note in enumerate(shared)}
    rows = [
        [
            Cell(row[0].text + (marks.get(note) or f" ({note})" if note else "")),
            *(row[i] for i in keep),
        ]
        for row, note in zip(grid.rows, notes, strict=True)
    ]
    title = grid.title[:1].lower() + grid.title[1:]
    title += "".join(f"; {mark.strip()} {note}" for note, mark in marks.items())
    return Grid(grid.name, title, ["strategy", *(grid.head[i] for i in keep)], rows)


def more_figures(rows: Sequence[Row], unit: Unit) -> Grid:
    """The figures that the table of strategies has no room for."""
    body = [
        [
            Cell(row.label),
            *(number(getattr(row.mean, f), getattr(row.sd, f), digits=d) for f, _, d in MORE),
        ]
        for row in rows
    ]
    head = ["strategy", *(title.format(name=unit.name, mark=unit.mark) for _, title, _ in MORE)]
    return Grid("more", "All figures", head, body)


def bases(labels: Iterable[str], against: str) -> dict[str, str]:
    """The row that each of the others is compared with.

    Of a sweep, `fedavg` stands for the row of fedavg with the same settings: `fedavg, lr=0.1`.
    """
    labels = dict.fromkeys(labels)
    if against in labels:
        return {row: against for row in labels if row != against}
    settings = {row: row.partition(", ")[2] for row in labels}
    own = {told: f"{against}, {told}" for told in settings.values() if told}
    if not any(base in labels for base in own.values()):
        raise unknown("row", against, labels)
    return {row: own[told] for row, told in settings.items() if told and row != own[told]}


def differences(history: History, model: Model, at: At, against: str) -> Grid:
    """Each strategy's differences to the row `against`, and the p-values that decide them."""
    labels = dict.fromkeys(run.label for run in history.runs)
    if len(labels) == 1 and against in labels:
        raise InputError(f"against {against!r}: there is no other row: leave it out")
    words = capitalised(caption(history, model, at).partition(";")[0])
    base = against if against in labels else f"{against} with the same settings"
    title = f"{words}: difference to {base} under the same seeds"
    samples = differences_by_seed(history, model, at, against)
    return grid_of_differences("differences", title, history.share, samples, unit=history.unit)


def differences_by_seed(history: History, model: Model, at: At, against: str) -> Samples:
    """Of each row, the differences to the row `against`."""
    found = fairness_by_seed(history, model, at)
    others = bases((run.label for run in history.runs), against)
    return {row: subtract_figures(found, row, found, base) for row, base in others.items()}


def subtract_figures(ours: Found, row: str, theirs: Found, base: str) -> list[FloatArray]:
    """Each figure of a row minus that of another, by the seeds that both have."""
    return [subtract(by_seed(ours, row, f), by_seed(theirs, base, f)) for f in FIGURES]


def corrected_p_values(samples: Samples) -> CorrectedP:
    """By row with two seeds or more, the p-value of each figure's difference after Holm."""
    tested = {row: own for row, own in samples.items() if len(own[0]) > 1}
    raw = np.array([[ranks_of_rows.p_value(x) for x in own] for own in tested.values()])
    columns = [ranks_of_rows.holm(p) for p in raw.reshape(-1, len(FIGURES)).T]
    return dict(zip(tested, np.transpose(columns).tolist(), strict=True))


def grid_of_differences(
    name: str,
    title: str,
    share: float,
    samples: Samples,
    named: Callable[[str], str] = str,
    unit: Unit = PERCENT,
) -> Grid:
    """Rows of differences with their intervals and p-values; what is significant is marked."""
    spans = {row: [interval(x) for x in own] for row, own in samples.items()}
    corrected = corrected_p_values(samples)
    if corrected:
        title += ", 95 % t-interval of one comparison alone; p of a paired t-test"
        many = len(corrected)
        title += f" after Holm's correction for {many} rows in each column" if many > 1 else ""
        title += f"; bold: p < {ranks_of_rows.SIGNIFICANT}"
    shown = [
        digits_of((span.mean for span in column), unit)
        for column in zip(*spans.values(), strict=True)
    ]
    body = []
    for label, row in spans.items():
        cells = [between(span, digits) for span, digits in zip(row, shown, strict=True)]
        if label in corrected:
            cells = [tested(cell, p) for cell, p in zip(cells, corrected[label], strict=True)]
        body.append([Cell(named(label)), Cell(str(row[0].seeds)), *cells])
    titles = [column.title for column in columns(share, unit)]
    return Grid(name, title, ["row", "seeds", *titles], body)


def tested(cell: Cell, p: float) -> Cell:
    """A difference with its p-value, marked where it is significant."""
    text = f"{cell.text}, {p_in_words(p)}" if cell.span else cell.text
    return cell._replace(text=text, p=p, rank=0 if p < ranks_of_rows.SIGNIFICANT else 2)


def capitalised(text: str) -> str:
    """The same with a capital letter first."""
    return text[:1].upper() + text[1:]
