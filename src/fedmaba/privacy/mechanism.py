"""The private mechanism of a run, as numbers: bounds, noise, what is spent. NumPy only, no torch.

A client's change is clipped to the norm `clip`, its loss to 0..`loss`. The server adds Gaussian
noise to the weighted sum of the changes, in the units of that sum, and to each loss before the
strategy sees it. If the data of one client are replaced, the sum moves by at most
2 * clip * (the largest weight), and one of the losses by at most `loss`. A simulation draws its
noise from keyed streams, a real federation from a secret source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba import rng
from fedmaba.errors import InputError
from fedmaba.privacy import accounting, secret_noise
from fedmaba.strategies import deployed
from fedmaba.strategies.base import CLIENT_NUMBERS, Strategy

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
KEYED_GENERATOR = "keyed: NumPy's Philox, a function of seed and round, which anyone can repeat"
ADJACENCY = "the data of one client replaced by any others; who takes part, how many clients there \
are and how many examples each has are no secret"
WEIGHT_ROUNDING = 1e-9  # by which a weight may pass its bound


@dataclass(frozen=True)
class Privacy:
    """What is promised, and the bounds that it rests on."""

    epsilon: float
    delta: float = 1e-5
    clip: float = 1.0  #         largest norm of a client's change
    loss: float = 3.0  #         largest loss of a client that counts
    loss_share: float = 0.1  #   of what a round may cost, for the losses; the sum has the rest

    @classmethod
    def from_settings(cls, section: Any) -> Privacy:
        """From the section [dp] of an experiment."""
        return cls(section.epsilon, section.delta, section.clip, section.loss, section.loss_share)


@dataclass(frozen=True)
class Mechanism:
    """The private mechanism of one run."""

    asked: Privacy
    seed: int
    weight: float  #             the largest that a client can get
    losses: bool  #              whether the strategy is told losses
    noise: float  #              of a round, as a multiple of what a client can change
    taken: IntArray  # (T,)      in how many rounds the busiest client took part, up to each
    secret: bool = False  #      whether nobody can repeat the noise, as in a real federation
    sums: bool = True  #         whether noise joins the sum; else it joins the losses alone
    rounding: float = 0.0  #     how far clients' rounding may move the sum besides

    @property
    def releases(self) -> tuple[float, ...]:
        """The noise multipliers of the sum and, where they are released, of the losses."""
        return accounting.releases(self.noise, cost_shares(self.asked, self.losses, self.sums))

    @property
    def sensitivity(self) -> float:
        """How far the weighted sum moves at most if a client's data are replaced."""
        return 2.0 * self.asked.clip * self.weight + self.rounding

    @property
    def sum_noise(self) -> float:
        """Standard deviation of the noise on each entry of the weighted sum; 0 without any."""
        return self.releases[0] * self.sensitivity if self.sums else 0.0

    @property
    def loss_noise(self) -> float:
        """Standard deviation of the noise on each loss; 0 where no loss is released."""
        return self.releases[-1] * self.asked.loss if self.losses else 0.0

    def spent(self, t: int) -> float:
        """The epsilon that is spent after round t, from 0, by the client that it costs most."""
        return accounting.spent_epsilon(self.releases, int(self.taken[t]), self.asked.delta)

    def released_losses(self, t: int, loss: FloatArray) -> FloatArray:
        """The losses of a round as the server learns them: bounded, noised, and bounded again.

        A loss that is not finite counts as the largest.
        """
        drawn = (
            secret_noise.normals(len(loss))
            if self.secret
            else rng.generator(self.seed, "dp losses", t).standard_normal(len(loss))
        )
        return noised_losses(loss, self.asked.loss, self.loss_noise * drawn)

    def check_weights(self, strategy: Strategy, t: int, coef: FloatArray) -> None:
        """Refuse weights above the bound that the noise was made for."""
        most = float(np.abs(coef).max(initial=0.0))
        if most > self.weight * (1.0 + WEIGHT_ROUNDING):
            raise InputError(
                f"{strategy.name}, round {t + 1}: weigh() gave the weight {most:.9g}, but its "
                f"max_weight() says {self.weight:.9g}, for which the noise of dp was made: correct "
                "max_weight()"
            )

    def facts(self) -> dict[str, float | str]:
        """What a record says of this mechanism."""
        return {
            "epsilon": self.asked.epsilon,
            "delta": self.asked.delta,
            "clip": self.asked.clip,
            "largest weight": self.weight,
            "sensitivity": self.sensitivity,
            "noise multiplier": self.noise,
            "noise on the sum": self.sum_noise,
            "noise on losses": self.loss_noise,
            "rounds of the busiest client": int(self.taken[-1]),
            "neighbours": ADJACENCY,
            "generator": secret_noise.SECRET_GENERATOR if self.secret else KEYED_GENERATOR,
            "accountant": accounting.accountant_in_words(),
        }


def cost_shares(asked: Privacy, losses: bool, sums: bool = True) -> tuple[float, ...]:
    """How a round's cost is divided over what it releases."""
    both = losses and sums
    return (1.0 - asked.loss_share, asked.loss_share) if both else (1.0,)


def normals_of_sum(seed: int, t: int, many: int) -> FloatArray:
    """(many,) The standard normals behind the noise of round t; runs with one seed share them."""
    return rng.generator(seed, "dp sum", t).standard_normal(many)


