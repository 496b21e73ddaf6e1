"""FairFed: Ezzeldin et al., "FairFed: Enabling Group Fairness in Federated Learning", AAAI 2023.

A client whose gap between groups of people differs more than others' from the gap over all clients
loses weight. Differs: the server sees counts instead of secure sums of them; where a client takes
part for the first time, its weight is its share of that round's examples; no weight falls below 0;
more than two groups are one group against all the others.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.errors import InputError
from fedmaba.strategies.base import (
    Decision,
    FloatArray,
    IntArray,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    size_weights,
)
from fedmaba.strategies.simplex import effective_count


@dataclass(frozen=True)
class FairFed(Strategy):
    """clients whose gap between groups of people is unlike the gap over all clients lose weight"""

    name: ClassVar[str] = "fairfed"
    title: ClassVar[str] = "FairFed"
    beta: float = param(1.0, low=0)
    metric: Literal["eod", "spd"] = "eod"
    group: int = param(0, low=0)  # type: ignore[assignment]

    def needs(self) -> Needs:
        return Needs(groups=True)

    def shown(self) -> tuple[Shown, ...]:
        what = "true positive rate" if self.metric == "eod" else "share predicted positive"
        about = f"The {what} of group {self.group} minus that of all others, in training."
        return (Shown("gap", "Gap between groups", about),)

    def init(self, n_clients: int) -> State:
        return {"weight": np.zeros(n_clients), "known": np.zeros(n_clients)}

    def join(self, state: State, n_clients: int) -> State:
        new = np.zeros(n_clients - len(state["known"]))
        return {name: np.append(value, new) for name, value in state.items()}

    def weigh(self, state: State, replies: Replies) -> Decision:
        counts, who = self._counts(replies), replies.client
        share = size_weights(replies)
        before = np.where(state["known"][who] > 0, state["weight"][who], share)
        overall, gap = self.gap(counts.sum(0)), self.gap(counts)
        away = np.abs(gap - overall)
        right, size = counts[..., [0, 1], [0, 1]].sum((1, 2)), counts.sum((1, 2, 3))
        accuracy = np.abs(right / size - right.sum() / size.sum())
        away = np.where(np.isfinite(away), away, accuracy)
        moved = np.maximum(before - self.beta * (away - away.mean()), 0.0)
        weight, known = state["weight"].copy(), state["known"].copy()
        weight[who], known[who] = moved, 1.0
        coef = moved / moved.sum() if moved.sum() > 0.0 else share
        info = {"effective": effective_count(coef)}
        info |= {"gap": float(overall)} if np.isfinite(overall) else {}
        return Decision(coef, {"weight": weight, "known": known}, info)

    def gap(self, counts: FloatArray) -> FloatArray:
        """Rate of the group minus that of all others, from counts (..., G, 2, 2); nan: undefined.

        The rate is the share predicted positive, of all examples (spd) or of positive ones (eod).
        """
        own, others = counts[..., self.group, :, :], np.delete(counts, self.group, -3).sum(-3)
        rates = []
        for part in (own, others):
            told = part[..., 1:, :].sum(-2) if self.metric == "eod" else part.sum(-2)
            many = told.sum(-1)
            rates.append(
                np.divide(told[..., 1], many, out=np.full(many.shape, np.nan), where=many > 0)
            )
        return np.asarray(rates[0] - rates[1])

    def _counts(self, replies: Replies) -> FloatArray:
        found: IntArray | None = replies.groups
        if found is None:
            raise InputError("the replies carry no counts by group: let needs() ask for them")
        if self.group >= found.shape[1]:
            raise InputError(
                f"{self.name}: group={self.group}, but the data have {found.shape[1]} groups: give "
                f"a number from 0 to {found.shape[1] - 1}"
            )
        return found.astype(np.float64)
