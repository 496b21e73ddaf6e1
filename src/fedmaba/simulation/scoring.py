"""How every live run's models serve every client, and which rounds' models are remembered."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.data import groups
from fedmaba.simulation.batch import Batch, RunParts
from fedmaba.simulation.client_scores import client_scores, whole_models
from fedmaba.simulation.fine_tuning import fine_tuned
from fedmaba.simulation.group_counts import group_counts
from fedmaba.simulation.measurements import client_means, server_models
from fedmaba.simulation.part import FloatArray, IntArray, ModelsOf
from fedmaba.simulation.state import Candidates, Evaluation, Scores
from fedmaba.simulation.vectors import put_rows
from fedmaba.strategies import deployed as average

BoolArray = NDArray[np.bool_]


def evaluate_models(batch: Batch) -> list[Evaluation | None]:
    """Every live run's models on every client; remembers the best rounds' models."""
    at = batch.progress
    alive = [r for r, why in enumerate(at.diverged) if not why]
    handed_out = [d for d, r in enumerate(at.owner) if not at.diverged[r]]
    alone = [r for r in alive if any(part.only_own_models(r) for part in batch.parts_of(r))]
    averaged = [
        d for d in handed_out if batch.handed_out[d][1] != "last" and at.owner[d] not in alone
    ]
    found: dict[int, Evaluation] = {d: {} for d in handed_out}
    tested, held = (
        _scores(batch, parts, at.model, {r: r for r in alive})
        for parts in (batch.test, batch.validation)
    )
    for r in alone:  # whose clients have no other models than their own
        mine = _models_of_clients(batch, r)
        assert mine is not None
        tested |= _personal_scores(batch, batch.test, r, mine)
        held |= _personal_scores(batch, batch.validation, r, mine)
    for d in handed_out:
        if d in at.picks:
            _pick(batch, d, _accuracy(batch, int(at.owner[d]), held))
    for parts, last, suffix in ((batch.test, tested, ""), (batch.validation, held, "_validation")):
        deployed = _scores(batch, parts, at.deployed, {d: int(at.owner[d]) for d in averaged})
        for d, mine in _personal_models(batch, handed_out).items():
            r = int(at.owner[d])
            if r in (served := _personal_scores(batch, parts, r, mine)):
                found[d]["personal" + suffix] = served[r]
        for d in handed_out:
            r = int(at.owner[d])
            if r in last:
                found[d] |= {
                    "last" + suffix: last[r],
                    "deployed" + suffix: deployed.get(d, last[r]),
                }
    judged = tested | held  # on validation examples, where there are such
    for r in alive:
        scores = _accuracy(batch, r, judged)
        score = np.nan if np.isnan(scores).all() else float(np.nanmean(scores))
        score = -score if batch.lower_is_better else score
        if score > at.best_score[r]:
            at.best_score[r], at.best_round[r] = score, at.round - 1
            at.best[r] = at.model[r]
    return [found.get(d) for d in range(len(at.owner))]


def _personal_models(batch: Batch, handed_out: list[int]) -> dict[int, ModelsOf]:
    """The clients' own models, by deployed model: kept ones, or the deployed one fine-tuned."""
    out: dict[int, ModelsOf] = {}
    for d in handed_out:
        if (kept := _models_of_clients(batch, int(batch.progress.owner[d]))) is not None:
            out[d] = partial(_kept_or_deployed, batch, d, kept)
        elif batch.plan.finetune:
            out[d] = partial(fine_tuned, batch, d)
    return out


def _absent(batch: Batch, r: int) -> BoolArray | None:
    """(N,) which clients of a run take no part in it; None: all may."""
    found = (part.absent(r) for part in batch.parts_of(r))
    return next((absent for absent in found if absent is not None), None)


def _accuracy(batch: Batch, r: int, scores: dict[int, Scores]) -> FloatArray:
    """(N,) by which rounds are picked: nan for clients that take no part."""
    absent, found = _absent(batch, r), scores[r].accuracy
    return found if absent is None else np.where(absent, np.nan, found)


def _kept_or_deployed(batch: Batch, d: int, kept: ModelsOf, client: IntArray) -> Tensor:
    """(n, P) The clients' own models; a client that takes no part uses deployed model d."""
    r, at = int(batch.progress.owner[d]), batch.progress
    absent = _absent(batch, r)
    if absent is None or not absent[client].any():
        return kept(client)
    models, some = kept(client).clone(), np.flatnonzero(absent[client])
    put_rows(models, some, server_models(batch.trainer, r, at.deployed[d], client[some]))
    return models


