"""Plain SGD steps of a chunk of rows: where rows start, and which minibatch each step takes.

All of it is work on the device. Which operations that is follows from a `StepRule` and the shapes
of tensors. Where chunks of one shape rarely come again, portions of their steps are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedmaba.data import trees
from fedmaba.rows import objectives
from fedmaba.rows.base import Inputs, ProxPull, RowObjective, Rows, Shift, Step, StepPlan
from fedmaba.rows.cuda_graphs import GraphCache, Held
from fedmaba.rows.images import take_augmented

SEEN = "seen "  # begins the names of matrices that are models which an objective sees
MAX_GATHERED = 250_000_000  # numbers of inputs that may be gathered at once
STEPS_IN_PART = 4  # recorded at a time, where no round has the shape of another


class RandomChanges(Protocol):
    """Which changes of training images are drawn."""

    @property
    def flip(self) -> bool:
        """Whether half of the images are mirrored."""

    @property
    def crop(self) -> int:
        """How wide a border is, of which the old size is cut out."""


@dataclass(frozen=True)
class StepRule:
    """How a step of some rows is done."""

    rows: Rows
    count: int  #                      of the rows
    pull: Literal["", "first", "last"]  # whether a step also pulls rows to where they started,
    #                                  before or after its gradient
    objective: tuple[str, ...]  #      its name and those of its numbers, where there is one
    given: tuple[str, ...]  #          matrices of rows that come besides, see `DeviceChunk.given`
    alike: bool  #                     whether all rows start from one model
    augment: RandomChanges | None
    plan: StepPlan | None  #           how these rows take several steps at once


class RecordedParts(NamedTuple):
    """Where portions of steps are recorded, and for which results."""

    graphs: GraphCache
    result_slot: object

    def buffer(self, name: str, like: Tensor, rule: StepRule) -> Tensor:
        """Memory for the rows of a chunk, the same each time."""
        return self.graphs.buffer((name, rule, self.result_slot), like, rule.count)


class DeviceChunk(NamedTuple):
    """Rows that are trained at once, on the device; those with the most steps come first."""

    rule: StepRule
    active: tuple[int, ...]  # (K,)  how many rows do each step
    x: Inputs  #         (n, ...)  the pool of examples
    y: Tensor  #         (n, ...)
    models: Tensor  #    (., P)
    run: Tensor  #       (R,)    whose model a row starts from
    steps: Tensor  #     (R,)
    streams: Tensor  #   (K, R)  random stream of each step
    numbers: Tensor  #   (., R)  step size, pull and those of the objective, where there are
    given: Mapping[str, Tensor]  # (R, P) each, where there are: the models that rows "begin" with,
    #                              what is "added" to gradients; in direct steps what each step
    #                              adds or is pulled to; "seen NAME", a model that an objective
    #                              sees. "own" (R, P - S) is what clients kept
    draw: Callable[[int], tuple[Tensor, Tensor]]  # rows of the pool and weights (m, K, B) of the
    #                                               minibatches of the first m rows
    parts: RecordedParts | None = None

    @property
    def seen(self) -> dict[str, Tensor] | None:
        """The models (R, P) whose outputs an objective sees, by name, where there are."""
        return {n[len(SEEN) :]: v for n, v in self.given.items() if n.startswith(SEEN)} or None

    def portion(
        self, function: Callable[..., Tensor], spec: Any, held: list[Held], inputs: list[Tensor]
    ) -> Tensor:
        """function(spec, *held, *inputs), recorded where portions are."""
        if self.parts is None:
            return function(spec, *held, *inputs)
        return self.parts.graphs.run_part(function, spec, held, inputs)

    def gathered_at_once(self, index: Tensor) -> int:
        """How many steps' inputs are gathered at once; index is (m, K, B)."""
        example = sum(v[0].numel() for v in trees.leaves(self.x))
        most = MAX_GATHERED // (index[:, 0].numel() * example)
        if self.parts is not None:
            return min(STEPS_IN_PART, most)
        return most if index.is_cuda else 1


def first_models(chunk: DeviceChunk, *, pulled: bool) -> tuple[Tensor, Tensor | None]:
    """Where each row starts, (R, P), and what it is pulled to; (1, P) if that is one model."""
    rule, models, run, parts = chunk.rule, chunk.models, chunk.run, chunk.parts
    begin, own = chunk.given.get("begin"), chunk.given.get("own")
    if begin is not None and not pulled:
        return begin, None
    if parts is None:
        one = begin is not None and rule.alike
        w = models.index_select(0, run[:1] if one else run)
    else:  # in memory that recorded parts know
        w = parts.buffer("end", models, rule)
        torch.index_select(models, 0, run, out=w)
    if own is not None:
        w[:, rule.rows.layout.shared :] = own
    if begin is not None:
        return begin, w
    if not pulled:
        return w, None
    if parts is not None:
        return w, parts.buffer("start", models, rule).copy_(w)
    return w, models.index_select(0, run[:1]) if rule.alike else w.clone()


