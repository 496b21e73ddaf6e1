"""How models serve clients that took no part in training, beside the others. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedmaba.results.history import History
from fedmaba.results.metrics import Fairness
from fedmaba.results.run_history import At, Model, RunHistory, of_unseen
from fedmaba.results.selection import good

SIDES: dict[str, Callable[[RunHistory], RunHistory]] = {
    "took part": lambda run: run,
    "unseen": of_unseen,
}


class Side(NamedTuple):
    """The clients of one side under one model of a strategy, over its seeds."""

    label: str
    seeds: int
    model: Model
    who: str  # one of SIDES
    mean: Fairness
    sd: Fairness


def sides(
    history: History, model: Model = "deployed", at: At = "last", share: float | None = None
) -> list[Side]:
    """Both sides under the server's model, and personal ones; empty where all take part.

    `model` says which of the server's models: the personal ones go with the deployed one.
    """
    share, unit = history.share if share is None else share, history.unit
    apart = [r for r in good(history) if r.unseen_size is not None and history.on == "test"]
    server: Model = "deployed" if model == "personal" else model
    out = []
    for label in dict.fromkeys(run.label for run in apart):
        runs = [run for run in apart if run.label == label]
        both: list[Model] = [server, "personal"]
        for shown in both if all(run.has_personal for run in runs) else both[:1]:
            for who, of in SIDES.items():
                some = [(of(run), run.chosen(at, shown)) for run in runs]
                found = [run.fairness(shown, share, which, unit) for run, which in some]
                figures = np.array([np.mean(one, axis=0) for one in found])
                sd = figures.std(0, ddof=1) if len(runs) > 1 else np.full(figures.shape[1], np.nan)
                mean = Fairness(*figures.mean(0))
                out.append(Side(label, len(runs), shown, who, mean, Fairness(*sd)))
    return out