def noised_losses(loss: FloatArray, most: float, noise: FloatArray) -> FloatArray:
    """Losses bounded to 0..most, with this noise, and bounded again; nan counts as the largest."""
    inside = np.clip(np.nan_to_num(loss, nan=most, posinf=most, neginf=0.0), 0.0, most)
    return np.asarray(np.clip(inside + noise, 0.0, most))


def clip_rows(change: NDArray[Any], clip: float) -> None:
    """Shorten rows (m, P) to the norm `clip`, in place; one that is not finite becomes no change.

    A change within the bound keeps its bits.
    """
    for row in change:
        with np.errstate(over="ignore", invalid="ignore"):
            norm = float(np.linalg.norm(row.astype(np.float64)))
        if not np.isfinite(norm):
            row[:] = 0
        elif norm > clip:
            row *= row.dtype.type(clip / norm)


def mechanism(
    asked: Privacy, strategy: Strategy, seed: int, rounds: int, participants: int, size: IntArray
) -> Mechanism:
    """The mechanism of one run on clients of these numbers of training examples."""
    if why := refusal(strategy):
        raise InputError(f"dp: {strategy.label()} is refused: {why}")
    losses = strategy.needs().loss != "none"
    weight = largest_weight(strategy, participants, largest_share(size, participants))
    taken = busiest(seed, rounds, len(size), participants)
    parts = cost_shares(asked, losses)
    noise = accounting.noise_multiplier(asked.epsilon, asked.delta, parts, int(taken[-1]))
    return Mechanism(asked, seed, weight, losses, noise, taken)


def refusal(strategy: Strategy) -> str:
    """Why a strategy cannot be made private here; empty where it can."""
    needs, local = strategy.needs(), strategy.local()
    leave = "run it without dp"
    if strategy.combine() is not None:
        return (
            f"it combines changes by a rule, of which noise for a weighted sum hides less: {leave}"
        )
    if needs.changes != "none":
        what = "norms" if needs.changes == "norms" else "inner products"
        return f"it weighs by {what} of the clients' changes, which get no noise: {leave}"
    if needs.first_steps:
        return f"it weighs the clients' first steps, which are not clipped: {leave}"
    if needs.guided:
        return f"its clients also send gradients, which are not clipped: {leave}"
    if needs.groups:
        return f"it weighs by counts of people by group, which get no noise: {leave}"
    for name in needs.of_clients:
        if CLIENT_NUMBERS[name].of_training:
            return f"it weighs by {CLIENT_NUMBERS[name].about}, which get no noise: {leave}"
    if local.keep:
        return f"its clients keep vectors whose means the server learns without noise: {leave}"
    if local.personal is not None and local.personal.only:
        return f"its clients send nothing, so there is nothing to protect: {leave}"
    if strategy.max_weight(2) is None:
        return f"it does not say how large a weight can get (max_weight): {leave}"
    return ""


def refused_rule(rule: str) -> str:
    """Why a way to choose the deployed model is not private; empty where it is."""
    if not deployed.needs_validation(rule):
        return ""
    return (
        f"dp: deploy={rule!r} picks a model by the clients' validation examples, without noise: "
        "choose last, average or poly:8"
    )


def largest_weight(strategy: Strategy, participants: int, share: float) -> float:
    """What the strategy says of its weights; refuse what is no bound."""
    bound = strategy.max_weight(participants, share)
    number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if not number or not 0.0 < float(bound or 0.0) < np.inf:
        raise InputError(
            f"{strategy.name}: max_weight({participants}, {share:g}) gave {bound!r}: return a "
            "finite number above 0, or always None"
        )
    return float(bound or 0.0)


def largest_share(size: IntArray, participants: int) -> float:
    """The largest share of a round's examples that one of so many participants can have."""
    order = np.sort(size)
    most, others = float(order[-1]), float(order[: participants - 1].sum())
    return most / (most + others)


@lru_cache(maxsize=256)
def busiest(seed: int, rounds: int, n_clients: int, participants: int) -> IntArray:
    """(T,) In how many of the first rounds the client that was drawn most often took part."""
    if participants == n_clients:
        return np.arange(1, rounds + 1)
    count, out = np.zeros(n_clients, np.int64), np.zeros(rounds, np.int64)
    for t in range(rounds):
        count[rng.sample_clients(seed, t, n_clients, participants)] += 1
        out[t] = count.max()
    out.flags.writeable = False  # others are given the same one
    return out


def note(mechanisms: Sequence[Mechanism]) -> str:
    """What a run says of its privacy before it starts."""
    asked = mechanisms[0].asked
    rounds = sorted({int(m.taken[-1]) for m in mechanisms})
    ends = " to ".join(dict.fromkeys(map(str, (rounds[0], rounds[-1]))))
    each = sorted({m.sum_noise for m in mechanisms})
    noise = " to ".join(dict.fromkeys(f"{v:.3g}" for v in (each[0], each[-1])))
    return (
        f"dp: epsilon {asked.epsilon:g} at delta {asked.delta:g} for one client's data replaced; "
        f"noise {noise} on each entry of the sum; the busiest client takes part in {ends} rounds"
    )
