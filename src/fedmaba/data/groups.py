"""Groups in a federation: whether they can be judged, and that in words. No torch.

They are the groups of people that the data name. Where these name none, kinds of clients are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.data.federation import ClientRows, Federation, Kinds

# An evaluation records at most this many clients x groups x kinds of answers.
MOST_COUNTS = 10_000_000


class GroupsJudged(NamedTuple):
    """Whether a federation's groups are judged, and a line that says so, empty without groups."""

    yes: bool
    note: str = ""


def names(fed: Federation) -> tuple[str, ...]:
    """What the groups are called."""
    kinds = _kinds(fed)
    return fed.data.group_names if kinds is None else kinds.names


def _kinds(fed: Federation) -> Kinds | None:
    """The kinds of clients, where these are the groups."""
    return fed.kinds if fed.data.group is None else None


def of_examples(fed: Federation, part: ClientRows, clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group of each example of some clients, one client after another."""
    if (kinds := _kinds(fed)) is not None:
        return np.repeat(kinds.of[clients], part.size[clients])
    assert fed.data.group is not None
    rows = np.concatenate([part.of(int(c)) for c in clients])
    return np.asarray(fed.data.group[rows], np.int64)


def judged(fed: Federation) -> GroupsJudged:
    """Whether test examples can be counted by client, group and prediction; if not, why."""
    data = fed.data
    if data.group is None and fed.kinds is None:
        return GroupsJudged(False)
    if data.task != "classify":
        what = f"it is for classes, and the targets are {data.target.in_words()}"
        return GroupsJudged(False, f"groups: they are not judged: {what}")
    among = _kinds(fed)
    group = data.group if among is None else among.of
    assert group is not None
    seen = np.unique(group[group >= 0])
    if len(seen) < 2:
        only = ", ".join(names(fed)[g] for g in seen)
        return GroupsJudged(
            False, f"groups: all examples are of one group ({only}): nothing to compare"
        )
    if not known(fed, fed.test):
        return GroupsJudged(
            False, "groups: they are not judged: test examples have none: add group_test"
        )
    many = fed.n_clients * len(names(fed)) * answers(fed)
    if many > MOST_COUNTS:
        return GroupsJudged(
            False, f"groups: they are not judged: {many:,} counts are too many to record"
        )
    return GroupsJudged(True, _in_words(fed))


def known(fed: Federation, part: ClientRows) -> bool:
    """Whether the group of each of these examples is known."""
    if fed.data.group is None:
        return fed.kinds is not None
    return bool((fed.data.group[part.index] >= 0).all())


def answers(fed: Federation) -> int:
    """Kinds of answers that are counted: label x prediction of two classes, else right or wrong."""
    return 4 if fed.data.target.outputs == 2 else 2


def _in_words(fed: Federation) -> str:
    called = names(fed)
    wide, everyone = len(called), np.arange(fed.n_clients)
    group, owner = of_examples(fed, fed.test, everyone), np.repeat(everyone, fed.test.size)
    flat = np.bincount(owner * wide + group, minlength=fed.n_clients * wide)
    table = flat.reshape(fed.n_clients, wide)
    each = table.sum(0)
    shown = ", ".join(f"{called[g]} {each[g]:,}" for g in range(min(wide, 12)))
    more = f", ... ({wide} in all)" if wide > 12 else ""
    text = f"groups: {shown}{more} test examples"
    tested = fed.test.size > 0
    lacking = int(((table == 0).any(1) & tested).sum())
    if lacking and fed.data.group is not None:
        text += (
            f"; {lacking} of {int(tested.sum())} clients have no test example of some group: their "
            "figures are of the groups that they have"
        )
    return text
