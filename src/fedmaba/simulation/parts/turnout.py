"""Who is there, who is asked, and who answers in time, where that is not everybody who is drawn.

A client that drops out or is late is not trained: its work is lost, so nothing of it is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba import rng
from fedmaba.errors import FedmabaError, InputError
from fedmaba.rows.cuda_graphs import start_fetch
from fedmaba.selection import Present, Selection, Uniform
from fedmaba.simulation.batch import Batch
from fedmaba.simulation.client import Chunk
from fedmaba.simulation.measurements import start_losses
from fedmaba.simulation.part import Drawn, FloatArray, IntArray, Part, Setting
from fedmaba.simulation.parts.kinds import not_held
from fedmaba.simulation.state import Plan, Round, Run
from fedmaba.simulation.vectors import take_rows
from fedmaba.simulation.work import Cohort, Work
from fedmaba.stop import Ended
from fedmaba.turnout.bill import Bill, bill_of
from fedmaba.turnout.plan import Turnout, fastest
from fedmaba.user_code import error_in_user_code

NOT_ASKED, LOST, LATE, HEARD = -1, 0, 1, 2  # what became of a client in a round
LOSS = "turnout.loss"  # what `Work.tell` calls a loss of training that a selection learns from
SILENT_ROUNDS = 10  # in a row, after which a run ends


@dataclass(frozen=True)
class Asked(Drawn):
    """A round of a run before it is played."""

    asked: IntArray  # (a,)       who is asked to train, in client order
    answer: IntArray  # (a,)      what becomes of each
    polled: IntArray  # (d,)      who is asked for a loss first
    down: IntArray  # (a,)        bytes to each
    up: IntArray  # (a,)          bytes of each one's answer, if that is sent
    seconds: FloatArray  # (a,)   until each answers


class TurnoutPart(Part):
    """The runs of a plan that says who takes part."""

    waits = True

    def __init__(self, setting: Setting, runs: frozenset[int]) -> None:
        super().__init__(setting, runs)
        assert setting.plan is not None
        self.plan, self.turnout = setting.plan, setting.plan.turnout or Turnout()
        people = {
            (run.seed, id(run.federation)): self.turnout.of(run.seed, run.federation)
            for run in {(run.seed, id(run.federation)): run for run in setting.runs}.values()
        }
        self.people = [people[run.seed, id(run.federation)] for run in setting.runs]
        self.bills = [self._bill(r) for r in range(len(setting.runs))]
        width = setting.first.element_size()
        self.spared = [width * not_held(setting, r) for r in range(len(setting.runs))]  # (N,) bytes
        for r, run in enumerate(setting.runs):
            self._check(r, run)

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.plan is not None and setting.plan.turnout is not None

    def carries(self, r: int) -> Mapping[str, NDArray[Any]]:
        n = self.setting.runs[r].federation.n_clients
        state = {f"select.{name}": v for name, v in self.turnout.select.init(n).items()}
        counts = {name: np.zeros(n, np.int32) for name in ("asked", "heard")}
        return {**counts, "silent": np.zeros(1, np.int64), "clock": np.zeros(1), **state}

    def absent(self, r: int) -> NDArray[np.bool_] | None:
        return self.people[r].absent

    def draw(self, batch: Batch, r: int, t: int) -> Asked:
        run, people, carried = batch.runs[r], self.people[r], batch.progress.carried[r]
        there, random = people.there(t)
        many = min(self._many(r), len(there))
        size = run.federation.train.size
        seen = Present(
            t, many, run.federation.n_clients, there, size[there], carried["asked"][there], random
        )
        select, state = self.turnout.select, _selection_state(carried)
        polled = _rows(select, "polled", select.polled(seen), len(there), len(there))
        if len(polled):
            seen = replace(seen, loss=self._losses(batch, r, there, polled))
        asked = there[_rows(select, "choose", _asked(select, state, seen), len(there), many)]
        answer, down, up, took = self._become(batch, r, t, asked)
        heard = asked[answer == HEARD]
        key = rng.key(run.seed, "local", t, heard).view(np.int64)
        return Asked(heard, key, asked, answer, there[polled], down, up, took)

    def collect(self, batch: Batch, work: Work, chunk: Chunk) -> None:
        if not self.turnout.select.learns:
            return
        for c in work.cohorts:
            mine = np.flatnonzero(chunk.run == c.r)
            if len(mine):
                value = start_fetch(take_rows(chunk.summary[0], mine))
                work.tell(c, LOSS, chunk.place[mine], value)

    def recorded(self, batch: Batch, work: Work, rounds: dict[int, Round]) -> None:
        """Complete the records of a round with who was asked, and remember it for the next."""
        cohorts = {c.r: c for c in work.cohorts}
        for r, drawn in work.drawn.items():
            assert isinstance(drawn, Asked)
            c, carried = cohorts.get(r), dict(batch.progress.carried[r])
            if c is not None and r not in rounds:
                continue  # it has ended
            loss = self.setting.needs[r].loss != "none"
            nobody, none = np.zeros(0, np.int64), np.zeros(0)
            seen = rounds.get(r, Round(nobody, none, none if loss else None, {}))
            if c is not None and self.turnout.select.learns:
                losses = work.gathered(c, LOSS, batch.ranks)()
                carried |= self._learnt(batch.runs[r], carried, c, losses)
            for name, who in (("asked", drawn.asked), ("heard", drawn.client)):
                carried[name][who] += 1
            carried["silent"] = np.where(len(drawn.client), 0, carried["silent"] + 1)
            carried["clock"] = carried["clock"] + self._lasted(drawn)
            rounds[r] = self._told(r, seen, drawn, float(carried["clock"][0]))
            batch.progress.carried[r] = carried
            if carried["silent"][0] >= SILENT_ROUNDS:
                run = batch.runs[r]
                batch.progress.diverged[r] = (
                    f"{run.strategy.label()}, seed {run.seed}, ended in round {work.round + 1}: "
                    f"nobody answered in {SILENT_ROUNDS} rounds: raise --available or --deadline, "
                    "or lower --dropout"
                )

    # what it takes

    def _many(self, r: int) -> int:
        many = self.people[r].many
        return min(self.plan.participants or many, many)

    def _bill(self, r: int) -> Bill:
        layout, local = self.setting.layout, self.setting.local[r]
        numbers = dict(zip(layout.names, (s.numel() for s in layout.natural), strict=True))
        weights = {name: numbers[name] for name in layout.sent_names()}
        own = layout.shared < layout.size
        width = self.setting.first.element_size()
        secure = self.turnout.sums == "secure"
        needs = self.setting.needs[r]
        return bill_of(weights, local, needs, width=width, own=own, secure=secure)

    def _check(self, r: int, run: Run) -> None:
        """Refuse what no round can do."""
        people, turnout = self.people[r], self.turnout
        if self.plan.privacy is not None:
            raise InputError(
                "dp counts on clients that are drawn alike and all answer: leave out --available, "
                "--select, --dropout, --speed, --bandwidth and --deadline, or --dp"
            )
        if type(turnout.select) is not Uniform and self._many(r) == people.many:
            raise InputError(
                f"select={turnout.select.name}: all clients are asked in each round: lower "
                "--participants, or leave it out"
            )
        local, needs = self.setting.local[r], self.setting.needs[r]
        alone = needs.of_clients or needs.changes != "none" or run.strategy.combine() is not None
        if turnout.sums == "secure" and (local.means or alone):
            raise InputError(
                f"sums=secure: {run.strategy.label()} needs single changes, or more than a change "
                "and a loss, which secure sums do not carry: leave it out, or --sums"
            )
        turnout.select.check(self._many(r), people.chance)
        if not np.nan_to_num(people.chance).any():
            raise InputError("available: nobody is ever there: raise the chance")
        if turnout.deadline is not None:
            size = run.federation.train.size
            examples = _examples(self.plan, self.setting.local[r].full_batch, size)
            bill = self.bills[r]
            each = bill.down + bill.up + sum(bill.later(1))
            least = fastest(people, examples, each - 2 * self.spared[r])
            if turnout.deadline < least:
                raise InputError(
                    f"deadline={turnout.deadline:g}s, but the fastest client of seed {run.seed} "
                    f"needs {least:.3g} s for {run.strategy.label()}: raise it, or --speed"
                )

    def _become(
        self, batch: Batch, r: int, t: int, asked: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
        """What becomes of those who are asked, the bytes to and from them, and their seconds."""
        people, bill, heard = self.people[r], self.bills[r], batch.progress.carried[r]["heard"]
        new = heard[asked] == 0
        spared = self.spared[r][asked]
        down = bill.down - spared + np.where(new & bool(heard.any()), bill.first, 0)
        up = bill.up - spared + np.where(new, 0, bill.again)
        size = batch.runs[r].federation.train.size[asked]
        examples = _examples(batch.plan, batch.local[r].full_batch, size)
        took = people.seconds(asked, examples, down + up + sum(bill.later(len(asked))))
        limit = np.inf if self.turnout.deadline is None else self.turnout.deadline
        answer = np.where(took > limit, LATE, HEARD)
        answer = np.where(people.lost(t, asked), LOST, answer)
        more_down, more_up = bill.later(int((answer == HEARD).sum()))
        down, up = (
            n + np.where(answer == HEARD, m, 0) for n, m in ((down, more_down), (up, more_up))
        )
        return answer, down, np.where(answer == LOST, 0, up), took

    def _losses(self, batch: Batch, r: int, there: IntArray, rows: IntArray) -> FloatArray:
        """(c,) the losses that polled clients say, nan for others."""
        run, out = batch.runs[r], np.full(len(there), np.nan)
        c = Cohort(r, run, batch.needs[r], there[rows], slice(0, 0), -1)
        out[rows] = _said(run, there[rows], start_losses(batch, batch.train, [c])[r]())
        return out

    def _learnt(
        self, run: Run, carried: Mapping[str, NDArray[Any]], c: Cohort, losses: FloatArray
    ) -> dict[str, NDArray[Any]]:
        """What a selection remembers after a round."""
        select, before = self.turnout.select, _selection_state(carried)
        state = select.learn(before, c.client, _said(run, c.client, losses))
        if {k: np.shape(v) for k, v in state.items()} != {k: v.shape for k, v in before.items()}:
            raise InputError(f"{select.name}: learn() gave another state than init()")
        return {f"select.{name}": np.asarray(v, np.float64) for name, v in state.items()}

    def _lasted(self, drawn: Asked) -> float:
        """How long the server waited: for the last answer, or for those that never come."""
        if not len(drawn.asked):
            return self.turnout.deadline or 0.0
        longest = float(drawn.seconds.max())
        if self.turnout.deadline is None:  # then a connection breaks when an answer would come
            return longest
        return self.turnout.deadline if (drawn.answer != HEARD).any() else longest

    def _told(self, r: int, seen: Round, drawn: Asked, clock: float) -> Round:
        """The record of a round: of as many clients in each, with those that were not asked."""
        n, bill, many = self.setting.runs[r].federation.n_clients, self.bills[r], self._many(r)
        width = min(n, max(many, self.turnout.select.poll_size(many)))
        who = _filled(np.union1d(drawn.asked, drawn.polled), width, n)
        asked, heard = np.searchsorted(who, drawn.asked), np.searchsorted(who, seen.client)
        polled = np.searchsorted(who, drawn.polled)
        answer = np.full(width, NOT_ASKED)
        answer[asked] = drawn.answer
        down, up, weight, seconds = np.zeros((4, width))
        down[polled], up[polled] = bill.down - self.spared[r][drawn.polled], bill.poll_up
        down[asked] += drawn.down
        up[asked] += drawn.up
        weight[:], seconds[:] = np.nan, np.nan
        weight[heard], seconds[asked] = seen.weight, drawn.seconds
        loss = None
        if seen.loss is not None:
            loss = np.full(width, np.nan)
            loss[heard] = seen.loss
        more: dict[str, NDArray[Any]] = {"answer": answer.astype(np.int8)}
        more |= {"down": down.astype(np.int64), "up": up.astype(np.int64)}
        if self.people[r].timed:
            more |= {"seconds": seconds, "clock": np.array(clock)}
        columns = {f"turnout.{name}": value for name, value in more.items()}
        return Round(who, weight, loss, seen.info, columns)


def _examples(plan: Plan, full_batch: bool, size: IntArray) -> IntArray:
    """How many training examples clients see in a round."""
    if full_batch:
        return size
    return plan.steps * np.minimum(size, plan.minibatch) if plan.steps else plan.epochs * size


def _selection_state(carried: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    head = "select."
    return {n.removeprefix(head): v for n, v in carried.items() if n.startswith(head)}


def _said(run: Run, client: IntArray, loss: FloatArray) -> FloatArray:
    """The losses that clients say: hostile ones may lie."""
    hostile = run.federation.hostile
    return loss if hostile is None else hostile.reported_losses(client, loss)


def _asked(select: Selection, state: Mapping[str, Any], seen: Present) -> IntArray:
    """Whom a selection chooses; an error in it becomes one line."""
    try:
        return select.choose(dict(state), seen)
    except (FedmabaError, Ended):
        raise
    except Exception as error:  # user code can raise anything
        raise error_in_user_code(f"selection {select.name!r}: choose()", error) from error


def _rows(select: Selection, hook: str, rows: Any, n: int, most: int) -> IntArray:
    """The rows that a selection gave, in order; refused where they are no rows of those there."""
    found = np.asarray(rows)
    whole = found.ndim == 1 and (found.dtype.kind in "iu" or not found.size)
    out: IntArray = np.unique(found.astype(np.int64)) if whole else np.zeros(0, np.int64)
    inside = ((out >= 0) & (out < n)).all()
    if not whole or not inside or not len(out) == len(found) <= most:
        raise InputError(
            f"selection {select.name!r}: {hook}() gave {found!r}: return at most {most} different "
            f"rows of the {n} clients that are there"
        )
    return out


def _filled(who: IntArray, width: int, n: int) -> IntArray:
    """So many clients of n, in order: these, and the first others."""
    if width == n:
        return np.arange(n)
    others = np.setdiff1d(np.arange(len(who) + width), who, assume_unique=True)
    return np.union1d(who, others[others < n][: width - len(who)])
