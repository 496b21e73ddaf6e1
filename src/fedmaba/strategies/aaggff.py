"""AAggFF: Hahn et al., "Pursuing Overall Welfare in Federated Learning through Sequential Decision
Making", ICML 2024: mixing weights p as an online decision with the loss -log(1 + p' r).

r is a bounded response: the distribution function `cdf` at F_i / mean F, times C = m/N (device) or
1/N (silo). The weights of a round are p after it, divided
by its participants' sum.
form="device" (AAggFF-D): r of absent clients comes from the doubly robust estimator
r_i = mean + (1 if i answered) (r_i - mean) / C; its gradient is linearised around the mean; p is
the softmax of -sqrt(log N) / ((2 + C) sqrt(t + 2)) times the sum of gradients after round t.
form="silo" (AAggFF-S): online Newton step, for all clients in every round.
"""

import math
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
    State,
    Strategy,
    require_finite,
)
from fedmaba.strategies.simplex import effective_count, min_norm

Cdf = Literal["normal", "weibull", "exponential", "frechet", "gumbel", "logistic"]


@dataclass(frozen=True)
class AAggFF(Strategy):
    """weights by online convex optimisation: follow the regularised leader, or Newton steps"""

    name: ClassVar[str] = "aaggff"
    title: ClassVar[str] = "AAggFF"
    form: Literal["device", "silo"] = "device"
    cdf: Cdf = "normal"

    def needs(self) -> Needs:
        return Needs(loss="start")

    def init(self, n_clients: int) -> State:
        start = {"p": np.full(n_clients, 1.0 / n_clients), "gradient": np.zeros(n_clients)}
        if self.form == "silo":
            start["hessian"] = np.zeros((n_clients, n_clients))
        return start

    def join(self, state: State, n_clients: int) -> State:
        if self.form == "silo":
            raise InputError(
                "aaggff: form=silo is for a fixed number of clients: use form=device where clients "
                "join"
            )
        new = n_clients - len(state["p"])
        gradient = np.pad(state["gradient"], (0, new), constant_values=state["gradient"].mean())
        p = np.pad(state["p"], (0, new), constant_values=state["p"].mean())
        return {"p": p / p.sum(), "gradient": gradient}

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return 1.0  # the weights may all go to one client

    def doubts(self, clients: int, participants: int) -> tuple[str, ...]:
        if self.form == "silo" or participants < clients:
            return ()
        return ("all clients take part in each round, for which its paper has form=silo",)

    def weigh(self, state: State, replies: Replies) -> Decision:
        n, m, who = len(state["p"]), len(replies.client), replies.client
        loss = np.maximum(require_finite(replies.loss, "loss"), 0.0)
        if self.form == "silo" and m < n:
            raise InputError(
                f"aaggff: form=silo needs all {n} clients in every round, and {m} answered: use "
                "form=device"
            )
        response = cumulative(self.cdf, relative(loss)) * (1.0 if self.form == "silo" else m) / n
        state = (
            self._silo(state, response)
            if self.form == "silo"
            else self._device(state, who, response, replies.round)
        )
        coef = state["p"][who] / state["p"][who].sum()
        return Decision(coef, state, {"effective": effective_count(coef)})

    def _device(self, state: State, who: IntArray, response: FloatArray, t: int) -> State:
        """Follow the regularised leader with the entropy as regulariser."""
        p, n = state["p"], len(state["p"])
        mean, part = float(response.mean()), len(who) / n
        estimate = np.full(n, mean)
        estimate[who] += (response - mean) / part
        base = 1.0 + mean
        gradient = -estimate / base + mean * float(p @ (estimate - mean)) / base**2
        total = state["gradient"] + gradient
        score = -math.sqrt(math.log(n)) / ((2.0 + part) * math.sqrt(t + 2.0)) * total
        weight = np.exp(score - score.max())
        return {"p": weight / weight.sum(), "gradient": total}

    def _silo(self, state: State, response: FloatArray) -> State:
        """argmin of sum g'p + a/2 |p|^2 + b/2 sum (g'(p - p_t))^2 over the simplex.

        With L = 1/N bounding the responses: a = 4 N L, b = 1 / (4 L).
        """
        p, n = state["p"], len(response)
        a, b = 4.0, n / 4.0
        g = -response / (1.0 + float(p @ response))
        linear = state["gradient"] + g * (1.0 - b * float(g @ p))
        hessian = state["hessian"] + b * np.outer(g, g)
        return {"p": _quadratic(linear, hessian + a * np.eye(n)), "gradient": linear,
                "hessian": hessian}  # fmt: skip


def relative(loss: FloatArray) -> FloatArray:
    """The losses in multiples of their mean; all 1 if that is 0."""
    top = float(loss.max())
    scaled = loss / top if top > 0.0 else np.ones_like(loss)  # no sum overflows
    out: FloatArray = scaled / scaled.mean()
    return out


def cumulative(kind: Cdf, x: FloatArray) -> FloatArray:
    """A distribution function at x >= 0, of scale 1; those with a place have it at 1."""
    if kind == "normal":
        return np.array([0.5 * math.erfc((1.0 - v) / math.sqrt(2.0)) for v in x])
    if kind == "weibull":
        return -np.expm1(-np.square(x))
    if kind == "exponential":
        return -np.expm1(-x)
    if kind == "frechet":
        return np.exp(-1.0 / np.maximum(x, 1e-300))
    if kind == "gumbel":
        return np.exp(-np.exp(1.0 - x))
    return 1.0 / (1.0 + np.exp(1.0 - x))


def _quadratic(linear: FloatArray, matrix: FloatArray) -> FloatArray:
    """argmin of linear'p + p'matrix p / 2 over the simplex.

    On the simplex 1'p = 1, so linear'p = p'(linear 1' + 1 linear')p / 2: one quadratic form, whose
    minimum `min_norm` finds. Adding a constant to its entries, or to linear, changes the value by a
    constant. With a lift of |linear|^2 the form is as positive as the matrix less 1.
    """
    n = len(linear)
    linear = linear - linear.mean()
    form = matrix + np.add.outer(linear, linear) + float(linear @ linear)
    return min_norm(form / float(form.diagonal().max()), np.full(n, 1.0 / n), 1.0)
