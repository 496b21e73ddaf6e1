"""Results for scripts: one JSON document each, with keys that stay as they are. No torch.

docs/report.md lists the keys. A number that is not defined is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fedmaba.experiment.trials import Trial
from fedmaba.report import cost_tables, numbers
from fedmaba.report.document import Grid
from fedmaba.report.table import FIGURES, differences, silence
from fedmaba.results import joining, unseen
from fedmaba.results.costs import Goal
from fedmaba.results.history import History
from fedmaba.results.metrics import Fairness, Unit, finite
from fedmaba.results.run_history import At, Model

FORMAT = 1


def json_table(
    history: History,
    model: Model = "deployed",
    at: At = "last",
    share: float | None = None,
    against: str | None = None,
    until: Sequence[Goal] = (),
    trials: Sequence[Trial] = (),
) -> str:
    """The table of a history: a row for each strategy, and differences where asked for."""
    history = history if share is None else replace(history, share=share)
    rows, unit = history.summary(model, at), history.unit
    spent = {
        row.label: {"epsilon": row.epsilon, "delta": row.delta}
        for row in numbers.spent_by_row(history.runs)
    }
    found: dict[str, Any] = {
        "format": FORMAT,
        "model": model,
        "at": at,
        "on": history.on,
        "share": history.share,
        "metric": metric_in_json(unit),
        "notes": [*joining.differences(history.runs), *silence(history.runs)],
        "rows": [
            {
                "strategy": row.label,
                "seeds": row.seeds,
                "mean": _figures(row.mean),
                "sd": _figures(row.sd),
                "test_noise": finite(row.test_noise),
                "corrected_variance": finite(row.corrected),
                "note": row.note,
                **spent.get(row.label, {}),
            }
            for row in rows
        ],
    }
    if trials:
        found["trials"] = [
            {name: finite(x) if isinstance(x, float) else x for name, x in vars(trial).items()}
            for trial in trials
        ]
    if costs := cost_tables.as_json(history, model, at, share, until):
        found["costs"] = costs
    if apart := unseen.sides(history, model, at):
        found["unseen"] = [
            {
                "strategy": row.label,
                "seeds": row.seeds,
                "model": row.model,
                "clients": row.who,
                "mean": _figures(row.mean),
                "sd": _figures(row.sd),
            }
            for row in apart
        ]
    if against is not None:
        grid = differences(history, model, at, against)
        found["against"] = against
        found["differences"] = [
            {
                "strategy": first.text,
                "figures": {
                    name: {
                        "mean": cell.value,
                        "low": cell.span[0] if cell.span else None,
                        "high": cell.span[1] if cell.span else None,
                    }
                    for name, cell in zip(FIGURES, cells[1:5], strict=True)
                },
                "p_holm": None
                if cells[1].p is None
                else {name: cell.p for name, cell in zip(FIGURES, cells[1:], strict=True)},
            }
            for first, *cells in grid.rows
        ]
    return json_text(found)


def metric_in_json(unit: Unit) -> dict[str, Any]:
    """What the scores are."""
    return {"name": unit.name, "lower_is_better": unit.lower, "percent": bool(unit.mark)}


def json_list(what: str, rows: Iterable[Sequence[object]]) -> str:
    """What `fedmaba list` shows: the name of each entry, and what is told of it."""
    entries = [{"name": str(name), "about": [*map(str, about)]} for name, *about in rows]
    return json_text({"format": FORMAT, "list": what, "entries": entries})


def json_text(found: object) -> str:
    """A document as text, with a line break at its end."""
    return json.dumps(found, indent=1, allow_nan=False, ensure_ascii=True) + "\n"


def json_grid(grid: Grid) -> str:
    """A table as a list of objects: numbers where there are such, else texts; null for a dash."""
    rows = [
        [
            (None if cell.text == "–" else cell.text) if cell.value is None else cell.value
            for cell in row
        ]
        for row in grid.rows
    ]
    return json_text([dict(zip(grid.head, row, strict=True)) for row in rows])


def _figures(figures: Fairness) -> dict[str, float | None]:
    return {name: finite(value) for name, value in figures._asdict().items()}
