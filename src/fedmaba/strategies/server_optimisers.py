"""How a server moves along the weighted sum of changes: momentum, Adam or Yogi, as data.

A strategy names a kind and its numbers and never sees a vector. Whoever runs it keeps the moments:
the simulator as tensors (`simulation.server_step`), a server on Flower as arrays (`step` here).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError

OptimiserKind = Literal["momentum", "adam", "yogi"]
MomentArrays = dict[str, NDArray[Any]]
ADAPTIVE: tuple[OptimiserKind, ...] = ("adam", "yogi")


@dataclass(frozen=True)
class ServerOptimiser:
    """The server's step; d is the sum of the changes, each times its coefficient.

    momentum: v <- beta1 v + d, the model moves by lr v. adam, yogi: the first moment is
    m <- beta1 m + (1 - beta1) d, the second starts at tau^2, and the model moves by
    lr m / (sqrt(second) + tau); there is no correction of the first rounds.
    """

    kind: OptimiserKind
    lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.kind not in get_args(OptimiserKind):
            raise InputError(
                f"ServerOptimiser(kind={self.kind!r}): choose one of "
                f"{', '.join(get_args(OptimiserKind))}"
            )
        for name in ("lr", "beta1", "beta2", "tau"):
            value, share = getattr(self, name), name.startswith("beta")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not (0 <= value < 1 if share else 0 < value < np.inf):
                rule = "from 0 to below 1" if share else "above 0"
                raise InputError(f"ServerOptimiser({name}={value!r}): give a number {rule}")

    @property
    def adaptive(self) -> bool:
        """Whether each weight has a step size of its own, from a second moment."""
        return self.kind in ADAPTIVE

    def start(self, like: NDArray[Any]) -> MomentArrays:
        """The moments before the first round."""
        first = {"first": np.zeros_like(like)}
        return first | ({"second": np.full_like(like, self.tau**2)} if self.adaptive else {})

    def step(self, moments: MomentArrays, delta: NDArray[Any]) -> tuple[NDArray[Any], MomentArrays]:
        """What is added to the model for this sum of changes, and the moments after it."""
        take = 1.0 - self.beta1 if self.adaptive else 1.0
        first = self.beta1 * moments["first"] + take * delta
        if not self.adaptive:
            return self.lr * first, {"first": first}
        old, square = moments["second"], np.square(delta)
        if self.kind == "adam":
            second = self.beta2 * old + (1.0 - self.beta2) * square
        else:
            second = old - (1.0 - self.beta2) * square * np.sign(old - square)
        return self.lr * (first / (np.sqrt(second) + self.tau)), {"first": first, "second": second}


def numbers_by_run(optimisers: Sequence[ServerOptimiser | None], momentum: float) -> NDArray[Any]:
    """(9, R, 1) The numbers of each run's optimiser; a run without one has this momentum.

    They are: beta1, the share of the change, lr, whether there is an optimiser, whether it is
    adaptive, whether it is Yogi, beta2, 1 - beta2, tau.
    """
    rows = []
    for how in optimisers:
        if how is None:
            rows.append([momentum, 1, 1, 0, 0, 0, 0, 1, 1])
            continue
        take, yogi = 1 - how.beta1 if how.adaptive else 1, how.kind == "yogi"
        rest = [how.beta2, 1 - how.beta2, how.tau]
        rows.append([how.beta1, take, how.lr, 1, how.adaptive, yogi, *rest])
    return np.array(rows, np.float64).T[:, :, None]
