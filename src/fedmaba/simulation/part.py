"""A feature of a round as an object with a few hooks, which the round calls in a fixed order.

A batch has a part only where one of its runs has the feature, so a run pays for nothing else. Hooks
are called once for a chunk or a cohort, never for a row or a step, and on every rank in the same
order. Two rounds can be under way at once, so a part keeps nothing of a round on itself: that lies
in `Work` and `Chunk`. `fedmaba.simulation.parts` says in which order a round meets the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.rows.base import Layout
from fedmaba.simulation.memory import Column
from fedmaba.strategies.base import Local, Needs

if TYPE_CHECKING:
    from fedmaba.simulation.batch import Batch
    from fedmaba.simulation.client import Chunk, Trainer
    from fedmaba.simulation.state import Plan, Round, Run
    from fedmaba.simulation.work import Cohort, Work

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Host = Callable[[], NDArray[Any]]  # waits for numbers on their way to the host, and returns them
ModelsOf = Callable[[IntArray], Tensor]  # clients (n,) -> the model of each, (n, P)
Moment = Literal["before training", "after training"]


@dataclass(frozen=True)
class Setting:
    """What decides which parts there are: what strategies ask for, and the model's layout."""

    local: Sequence[Local]  #  by run
    needs: Sequence[Needs]
    layout: Layout
    first: Tensor  # (R, P)    the models that the runs begin with
    runs: Sequence[Run] = ()  # none at the site of a real federation
    plan: Plan | None = None


@dataclass(frozen=True)
class Drawn:
    """The clients of a run whose models are trained in a round, where a part decides it."""

    client: IntArray  # (m,)  in order; there may be none
    key: IntArray  # (m,)     random stream of each one's training


class Part:
    """One feature, for the runs that have it. Every hook does nothing by default."""

    bounds: ClassVar[tuple[str, ...]] = ()  # numbers that `report` makes finite whatever they are
    waits: ClassVar[bool] = False  # whether `draw` needs what the round before left
    guides: ClassVar[bool] = False  # whether training needs what strategies decide before it
    changes_model: bool = False  # whether `used` gives clients other models

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        self.setting = setting
        self.runs = runs  # those that have the feature

    @classmethod
    def of(cls, setting: Setting) -> Self | None:
        """The part, where a run has the feature."""
        runs = frozenset(r for r in range(len(setting.local)) if cls.has(setting, r))
        return cls(setting, runs) if runs else None

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        """Whether a run has the feature."""
        raise NotImplementedError

    def columns(self, r: int) -> Mapping[str, Column]:
        """What each client of a run keeps, by name."""
        return {}

    def carries(self, r: int) -> Mapping[str, NDArray[Any]]:
        """What a run hands from round to round besides, by name, before the first."""
        return {}

    def alike(self, r: int) -> IntArray | int:
        """A number, or one for each client (N,): rows that differ are not trained together."""
        return 0

    def takes_changes(self, r: int) -> bool:
        """Whether `add` needs the change of each client of a run."""
        return False

    def joins_step(self, r: int) -> bool:
        """Whether `collect` or `add` change the step of a run's server."""
        return False

    # on the host, before a round

    def draw(self, batch: Batch, r: int, t: int) -> Drawn | None:
        """Who takes part in a round of a run; None: a draw of all its clients."""
        return None

    def absent(self, r: int) -> NDArray[np.bool_] | None:
        """(N,) which clients take no part in a run at all; None: all may."""
        return None

    # on the device, for a chunk of rows; maybe in a thread of its own

    def prepare(self, trainer: Trainer, chunk: Chunk) -> None:
        """Change what is trained, `chunk.job`."""

    def finish(self, trainer: Trainer, chunk: Chunk) -> None:
        """Change what was trained, and write what clients keep of it."""

    # on the host

    def collect(self, batch: Batch, work: Work, chunk: Chunk) -> None:
        """Take what else a trained chunk has for the round, before the sum over ranks."""

    def numbers(self, batch: Batch, work: Work, moment: Moment) -> Mapping[int, Mapping[str, Host]]:
        """What strategies ask for, by run and name, maybe still on its way."""
        return {}

    def report(self, batch: Batch, work: Work, c: Cohort, seen: dict[str, Any]) -> None:
        """Change or complete what the server is told of a cohort."""

    def decided(self, batch: Batch, work: Work, runs: Sequence[int]) -> None:
        """Check or change the decisions of strategies that were just asked."""

    # at the server, on the device

    def add(self, batch: Batch, work: Work, c: Cohort, delta: Tensor) -> None:
        """Add what joins a run's step (P,) besides the weighted changes, in place."""

    def info(self, work: Work, r: int) -> Mapping[str, float]:
        """Numbers that the record of a round has besides the strategy's."""
        return {}

    def recorded(self, batch: Batch, work: Work, rounds: dict[int, Round]) -> None:
        """Change or complete the records of a round, by run; those that just ended have none."""

    # in losses and evaluation

    def used(self, trainer: Trainer, r: int, client: IntArray, models: Tensor) -> Tensor:
        """(n, P) the server's models as clients of a run use them, in place."""
        return models

    def models_of_clients(self, trainer: Trainer, r: int) -> ModelsOf | None:
        """The models of their own that clients are evaluated with besides the server's, if any."""
        return None

    def only_own_models(self, r: int) -> bool:
        """Whether clients of a run have no other models than those."""
        return False
