"""Strategies, data and models of the batches that `digests.py` plays.

Only what other programs use is used here, and nothing of how the engine is built.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.attack import parse_attack
from fedmaba.data.dataset import Dataset
from fedmaba.data.federation import Federation, attacked
from fedmaba.data.partition import Split
from fedmaba.strategies.base import (
    Decision,
    Keep,
    Local,
    Needs,
    Objective,
    Personal,
    ServerStep,
    Strategy,
)

SIZES, TESTED, HELD = (6, 10, 14, 3, 8, 11), (4, 3, 6, 2, 5, 3), (2, 3, 2, 1, 4, 2)
SEED = 3
MINIBATCH = 4

# --- strategies that ask for one thing, or for two that meet -------------------------------------

DRIFT = Keep(start=0.3, end=-0.3)  # as FedDyn's
PAST = Keep(end=0.1, before=0.5)
MOVED = Keep(mean=-1.0, step_gradient=1.0)  # as SCAFFOLD's
FULL = Keep(before=0.2, full_gradient=0.7)
GROWS = Keep(start=1.0, before=1e20)  # beyond what float32 holds in the third round
KEPT: dict[str, Any] = {"keep": {"h": DRIFT, "g": PAST}, "add": {"h": -0.3, "g": 0.05}}
MEAN: dict[str, Any] = {"keep": {"c": MOVED}, "add": {"c": -1.0}, "add_mean": {"c": 1.0}}
SUMS: dict[str, Any] = {"keep": {"s": DRIFT, "f": FULL}, "server_adds": {"s": -0.5, "f": -0.1}}
MU = (0.0, 0.4, 1.0, 0.0, 2.5, 0.7)
BENT = Objective(
    "propfair", {"M": 1.5, "epsilon": 0.3, "slope": 1 / 0.3}
)  # some losses are on either side of the bend
LATE = Needs(changes="norms")
ASKED: dict[str, tuple[Needs, Local]] = {
    "kept": (Needs(), Local(**KEPT)),
    "kept_late": (Needs(loss="mean", changes="norms"), Local(**KEPT)),
    "means": (Needs(), Local(**MEAN)),
    "means_late": (Needs(loss="end", changes="gram", keep_rounds=2), Local(**MEAN)),
    "server_adds": (Needs(steps=True), Local(**SUMS)),
    "own": (Needs(loss="start"), Local(personal=Personal(0.5))),
    "own_late": (Needs(loss="mean", changes="norms", alone=True), Local(personal=Personal(0.5))),
    "only": (Needs(), Local(personal=Personal(only=True))),
    "only_late": (Needs(loss="mean", alone=True), Local(personal=Personal(0.5, only=True))),
    "own_kept": (Needs(alone=True, loss="end"), Local(personal=Personal(), **KEPT)),
    "own_prox": (LATE, Local(prox=MU, personal=Personal(0.3))),
    "own_bent": (Needs(), Local(objective=BENT, personal=Personal(0.3))),
    "own_full_batch": (Needs(), Local(full_batch=True, personal=Personal(0.3))),
    "prox": (Needs(), Local(prox=MU)),
    "prox_late": (LATE, Local(prox=MU)),
    "prox_kept": (Needs(), Local(prox=MU, **KEPT)),
    "prox_means": (LATE, Local(prox=0.5, **MEAN)),
    "bent": (Needs(loss="mean"), Local(objective=BENT)),
    "bent_late": (Needs(loss="end", changes="gram"), Local(objective=BENT)),
    "bent_prox": (Needs(), Local(prox=MU, objective=BENT)),
    "bent_kept": (Needs(), Local(objective=BENT, **MEAN)),
    "bent_full_batch": (Needs(loss="mean"), Local(objective=BENT, full_batch=True)),
    "full_batch": (Needs(loss="mean", changes="gram"), Local(full_batch=True, prox=0.3)),
    "full_batch_kept": (Needs(), Local(full_batch=True, **MEAN)),
    "first": (Needs(first_steps=True), Local()),
    "first_kept": (Needs(loss="start", first_steps=True), Local(**KEPT)),
    "first_full": (Needs(first_steps=True), Local(**SUMS)),
    "first_held": (Needs(loss="held", first_steps=True), Local()),
    "past": (Needs(changes="gram", keep_rounds=2), Local()),
    "past_layers": (Needs(loss="end", changes="layers", keep_rounds=3), Local()),
    "past_kept": (Needs(changes="layers", keep_rounds=2), Local(**KEPT)),
    "past_own": (Needs(changes="gram", keep_rounds=2), Local(personal=Personal(0.5))),
    "search": (Needs(loss="start", changes="gram", trials=True), Local()),
    "search_kept": (Needs(changes="norms", trials=True), Local(**KEPT)),
    "search_own": (Needs(changes="layers", trials=True), Local(personal=Personal(0.5))),
    "search_past": (Needs(changes="gram", keep_rounds=2, trials=True), Local()),
    "groups": (Needs(groups=True), Local()),
    "groups_late": (Needs(groups=True, loss="end", changes="norms"), Local()),
    "groups_kept": (Needs(groups=True), Local(**MEAN)),
    "groups_own": (Needs(groups=True, loss="mean", alone=True), Local(personal=Personal())),
    "groups_first": (Needs(groups=True, first_steps=True), Local()),
    "breaks_kept": (Needs(), Local(keep={"h": GROWS}, server_adds={"h": 1e-30})),
    "breaks_late": (
        Needs(changes="gram", keep_rounds=2),
        Local(keep={"h": GROWS}, add={"h": 1e-30}, server_adds={"h": 1e-30}),
    ),
    "breaks_own": (Needs(), Local(personal=Personal(prox=1e5))),
    "breaks_alone": (Needs(alone=True), Local(personal=Personal(prox=1e5))),
    "breaks_prox": (Needs(loss="start"), Local(prox=(*MU[:5], 1e15))),
    "start": (Needs(loss="start"), Local()),
    "mean": (Needs(loss="mean"), Local()),
    "end": (Needs(loss="end"), Local()),
    "held": (Needs(loss="held"), Local()),
    "norms": (Needs(changes="norms"), Local()),
    "gram": (Needs(changes="gram", steps=True), Local()),
    "layers": (Needs(changes="layers"), Local()),
}


@dataclass(frozen=True)
class Asking(Strategy):
    """weighs by every number that it is told, and tells them all"""

    name: ClassVar[str] = "asking"
    deploy: ClassVar[str] = "average"
    what: str = "start"

    def needs(self) -> Needs:
        return ASKED[self.what][0]

    def local(self) -> Local:
        return ASKED[self.what][1]

    def total(self) -> float | None:
        return None

    def max_weight(self, n: int, share: float = 1.0) -> float:
        return 1.0

    def init(self, n_clients: int) -> dict[str, np.ndarray]:
        return {"seen": np.zeros(n_clients)}

    def weigh(self, state: Any, replies: Any) -> Decision:
        m = len(replies.client)
        gram, layers, groups = replies.gram, replies.layer_grams, replies.groups
        told = {n: getattr(replies, n) for n in ("loss", "alone", "norms", "steps")}
        told["gram"] = None if gram is None else gram.sum(1)
        if layers is not None:
            told["layers"] = np.einsum("lij,l->i", layers, np.arange(1, len(layers) + 1))
        if groups is not None:
            told["groups"] = groups.reshape(m, -1) @ np.arange(1, groups[0].size + 1)
        told = {name: values for name, values in told.items() if values is not None}
        wide = max([m, *map(len, told.values())])
        score = np.log(np.resize(replies.size, wide).astype(float))
        score[m:] -= 3
        for values in told.values():
            score[: len(values)] += np.tanh(values / (1e-9 + np.abs(values).mean()))
        coef = np.exp(score - score.max())
        coef /= coef.sum()
        if layers is not None:
            coef = coef * np.linspace(0.7, 1.3, len(layers))[:, None]
        if self.needs().first_steps:
            coef = np.concatenate([0.7 * coef, 0.3 * coef[::-1]])
        seen = state["seen"].copy()
        seen[replies.client] += score[:m]
        info = {f"{n}_{i}": float(v) for n, values in told.items() for i, v in enumerate(values)}
        info |= {f"past_{i}": float(c) for i, c in enumerate(self._past(replies))}
        return Decision(coef, {"seen": seen}, info | {"noise": float(replies.loss_noise)})

    @staticmethod
    def _past(replies: Any) -> list[int]:
        both = replies.past_client, replies.past_round
        return [] if both[0] is None else [*both[0].tolist(), *both[1].tolist()]

    def search(self, replies: Any, decision: Decision, tried: Any) -> ServerStep:
        if len(tried) < 3:
            return ServerStep(2.0 ** -len(tried))
        best = min(tried, key=lambda one: float(one[1].max()))
        return ServerStep(best[0] * float(1 + 0.1 * np.tanh(best[1].mean())), take=True)


def one(spec: str) -> Strategy:
    """A strategy by its words; `?what` asks for what `ASKED` says."""
    return Asking(spec[1:]) if spec.startswith("?") else strategies.parse(spec)[0]


# --- data and models -----------------------------------------------------------------------------


def _sizes(kind: str, held: bool) -> tuple[Any, ...]:
    """How many examples each client has for training, validation and tests."""
    all_three = np.array([SIZES, np.array(HELD) * held, TESTED])
    if kind == "crowd":
        return tuple(60 * all_three)
    if kind == "even":
        return (8,) * 6, (2 * held,) * 6, (3,) * 6
    return ((12,) * 70, (2 * held,) * 70, (2,) * 70) if kind == "many" else tuple(all_three)


@cache
def federation(kind: str = "images", turned: bool = False) -> Federation:
    """Clients of a kind, as "images held|loss=x3": with validation examples, attacked.

    Those that are turned share the data, but the first is the last, and one is missing.
    """
    if turned:
        usual = federation(kind)
        parts = usual.split.train, usual.split.validation, usual.split.test
        return replace(usual, split=Split(*(part[:0:-1] for part in parts)))
    kind, _, attack = kind.partition("|")
    if attack:
        return attacked({SEED: federation(kind)}, parse_attack(attack), 0.34)[SEED]
    held, kind = kind.endswith(" held"), kind.removesuffix(" held")
    sizes = np.concatenate(_sizes(kind, held))
    rng, n, c = np.random.default_rng(0), int(sizes.sum()), len(sizes) // 3
    parts = np.split(np.random.default_rng(1).permutation(n), np.cumsum(sizes)[:-1])
    lists = [np.sort(rows) for rows in parts]
    split = Split(tuple(lists[:c]), tuple(lists[c : 2 * c]), tuple(lists[2 * c :]))
    if kind == "sequence":
        x = rng.integers(0, 6, (n, 5))
        y = np.where(rng.random((n, 5)) < 0.2, -100, np.roll(x, -1, 1))
        y[:, 0] = x[:, 0]
        return Federation(datasets.from_arrays(x, y, task=kind), split)
    if kind in ("people", "crowd", "regress", "multilabel"):
        x, group = rng.standard_normal((n, 4)).astype(np.float32), rng.integers(2, size=n)
        told = x[:, 0] + np.where(group, -1, 1) * x[:, 1] + rng.standard_normal(n)
        if kind in ("people", "crowd"):
            data = Dataset("people", x, (told > 0.3).astype(np.int64), n, ("no", "yes"))
            return Federation(replace(data, group=group, group_names=("a", "b")), split)
        y = np.stack([told, x[:, 2], -told], 1).astype(np.float32)
        y = y if kind == "regress" else (y > 0.2).astype(np.float32)
        return Federation(datasets.from_arrays(x, y, task=kind), split)
    shape, y = ((3, 16, 16) if kind == "pictures" else (1, 8, 8)), rng.integers(4, size=n)
    x = rng.standard_normal((4, *shape))[y] + rng.standard_normal((n, *shape))
    data = Dataset("images", x.astype(np.float32), y.astype(np.int64), n, tuple("0123"))
    return Federation(data, split)


def small(shape: Any, classes: int) -> nn.Module:
    """Layers that are written by hand."""
    layers = nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Dropout(0.3), nn.Linear(10, 8)
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, classes))


def table(shape: Any, classes: int) -> nn.Module:
    """The same for the numbers of a table."""
    return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, classes))


def norms(shape: Any, classes: int) -> nn.Module:
    """BatchNorm over vectors; small enough to be traced on a CPU."""
    first = nn.Flatten(), nn.Linear(int(np.prod(shape)), 9), nn.BatchNorm1d(9, momentum=0.3)
    return nn.Sequential(*first, nn.Tanh(), nn.Linear(9, classes))


def image_norms(shape: Any, classes: int) -> nn.Module:
    """BatchNorm over images, which a CPU trains one client after another."""
    first = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*first, nn.Linear(144, classes))


class Traced(nn.Module):
    """A model of one's own, without a row form."""

    def __init__(self, shape: Any, classes: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 9), nn.LayerNorm(9), nn.Linear(9, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x.flatten(1))).relu()
        hidden = nn.functional.dropout(hidden, 0.3, self.training)
        return self.last(hidden) * 1.5


class Noisy(Traced):
    """Noise of torch's own generator: rows one after another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x) if self.training else x)


class Reader(nn.Module):
    """A token is told from the one before."""

    def __init__(self, shape: Any, classes: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(6, 5), nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(x).tanh())


def squares(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (out - nn.functional.one_hot(y, out.shape[-1]).to(out)).square().mean(-1)


def narrow(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss that has room for two rows at once."""
    if out.requires_grad and len(out) > 2 * MINIBATCH:
        raise torch.OutOfMemoryError("no room")
    return squares(out, y)


def margin(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return out.gather(1, y[:, None])[:, 0] - out.mean(1)


def spread(out: np.ndarray, y: np.ndarray) -> float:
    return float(np.asarray(out).std() + np.asarray(y).mean())
