"""What the rounds of a run cost, who was asked and heard, and who was not, as tables. No torch.

Empty where no run recorded who took part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedmaba.report.document import Cell, Grid, number
from fedmaba.report.table import capitalised, caption, columns, digits_of
from fedmaba.results.costs import Cost, Goal, costs
from fedmaba.results.history import History
from fedmaba.results.metrics import PLAIN_UNIT, Unit, finite
from fedmaba.results.run_history import At, Model
from fedmaba.results.unseen import sides

COUNTS = ("least", "mean", "most", "never")


def grids(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    share: float | None = None,
    until: Sequence[Goal] = (),
) -> list[Grid]:
    """The two tables, with what was spent until each of some goals was reached."""
    rows = costs(history, model, at, share, until)
    if not rows:
        return []
    share = history.share if share is None else share
    found = [_bill(rows, history.unit, until, share), _turns(rows, history, model, at)]
    return found + _unseen(history, model, at, share)


def _unseen(history: History, model: Model, at: At, share: float) -> list[Grid]:
    """How models serve clients that took no part, beside the others; no table without such."""
    found, unit = sides(history, model, at, share), history.unit
    if not found:
        return []
    counts = dict.fromkeys(
        int((~run.takes_part).sum()) for run in history.runs if run.unseen_size is not None
    )
    many = " or ".join(f"{count:,}" for count in counts)
    words = {"deployed": "deployed", "last": "last server's", "personal": "the client's own"}
    body = [
        [Cell(row.label), Cell(str(row.seeds)), Cell(words[row.model]), Cell(row.who)]
        for row in found
    ]
    head = ["row", "seeds", "model", "clients"]
    for column in columns(share, unit):
        head.append(column.title)
        pairs = [[getattr(f, column.field) for f in (row.mean, row.sd)] for row in found]
        digits = digits_of((mean for mean, _ in pairs), unit)
        for line, (mean, sd) in zip(body, pairs, strict=True):
            line.append(number(mean, sd, digits=digits))
    of = f"{many} of {history.runs[0].n_clients:,}"
    when = caption(history, model, at).partition(";")[0].partition(", ")[2]
    title = f"Clients that took no part in training ({of}), {when}; mean ± sd over seeds"
    return [Grid("unseen", title, head, body)]


def _bill(rows: Sequence[Cost], unit: Unit, until: Sequence[Goal], share: float) -> Grid:
    timed = any(math.isfinite(row.hours) for row in rows)
    columns = {"GB down": [row.gigabytes_down for row in rows]}
    columns["GB up"] = [row.gigabytes_up for row in rows]
    columns |= {"hours": [row.hours for row in rows]} if timed else {}
    body = [[Cell(row.label), Cell(str(row.seeds))] for row in rows]
    for values in columns.values():
        _add(body, values)
    head = ["row", "seeds", *columns]
    for i, goal in enumerate(until):
        named = _named(goal, unit, share)
        some = [f" ({r.until[i].seeds} of {r.seeds} seeds)" * _part(r, i) for r in rows]
        head.append(f"GB until {named}")
        _add(body, [row.until[i].gigabytes for row in rows], some)
        if timed:
            head.append(f"hours until {named}")
            _add(body, [row.until[i].hours for row in rows], some)
    clock = ", hours of the simulated clock" if timed else ""
    title = f"What it cost: gigabytes (a billion bytes) of all clients{clock}; mean over seeds"
    return Grid("cost", title, head, body)


def _part(row: Cost, i: int) -> bool:
    """Whether some seeds reached a goal and others did not."""
    return 0 < row.until[i].seeds < row.seeds


def _named(goal: Goal, unit: Unit, share: float) -> str:
    """ "accuracy ≥ 80 %": what is to be reached."""
    way = "≥" if goal.sign(unit) > 0 else "≤"
    name = {"accuracy": unit.name, "worst": f"worst {100 * share:g} %"}.get(goal.figure, "variance")
    mark = unit.square if goal.figure == "variance" else unit.mark
    return f"{name} {way} {goal.shown(unit):g}{mark}"


def _add(body: list[list[Cell]], values: Sequence[float], notes: Sequence[str] = ()) -> None:
    """One more column of numbers, with as many digits as the largest needs."""
    digits = digits_of(values, PLAIN_UNIT)
    for i, (line, value) in enumerate(zip(body, values, strict=True)):
        cell = number(value, digits=digits)
        line.append(cell._replace(text=cell.text + notes[i]) if notes else cell)


def _turns(rows: Sequence[Cost], history: History, model: Model, at: At) -> Grid:
    unit = history.unit
    head, body = ["row", "seeds"], [[Cell(row.label), Cell(str(row.seeds))] for row in rows]
    for what in ("asked", "heard"):
        for name in COUNTS:
            head.append(f"never {what}" if name == "never" else f"{what} {name}")
            values = [getattr(row, f"{what}_{name}") for row in rows]
            whole = all(value == int(value) for value in values)
            for line, value in zip(body, values, strict=True):
                line.append(number(value, digits=0 if whole else 2))
    head += [f"{unit.name}{unit.mark} per share heard", f"its variance{unit.square}"]
    _add(body, [row.score_per_heard for row in rows])
    _add(body, [row.score_per_heard_variance for row in rows])
    words = capitalised(caption(history, model, at).partition(";")[0])
    title = (
        f"{words}: in how many rounds clients were asked and heard (never: how many clients); "
        f"{unit.name} divided by the share of rounds heard; mean over seeds"
    )
    return Grid("turns", title, head, body)


def as_json(
    history: History, model: Model, at: At, share: float | None, until: Sequence[Goal]
) -> list[dict[str, Any]]:
    """The same numbers for scripts, a tree for each strategy."""
    return [
        {
            "strategy": row.label,
            "seeds": row.seeds,
            "gigabytes_down": row.gigabytes_down,
            "gigabytes_up": row.gigabytes_up,
            "hours": finite(row.hours),
            **{
                what: {name: getattr(row, f"{what}_{name}") for name in COUNTS}
                for what in ("asked", "heard")
            },
            "score_per_heard": finite(row.score_per_heard),
            "score_per_heard_variance": finite(row.score_per_heard_variance),
            "until": [
                {
                    "figure": goal.figure,
                    "value": goal.value,
                    "seeds": reached.seeds,
                    "gigabytes": finite(reached.gigabytes),
                    "hours": finite(reached.hours),
                }
                for goal, reached in zip(until, row.until, strict=True)
            ],
        }
        for row in costs(history, model, at, share, until)
    ]
