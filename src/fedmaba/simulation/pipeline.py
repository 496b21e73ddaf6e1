"""When each part of a round is asked for: the only place that waits or overlaps.

On a CPU a round is played in order. On a device that works while the host goes on, the losses that
strategies weigh by and a round's training are asked for before the host waits for either, and the
next round begins before it waits for the end of the last. Runs whose weights come after training go
in a lane of their own: the device trains the others while the host weighs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from torch import Tensor

from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.cohort import Drawn, job_of, out_of_memory
from fedmaba.simulation.local_training import train_chunk as train_rows
from fedmaba.simulation.round import (
    Chunk,
    Decided,
    Measured,
    Trained,
    draw,
    measure,
    play_round,
    rounds_of,
    step,
    train,
    train_chunks,
    weigh,
)
from fedmaba.simulation.state import Round

Lane = tuple[int, ...]  # runs that are trained together


@dataclass
class RoundInFlight:
    """A lane's round that has begun: its losses and its training are asked for."""

    drawn: Drawn
    measured: Measured
    chunks: Iterator[Chunk]  #       those not yet taken in
    trained: Trained | None = None  # all of it, where nothing of it waits for the host


@dataclass(frozen=True)
class BegunEarly:
    """Rounds that began before they were asked for, by round and lane."""

    model_version: object  # of the models that they rest on
    lanes: dict[tuple[int, Lane], RoundInFlight]


def play(batch: Batch, t: int, early: BegunEarly | None) -> tuple[list[Round | None], BegunEarly]:
    """Round t of all live runs, moving them on; and what of the next has begun."""
    at = batch.progress
    begun = early.lanes if early and early.model_version == tensor_version(at.model) else {}
    ahead: dict[tuple[int, Lane], RoundInFlight] = {}
    done: dict[int, Round] = {}
    for lane in lanes(batch):
        if batch.graphs.on:
            flight = begun.pop((t, lane), None) or begin(batch, lane, t)
            done |= _finish(batch, flight, ahead)
        else:
            done |= play_round(batch, list(lane), t)
    at.chunk = batch.ranks.least(at.chunk)
    out = [done.get(r) for r in range(len(batch.runs))]
    return out, BegunEarly(tensor_version(at.model), ahead)


def compile_kernels(batch: Batch) -> None:
    """Have the kernels of a round and an evaluation compiled before the first of them."""
    at, once = batch.progress, GraphCache(batch.pool.x.device, recordable=False)

    def work() -> None:
        for lane in lanes(batch):
            drawn = draw(batch, list(lane), at.round)
            for rows in drawn.chunks:
                job = job_of(batch, drawn, rows)
                train_rows(batch.rows, batch.pool, at.model, job, once)
        batch.evaluate(at.model, batch.test.union, scored=batch.metric is None)

    try:
        batch.rows.compile(at.model, work)
    except RuntimeError as error:
        if not out_of_memory(error):  # the round itself will take less
            raise


def tensor_version(model: Tensor) -> object:
    """Another one for a model that somebody changed."""
    return id(model), model._version


def pipelines_rounds(batch: Batch) -> bool:
    """Whether work is asked for ahead: of a device that goes on alone, and alone has all rows."""
    return batch.graphs.on and batch.ranks.count == 1


def lanes(batch: Batch) -> list[Lane]:
    """Live runs by when their weights come, where work is asked for ahead; else all together."""
    alive = [r for r, why in enumerate(batch.progress.diverged) if not why]
    late = [r for r in alive if pipelines_rounds(batch) and not batch.needs[r].early]
    early = [r for r in alive if r not in late]
    return [_in_turn(batch, lane) for lane in (early, late) if lane]


def _in_turn(batch: Batch, runs: list[int]) -> Lane:
    """One run of each seed, then another of each: rows that share inputs make large blocks."""
    before: Counter[tuple[int, int]] = Counter()
    turn = {}
    for r in runs:
        alike = batch.runs[r].seed, id(batch.runs[r].federation)
        turn[r] = before[alike]
        before[alike] += 1
    return tuple(sorted(runs, key=turn.__getitem__))


def begin(batch: Batch, lane: Lane, t: int, drawn: Drawn | None = None) -> RoundInFlight:
    """Ask for a lane's losses and the first of its training, without waiting for either."""
    drawn = drawn or draw(batch, list(lane), t)
    measured = measure(batch, drawn)
    chunks = train_chunks(batch, drawn)
    flight = RoundInFlight(drawn, measured, chain(list(islice(chunks, 1)), chunks))
    if pipelines_rounds(batch) and len(drawn.late) == len(drawn.cohorts):
        flight.trained = train(batch, drawn, Decided(), flight.chunks)
        flight.measured = measure(batch, drawn, measured, flight.trained)
    return flight


def _finish(
    batch: Batch, flight: RoundInFlight, ahead: dict[tuple[int, Lane], RoundInFlight]
) -> dict[int, Round]:
    """Weigh what is trained and move the models; the lane's next round begins before the end."""
    at, drawn, measured = batch.progress, flight.drawn, flight.measured
    t, chunk = drawn.round + 1, at.chunk
    goes_on = pipelines_rounds(batch) and t < batch.plan.rounds
    following = draw(batch, drawn.runs, t) if goes_on else None  # while the device works
    decided = weigh(batch, drawn, measured, when="before training")
    trained = flight.trained
    if trained is None:
        trained = train(batch, drawn, decided, flight.chunks)
        measured = measure(batch, drawn, measured, trained)
    decided |= weigh(batch, drawn, measured, when="after training")
    stepped = step(batch, drawn, trained, decided)
    live = tuple(r for r in drawn.runs if not at.diverged[r])
    if goes_on and live:
        same = live == tuple(drawn.runs) and at.chunk == chunk
        ahead[t, live] = begin(batch, live, t, following if same else None)
    return rounds_of(batch, drawn, trained, decided, stepped)
