"""Whether runs may stand in one table: of one experiment, of the same people, under which settings.

Runs that were read from one folder, or came from one call, are told apart by their labels. Runs
that somebody joins are compared here by where they come from. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations

import numpy as np

from fedmaba.errors import InputError
from fedmaba.results import files
from fedmaba.results.run_history import RunHistory, RunOrigin

APART = (  # settings whose difference changes no number, or is in the labels
    *("strategies", "seeds", "eval.share", "data.name"),
    *("machine.device", "machine.chunk"),
)
OWN_CODE = "their own code or first weights"
UNSAID = "not noted"
MOST_LABELS = 3  # A value is followed by at most this many labels.


def require_joinable(runs: Sequence[RunHistory]) -> None:
    """Refuse a run that appears twice, seeds of different experiments, and other people's runs."""
    _require_one_experiment(runs)
    _require_same_people([run for run in runs if run.n_clients])


def _require_one_experiment(runs: Sequence[RunHistory]) -> None:
    """Refuse a run that appears twice, and runs of one label that differ in more than the seed."""
    first: dict[str, RunHistory] = {}
    there: set[tuple[str, int, str]] = set()
    for run in runs:
        if (key := (run.label, run.seed, run.deploy)) in there:
            raise InputError(
                f"{run.label}, seed {run.seed}, is there twice: leave one of the two runs out"
            )
        there.add(key)
        if run.diverged or not run.n_clients or "evaluated" not in run.tables:
            continue
        other = first.setdefault(run.label, run)
        if run.n_clients != other.n_clients:
            what = f"{other.n_clients} and {run.n_clients} clients"
        elif not np.array_equal(run.evaluated, other.evaluated):
            ends = (int(r.evaluated[-1]) for r in (other, run))
            what = "evaluated in other rounds, last {} and {}".format(*ends)
        elif run.of and other.of and run.of != other.of:
            what = "with other data, model or options"
        else:
            continue
        raise InputError(
            f"{run.label}: seeds {other.seed} and {run.seed} are of different experiments "
            f"({what}): keep them apart, or give one of them another label"
        )


def _require_same_people(runs: Sequence[RunHistory]) -> None:
    """Refuse runs from several places whose clients are others, or have other examples."""
    for one, other in _from_elsewhere(runs, lambda run: (run.origin.data, run.n_clients)):
        if one.origin.data and other.origin.data and one.origin.data != other.origin.data:
            raise _others(one, other, "different data")
        if one.n_clients != other.n_clients:
            raise _others(one, other, f"{one.n_clients:,} and {other.n_clients:,} clients")
    for one, other in _from_elsewhere(runs, lambda run: (run.seed, run.origin.partition)):
        ours, theirs = one.origin.partition, other.origin.partition
        if one.seed == other.seed and ours and theirs and ours != theirs:
            what = f"clients that have other examples under seed {one.seed}"
            raise _others(one, other, what)


def _others(one: RunHistory, other: RunHistory, what: str) -> InputError:
    return InputError(
        f"{one.label} and {other.label} are of {what}, so their scores cannot be compared: show "
        "them apart"
    )


def _from_elsewhere(
    runs: Sequence[RunHistory], kind: Callable[[RunHistory], Hashable]
) -> Iterable[tuple[RunHistory, RunHistory]]:
    """Pairs of runs from different places, one for each kind."""
    first = {(run.origin.whole, kind(run)): run for run in reversed(runs)}
    for one, other in combinations(reversed(first.values()), 2):
        if not one.origin.whole or one.origin.whole != other.origin.whole:
            yield one, other


def differences(runs: Sequence[RunHistory]) -> list[str]:
    """What a reader must know of runs that were joined: settings that differ, and what is unknown.

    Nothing of runs from one place, whose labels say it.
    """
    places = {run.origin.whole for run in runs}
    if len(places) == 1 and "" not in places:
        return []
    known = [(run, _told(run.origin)) for run in runs if run.origin.settings]
    names = dict.fromkeys(name for _, told in known for name in told)
    said = []
    for name in names:
        labels: dict[str, dict[str, None]] = {}
        values: dict[str, set[str]] = {}  # by place
        for run, told in known:
            if (value := told.get(name, "default")) == UNSAID:
                continue
            labels.setdefault(value, {})[run.label] = None
            values.setdefault(run.origin.whole, set()).add(value)
        inside = len(values.get("", ())) > 1
        if inside or any(some != next(iter(values.values())) for some in values.values()):
            each = "; ".join(
                f"{value}: {some_of([*who], MOST_LABELS)}" for value, who in labels.items()
            )
            said.append(f"{name} ({each})" if name != OWN_CODE else name)
    out = [f"these runs differ in {', '.join(said)}"] if said else []
    unknown = list(dict.fromkeys(run.label for run in runs if not run.origin.data))
    if unknown and len(places) > 1:
        out.append(
            f"whether the data and clients of {some_of(unknown, MOST_LABELS)} are those of the "
            "others is not known: it was not noted with them"
        )
    return out


def _told(origin: RunOrigin) -> dict[str, str]:
    """The settings that can change a number, and the digest of the caller's own code."""
    given = {name: value for name, value in files.flattened(origin.settings) if value is not None}
    found = {name: str(value) for name, value in given.items() if name not in APART}
    return {**found, OWN_CODE: origin.code or UNSAID}


def some_of(names: Sequence[str], most: int) -> str:
    """The first of several names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