def run_steps(chunk: DeviceChunk) -> tuple[Tensor, list[Tensor]]:
    """Take all steps; return trained weights (R, P), and losses (k, a) of steps and active rows."""
    rule = chunk.rule
    if rule.plan is not None:
        return rule.plan.run(chunk)
    pulled = bool(rule.pull) and "added" not in rule.given
    w, start = first_models(chunk, pulled=pulled)
    vector = chunk.given.get("added", start)
    index, weight = chunk.draw(rule.count)
    most, met = max(1, chunk.gathered_at_once(index)), []
    for a, first, last in of_the_same_rows(chunk.active):
        for begin in range(first, last, most):
            at = slice(begin, min(begin + most, last))
            given = [index[:a, at], weight[:a, at], chunk.streams[at, :a], chunk.numbers[:, :a]]
            held = [chunk.x, chunk.y, w, vector, chunk.seen]
            met.append(chunk.portion(one_by_one, rule, held, given))
    return w, met


def of_the_same_rows(active: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Steps that the same rows do: how many rows, the first step, and the step after the last."""
    first = 0
    for rows, same in groupby(active):
        last = first + sum(1 for _ in same)
        yield rows, first, last
        first = last


def one_by_one(
    rule: StepRule,
    x: Inputs,
    y: Tensor,
    w: Tensor,  # (R, P)
    vector: Tensor | None,  # (R, P), or (1, P)  what steps pull the weights to, or add to them
    seen: Mapping[str, Tensor] | None,  # (R, P) each: see `DeviceChunk.seen`
    index: Tensor,  # (a, S, B)    rows of the pool, of each minibatch
    weight: Tensor,  # (a, S, B)
    streams: Tensor,  # (S, a)
    numbers: Tensor,  # (., a)
) -> Tensor:  # (S, a)
    """Some steps of the first rows; the loss of each row in each step."""
    a, scale = streams.shape[1], -numbers[0, 0]
    more: ProxPull | Shift | None = None
    if vector is not None and rule.pull:
        rate, last = pull_rate(numbers), rule.pull == "last"
        scale = scale / (1 - rate[0]) if last else scale  # a later pull shortens the step, too
        more = ProxPull(vector[:a], rate[:, None], last)
    elif vector is not None:
        more = Shift(vector[:a])
    inputs, objective = take(rule, x, index, streams.T), objective_of(rule, numbers, seen)
    steps = minibatches(rule, inputs, y[index], weight, streams, objective, scale)
    return torch.stack(rule.rows.run_steps(w[:a], steps, more))


def minibatches(
    rule: StepRule,
    inputs: Inputs,  # (a, S, B, ...)
    labels: Tensor,  # (a, S, B)
    weight: Tensor,  # (a, S, B)
    streams: Tensor,  # (S, a)
    objective: RowObjective | None,
    scale: Tensor,  # ()
) -> list[Step]:
    """The minibatches of some steps."""
    return [
        Step(
            trees.mapped(lambda v: v[:, k], inputs),  # noqa: B023
            labels[:, k],
            weight[:, k],
            scale,
            objective,
            streams[k],
            rule.count,
        )
        for k in range(len(streams))
    ]


def pull_rate(numbers: Tensor) -> Tensor:  # (a,)
    """Which part of the way to its target a step pulls each row."""
    return numbers[0] * numbers[1]


def objective_of(
    rule: StepRule,
    numbers: Tensor,  # (., a)
    seen: Mapping[str, Tensor] | None = None,  # (R, P) each
) -> RowObjective | None:
    """What the first rows minimise in place of their usual loss."""
    if not rule.objective:
        return None
    name, *names = rule.objective
    found, a = objectives.find(name), numbers.shape[1]
    named = dict(zip(names, numbers[1 + bool(rule.pull) :], strict=False))
    models = {name: flat[:a] for name, flat in (seen or {}).items()}
    return RowObjective(
        found.function, named, models if found.of_outputs else None, found.of_features
    )


def take(rule: StepRule, x: Inputs, index: Tensor, keys: Tensor) -> Inputs:
    """The inputs x[index] of steps with random streams `keys`, changed as the rule says."""
    if rule.augment is None or not isinstance(x, Tensor):  # only images are augmented
        return take_examples(x, index)
    flip, crop = rule.augment.flip, rule.augment.crop
    return take_augmented(x, index, keys, rule.rows.image_axes, flip=flip, crop=crop)


def take_examples(x: Inputs, index: Tensor) -> Inputs:
    """x[index], by the copy that is fastest for whole examples."""
    flat = index.reshape(-1)
    return trees.mapped(lambda v: v.index_select(0, flat).view(*index.shape, *v.shape[1:]), x)
