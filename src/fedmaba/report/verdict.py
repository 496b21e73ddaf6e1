"""Verdicts on run folders: one for each set of folders on the same data.

The reference is FedAvg. A row of clients that train alone has no model to hand out; it takes part
only where every client is scored under a model of its own. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedmaba.report.current_figures import CurrentFigures
from fedmaba.report.data import Source, short_names
from fedmaba.report.row_styles import keeps_layers, shares_no_model
from fedmaba.report.verdict_clients import ClientScores, client_scores
from fedmaba.report.verdict_words import Verdict, judge, no_model, own_layers
from fedmaba.results.run_history import At, Model, RunHistory


def verdicts_of(scores: CurrentFigures, model: Model, at: At) -> list[Verdict]:
    """One for each set of folders on the same data."""
    found, groups = scores.values(model, at), _groups(scores.sources)
    names = short_names(scores.sources)
    out = []
    for group in groups:
        runs = [r for r, i in enumerate(scores.owner) if i in group]
        own = {run.label: found.get(run.label, {}) for run in _runs(scores, runs)}
        alone = [label for label in own if model != "personal" and shares_no_model(label)]
        shared = {label: f for label, f in own.items() if label not in alone}
        if any(shared.values()):
            own = shared
        else:  # nothing else to speak of
            alone = []
        said = judge(own, scores.share, scores.unit, _clients(scores, runs, model, at))
        if alone:
            said.remarks.append(no_model(alone))
        kept = [label for label in own if keeps_layers(label)]
        all_keep = any("\nown_layers = " in scores.sources[i].experiment for i in group)
        if 0 < len(kept) < len(own) and not all_keep:
            said.remarks.append(own_layers(kept))
        said.where = ", ".join(names[i] for i in group) if len(groups) > 1 else ""
        going = [scores.progress[i] for i in group if not scores.sources[i].finished]
        if going and any(own.values()):
            said.so_far = "so far, " + ", ".join(dict.fromkeys(p.words for p in going))
        out.append(said)
    return out


def _runs(scores: CurrentFigures, which: Sequence[int]) -> list[RunHistory]:
    return [scores.history.runs[r] for r in which]


def _clients(
    scores: CurrentFigures, which: Sequence[int], model: Model, at: At
) -> ClientScores | None:
    """Clients one by one; None of a run in progress, whose newest lines do not tell of them."""
    if not scores.current:
        return None
    owners = [scores.sources[scores.owner[r]] for r in which]
    return client_scores(owners, _runs(scores, which), scores.unit, model, at)


def verdicts_of_sources(sources: Sequence[Source], share: float | None = None) -> list[Verdict]:
    """On the deployed model at the last round."""
    return verdicts_of(CurrentFigures(sources, share), "deployed", "last")


def _groups(sources: Sequence[Source]) -> list[list[int]]:
    """Which sources have the same data and the same partition."""
    groups: dict[object, list[int]] = {}
    for i, source in enumerate(sources):
        same = (source.data.get("sha256"), str(source.about.get("partition")))
        groups.setdefault(same if all(same) else i, []).append(i)
    return [*groups.values()]
