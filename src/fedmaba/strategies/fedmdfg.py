"""FedMDFG: Pan et al., "FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance",
AAAI 2023.

Each client sends the gradient of all its examples. All gradients get their mean norm. The direction
is the shortest convex combination of them and of the last round's gradients of clients who are
absent now. Where losses lie further than the angle theta from equal ones, or the loss of some
client is above what is usual for it, it also takes in a combination that evens losses out. It gets
the length of the mean gradient. Then steps are tried, each half as long as the one before, until
every loss falls enough.
Differs: the sufficient fall (Armijo's rule) and the angle after a step are those of the paper, not
of the public code, which has a wrong sign and a wrong norm there. Where losses are equal to about
1e-4, nothing evens them out further.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.strategies.base import (
    Decision,
    FloatArray,
    IntArray,
    Local,
    Needs,
    Replies,
    ServerStep,
    Shown,
    State,
    Strategy,
    Trials,
    param,
    require_finite,
)
from fedmaba.strategies.descent import cosine, fair_combination, shortest_combination

FALL = 1e-4  # the share of the fall that gradients promise which is enough (Armijo's beta)
LEAST_NORM = 1e-6  # a gradient shorter than this is none


@dataclass(frozen=True)
class FedMDFG(Strategy):
    """one gradient per client, a step along which all losses fall and become more even"""

    name: ClassVar[str] = "fedmdfg"
    title: ClassVar[str] = "FedMDFG"
    theta: float = param(11.25, above=0, high=90)  # degrees
    s: int = param(5, low=0, high=30)  # type: ignore[assignment]

    def needs(self) -> Needs:
        return Needs(loss="start", changes="gram", keep_rounds=1, trials=True)

    def local(self) -> Local:
        return Local(full_batch=True)

    def total(self) -> float | None:
        return None  # the step has a length, the coefficients no sum

    def shown(self) -> tuple[Shown, ...]:
        factor = "The step that was taken, as a multiple of the step size of the round."
        return (Shown("step_factor", "Length of the step", factor),)

    def init(self, n_clients: int) -> State:
        return {
            "usual": np.zeros(n_clients),  # loss of each client
            "rounds": np.zeros(n_clients),  # in which it took part
            "norm": np.zeros(1),  # mean norm of the last round's gradients
        }

    def join(self, state: State, n_clients: int) -> State:
        more = np.zeros(n_clients - len(state["usual"]))
        both = {name: np.append(state[name], more) for name in ("usual", "rounds")}
        return {**both, "norm": state["norm"]}

    def weigh(self, state: State, replies: Replies) -> Decision:
        gram = require_finite(replies.gram, "gram matrix")
        loss = require_finite(replies.loss, "loss")
        usual, rounds, above = _usual_losses(state, replies.client, loss)
        norms, here, absent = _parts(replies)
        coef, info = np.zeros(len(gram)), {"fair": 0.0, "scale": 1.0}
        mean = state["norm"]
        if len(here):
            mean = norms[here].mean(keepdims=True) / replies.lr
            rows = _scaled(norms, here, replies.lr * mean[0])
            old = _scaled(norms, absent, replies.lr * state["norm"][0])
            fair = fair_combination(loss[here]) if above or self._unequal(loss[here]) else None
            every = [rows, old] if fair is None else [rows, _unit(fair)[None] @ rows, old]
            coef, nothing = shortest_combination(np.vstack(every), gram)
            if not nothing:
                plain = rows.mean(0)
                scale = float(np.sqrt((plain @ gram @ plain) / (coef @ gram @ coef)))
                coef, info = scale * coef, {"fair": float(fair is not None), "scale": scale}
        return Decision(coef, {"usual": usual, "rounds": rounds, "norm": mean}, info)

    def _unequal(self, loss: FloatArray) -> bool:
        """Whether losses lie further from equal ones than the angle theta."""
        return float(np.degrees(np.arccos(min(cosine(loss), 1.0)))) > self.theta

    def search(self, replies: Replies, decision: Decision, tried: Trials) -> ServerStep:
        if not decision.coef.any():
            return ServerStep(1.0, take=True)
        norms, here, absent = _parts(replies)
        gram, lr = require_finite(replies.gram, "gram matrix"), replies.lr
        before = require_finite(replies.loss, "loss")[here]
        promised = _scaled(norms, here, float(norms[here].mean())) @ gram @ decision.coef / lr
        for factor, loss in tried[-1:]:
            fall = before - loss[here] >= FALL * factor * promised
            fairer = not decision.info["fair"] or cosine(loss[here]) > cosine(before)
            if fall.all() and fairer:
                return ServerStep(factor, take=True)
        first = 1.0 if len(absent) else 2.0**self.s
        following = first * 0.5 ** len(tried)
        if following >= 0.5**self.s / decision.info["scale"]:
            return ServerStep(following)
        sums = [float(loss[here].sum()) for _, loss in tried]
        lower = [k for k, total in enumerate(sums) if total < before.sum()]
        return ServerStep(tried[lower[0] if lower else int(np.argmin(sums))][0], take=True)


def _usual_losses(
    state: State, client: IntArray, loss: FloatArray
) -> tuple[FloatArray, FloatArray, bool]:
    """Each client's usual loss, its rounds, and whether some, but not all, are above theirs now.

    The usual loss is a running mean, in which rounds with a larger loss do not count.
    """
    usual, rounds = state["usual"].copy(), state["rounds"].copy()
    known, many = rounds[client] > 0, rounds[client]
    above = known & (loss > usual[client])
    mean = (usual[client] * many + loss) / (many + 1)
    usual[client] = np.where(above, usual[client], mean)
    rounds[client] += 1
    return usual, rounds, bool(above.any() and not above.all())


def _parts(replies: Replies) -> tuple[FloatArray, IntArray, IntArray]:
    """Norms of all changes; places of those of participants and of absent clients, 0 left out."""
    gram = require_finite(replies.gram, "gram matrix")
    norms = np.sqrt(np.maximum(gram.diagonal(), 0.0))
    there, m = np.flatnonzero(norms > LEAST_NORM * replies.lr), len(replies.client)
    here, past = there[there < m], there[there >= m]
    if replies.past_client is not None:
        past = past[~np.isin(replies.past_client[past - m], replies.client)]
    return norms, here, past


def _scaled(norms: FloatArray, places: IntArray, norm: float) -> FloatArray:
    """(k, m+h) One row for each of these changes, that change scaled to a norm."""
    rows = np.zeros((len(places), len(norms)))
    rows[np.arange(len(places)), places] = norm / norms[places]
    return rows


def _unit(values: FloatArray) -> FloatArray:
    out: FloatArray = values / np.sqrt(values @ values)
    return out
