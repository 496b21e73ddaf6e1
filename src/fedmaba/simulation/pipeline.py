"""When the parts of a round are started: the only module that waits or overlaps work.

On a CPU a round is played in order. A GPU works while the host (the Python process) goes on. There
the host starts the losses and the training of a round before it waits for either, and it starts the
next round before it waits for the end of the last.

Live runs are sorted into at most three lanes. A lane is runs whose rounds are played together. One
lane has the runs whose strategies can weigh before training ends, another those that need the
results of training. So the GPU trains one lane while the host computes the weights of the other.
Runs whose training needs what strategies say are the third; it is played in order, as on a CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from torch import Tensor

from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk
from fedmaba.simulation.local_training import train_chunk as train_rows
from fedmaba.simulation.round import (
    measure,
    play_round,
    rounds_of,
    step,
    train,
    train_chunks,
    weigh,
)
from fedmaba.simulation.state import Round
from fedmaba.simulation.work import Work, chunk_of, draw, out_of_memory

Lane = tuple[int, ...]  # runs whose rounds are played together


@dataclass
class RoundInFlight:
    """A lane's round that has begun: its losses and its training have been started."""

    work: Work
    chunks: Iterator[Chunk]  #  those not yet collected
    trained: bool = False  #    whether all of the training could be started


@dataclass(frozen=True)
class BegunEarly:
    """Rounds that were started ahead of time, by round and lane."""

    model_version: object  # of the models that they started from
    lanes: dict[tuple[int, Lane], RoundInFlight]


def play(batch: Batch, t: int, early: BegunEarly | None) -> tuple[list[Round | None], BegunEarly]:
    """Play round t of all live runs; return its records and what was started of the next round."""
    at = batch.progress
    begun = early.lanes if early and early.model_version == tensor_version(at.model) else {}
    ahead: dict[tuple[int, Lane], RoundInFlight] = {}
    done: dict[int, Round] = {}
    for lane in lanes(batch):
        if batch.graphs.on and not _guided(batch, lane):
            flight = begun.pop((t, lane), None) or begin_round(batch, lane, t)
            done |= _finish(batch, flight, ahead)
        else:
            done |= play_round(batch, list(lane), t)
    at.chunk = batch.ranks.least(at.chunk)
    out = [done.get(r) for r in range(len(batch.runs))]
    return out, BegunEarly(tensor_version(at.model), ahead)


def compile_kernels(batch: Batch) -> None:
    """Compile the kernels of a round and of an evaluation before they are first needed."""
    at, once = batch.progress, GraphCache(batch.pool.y.device, recordable=False)

    def train_once() -> None:
        for lane in lanes(batch):
            work = draw(batch, list(lane), at.round)
            for rows in work.chunks:
                chunk = chunk_of(batch.trainer, work, rows, at.model)
                for part in batch.parts:
                    part.prepare(batch.trainer, chunk)
                train_rows(batch.rows, batch.pool, at.model, chunk.job, once)
        batch.evaluate(at.model, batch.test.union, scored=batch.metric is None)

    try:
        batch.rows.compile(at.model, train_once)
    except RuntimeError as error:
        if not out_of_memory(error):  # the round itself needs less memory
            raise


def tensor_version(model: Tensor) -> object:
    """A value that changes whenever somebody changes the model."""
    return id(model), model._version


def pipelines_rounds(batch: Batch) -> bool:
    """Whether rounds overlap: on a GPU, which works while the host goes on, with one rank only.

    They do not where a round must end before it is known who takes part in the next.
    """
    alone = batch.graphs.on and batch.ranks.count == 1
    return alone and not any(part.waits for part in batch.parts)


def _guided(batch: Batch, runs: Iterable[int]) -> bool:
    """Whether no training of these runs can be started before strategies are asked."""
    return any(part.guides and not part.runs.isdisjoint(runs) for part in batch.parts)


def lanes(batch: Batch) -> list[Lane]:
    """The lanes of the live runs; one lane has all of them where rounds do not overlap."""
    alive = [r for r, why in enumerate(batch.progress.diverged) if not why]
    overlap = pipelines_rounds(batch)
    guided = [r for r in alive if overlap and _guided(batch, [r])]
    late = [r for r in alive if overlap and not batch.early[r]]
    early = [r for r in alive if r not in (*late, *guided)]
    return [_in_turn(batch, lane) for lane in (early, late, guided) if lane]


def _in_turn(batch: Batch, runs: list[int]) -> Lane:
    """One run of each seed, then another of each, so that rows that share inputs make blocks."""
    before: Counter[tuple[int, int]] = Counter()
    turn = {}
    for r in runs:
        alike = batch.runs[r].seed, id(batch.runs[r].federation)
        turn[r] = before[alike]
        before[alike] += 1
    return tuple(sorted(runs, key=turn.__getitem__))


def begin_round(batch: Batch, lane: Lane, t: int, work: Work | None = None) -> RoundInFlight:
    """Start a lane's losses and the first chunk of its training, without waiting for either."""
    work = work or draw(batch, list(lane), t)
    measure(batch, work, "before training")
    chunks = train_chunks(batch, work)
    flight = RoundInFlight(work, chain(list(islice(chunks, 1)), chunks))
    if pipelines_rounds(batch) and len(work.late) == len(work.cohorts):
        _train(batch, flight)
    return flight


def _train(batch: Batch, flight: RoundInFlight) -> None:
    """Do the rest of a round's training, and start what strategies need to know of it."""
    train(batch, flight.work, flight.chunks)
    measure(batch, flight.work, "after training")
    flight.trained = True


def _finish(
    batch: Batch, flight: RoundInFlight, ahead: dict[tuple[int, Lane], RoundInFlight]
) -> dict[int, Round]:
    """Weigh what is trained, move the models, and start the lane's next round before waiting."""
    at, work = batch.progress, flight.work
    t, chunk = work.round + 1, at.chunk
    goes_on = pipelines_rounds(batch) and t < batch.plan.rounds
    following = draw(batch, work.runs, t) if goes_on else None  # while the device works
    weigh(batch, work, "before training")
    if not flight.trained:
        _train(batch, flight)
    weigh(batch, work, "after training")
    step(batch, work)
    live = tuple(r for r in work.runs if not at.diverged[r])
    if goes_on and live:
        same = live == tuple(work.runs) and at.chunk == chunk
        ahead[t, live] = begin_round(batch, live, t, following if same else None)
    return rounds_of(batch, work)
