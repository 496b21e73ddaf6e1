"""The records of a simulation: its plan and runs, the result of a round, and the progress so far.

Data only. A `Progress` that was saved and loaded continues bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.data.federation import Federation
from fedmaba.privacy.mechanism import Privacy
from fedmaba.rows.batchnorm import Choice
from fedmaba.simulation.memory import ClientMemory
from fedmaba.simulation.optimiser import Optimiser, round_schedule
from fedmaba.strategies.base import Local, State, Strategy
from fedmaba.turnout.plan import Turnout

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """What all runs of a batch have in common."""

    rounds: int
    participants: int | None = None  #      per round; None: all
    epochs: int = 1  #                      local passes over the data, unless steps says
    steps: int | None = None
    minibatch: int = 50
    lr: float = 0.1
    lr_decay: float = 0.999  #              per round
    schedule: str | None = None  #          over rounds, instead of lr_decay
    step_schedule: str = "constant"  #      over the steps of a round
    optimiser: Optimiser = Optimiser()  #   of clients
    augment: str | None = None  #           random changes of training images
    own_layers: tuple[str, ...] = ()  #     that stay with clients, where a strategy does not say
    server_lr: float = 1.0
    server_momentum: float = 0.0
    privacy: Privacy | None = None  #       what clients are promised; None: nothing
    turnout: Turnout | None = None  #       who is there and answers; None: all who are drawn
    eval_every: int = 1
    finetune: int | None = None  #          local steps of each client before it is evaluated
    batchnorm: Choice = "refuse"  #         what becomes of BatchNorm layers, see rows.batchnorm
    dtype: Literal["float32", "tf32", "bf16", "float64"] = "float32"  # see docs/performance.md
    device: str = "cpu"
    chunk: int | None = None  #             rows trained at once; None: from the device's memory
    threads: int | None = None  #           cores to use; None: what torch would

    def lr_in_round(self, t: int) -> float:
        """The local step size of round t, from 0."""
        return self.lr * round_schedule(self.schedule, self.lr_decay).factor(t, self.rounds)

    def local(self, strategy: Strategy) -> Local:
        """What a strategy asks of its clients, with the layers that they keep."""
        local = strategy.local()
        return local if local.own_layers else replace(local, own_layers=self.own_layers)


@dataclass(frozen=True)
class Run:
    """One strategy on one federation with one seed."""

    strategy: Strategy
    seed: int
    federation: Federation
    # Which averages of the server's models are handed out; None: the strategy's own.
    deploy: str | tuple[str, ...] | None = None

    @property
    def rules(self) -> tuple[str, ...]:
        """How each model that is handed out is made."""
        if isinstance(self.deploy, tuple):
            return self.deploy
        return (self.deploy or self.strategy.deploy,)


@dataclass(frozen=True)
class Round:
    """What one run's server saw and decided in one round."""

    client: IntArray  # (m,)
    weight: FloatArray  # (m,)
    loss: FloatArray | None  # (m,)
    info: dict[str, float]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # (m,) or () more, by name


@dataclass(frozen=True)
class Scores:
    """How one model serves each client: loss and score (accuracy) on its test examples."""

    loss: FloatArray  # (N,)
    accuracy: FloatArray  # (N,)
    groups: IntArray | None = None  # (N, G, K) examples by group and prediction, see `group_counts`


# One run's server models on every client. "last" and "deployed" (the one that would be handed out)
# are measured on test examples, "last_validation" and "deployed_validation" where there are such.
Evaluation = dict[str, Scores]


