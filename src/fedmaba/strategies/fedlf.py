"""FedLF: Pan et al., "FedLF: Layer-Wise Fair Federated Learning", AAAI 2024.

In each layer, the direction is the shortest convex combination of the clients' gradients and of the
gradient of -cos(1, F), which evens losses out. No client's gradient conflicts with it there. A
layer in which this is 0 is joined with the next one. The whole is as long as the plain mean.
Absent clients count with their last change, as far back as clients are absent on average.
norms="reference" repeats the authors' public code: in each layer all gradients are first scaled to
their mean norm, and no layers are joined. It is not the paper's rule. work="gradient" lets clients
send one gradient of all their examples, as that code does.
Differs: where losses are equal to about 1e-4, cos(1, F) has no gradient and is left out. Kept
changes are not scaled to the present step size.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.strategies.base import (
    SMALLEST_NORMAL,
    Decision,
    FloatArray,
    IntArray,
    Local,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    param,
    require_finite,
)
from fedmaba.strategies.descent import fair_combination, shortest_combination


@dataclass(frozen=True)
class FedLF(Strategy):
    """in each layer a direction that conflicts with no client and evens losses out"""

    name: ClassVar[str] = "fedlf"
    title: ClassVar[str] = "FedLF"
    tau: int = param(10, low=0)  # type: ignore[assignment]
    norms: Literal["paper", "reference"] = "paper"
    work: Literal["epochs", "gradient"] = "epochs"

    def needs(self) -> Needs:
        return Needs(loss="start", changes="layers", keep_rounds=self.tau)

    def local(self) -> Local:
        return Local(full_batch=self.work == "gradient")

    def total(self) -> float | None:
        return None  # the step has a length, the coefficients no sum

    def shown(self) -> tuple[Shown, ...]:
        return ()

    def init(self, n_clients: int) -> State:
        return {"joined": np.zeros(n_clients)}

    def join(self, state: State, n_clients: int) -> State:
        return {"joined": np.append(state["joined"], np.zeros(n_clients - len(state["joined"])))}

    def weigh(self, state: State, replies: Replies) -> Decision:
        grams = require_finite(replies.layer_grams, "layer_grams")
        loss, m = require_finite(replies.loss, "loss"), len(replies.client)
        used = np.append(np.arange(m), m + self._absent(state, replies))
        rows = np.eye(grams.shape[1])[used]  # each a combination of the changes that are there
        fair = fair_combination(loss)
        if self.norms == "reference":
            coef = np.stack(
                [shortest_combination(_equal_norms(g, rows, fair, m), g)[0] for g in grams]
            )
        else:
            coef = _joined_layers(
                grams, rows if fair is None else np.vstack([rows, fair @ rows[:m]])
            )
        square = float(np.einsum("li,lij,lj->", coef, grams, coef))
        mean = float(grams[:, :m, :m].sum()) / m**2  # the square of the plain mean of changes
        if square > SMALLEST_NORMAL:
            coef = coef * np.sqrt(max(mean, 0.0) / square)
        joined = state["joined"].copy()
        joined[replies.client] = 1.0
        return Decision(coef, {"joined": joined}, {"step_norm": float(np.sqrt(max(mean, 0.0)))})

    def _absent(self, state: State, replies: Replies) -> IntArray:
        """Which of the kept changes count: those of clients who are absent, and not for long."""
        if replies.past_client is None or replies.past_round is None:
            return np.zeros(0, np.int64)
        rounds = min(self.tau, int(state["joined"].sum()) // len(replies.client))
        since = replies.past_round >= replies.round - rounds
        return np.flatnonzero(since & ~np.isin(replies.past_client, replies.client))


def _joined_layers(grams: FloatArray, rows: FloatArray) -> FloatArray:
    """(L, .) Weights on the changes in each layer; layers without a direction are joined."""
    groups = [[layer] for layer in range(len(grams))]
    found: list[FloatArray | None] = [None] * len(groups)
    place = 0
    while place < len(groups):
        gram = grams[groups[place]].sum(0)
        coef, nothing = shortest_combination(rows, gram)
        if nothing and len(groups) > 1:
            other = place + 1 if place + 1 < len(groups) else place - 1
            first = min(place, other)
            groups[first : first + 2] = [groups[first] + groups[first + 1]]
            found[first : first + 2] = [None]
            place = first
            continue
        found[place] = coef
        place += 1
    out = np.zeros((len(grams), grams.shape[1]))
    for layers, weights in zip(groups, found, strict=True):
        out[layers] = weights
    return out


def _equal_norms(gram: FloatArray, rows: FloatArray, fair: FloatArray | None, m: int) -> FloatArray:
    """Rows, and the fair combination of them, each as long as the first m are on average."""
    mean = float(_norms(rows[:m], gram).mean())
    rows = _with_norm(rows, gram, mean)
    if fair is None:
        return rows
    return np.vstack([rows, _with_norm((fair @ rows[:m])[None], gram, mean)])


def _norms(rows: FloatArray, gram: FloatArray) -> FloatArray:
    """The lengths of combinations of changes."""
    out: FloatArray = np.sqrt(np.maximum(np.einsum("ri,ij,rj->r", rows, gram, rows), 0.0))
    return out


def _with_norm(rows: FloatArray, gram: FloatArray, norm: float) -> FloatArray:
    """Rows scaled to a length; those of length 0 stay."""
    norms = _norms(rows, gram)
    return np.where(norms > 0.0, norm / np.where(norms > 0.0, norms, 1.0), 0.0)[:, None] * rows
