"""Norms and inner products of clients' changes, past ones among them, where strategies ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmaba.rows.cuda_graphs import send, start_fetch
from fedmaba.simulation import server_step
from fedmaba.simulation.batch import Batch, precision
from fedmaba.simulation.memory import PastChanges
from fedmaba.simulation.part import FloatArray, Host, Moment, Part, Setting
from fedmaba.simulation.work import Cohort, Work
from fedmaba.strategies.base import Needs, still_kept


class ChangeProducts(Part):
    """The runs whose strategies ask."""

    @classmethod
    def has(cls, setting: Setting, r: int) -> bool:
        return setting.needs[r].changes != "none"

    def numbers(self, batch: Batch, work: Work, moment: Moment) -> Mapping[int, Mapping[str, Host]]:
        if moment == "before training":
            return {}
        found, sent = {}, slice(batch.rows.layout.compared)  # statistics are no direction
        for c in (c for c in work.late if c.r in self.runs):
            past = batch.progress.memory.changes[c.r].change
            found[c.r] = _products_of(c.needs, work.change(c)[:, sent], past[:, sent], batch.layers)
        return found

    def report(self, batch: Batch, work: Work, c: Cohort, seen: dict[str, Any]) -> None:
        past = batch.progress.memory.changes[c.r]
        if seen.keys() & {"gram", "layer_grams"}:
            seen |= {"past_client": past.client, "past_round": past.round}

    def add(self, batch: Batch, work: Work, c: Cohort, delta: Tensor) -> None:
        """Add the weighted changes of past rounds, and keep this round's for those to come."""
        if not (c.needs.keep_rounds or c.needs.last_step) or c.r not in work.decision:
            return
        if (past := weighted_past(batch, c, work.decision[c.r].coef)) is not None:
            delta += past
        change, memory = work.change(c), batch.progress.memory
        if c.needs.last_step:
            change, c = delta[None].clone(), replace(c, client=np.array([-1]))
        change[:, batch.rows.layout.compared :] = 0  # statistics do not come again
        memory.changes[c.r] = _kept_on(memory.changes[c.r], c, change, work.round)


def weighted_past(batch: Batch, c: Cohort, coef: FloatArray) -> Tensor | None:
    """(P,) The weighted changes of past rounds; None where none has a coefficient."""
    past = batch.progress.memory.changes[c.r]
    if not len(past.client) or coef.shape[-1] == len(c.client):
        return None
    return server_step.weighted(coef[..., len(c.client) :], past.change, batch.layers)


def _kept_on(before: PastChanges, c: Cohort, change: Tensor, t: int) -> PastChanges:
    """The changes that a cohort's strategy needs again after round t."""
    old = still_kept((before.client, before.round), c.client, t, c.needs.keep_rounds)
    return PastChanges(
        torch.cat([before.change[send(np.flatnonzero(old), change.device)], change]),
        np.concatenate([before.client[old], c.client]),
        np.concatenate([before.round[old], np.full(len(c.client), t)]),
    )


def _products_of(
    needs: Needs, change: Tensor, past: Tensor, layers: list[slice]
) -> dict[str, Host]:
    """The norms or inner products of a cohort's changes (m, P) and of those from past rounds."""
    with precision("float32"):
        if needs.changes == "norms":
            norms = torch.linalg.vector_norm(change, dim=1, dtype=torch.float64)
            return {"norms": start_fetch(norms.square())}
        if needs.changes == "gram":
            return {"gram": start_fetch(_gram(change, past).double())}
        grams = [_gram(change[:, part], past[:, part]) for part in layers]
        return {"layer_grams": start_fetch(torch.stack(grams).double())}


def _gram(change: Tensor, past: Tensor) -> Tensor:
    """(m+h, m+h) The inner products of changes (m, P) and of those from past rounds (h, P)."""
    gram = _products(change, change)
    if not len(past):
        return gram
    across = _products(change, past)
    below = torch.cat([across.T, _products(past, past)], 1)
    return torch.cat([torch.cat([gram, across], 1), below])


def _products(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T of (m, P) and (n, P), summed over pieces of their length.

    This rounds less than one long sum, and it uses all of a GPU even for few rows.
    """
    piece = max(2048, 4 * len(b))
    many = a.shape[1] // piece
    each, other = (v[:, : many * piece].view(len(v), many, piece) for v in (a, b))
    rest = a[:, many * piece :] @ b[:, many * piece :].T
    return rest + torch.bmm(each.transpose(0, 1), other.permute(1, 2, 0)).sum(0)