@dataclass
class Progress:
    """Everything that a round hands to the next. R runs have D deployed models, at least R."""

    round: int  #                           the next round to play
    model: Tensor  # (R, P)
    deployed: Tensor  # (D, P)
    owner: IntArray  # (D,)                 which run hands it out
    best: Tensor  # (R, P)                  model of the best evaluated round
    best_score: FloatArray  # (R,)
    best_round: IntArray  # (R,)
    velocity: Tensor | None  # (R, P)       first moments of the servers' optimisers
    second: Tensor | None  # (R, P)         second moments
    states: list[State]
    memory: ClientMemory  #                 what clients keep
    picks: dict[int, Candidates]  #         by deployed model, where a rule picks a round
    diverged: list[str]  #                  why a run ended early; empty while it goes on
    chunk: int  #                           how many rows are trained at once
    carried: list[dict[str, NDArray[Any]]]  # by run: what parts hand on, by name

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything but round, chunk and diverged, as arrays for a checkpoint."""
        out = self._own_arrays() | self.memory.arrays()
        for r, state in enumerate(self.states):
            out |= {f"state/{r}/{name}": value for name, value in state.items()}
        return out

    def _carried(self) -> dict[str, NDArray[Any]]:
        """What parts hand on, by its names in a checkpoint."""
        every = enumerate(self.carried)
        return {f"carried/{r}/{name}": v.copy() for r, own in every for name, v in own.items()}

    def _own_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays besides what clients and strategies keep."""
        out: dict[str, NDArray[Any]] = {
            name: _copy(getattr(self, name)) for name in ("model", "deployed", "best")
        }
        out |= {"best_score": self.best_score.copy(), "best_round": self.best_round.copy()}
        out |= {name: _copy(moments) for name, moments in self._moments()}
        out |= self._carried()
        for d, some in self.picks.items():
            out[f"pick/{d}/model"] = _copy(some.model)
            out |= {f"pick/{d}/{name}": getattr(some, name) for name in CANDIDATE}
        return out

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        """The moments that there are, by their names in a checkpoint."""
        for name in ("velocity", "second"):
            if (moments := getattr(self, name)) is not None:
                yield name, moments

    def misfit(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any], rounds: int) -> str:
        """What in a checkpoint does not fit these runs; empty where all fits."""
        runs, width = self.model.shape
        done, chunk, diverged = (meta.get(key) for key in ("round", "chunk", "diverged"))
        if type(done) is not int or not 0 < done <= rounds:
            return f"round {done!r}"
        if type(chunk) is not int or chunk < 1:
            return f"chunk {chunk!r}"
        if not isinstance(diverged, list) or [type(why) for why in diverged] != [str] * runs:
            return "another number of runs"
        own = self._own_arrays()
        want = {k: (v.shape, v.dtype) for k, v in own.items() if not k.startswith("pick/")}
        want |= self.memory.forms(arrays, want["model"][1])
        for d in self.picks:
            h = _length(arrays, f"pick/{d}/round")
            want |= {
                f"pick/{d}/{name}": ((h,), own[f"pick/{d}/{name}"].dtype) for name in CANDIDATE
            }
            want[f"pick/{d}/model"] = ((h, width), want["model"][1])
        for name, (shape, dtype) in want.items():
            found = arrays.get(name)
            if found is None or (found.shape, found.dtype) != (shape, dtype):
                return f"array {name}"
        needed = (f"state/{r}/{name}" for r, state in enumerate(self.states) for name in state)
        return next((f"array {name}" for name in needed if name not in arrays), "")

    def restore(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        """Go back to where a checkpoint was taken."""

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(arrays[name].copy()).to(self.model)

        self.round, self.chunk = meta["round"], meta["chunk"]
        self.diverged = list(meta["diverged"])
        for name in ("model", "deployed", "best"):  # in place: recorded work knows them
            getattr(self, name).copy_(tensor(name))
        self.best_score, self.best_round = arrays["best_score"].copy(), arrays["best_round"].copy()
        for name, moments in self._moments():
            moments.copy_(tensor(name))
        self.memory.restore(arrays)
        for r in range(len(self.states)):
            own = f"state/{r}/"
            self.states[r] = {
                name.removeprefix(own): value.copy()
                for name, value in arrays.items()
                if name.startswith(own)
            }
        self.carried = [
            {name: arrays[f"carried/{r}/{name}"].copy() for name in own}
            for r, own in enumerate(self.carried)
        ]
        for d in self.picks:
            told = (arrays[f"pick/{d}/{name}"].copy() for name in CANDIDATE)
            self.picks[d] = Candidates(tensor(f"pick/{d}/model"), *told)


def _copy(tensor: Tensor) -> NDArray[Any]:
    """A copy, since the run goes on while a checkpoint is written."""
    return tensor.to("cpu", copy=True).numpy()


def _length(arrays: dict[str, NDArray[Any]], name: str) -> int:
    """How many rows an array of a checkpoint has."""
    found = arrays.get(name, np.zeros(0))
    return found.shape[0] if found.ndim else 0


CANDIDATE = ("accuracy", "variance", "round")  # what is known of a round's model


@dataclass(frozen=True)
class Candidates:
    """Models of evaluated rounds of which one is, or may yet be, picked to be handed out."""

    model: Tensor  # (h, P)
    accuracy: FloatArray  # (h,)            mean over clients, on validation examples
    variance: FloatArray  # (h,)            over clients
    round: IntArray  # (h,)


@dataclass(frozen=True)
class Snapshot:
    """One round of all runs, as it leaves the engine."""

    round: int
    rounds: list[Round | None]  #           by run; None: it has ended
    evaluations: list[Evaluation | None] | None  # by deployed model
    progress: Progress
