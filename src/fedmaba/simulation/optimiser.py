"""How a client moves its weights: the rule of its optimiser, and the size of its steps. No torch.

The rules are those of torch.optim, for many rows at once. A client starts each round anew: momentum
and Adam's averages begin at zero, since nobody carries them from one round to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedmaba.errors import InputError, unknown

if TYPE_CHECKING:
    from torch import Tensor

Name = Literal["sgd", "nesterov", "adam", "adamw"]
TINY = 1e-6  # added to a norm before it divides, as torch's clip_grad_norm_ does


@dataclass(frozen=True)
class Optimiser:
    """How a gradient moves the weights of a client."""

    momentum: float = 0.0  #      of sgd and nesterov
    weight_decay: float = 0.0
    optimiser: Name = "sgd"
    beta1: float = 0.9  #         of adam and adamw
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip: float | None = None  #  the largest norm of a gradient; None: any

    def __post_init__(self) -> None:
        if problems := self._problems():
            raise InputError("; ".join(problems))

    def _problems(self) -> list[str]:
        """What is wrong with these settings."""
        if self.optimiser not in get_args(Name):
            return [str(unknown("optimiser", str(self.optimiser), get_args(Name)))]
        limits: dict[str, tuple[Callable[[float], bool], str]] = {
            "momentum": (lambda v: 0 <= v < 1, "it must be at least 0 and below 1"),
            "weight_decay": (lambda v: 0 <= v < math.inf, "it must be at least 0"),
            "beta1": (lambda v: 0 <= v < 1, "it must be at least 0 and below 1"),
            "beta2": (lambda v: 0 <= v < 1, "it must be at least 0 and below 1"),
            "epsilon": (lambda v: 0 < v < math.inf, "it must be above 0"),
            "clip": (lambda v: 0 < v < math.inf, "it must be above 0, or left out"),
        }
        found = []
        for key, (holds, rule) in limits.items():
            value = getattr(self, key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value != getattr(Optimiser, key) and not (number and holds(value)):
                found.append(f"{key}={value!r}: {rule}")
        if found:
            return found
        lacks = ("momentum",) if self.adaptive else ("beta1", "beta2", "epsilon")
        other = "sgd" if self.adaptive else "adam"
        for key in lacks:
            if (value := getattr(self, key)) != getattr(Optimiser, key):
                found.append(
                    f"{key}={value}: {self.optimiser} has none: leave it out, or use {other}"
                )
        if self.optimiser == "nesterov" and not self.momentum:
            found.append("optimiser=nesterov: its momentum is 0: set one, as momentum 0.9")
        return found

    @classmethod
    def from_settings(cls, settings: object) -> Optimiser:
        """The optimiser of the settings that have its keys."""
        return cls(**{f.name: getattr(settings, f.name) for f in fields(cls)})

    @classmethod
    def from_task(cls, task: Mapping[str, Any]) -> Optimiser:
        """The optimiser that a server's task asks for; its keys are written with hyphens."""
        keys = {f.name: f.name.replace("_", "-") for f in fields(cls)}
        return cls(**{name: task[key] for name, key in keys.items() if key in task})

    @property
    def plain(self) -> bool:
        """Whether a step adds nothing but its gradient to the weights."""
        return self == Optimiser()

    @property
    def adaptive(self) -> bool:
        """Whether each weight has a step size of its own."""
        return self.optimiser in ("adam", "adamw")

    def state(self, w: Tensor) -> list[Tensor]:
        """What the optimiser remembers of the steps before the first: nothing."""
        many = 2 if self.adaptive else 1 if self.momentum else 0
        return [w.new_zeros(w.shape) for _ in range(many)]

    def decay(self, g: Tensor, w: Tensor) -> None:
        """Add the pull of weight decay to a gradient; adamw shrinks the weights instead."""
        if self.weight_decay and self.optimiser != "adamw":
            g.add_(w, alpha=self.weight_decay)

    def shorten(self, g: Tensor) -> None:
        """Scale each row (a, P) of a gradient down to the largest norm that is allowed."""
        if self.clip is not None:
            length = g.norm(dim=1, keepdim=True)
            g.mul_((self.clip / (length + TINY)).clamp_(max=1.0))

    def step(self, w: Tensor, g: Tensor, state: list[Tensor], down: Tensor, number: int) -> None:
        """Move weights (a, P) along their gradient, which may be overwritten.

        `down` is minus the step size, one for all rows or one for each (a, 1). `number` counts the
        steps from 0.
        """
        if self.adaptive:
            mean, square = state
            if self.optimiser == "adamw" and self.weight_decay:
                w.mul_(1 + down * self.weight_decay)
            mean.lerp_(g, 1 - self.beta1)
            square.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            unbiased = math.sqrt(1 - self.beta2 ** (number + 1))
            w.addcmul_(
                mean / (square.sqrt().div_(unbiased).add_(self.epsilon)),
                down / (1 - self.beta1 ** (number + 1)),
            )
            return
        if state:
            velocity = state[0].mul_(self.momentum).add_(g)
            g = g.add_(velocity, alpha=self.momentum) if self.optimiser == "nesterov" else velocity
        w.addcmul_(g, down)


