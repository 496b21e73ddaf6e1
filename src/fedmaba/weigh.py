"""Ask the strategies for weights, with the losses, norms and inner products they want to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmaba import move
from fedmaba.batch import Batch, precision
from fedmaba.cohort import Begun, Cohort, Host, IntArray, diverge
from fedmaba.runs import Progress
from fedmaba.strategy import Replies, weighed
from fedmaba.tape import fetch, send


def start_losses(batch: Batch, cohorts: list[Cohort]) -> Callable[[], None]:
    """Begin to compute each participant's training loss at its run's model; the run is the row.

    What is returned waits for the result and hands it to the cohorts.
    """
    if not cohorts:
        return lambda: None
    runs, parts, ranks = np.array([c.r for c in cohorts]), batch.train, batch.ranks
    first, size = parts.where([(c.r, c.client) for c in cohorts])
    found = np.zeros(first.shape)
    first, size = first[:, ranks.mine], size[:, ranks.mine]
    model = batch.progress.model
    whole = ranks.count == 1
    everyone = whole and all(len(c.client) == c.run.federation.n_clients for c in cohorts)
    width, length = int(size.max(initial=0)), int(size.sum(1).max())

    def work(runs: Tensor, first: Tensor, size: Tensor) -> Tensor:
        offset = torch.arange(width, device=first.device)
        valid = offset < size[..., None]  # (C, m, n_max)
        entry = torch.where(valid, first[..., None] + offset, 0)
        if everyone:  # one set of examples for all runs
            index, place = parts.union, parts.place[entry]
        else:  # each run's own, without padding
            index, place = parts.packed(entry, valid, length)
        losses, _ = batch.evaluate(model[runs], index, scored=False)
        values = losses.gather(1, place.flatten(1)).view(place.shape)
        return torch.where(valid, values.double(), 0.0).sum(2) / valid.sum(2)

    shape = ("losses", model.data_ptr(), everyone, size.shape, width, length)
    nothing = torch.zeros(size.shape)  # a rank without a client
    means = batch.tape(shape, work, runs, first, size) if size.size else nothing
    means_here = fetch(means)

    def hand_out() -> None:
        found[:, ranks.mine] = means_here()
        ranks.sum(torch.from_numpy(found))
        for c, value in zip(cohorts, found, strict=True):
            c.loss = value[: len(c.client)].copy()

    return hand_out


def own_losses(batch: Batch, c: Cohort, place: IntArray, w: Tensor) -> Tensor:
    """The training loss of trained rows, each on its own client's examples."""
    part = c.run.federation.train
    first, size = batch.train.base[c.r] + part.start[c.client[place]], part.size[c.client[place]]
    offset = torch.arange(int(size.max()), device=w.device)
    valid = offset < send(size, w.device)[:, None]
    entry = torch.where(valid, send(first, w.device)[:, None] + offset, 0)
    losses, _ = batch.evaluate(w, batch.train.entries[entry], scored=False)
    return torch.where(valid, losses.double(), 0.0).sum(1) / valid.sum(1)


def ask(at: Progress, c: Cohort, t: int, lr: float, **changes: Any) -> None:
    """Ask the strategy, unless a report says that the run has diverged."""
    if c.loss is not None and not np.isfinite(c.loss).all():
        bad = int(np.flatnonzero(~np.isfinite(c.loss))[0])
        diverge(at, c, t, f"the training loss of client {c.client[bad]} is {c.loss[bad]}")
        return
    fed = c.run.federation
    if c.loss is not None and fed.hostile is not None:
        c.loss = fed.hostile.said(c.client, c.loss)
    size = fed.train.size[c.client]
    replies = Replies(t, lr, fed.n_clients, c.client, size, c.loss, **changes)
    decision = weighed(c.run.strategy, at.states[c.r], replies)
    if np.isfinite(decision.coef).all():
        c.decision = decision
    else:
        diverge(at, c, t, "the strategy gave a weight that is not finite")


def ask_late(batch: Batch, begun: Begun, t: int) -> None:
    """Ask the strategies that want to see norms, inner products or losses after training.

    What they decide is added up at once, before their changes are overwritten.
    """
    at, ranks = batch.progress, batch.ranks
    late = [(c, c.change) for c in begun.cohorts if c.change is not None]
    if late:
        ranks.sum(begun.kept)
    asked = looks(at, begun) if begun.looks is None else begun.looks
    for c, place, value in begun.met:
        if c.loss is not None:
            c.loss[place] = value()
    for (c, change), found in zip(late, asked, strict=True):
        kept = at.kept[c.r]
        if c.loss is not None and c.needs.loss in ("mean", "end"):
            ranks.sum(torch.from_numpy(c.loss))
        seen = {name: value() for name, value in found.items()}
        if not all(np.isfinite(v).all() for v in seen.values()):
            largest = int(change.abs().nan_to_num(torch.inf).amax(1).argmax())
            diverge(at, c, t, f"the model change of client {c.client[largest]} is not finite")
            continue
        if "gram" in seen:
            seen["gram"] = (seen["gram"] + seen["gram"].T) / 2
            seen |= {"past_client": kept.client, "past_round": kept.round}
        ask(at, c, t, begun.lr, **seen)
        if c.decision is None:
            continue
        if not ranks.rank:  # each rank has the whole sum
            begun.delta[c.r] = move.combined(c.decision.coef, change, kept.change)
        if c.needs.keep_rounds:
            both = move.kept(kept, c, change, t)
            for r in c.same:
                at.kept[r] = both


def looks(at: Progress, begun: Begun) -> list[dict[str, Host]]:
    """Ask for what strategies want to know of changes: for all, before the host waits for one."""
    late = [(c, c.change) for c in begun.cohorts if c.change is not None]
    if not late:
        return []
    with precision("float32"):
        return [_look(c, change, at.kept[c.r].change) for c, change in late]


def _look(c: Cohort, change: Tensor, kept: Tensor) -> dict[str, Host]:
    """What a strategy asks of a cohort's changes and of those kept from rounds before."""
    if c.needs.changes == "norms":
        norms = torch.linalg.vector_norm(change, dim=1, dtype=torch.float64)
        return {"norms": fetch(norms.square())}
    if c.needs.changes == "gram":
        gram = _products(change, change)
        if len(kept):
            across = _products(change, kept)
            below = torch.cat([across.T, _products(kept, kept)], 1)
            gram = torch.cat([torch.cat([gram, across], 1), below])
        return {"gram": fetch(gram.double())}
    return {}


def _products(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T, (m, P) with (n, P), as a sum over pieces of their length.

    That rounds less, and few long rows keep all of a GPU at work.
    """
    piece = max(2048, 4 * len(b))
    many = a.shape[1] // piece
    each, other = (v[:, : many * piece].view(len(v), many, piece) for v in (a, b))
    rest = a[:, many * piece :] @ b[:, many * piece :].T
    return rest + torch.bmm(each.transpose(0, 1), other.permute(1, 2, 0)).sum(0)
