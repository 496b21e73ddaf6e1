"""A history, made of the arrays and words that files keep of it. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmaba.results.groups import Groups
from fedmaba.results.history import History
from fedmaba.results.metrics import Metric
from fedmaba.results.run_history import UNKNOWN, Arrays, GrowingArray, RunHistory, RunOrigin
from fedmaba.results.table_checks import SIZES, check_counts, check_shapes, check_values


def from_arrays(
    meta: Sequence[Mapping[str, Any]],
    arrays: Sequence[Arrays],
    share: float = 0.05,
    settings: Mapping[str, Any] | None = None,
) -> History:
    """A history: arrays of `RunHistory.arrays`, labels of the runs, and their settings."""
    runs = []
    for about, tables in zip(meta, arrays, strict=True):
        check_shapes(tables)
        check_values(tables)
        rows = {name: GrowingArray(t) for name, t in tables.items() if name not in SIZES}
        told = saved_groups(about.get("groups"))
        for name in (name for name in rows if name.endswith(".groups")):
            check_counts(name, tables[name], told)
        runs.append(
            RunHistory(
                label=about["label"],
                seed=about["seed"],
                deploy=about["deploy"],
                test_size=tables["test_size"],
                diverged=about["diverged"],
                tables=rows,
                of=about.get("of", ""),
                metric=metric_of(about.get("metric")),
                validation_size=tables.get("validation_size"),
                unseen_size=tables.get("unseen_size"),
                groups=told,
                origin=_origin_of(about.get("origin"), settings),
            )
        )
    return History(runs, share)


def _origin_of(told: object, settings: Mapping[str, Any] | None) -> RunOrigin:
    """Where a file says that a run comes from; unknown where it says nothing."""
    known = told if isinstance(told, dict) else {}
    digests = {key: known[key] for key in UNKNOWN.recorded() if key in known}
    return RunOrigin(**digests, settings=settings or {})


def metric_of(told: object) -> Metric:
    """The metric that a file tells of; accuracy where it tells of none."""
    known = told if isinstance(told, dict) else {}
    return Metric(**{key: known[key] for key in Metric._fields if key in known})


def saved_groups(told: object) -> Groups:
    """The groups that a file tells of; none where it tells of none."""
    known = told if isinstance(told, dict) else {}
    return Groups(tuple(known.get("names", ())), known.get("positive", ""))
