"""Tables with a header as examples: what a table is, and what each column is for.

Files are read in `csv_tables`, frames in `frames`; `features` makes a matrix of them. No torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

from fedmaba.data.cells import ColumnValues
from fedmaba.data.names import plain
from fedmaba.errors import InputError, shortened, unknown

Missing = Literal["median", "client-median", "refuse"]


class Reading(NamedTuple):
    """How a table is read; a column that is None is looked for under its usual name."""

    label: str | None = None  # This column is learnt: "label" or "y".
    client: str | None = None  # This column says who owns the example: "client".
    group: str | None = None  #          a group of people: "group"
    split: str | None = None  # This column has train, validation or test: "split".
    drop: tuple[str, ...] = ()  #        columns that are not used
    categorical: tuple[str, ...] = ()  # These columns have numbers that stand for words.
    missing: Missing | None = None  # Gaps are filled in this way, by default with the median.
    # It says whether numbers are standardised, which they are by default.
    standardise: bool | None = None
    feature: tuple[str, ...] = ()  # These columns are features, whatever they look like.
    together: str | None = None  # Rows that share a value of this column stay in one part.
    text: str | None = None  # This column alone is read, as tokens.
    tokeniser: str | None = None  # This folder has the tokeniser of that text.
    tokens: int | None = None  # A text has at most so many, by default what the folder says.


USUAL: dict[str, tuple[str, ...]] = {
    "label": ("label", "y"),
    "client": ("client",),
    "group": ("group",),
    "split": ("split",),
    "together": (),
}


def reading(
    label: str | None = None,
    client: str | None = None,
    group: str | None = None,
    split: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str | None = None,
    standardise: bool | str | None = None,
    feature: Sequence[str] = (),
    together: str | None = None,
    text: str | None = None,
    tokeniser: str | None = None,
    tokens: int | None = None,
) -> Reading:
    """What a user says about a table, checked; one name or several are a list of names."""
    lists = {}
    for word, names in (("drop", drop), ("categorical", categorical), ("feature", feature)):
        lists[word] = (names,) if isinstance(names, str) else tuple(names)
        if wrong := next((name for name in lists[word] if not isinstance(name, str)), None):
            raise InputError(f"{word} names {wrong!r}: give names of columns")
    if missing is not None and missing not in get_args(Missing):
        raise unknown("way to fill gaps", str(missing), get_args(Missing))
    if isinstance(standardise, str):
        if standardise not in ("yes", "no"):
            raise InputError(f"standardise={standardise!r}: say yes or no")
        standardise = standardise == "yes"
    if text is None and (tokeniser is not None or tokens is not None):
        raise InputError("a tokeniser is for a column of text: name the column with --text")
    if text is not None and tokeniser is None:
        raise InputError(
            f"text={text}: whose tokens? Say --model hf:FOLDER, or the folder with --tokeniser"
        )
    for word, value in (*lists.items(), ("missing", missing), ("standardise", standardise)):
        if text is not None and value and word != "drop":
            raise InputError(f"text={text} is read alone, so {word} changes nothing: leave it out")
    how = cast("Missing | None", missing)
    label, client, group, split, together, text = (
        None if name is None else plain(name)
        for name in (label, client, group, split, together, text)
    )
    left, words, kept = (tuple(map(plain, names)) for names in lists.values())
    told = (label, client, group, split, left, words, how, standardise, kept, together)
    return Reading(*told, text, tokeniser, tokens)


class RawTable(NamedTuple):
    """A table as it was read: all columns in order, and what they are for."""

    columns: Mapping[str, ColumnValues]
    reading: Reading  # All names that the table has are set.
    # These are lines of the file, by row; there are none where there is no file.
    lines: Sequence[int] = ()
    steps: tuple[str, ...] = ()  # what its reader has to say of it

    def at(self, row: int) -> str:
        """Where a row stands, for people."""
        return f"line {self.lines[row]}" if len(self.lines) else f"row {row}"


def roles(reading: Reading) -> tuple[str, ...]:
    """The columns that a table has for something else than a feature."""
    every = (*(getattr(reading, role) for role in USUAL), reading.text)
    return tuple(name for name in every if name is not None)


def columns_of_words(reading: Reading) -> set[str]:
    """The columns whose cells are words, whatever they look like."""
    return {*roles(reading), *reading.categorical}


def assign(reading: Reading, header: Sequence[str], where: str) -> Reading:
    """The reading with the names that this header has; a name that it has not is refused."""
    found: dict[str, Any] = {}
    for role, usual in USUAL.items():
        name = getattr(reading, role)
        if name is not None and name not in header:
            other = " (--clients says how many clients)" if role == "client" else ""
            raise InputError(f"{where}{unknown(f'column for {role}', name, header, other=other)}")
        free = [n for n in header if n not in (*reading.drop, *reading.feature)]
        here = [n for n in usual if n in free]
        if not here:  # "Client" is meant, too; but X and Y are coordinates.
            here = [n for n in free if n.casefold() in usual and len(n) > 1]
        if name is None and len(here) > 1:
            raise InputError(
                f"{where}columns {' and '.join(here)}: say which is the {role} with --{role}"
            )
        found[role] = name if name is not None else next(iter(here), None)
    for role in ("drop", "categorical", "feature"):
        for name in getattr(reading, role):
            if name not in header:
                raise InputError(f"{where}{unknown(f'column to {role}', name, header)}")
    if found["label"] is None:
        raise InputError(
            f"{where}no column is called label or y among {shortened(', '.join(header))}: say "
            "which one is learnt with --label"
        )
    if reading.text is not None and reading.text not in header:
        raise InputError(f"{where}{unknown('column for text', reading.text, header)}")
    named = [*roles(reading._replace(**found))]
    for name in (*named, *reading.feature):
        if (*named, *reading.feature).count(name) > 1 and found["group"] != name:
            raise InputError(f"{where}column {name!r} has two uses: give each column one")
    for name in (*named, *reading.feature):
        if name in reading.drop:
            raise InputError(f"{where}column {name!r} is used and dropped: do one of them")
    return reading._replace(**found)


def uses(reading: Reading) -> tuple[str, ...]:
    """What the columns of a table are for, as the record of a run tells it."""
    asked = ((role, getattr(reading, role)) for role in (*USUAL, "text"))
    named = [f"{role} {name}" for role, name in asked if name is not None]
    others = "features" if reading.text is None else "not read"
    out = [f"columns: {', '.join(named)}; the others are {others}"]
    if reading.drop:
        out.append(f"columns left out: {', '.join(reading.drop)}")
    return tuple(out)


def dropping(name: str) -> str:
    """What a user types to leave a column out."""
    return f"--drop {shlex.quote(name)}"
