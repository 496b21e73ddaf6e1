"""TERM: Li et al., "Tilted Empirical Risk Minimization", ICLR 2021: weights softmax(T F).

normalise="reference" repeats the scaling of the authors' public code: weights that already sum to
about 1, with a moving average as their normaliser, are averaged over the m participants again, so
the server's step is m times too small. It explains published TERM rows; it is not the paper's rule.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    Needs,
    Replies,
    State,
    Strategy,
    bounded_product,
    param,
    require_finite,
)
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class TERM(Strategy):
    """weights proportional to exp(T loss)"""

    name: ClassVar[str] = "term"
    title: ClassVar[str] = "TERM"
    T: float = param(0.1, low=0)
    normalise: Literal["paper", "reference"] = "paper"

    def needs(self) -> Needs:
        return Needs(loss="start")

    def total(self) -> float | None:
        return 1.0 if self.normalise == "paper" else None

    def init(self, n_clients: int) -> State:
        return {} if self.normalise == "paper" else {"normaliser": np.zeros(1)}

    def max_weight(self, n: int, share: float = 1.0) -> float:
        # As in the public code, half of the normaliser at least is this round's mean.
        return 1.0 if self.normalise == "paper" else 2.0 / n

    def weigh(self, state: State, replies: Replies) -> Decision:
        loss = require_finite(replies.loss, "loss")
        tilted = np.exp(bounded_product(self.T, loss - loss.max()))
        p = tilted / tilted.sum()
        info = {"effective": effective_count(p)}
        if self.normalise == "paper":
            return Decision(p, state, info)
        normaliser = 0.5 * state["normaliser"] + 0.5 * tilted.mean()
        m = len(loss)
        return Decision(tilted / (normaliser * m) / m, {"normaliser": normaliser}, info)
