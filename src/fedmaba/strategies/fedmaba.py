"""FedMABA: fair federated learning by multi-armed-bandit allocation; docs/algorithms/fedmaba.md.

Clients are arms of an adversarial bandit. p climbs the reported losses by mirror ascent inside the
KL ball of radius rho around uniform, phat_i ~ (p_i exp(eta_b F_i))^(1/(1+lambda)), and the server
adds eta_s (alpha sum phat_i change_i + (1 - alpha) mean change).

Differs: lambda* = 0 where the ball does not bind (the paper only gives the root). With part of the
clients in a round the paper's log N leaves no root below N exp(-rho) participants, so the ball is
around uniform over the round's cohort (ball="cohort"); "literal" is the paper's, "global" bounds
the KL of the whole vector of N. phat replaces the cohort's own share of p (sync="mass");
"overwrite" is the literal reading, in which the total mass grows. trust="usual", not in the paper,
takes losses far above most clients' last ones back towards their median.
"""

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmaba.errors import InputError
from fedmaba.strategies.base import (
    SMALLEST_NORMAL,
    Decision,
    FloatArray,
    IntArray,
    Needs,
    Replies,
    Shown,
    State,
    Strategy,
    bounded_product,
    param,
    require_finite,
)
from fedmaba.strategies.outliers import shrink_outliers
from fedmaba.strategies.privacy_knob import PrivacyKnob
from fedmaba.strategies.simplex import largest_entry, tilt, widen

FLOOR = 1e-12  # of the uniform weight: no arm is dead for ever
LAST_REPORT = ("said", "heard")  # each client's last report, and whether there was one


@dataclass(frozen=True)
class FedMABA(Strategy):
    """bandit weights by mirror ascent on the losses in a KL ball, mixed with the plain average"""

    name: ClassVar[str] = "fedmaba"
    title: ClassVar[str] = "FedMABA"
    alpha: float = param(0.5, low=0, high=1)
    eta_b: float = param(0.5, low=0)
    rho: float = param(1.0, low=0)
    eta_s: float = param(1.0, above=0)
    loss_at: Literal["start", "mean", "end", "held"] = "start"
    sync: Literal["mass", "overwrite"] = "mass"
    ball: Literal["cohort", "global", "literal"] = "cohort"
    trust: Literal["all", "usual"] = "all"

    def needs(self) -> Needs:
        return Needs(loss=self.loss_at)

    def total(self) -> float | None:
        return self.eta_s

    def max_weight(self, n: int, share: float = 1.0) -> float:
        # The search for lambda ends within 1e-8 of rho; the whole vector's ball bounds no cohort.
        most = 1.0 if self.ball == "global" else largest_entry(n, self.rho * (1.0 + 1e-6))
        return self.eta_s * (self.alpha * most + (1.0 - self.alpha) / n)

    def privacy_knob(self) -> PrivacyKnob:
        return PrivacyKnob("rho", "radius rho", "ρ", (0.0, 0.1, 0.3, 1.0, 2.0))

    def doubts(self, clients: int, participants: int) -> tuple[str, ...]:
        """Weights of k people are at most log k apart: a ball as large binds nothing."""
        many = participants if self.ball == "cohort" else clients
        if self.alpha == 0 or many < 2 or self.rho < math.log(many):
            return ()
        return (
            f"rho={self.rho:g} never limits the weights of {many} clients, so they keep all losses "
            f"that they ever heard and answer a change late: a rho below {math.log(many):.2f} does",
        )

    def shown(self) -> tuple[Shown, ...]:
        rho = self.rho if self.ball == "cohort" else None
        limit = "the limit on uneven weights" + ("" if rho is None else f", ρ = {rho:g},")
        return (
            Shown(
                name="lambda",
                title="pull of the weight limit, λ*",
                about="How hard the limit ρ holds the weights back; 0 where it is not reached.",
                short="λ*",
                above_zero=f"{limit} was reached",
                always_zero=f"{limit} was never reached, so λ* = 0 and ρ had no effect on these "
                "results",
            ),
            Shown(
                name="kl",
                title="unevenness of weights, KL",
                about="Kullback-Leibler divergence from equal weights: 0 where all are alike. The "
                "dotted line is the limit ρ.",
                limit=rho,
                limit_name="ρ",
            ),
        )

    def init(self, n_clients: int) -> State:
        p = {"p": np.full(n_clients, 1.0 / n_clients)}
        return p if self.trust == "all" else p | {name: np.zeros(n_clients) for name in LAST_REPORT}

    def join(self, state: State, n_clients: int) -> State:
        last = {name: state[name] for name in LAST_REPORT if name in state}
        new = n_clients - len(state["p"])
        return {"p": widen(state["p"], n_clients)} | {
            k: np.pad(v, (0, new)) for k, v in last.items()
        }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ball == "global" and self.sync == "overwrite":
            raise InputError(
                "fedmaba: ball=global bounds a vector of mass 1, which sync=overwrite does not "
                "keep: use sync=mass"
            )

    def weigh(self, state: State, replies: Replies) -> Decision:
        p, who = state["p"], replies.client
        m = len(who)
        relative = np.maximum(p[who] * len(p), FLOOR)
        loss, last = self._believed(state, who, require_finite(replies.loss, "loss"))
        a = np.log(relative) + bounded_product(self.eta_b, loss)
        phat, multiplier, kl = tilt(a, self._radius(p, who))
        new = p.copy()
        new[who] = phat * (p[who].sum() if self.sync == "mass" else 1.0)
        coef = self.eta_s * (self.alpha * phat + (1.0 - self.alpha) / m)
        info = {"lambda": multiplier, "kl": kl, "effective": m * math.exp(-kl)}
        if last:
            info["doubted"] = float((loss != replies.loss).sum())
        return Decision(coef, {"p": new} | last, info)

    def _believed(self, state: State, who: IntArray, loss: FloatArray) -> tuple[FloatArray, State]:
        """The losses that count, and what every client said last."""
        if self.trust == "all":
            return loss, {}
        said, heard = (state[name].copy() for name in LAST_REPORT)
        said[who], heard[who] = loss, 1.0
        return shrink_outliers(loss, said[heard > 0]), dict(
            zip(LAST_REPORT, (said, heard), strict=True)
        )

    def _radius(self, p: FloatArray, who: IntArray) -> float:
        """The radius of the ball in terms of KL(phat || uniform over the cohort)."""
        m, n = len(who), len(p)
        if self.ball == "cohort" or m == n:
            return self.rho
        if self.ball == "global":  # KL of the whole = the others' part + the cohort's, by mass
            mass = float(p[who].sum())
            if mass < SMALLEST_NORMAL:  # nothing to bound
                return np.inf
            others = np.delete(p, who)
            others = others @ np.log(np.maximum(others * n, FLOOR))
            return float((self.rho - others - mass * np.log(mass * n / m)) / mass)
        rho = self.rho - float(np.log(n / m))
        if rho <= 0.0:
            warnings.warn(
                f"fedmaba: ball=literal has no root with {m} of {n} clients and rho={self.rho:g}: "
                f"log(N/m)={np.log(n / m):.2f} exceeds rho, so the weights are uniform; "
                "use ball=cohort or ball=global",
                RuntimeWarning,
                stacklevel=3,
            )
        return rho
