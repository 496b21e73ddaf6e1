"""What a session says when it begins: its model, task, groups, what clients keep. No numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmaba.data import datasets, groups
from fedmaba.errors import InputError
from fedmaba.privacy import mechanism
from fedmaba.results import client_metrics
from fedmaba.results.metrics import ACCURACY, Metric
from fedmaba.simulation import engine
from fedmaba.simulation.client_scores import ClientMetricFn
from fedmaba.simulation.evaluation import MetricFn
from fedmaba.simulation.parts.privacy import mechanisms_of


def notes(
    batch: engine.Batch,
    task: str,
    undefined: Sequence[str],
    attack: str | None,
    code: str,
) -> list[str]:
    """The lines of a session, in the order in which people read them."""
    lines = [*_model_notes(batch.rows.path), task, *undefined]
    lines += [*_group_notes(batch), *_kind_notes(batch), *_local_notes(batch)]
    if private := mechanisms_of(batch):
        lines.append(mechanism.note(private))
    if batch.ranks.count > 1:
        lines.append(f"ranks: {batch.ranks.count}")
    if (lies := batch.runs[0].federation.hostile) is not None:
        lines.append(
            f"hostile: {lies.who.sum()} of {len(lies.who)} clients ({attack}); figures are of the "
            "others"
        )
    if (turnout := batch.plan.turnout) is not None:
        first = batch.runs[0]
        absent = turnout.absent(first.seed, first.federation.n_clients)
        if absent is not None:
            lines.append(
                f"unseen: {absent.sum():,} of {len(absent):,} clients take no part; figures are of "
                "the others, and theirs stand beside them"
            )
    if code:
        lines.append(code)
    if frozen := frozen_weights(batch):
        lines.append(f"frozen: {frozen:,} weights, held once for all clients")
    return lines


def frozen_weights(batch: engine.Batch) -> int:
    """How many weights of the model no client trains."""
    return sum(p.numel() for p in batch.rows.model.parameters() if not p.requires_grad)


def warnings(batch: engine.Batch, *, with_data: bool) -> list[str]:
    """Doubts about the data, unless they were shown before, and about strategies."""
    doubts = batch.runs[0].federation.data.doubts if with_data else ()
    return [f"warning: {doubt}" for doubt in (*doubts, *_strategy_doubts(batch))]


def _model_notes(path: str) -> list[str]:
    """How the model is computed; without a row form, what that costs and what to do."""
    advice = (
        "model: steps take longer than with a row form, and the numbers are the same: "
        "docs/models.md lists the layers that have one"
    )
    return [f"model: {path}", *([advice] if "no row form" in path else [])]


def _local_notes(batch: engine.Batch) -> list[str]:
    """Which layers stay with clients, and what an objective that sees other models costs."""
    notes = []
    if batch.local[0].own_layers:
        kept = batch.rows.layout.kept_names()
        some = ", ".join(kept[:4]) + ", ..." * (len(kept) > 4)
        notes.append(f"own layers: {some} stay with clients, who are judged with their own")
    for run, local in zip(batch.runs, batch.local, strict=True):
        if local.objective is not None and (many := len(local.objective.sees)):
            what = "another model" if many == 1 else f"{many} other models"
            notes.append(f"{run.strategy.label()}: each local step also reads {what}")
    return list(dict.fromkeys(notes))


def _strategy_doubts(batch: engine.Batch) -> list[str]:
    """What hyper-parameters do not do among the clients that there are."""
    told = []
    for run in batch.runs:
        n = run.federation.n_clients
        doubts = run.strategy.doubts(n, min(n, batch.plan.participants or n))
        told += [f"{run.strategy.label()}: {doubt}" for doubt in doubts]
    return list(dict.fromkeys(told))


def _group_notes(batch: engine.Batch) -> list[str]:
    """Which groups are judged, or why they are not."""
    found = groups.judged(batch.runs[0].federation)
    if found.yes and not batch.judges_groups:
        return ["groups: they are not judged: your loss and metric say what outputs mean"]
    return [found.note] if found.note else []


def _kind_notes(batch: engine.Batch) -> list[str]:
    """How many clients are of each kind, where they hold different parts of the model."""
    fed = batch.runs[0].federation
    if fed.kinds is None:
        return []
    many = np.bincount(fed.kinds.of, minlength=len(fed.kinds.names))
    shown = ", ".join(f"{name} {n:,}" for name, n in zip(fed.kinds.names, many, strict=True))
    people = "" if fed.data.group is None else "; groups are those that the data name"
    return [f"clients: {shown}{people}"]


def undefined(metric: ClientMetricFn, runs: Sequence[engine.Run]) -> list[str]:
    """Say how many clients have no score of this metric; refuse where that is all of them."""
    if not isinstance(metric, client_metrics.ClientMetric) or not metric.partial:
        return []
    notes: list[str] = []
    for fed in {id(run.federation): run.federation for run in runs}.values():
        for what, part in (("test", fed.test), ("validation", fed.validation)):
            some = np.flatnonzero(part.size)
            none = sum(metric.undefined(fed.data.y[part.of(int(c))]) for c in some)
            if none == len(some) > 0:
                raise InputError(
                    f"metric={metric.name!r} is undefined for every client, since the {what} "
                    "examples of each are all of one class or value: choose another --metric or "
                    "--partition"
                )
            if none and what == "test" and not notes:
                notes.append(
                    f"metric: {metric.title} is undefined for {none} of {len(some)} clients, whose "
                    f"test examples are all of one class or value: figures are of the others"
                )
    return notes


def task_note(data: datasets.Dataset, metric: Metric, own: MetricFn | ClientMetricFn | None) -> str:
    """The line that says what is predicted, who said so, and how it is judged."""
    said = "" if data.task_given or data.task == "classify" else " (by the shape and type of y)"
    way = "lower" if metric.lower else "higher"
    judged = "" if metric == ACCURACY else f"; {metric.name}, {way} is better"
    if own is not None and metric != ACCURACY and not metric.lower:
        judged += " (if lower is, set lower_is_better = True on your metric)"
    return f"task: {data.task}{said}: {data.target.in_words()}{judged}"