Shape = Literal["constant", "exponential", "cosine"]
WORDS = "constant, exponential:0.99 or cosine, maybe after warmup:5, as warmup:5,cosine"


@dataclass(frozen=True)
class Schedule:
    """How a step size changes, over the rounds of a run or over the steps of a round."""

    shape: Shape = "constant"
    rate: float = 1.0  #  factor from one to the next, where it is exponential
    warmup: int = 0  #    how many it takes to grow to the full size

    def factor(self, at: int, total: int) -> float:
        """The factor on the step size at number `at`, from 0, of `total`."""
        if at < self.warmup:
            return (at + 1) / self.warmup
        at, total = at - self.warmup, max(total - self.warmup, 1)
        if self.shape == "cosine":
            return (1 + math.cos(math.pi * min(at / total, 1))) / 2
        return self.rate**at


@lru_cache(maxsize=64)
def parse_schedule(text: str, what: str = "schedule") -> Schedule:
    """Read `cosine`, `exponential:0.99`, `constant`, `warmup:5` or `warmup:5,cosine`."""
    refused = InputError(f"{what}={text!r}: say {WORDS}")
    parts = text.split(",")
    warmup, shape, rate = 0, "constant", 1.0
    if parts[0].startswith("warmup:"):
        number = parts.pop(0).removeprefix("warmup:")
        if not (number.isascii() and number.isdigit() and 1 <= int(number[:12]) <= 10**9):
            raise refused
        warmup = int(number)
    if len(parts) > 1 or (not parts and not warmup):
        raise refused
    if parts:
        shape, colon, number = parts[0].partition(":")
        if shape not in get_args(Shape) or (shape == "exponential") != bool(colon):
            raise refused
        try:
            rate = float(number) if colon else 1.0
        except ValueError:
            raise refused from None
        if not 0 < rate <= 1:
            raise refused
    return Schedule(shape, rate, warmup)  # type: ignore[arg-type]


@lru_cache(maxsize=4096)
def step_factors(schedule: Schedule, steps: int, width: int) -> tuple[float, ...]:
    """(width,) The factor of each of a client's steps; after its last, 0."""
    return tuple(schedule.factor(k, steps) for k in range(steps)) + (0.0,) * (width - steps)


@lru_cache(maxsize=4096)
def counted_steps(optimiser: Optimiser, schedule: Schedule, steps: int) -> float:
    """How many steps of the full size a client's steps amount to: plain SGD's count as one each.

    It is the sum of the weights that the gradients of the steps have in the change of the model.
    With momentum a gradient also moves the steps that follow. Adam's steps count as one each.
    """
    total, velocity, momentum = 0.0, 0.0, optimiser.momentum
    for k in range(steps):
        velocity = momentum * velocity + 1
        nesterov = optimiser.optimiser == "nesterov"
        total += schedule.factor(k, steps) * (1 + momentum * velocity if nesterov else velocity)
    return total


USUAL_DECAY = 0.999  # of the step size after every round


def round_schedule(schedule: str | None, lr_decay: float) -> Schedule:
    """How the step size changes over rounds: as said, or by a factor after every round."""
    if schedule is None:
        return Schedule("exponential", lr_decay)
    if lr_decay != USUAL_DECAY:
        raise InputError(
            f"lr_decay={lr_decay}, but schedule={schedule} says how the step size changes: leave "
            f"one out, or say schedule=exponential:{lr_decay}"
        )
    return parse_schedule(schedule)
