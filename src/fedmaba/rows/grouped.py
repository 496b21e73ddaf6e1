"""Rows of linear layers on CUDA that take several steps at once.

A step adds x'g to the first layer's weights W, so later outputs x W change by (x x') g. So a group
of steps reads these weights from memory once, instead of once per step. It pays where they do not
fit into the cache, and products are fast. Rows that see the same minibatches share one copy of
them. Nobody but `rows.compile` knows this form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedmaba.data import trees
from fedmaba.rows import kernels
from fedmaba.rows.base import Inputs, LossFn, Step, StepPlan, StepsAhead
from fedmaba.rows.layers import Dense, Flatten
from fedmaba.rows.stack import LayerPlan, LayerRows
from fedmaba.rows.steps import (
    DeviceChunk,
    StepRule,
    first_models,
    minibatches,
    objective_of,
    of_the_same_rows,
    pull_rate,
    take,
)

# Products that a GPU computes while its memory delivers one number. For the perceptron `mlp`
# (minibatches of 50, layers of 200) this makes groups of 4 steps.
PRODUCTS_PER_LOAD = 250
MIN_SHARED_ROWS = 64  # of a block that shares inputs, on average: smaller ones are slower so
LEAST_STORED = 2.0**-40  # of weights that a pull has left after all steps


class RowBlock(NamedTuple):
    """Consecutive rows with consecutive inputs: row `start` takes number `inputs`, and so on."""

    start: int
    stop: int
    inputs: int


class SharedInputs(NamedTuple):
    """The inputs of a group of steps; rows that train on the same examples share one copy."""

    x: Inputs  # (U, steps, B, ...)
    blocks: Sequence[RowBlock]  # all rows, in order
    # It says (R,) whose inputs a row takes; None means that each has its own.
    owner: Tensor | None = None


class Drift(NamedTuple):
    """Besides its gradient, each step makes weights w into keep * w + give * vector.

    A pull and a shift are both of this form. A row's first layer is stored as v instead, with
    w = stored * v + added * vector: then only gradients move v. After the last step v is w.
    """

    vector: Tensor  # (R, P)
    keep: Tensor  # (R,)
    give: Tensor  # (R,)
    stored: Tensor  # It is (steps + 1, R): before each step, and after the last.
    added: Tensor  # (steps + 1, R)


@dataclass(frozen=True)
class GroupPlan(StepPlan):
    """Steps of the same rows go in groups, all of them about as large."""

    most: int  #                       steps of a group
    drifts: bool  #                    whether weights are stored so that only gradients move them
    blocks: tuple[RowBlock, ...]  #    rows that share inputs; none: each has its own

    def run(self, chunk: DeviceChunk) -> tuple[Tensor, list[Tensor]]:
        """Take all steps of a chunk."""
        rule, blocks = chunk.rule, self.blocks
        chunk = chunk._replace(parts=None) if blocks else chunk
        w, vector = self._first_models(chunk)
        index, weight = chunk.draw(blocks[0].stop if blocks else rule.count)
        drift = _drift_numbers(chunk) if self.drifts else None
        each = [range(b.inputs, b.inputs + b.stop - b.start) for b in blocks]
        place = [torch.arange(r.start, r.stop, device=w.device) for r in each]
        owner, met = torch.cat(place) if blocks else None, []
        for a, at, groups in self._portions(chunk, index):
            given = [index[:a, at], weight[:a, at], chunk.streams[at, :a], chunk.numbers[:, :a]]
            given += [] if drift is None else [drift[:, at.start : at.stop + 1, :a]]
            held = [chunk.x, chunk.y, w, vector, owner]
            met.append(chunk.portion(groups_of_steps, (rule, groups), held, given))
        return w, met

    def groups(self, active: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Rows that do steps together, and how many steps each of their groups has."""
        for rows, first, last in of_the_same_rows(active):
            parts = np.array_split(np.arange(first, last), -(-(last - first) // self.most))
            yield rows, [len(part) for part in parts]

    def _portions(
        self, chunk: DeviceChunk, index: Tensor
    ) -> Iterator[tuple[int, slice, tuple[int, ...]]]:
        """Groups whose inputs are gathered at once: how many rows, which steps, by group."""
        most = self.most if chunk.parts is not None else chunk.gathered_at_once(index)
        done = 0
        for rows, sizes in self.groups(chunk.active):
            while sizes:
                many = 1
                while many < len(sizes) and sum(sizes[: many + 1]) <= most:
                    many += 1
                steps, sizes = sizes[:many], sizes[many:]
                yield rows, slice(done, done + sum(steps)), tuple(steps)
                done += sum(steps)

    def _first_models(self, chunk: DeviceChunk) -> tuple[Tensor, Tensor | None]:
        """Where each row starts, (R, P), as it is stored, and the vector that it drifts along."""
        pulled, vector = bool(chunk.rule.pull), chunk.given.get("added")
        rows = chunk.rule.rows
        assert isinstance(rows, GroupedRows)
        if vector is not None:
            share = _drift_share(chunk)
            return rows.models_that_drift(
                chunk.models, chunk.run, vector, share, pulled=pulled
            ), vector
        w, vector = first_models(chunk, pulled=pulled)
        if vector is not None and "begin" in chunk.given:  # else both are the same
            rows.begin_drift(w, vector, _drift_share(chunk), pulled=True)
        return w, vector


def groups_of_steps(
    spec: tuple[StepRule, tuple[int, ...]],
    x: Inputs,
    y: Tensor,
    w: Tensor,  # (R, P)
    vector: Tensor | None,  # (R, P)
    owner: Tensor | None,  # (a,)  see `SharedInputs`
    index: Tensor,  # (U, S, B)    rows of the pool, of each minibatch
    weight: Tensor,  # (U, S, B)
    streams: Tensor,  # (S, a)
    numbers: Tensor,  # (., a)
    drifts: Tensor | None = None,  # (2, S + 1, a)  see `_drift_numbers`
) -> Tensor:  # (S, a)
    """Some groups of steps of the first rows; the loss of each row in each step."""
    (rule, groups), a, labels = spec, streams.shape[1], y[index]
    rows, plan = rule.rows, rule.plan
    assert isinstance(rows, GroupedRows)
    assert isinstance(plan, GroupPlan)
    if owner is not None:
        labels, weight = labels[owner], weight[owner]
    blocks = plan.blocks or (RowBlock(0, a, 0),)
    inputs = take(rule, x, index, streams[:, : len(index)].T)
    objective, scale = objective_of(rule, numbers), -numbers[0, 0]
    steps = minibatches(rule, inputs, labels, weight, streams, objective, scale)
    met: list[Tensor] = []
    for many in groups:
        at = slice(len(met), len(met) + many)
        drift = None
        if drifts is not None and vector is not None:
            stored, added = drifts[:, at.start : at.stop + 1]
            ones = torch.ones_like(stored[0])
            rate = pull_rate(numbers) if rule.pull else None
            keep, give = (ones, ones) if rate is None else (1 - rate, rate)
            drift = Drift(vector[:a], keep, give, stored, added)
        own = trees.mapped(lambda v: v[:, at], inputs)  # noqa: B023
        met += rows.run_group(w[:a], SharedInputs(own, blocks, owner), steps[at], drift)
    return torch.stack(met)


def _drift_numbers(chunk: DeviceChunk) -> Tensor:  # (2, K + 1, R)
    """`Drift.stored` and `Drift.added` before each step, and after the last."""
    steps, numbers = chunk.steps, chunk.numbers
    ahead = torch.arange(len(chunk.active) + 1, device=steps.device)[:, None] - steps  # up to 0
    if not chunk.rule.pull:
        return torch.stack([torch.ones_like(ahead), ahead]).to(numbers.dtype)
    left = ahead * torch.log1p(-pull_rate(numbers))  # logarithm of `stored`
    return torch.stack([left.exp(), -left.expm1()])


def _drift_share(chunk: DeviceChunk) -> Tensor:  # (R,)
    """How much of the drift's vector joins a row's weights in all of its steps."""
    if not chunk.rule.pull:
        return chunk.steps.to(chunk.numbers.dtype)
    return -torch.expm1(chunk.steps * torch.log1p(-pull_rate(chunk.numbers)))


def fits(how: LayerPlan, example: Tensor) -> bool:
    """Whether inputs reach the first weights as plain vectors, and products of them are fast."""
    below = list(takewhile(lambda layer: not layer.weights, how.layers))
    front = how.layers[len(below)] if len(below) < len(how.layers) else None
    plain = all(isinstance(layer, Flatten) for layer in below) and (below or example.ndim == 2)
    return bool(plain) and isinstance(front, Dense) and front.dtype != "float32"


class GroupedRows(LayerRows):
    """Rows of a sequential model whose first layer takes several steps at once."""

    def __init__(
        self, model: nn.Module, how: LayerPlan, example: Tensor, loss: LossFn | None
    ) -> None:
        super().__init__(model, how, example, loss)
        front = self.layers[self.first]
        assert isinstance(front, Dense)
        self.front = front

    def plan(self, models: Tensor, steps: StepsAhead) -> StepPlan | None:
        most = self.group(models, len(steps.key), steps.minibatch)
        if most == 1 or _strong_pull(steps):
            return None
        return GroupPlan(most, steps.rate is not None or steps.added, _blocks(steps))

    def group(self, models: Tensor, rows: int, minibatch: int) -> int:
        """How many steps of these rows make a group; models are (., P)."""
        many = self._many(minibatch)
        if many == 1:
            return 1
        cache = torch.cuda.get_device_properties(models.device).L2_cache_size
        size = rows * self.layout.shapes[0].numel() * models.element_size()
        return many if size > cache else 1

    def _many(self, minibatch: int) -> int:
        """How many steps make a group where the first layer's weights do not fit into the cache.

        A group needs the products of its examples with each other. The best size is where they
        cost as much as reading the weights once.
        """
        if minibatch > kernels.dense.MAX_MINIBATCH:
            return 1
        return max(1, int(math.sqrt(PRODUCTS_PER_LOAD * self.layout.shapes[0][1]) / minibatch))

    def room(self, minibatch: int, seen: int = 0) -> int:
        room, many = super().room(minibatch, seen), self._many(minibatch)
        if many == 1:
            return room
        (inputs, out), examples = self.layout.shapes[0], many * minibatch
        return room + examples * (inputs + 2 * out + examples)

    def run_group(
        self, w: Tensor, inputs: SharedInputs, steps: list[Step], drift: Drift | None = None
    ) -> list[Tensor]:
        """Move the first layer's weights once, after all steps; until then correct its outputs.

        A step adds x'g to W, so later outputs x W change by (x x') g. Where weights drift, V is
        stored with W = stored * V + added * D: a step adds x'g / stored to V, and outputs are
        stored * x V + added * x D. All other layers are stored as they are.
        """
        if drift is None and len(steps) == 1 and inputs.owner is None:
            return super().run_steps(w, steps)
        own = self.weights(w)
        assert isinstance(inputs.x, Tensor)
        x, many = inputs.x.flatten(3).flatten(1, 2), inputs.x.shape[2]  # (U, S * B, in)
        weights, bias = own[self.first]
        products = _products(x, weights, inputs)
        gram = torch.bmm(x, x.transpose(1, 2))
        moved = torch.empty_like(products)  # Each example adds its gradient times scale.
        far = [] if drift is None else self.weights(drift.vector)
        still = None if drift is None else _products(x, far[self.first][0], inputs)

        def back(layer: int, g: Tensor, saved: Any, deeper: bool) -> Tensor | None:
            if drift is None:
                return self.layers[layer].backward(g, saved, own[layer], own[layer], deeper)
            return self._drifting_back(layer, g, saved, own[layer], far[layer], drift)

        losses = []
        for k, step in enumerate(steps):
            now = slice(k * many, (k + 1) * many)
            act = bias, self.front.relu, step.keys, self.front.drop, self.front.dtype
            rest = None
            if drift is not None and still is not None:
                rest = still[:, now], drift.stored[k], drift.added[k]
            y = kernels.dense.linear(
                gram[:, now], moved, *act, products[:, now], k * many, inputs.owner, rest
            )
            loss, g = self.there_and_back(y, own, step, self.first + 1, back)
            losses.append(loss)
            if drift is None:
                moved[:, now] = g
            else:
                torch.div(g, drift.stored[k + 1, :, None, None], out=moved[:, now])
                bias.mul_(drift.keep[:, None])
                bias.addcmul_(drift.give[:, None], far[self.first][1])
            bias.add_(g.sum(1))
        for first, last, at in inputs.blocks:
            turned = x[at : at + last - first].transpose(1, 2)
            weights[first:last].baddbmm_(turned, moved[first:last])
        return losses

    def _drifting_back(
        self,
        layer: int,
        g: Tensor,
        saved: Any,
        own: list[Tensor],
        far: list[Tensor],
        drift: Drift,
    ) -> Tensor | None:
        """A layer's step, and its drift; on the way down there is always a layer below."""
        kind = self.layers[layer]
        if isinstance(kind, Dense) and saved.shape[1] <= kernels.dense.MAX_MINIBATCH:
            flat, aim = g.flatten(1, -2).contiguous(), (far[0], far[1], drift.keep, drift.give)
            moves = own[0], own[0], own[1]
            below = kernels.dense.linear_back(
                flat, saved, *moves, True, kind.undone, kind.dtype, aim
            )
            return None if below is None else below.view(*g.shape[:-1], -1)
        before = [v.clone() for v in own]
        for v, end in zip(own, far, strict=True):
            keep, give = (n.view(-1, *[1] * (v.ndim - 1)) for n in (drift.keep, drift.give))
            v.mul_(keep).addcmul_(give, end)
        return kind.backward(g, saved, before, own, True)

    def begin_drift(self, w: Tensor, vector: Tensor, share: Tensor, *, pulled: bool) -> None:
        """Store weights (R, P) as a `Drift` does before the first step, which ends with stored = 1.

        share * vector is added to them, with a number of each row (R,); where they are pulled, the
        rest of them is what is left.
        """
        weights, far = (self.weights(v)[self.first][0] for v in (w, vector))
        if pulled:
            weights.lerp_(far, share[:, None, None])
        else:
            weights.addcmul_(far, share[:, None, None])

    def models_that_drift(
        self, models: Tensor, run: Tensor, vector: Tensor, share: Tensor, *, pulled: bool
    ) -> Tensor:
        """The models of some runs, (R, P), after `begin_drift`."""
        if models.is_cuda and kernels.can_run(models):
            front = self.layout.starts[1]
            return kernels.vectors.drifting(models, run, vector, share, front, pulled=pulled)
        w = models.index_select(0, run)
        self.begin_drift(w, vector, share, pulled=pulled)
        return w


def _products(x: Tensor, weights: Tensor, inputs: SharedInputs) -> Tensor:
    """x W of each row, (R, S * B, out), with its own or shared inputs."""
    out = weights.new_empty(len(weights), x.shape[1], weights.shape[2])
    for start, stop, at in inputs.blocks:
        torch.bmm(x[at : at + stop - start], weights[start:stop], out=out[start:stop])
    return out


def _strong_pull(steps: StepsAhead) -> bool:
    """Whether pulls leave too little of where a row was for `Drift`, which divides by that."""
    if steps.rate is None:
        return False
    rate = float(steps.rate.max())
    return rate >= 1 or bool((1 - rate) ** int(steps.steps.max()) < LEAST_STORED)


def _blocks(steps: StepsAhead) -> tuple[RowBlock, ...]:
    """Rows that share the inputs of the first of them, a block of them for each run.

    Runs of one seed draw alike: then rows of run after run see the same minibatches in the same
    order. None where that does not hold of all rows.
    """
    _, first, place = np.unique(steps.key, return_index=True, return_inverse=True)
    owner, rows = first[place], len(steps.key)
    blocks = np.split(np.arange(rows), np.flatnonzero(np.diff(owner) != 1) + 1)
    alike = (steps.first == steps.first[owner]).all() and (steps.steps == steps.steps[0]).all()
    front = first.max() < len(first)  # each comes once before one comes twice
    many = len(blocks) * MIN_SHARED_ROWS <= rows
    if not (alike and front and len(first) < rows and many):
        return ()
    return tuple(RowBlock(int(b[0]), int(b[-1]) + 1, int(owner[b[0]])) for b in blocks)
