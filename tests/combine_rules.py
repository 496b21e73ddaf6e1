"""Rules of a user's own for `Combine`, and strategies and a plain loop that have them."""

from dataclasses import dataclass

import numpy as np
import torch

from fedmaba.strategies.base import Combine, Decision, Keep, Local, Needs, Strategy
from plain_loop import Plain


def median(changes, weights, numbers, xp):
    return xp.quantile(changes, 0.5, 0) * numbers["step"]


def weighted(changes, weights, numbers, xp):
    return (weights[:, None] * changes).sum(0)


def whole(changes, weights, numbers, xp):
    return changes.sum()


def broken(changes, weights, numbers, xp):
    return changes @ None


@dataclass(frozen=True)
class Combining(Strategy):
    """weighs by size or by losses and changes; the server combines by a rule"""

    name = "combining"
    rule: str = "median"
    late: bool = False
    keeps: bool = False
    past: bool = False

    def needs(self):
        return Needs("mean", "gram", keep_rounds=int(self.past)) if self.late else Needs()

    def local(self):
        keep = {"h": Keep(start=0.5, end=-0.5)} if self.keeps else {}
        return Local(keep=keep, add=dict.fromkeys(keep, 0.4))

    def combine(self):
        return Combine(f"combine_rules:{self.rule}", {"step": 0.9})

    def weigh(self, state, replies):
        share = replies.size.astype(float)
        if self.late:
            share = replies.loss * np.sqrt(replies.gram.diagonal())
        return Decision(share / share.sum(), state)


class PlainMedian(Plain):
    """The plain loop whose server takes the middle of each coordinate."""

    def combined(self, coef, rows):
        return torch.from_numpy(0.9 * np.median(rows.numpy()[: len(coef)], axis=0))
