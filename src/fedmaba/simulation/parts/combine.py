"""A rule of the server's own in place of the weighted sum of changes, such as a median."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedmaba.rows.cuda_graphs import send, start_fetch
from fedmaba.simulation.batch import Batch, precision
from fedmaba.simulation.part import Host, Moment, Part, Setting
from fedmaba.simulation.vectors import put_rows, take_rows, weight_pieces
from fedmaba.simulation.work import Cohort, Work
from fedmaba.strategies.base import Combine, votes_and_mix


class CombinedChanges(Part):
    """The runs whose servers combine; every rank has all changes, and computes the same."""

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        self.rules = {r: _rule(setting, r) for r in runs}
        for rule in self.rules.values():
            few = setting.first.new_ones(3, 5)
            if rule is not None:
                rule.check(few, few[:, 0] / 3, torch)

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return _rule(setting, r) is not None

    def takes_changes(self, r: int) -> bool:
        return True

    def numbers(self, batch: Batch, work: Work, moment: Moment) -> Mapping[int, Mapping[str, Host]]:
        """See whose changes are finite; the others are left out."""
        for c in (c for c in work.late if c.r in self.runs and moment == "after training"):
            work.counting[c.r] = start_fetch(work.change(c).isfinite().all(1))
        return {}

    def add(self, batch: Batch, work: Work, c: Cohort, delta: Tensor) -> None:
        """Put what the rule makes of the changes in place of their weighted sum."""
        if c.r not in work.decision:
            return
        rule, layout, memory = self.rules[c.r], batch.rows.layout, batch.progress.memory
        assert rule is not None
        counts = np.isin(c.client, work.replies[c.r].client)
        if len(out := np.flatnonzero(~counts)):
            for name, new in work.new[c.r].items():  # who is left out keeps what it had
                put_rows(new, out, memory.take(c.r, name, c.client[out]))
        change = take_rows(work.change(c), np.flatnonzero(counts))
        coef = work.decision[c.r].coef[..., : len(c.client)][..., counts]
        votes, mix = votes_and_mix(coef)
        weights = send(votes, delta.device).to(delta.dtype)
        mixes = None if mix is None else send(mix, delta.device).to(delta.dtype)
        for start, stop in layout.weights_in(layout.compared):
            for piece in weight_pieces(change[:, start:stop]):
                at = slice(start + piece.start, start + piece.stop)
                with precision("float32"):
                    here = change[:, at] if mixes is None else mixes @ change[:, at]
                    delta[at] = rule.of(here, weights, torch)

    def info(self, work: Work, r: int) -> Mapping[str, float]:
        (c,) = (c for c in work.cohorts if c.r == r)
        return {"left_out": float(len(c.client) - len(work.replies[r].client))}


def _rule(setting: Setting, r: int) -> Combine | None:
    return setting.runs[r].strategy.combine() if setting.runs else None