def _models_of_clients(batch: Batch, r: int) -> ModelsOf | None:
    """The models of their own that clients of a run keep, if they do."""
    found = (part.models_of_clients(batch.trainer, r) for part in batch.parts_of(r))
    return next((models for models in found if models is not None), None)


def _personal_scores(batch: Batch, parts: RunParts, r: int, own: ModelsOf) -> dict[int, Scores]:
    """How the clients' own models serve them, by run; {} where there are no such examples."""
    if not len(parts.parts[r].index):
        return {}
    scores = _scores_apart(batch, parts, r, own)
    return {r: _with_groups(batch, parts, r, own, scores, shared=False)}


def _scores_apart(batch: Batch, parts: RunParts, r: int, models: ModelsOf) -> Scores:
    """Loss and score of each client, where each has a model of its own."""
    if batch.client_metric is not None:
        return client_scores(batch, parts, r, models, shared=False)
    everyone = np.arange(batch.runs[r].federation.n_clients)
    found = client_means(batch, parts, r, models, everyone, scored=True)
    return Scores(*(value.cpu().numpy() for value in found))


def _pick(batch: Batch, d: int, held: FloatArray) -> None:
    """Deploy the best model so far by the rule of d; keep those that may yet be the best."""
    at, rule = batch.progress, batch.handed_out[d][1]
    r, known = int(at.owner[d]), at.picks[d]
    mean = -np.nanmean(held) if batch.lower_is_better else np.nanmean(held)
    accuracy = np.append(known.accuracy, mean)
    variance = np.append(known.variance, np.nanvar(held))
    round_ = np.append(known.round, at.round - 1)
    models = torch.cat([known.model, at.model[r : r + 1]])
    at.deployed[d] = models[average.pick_round(rule, accuracy, variance)]
    keep = average.can_still_win(rule, accuracy, variance)
    at.picks[d] = Candidates(models[keep.tolist()], accuracy[keep], variance[keep], round_[keep])


def _scores(
    batch: Batch, parts: RunParts, flat: Tensor, whose: dict[int, int]
) -> dict[int, Scores]:
    """Loss and score of each client under some models; `whose` maps rows of `flat` to runs."""
    whose = {row: r for row, r in whose.items() if len(parts.parts[r].index)}
    if not whose:
        return {}
    found = _client_scores(batch, parts, flat, whose)
    models = {row: partial(server_models, batch.trainer, r, flat[row]) for row, r in whose.items()}
    shared = whole_models(batch)
    return {
        row: _with_groups(batch, parts, whose[row], models[row], scores, shared=shared)
        for row, scores in found.items()
    }


def _with_groups(
    batch: Batch, parts: RunParts, r: int, models: ModelsOf, scores: Scores, *, shared: bool
) -> Scores:
    """The scores with counts by groups of people, where the data have groups to be judged by."""
    if not batch.judges_groups or not groups.known(batch.runs[r].federation, parts.parts[r]):
        return scores
    counts = group_counts(batch, parts, r, models, shared=shared)
    return dataclasses.replace(scores, groups=counts)


def _client_scores(
    batch: Batch, parts: RunParts, flat: Tensor, whose: dict[int, int]
) -> dict[int, Scores]:
    """Loss and score of each client, by the quickest way."""
    if batch.client_metric is not None and whole_models(batch):
        return {
            row: client_scores(
                batch, parts, r, partial(server_models, batch.trainer, r, flat[row]), shared=True
            )
            for row, r in whose.items()
        }
    if not whole_models(batch):
        return {
            row: _scores_apart(batch, parts, r, partial(server_models, batch.trainer, r, flat[row]))
            for row, r in whose.items()
        }
    mine, found = batch.ranks.mine, flat.new_zeros(2, len(whose), len(parts.union))
    found[..., mine] = torch.stack(batch.evaluate(flat[list(whose)], parts.union[mine]))
    batch.ranks.sum(found)
    out = {}
    values = (v.double().cpu().numpy() for v in found)
    for (row, r), loss, score in zip(whose.items(), *values, strict=True):
        part = parts.parts[r]
        place = parts.host_place[parts.base[r] : parts.base[r] + len(part.index)]
        out[row] = Scores(part.means(loss[place]), part.means(score[place]))
    return out
