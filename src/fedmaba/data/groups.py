"""Groups of people in a federation: whether they can be judged, and that in words. No torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmaba.data.federation import ClientRows, Federation

# An evaluation records at most this many clients x groups x kinds of answers.
MOST_COUNTS = 10_000_000


class GroupsJudged(NamedTuple):
    """Whether a federation's groups are judged, and a line that says so, empty without groups."""

    yes: bool
    note: str = ""


def judged(fed: Federation) -> GroupsJudged:
    """Whether test examples can be counted by client, group and prediction; if not, why."""
    data = fed.data
    if data.group is None:
        return GroupsJudged(False)
    if data.task != "classify":
        what = f"it is for classes, and the targets are {data.target.in_words()}"
        return GroupsJudged(False, f"groups: they are not judged: {what}")
    seen = np.unique(data.group[data.group >= 0])
    if len(seen) < 2:
        only = ", ".join(data.group_names[g] for g in seen)
        return GroupsJudged(
            False, f"groups: all examples are of one group ({only}): nothing to compare"
        )
    if not known(fed, fed.test):
        return GroupsJudged(
            False, "groups: they are not judged: test examples have none: add group_test"
        )
    many = fed.n_clients * len(data.group_names) * kinds(fed)
    if many > MOST_COUNTS:
        return GroupsJudged(
            False, f"groups: they are not judged: {many:,} counts are too many to record"
        )
    return GroupsJudged(True, _in_words(fed))


def known(fed: Federation, part: ClientRows) -> bool:
    """Whether the group of each of these examples is known."""
    return fed.data.group is not None and bool((fed.data.group[part.index] >= 0).all())


def kinds(fed: Federation) -> int:
    """Kinds of answers that are counted: label x prediction of two classes, else right or wrong."""
    return 4 if fed.data.target.outputs == 2 else 2


def _in_words(fed: Federation) -> str:
    names, group = fed.data.group_names, fed.data.group
    assert group is not None
    wide = len(names)
    owner = np.repeat(np.arange(fed.n_clients), fed.test.size)
    flat = np.bincount(owner * wide + group[fed.test.index], minlength=fed.n_clients * wide)
    table = flat.reshape(fed.n_clients, wide)
    each = table.sum(0)
    shown = ", ".join(f"{names[g]} {each[g]:,}" for g in range(min(wide, 12)))
    more = f", ... ({wide} in all)" if wide > 12 else ""
    text = f"groups: {shown}{more} test examples"
    tested = fed.test.size > 0
    lacking = int(((table == 0).any(1) & tested).sum())
    if lacking:
        text += (
            f"; {lacking} of {int(tested.sum())} clients have no test example of some group: their "
            "figures are of the groups that they have"
        )
    return text
